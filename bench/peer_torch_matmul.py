# SPDX-License-Identifier: Apache-2.0
"""The part of peer_torch.py for matmul: Tessera's products and torch's."""
from peer_library import Contest, Refusal

ACTIVATIONS = ("none", "gelu", "gelu_tanh", "silu", "relu", "relu2", "swiglu_clamped")  # in the order of tsr_activation
MATHS = ("default", "split", "tf32")  # in the order of tsr_matmul_math


def matmul_operands(job):
    job.require(accumulate=False, fp8="none")
    a, b = job["a"], job["b"]
    options = {name: int(job.params[name]) for name in ("transpose_a", "transpose_b")}
    return a.mT if options["transpose_a"] else a, b.mT if options["transpose_b"] else b, options


def matmul_fp8(job):
    """Uses cuBLASLt, which needs a and b contiguous along k and block scales contiguous along m."""
    job.require(activation="none", accumulate=False, alpha=1.0, batch=1, transpose_a=False, transpose_b=True)
    job.without("b_up", "bias", "residual")
    torch, one = job.torch, job.torch.ones((), device=job.device)
    of_a, of_b = (job[name] if job[name] is not None else one for name in ("a_scale", "b_scale"))
    if job.params["block_scales"]:
        of_a, of_b = of_a.mT.contiguous().mT, of_b.mT
    is_fast = bool(job.params["fast_accumulate"])

    def scaled_mm():
        return (torch._scaled_mm(job["a"], job["b"].mT, scale_a=of_a, scale_b=of_b, out_dtype=job["c"].dtype,
                                 use_fast_accum=is_fast),)
    ours = job.ours(alpha=1, has_alpha=1, transpose_b=1, fast_accumulate=int(is_fast))
    return Contest(ours, "c", [("scaled_mm", scaled_mm)])


def activation_of(job):
    """torch's function for the activation, in place if possible; None without an activation."""
    F = job.torch.nn.functional

    def clamped(x):
        x = x.clamp_(max=7)
        return x.mul_((1.702 * x).sigmoid_())
    return {"none": None, "gelu": job.torch.ops.aten.gelu_,
            "gelu_tanh": lambda x: job.torch.ops.aten.gelu_(x, approximate="tanh"),
            "silu": lambda x: F.silu(x, inplace=True),
            "relu": lambda x: F.relu(x, inplace=True), "relu2": lambda x: F.relu(x, inplace=True).square_(),
            "swiglu_clamped": clamped}[job.params["activation"]]


def epilogue_paths(job, a, b):
    """Products with an epilogue: as separate kernels, which torch.compile may fuse; for a gate as one product with both matrices,
    concatenated beforehand; and the epilogues that cuBLASLt computes in the same call."""
    torch, activate, residual = job.torch, activation_of(job), job["residual"]
    bias = job["bias"].to(a.dtype) if job["bias"] is not None else None
    is_flat = a.dim() == 2
    up = job["b_up"]
    if up is not None and job.params["transpose_b"]:
        up = up.mT
    both = torch.cat([b, up], -1) if up is not None else None

    def product():
        if bias is not None and is_flat:
            return torch.addmm(bias, a, b)
        y = torch.matmul(a, b)
        return y if bias is None else y.add_(bias)

    def finish(y, gate):
        y = y if activate is None else activate(y)
        gate = gate if job["bias_up"] is None else gate + job["bias_up"].to(gate.dtype)
        if job.params["activation"] == "swiglu_clamped":
            gate = gate.clamp(-7, 7).add_(1)
        y = y if gate is None else y.mul_(gate)
        return (y if residual is None else y.add_(residual),)

    def kernels():
        return finish(product(), None if up is None else torch.matmul(a, up))
    yield "product, then the rest", kernels

    if both is not None:
        n = b.shape[-1]

        def one_product():
            y = torch.matmul(a, both)
            first = y[..., :n] if bias is None else y[..., :n] + bias
            return finish(first.contiguous(), y[..., n:])
        yield "one product of both, then the rest", one_product
    elif is_flat and bias is not None and residual is None and job.params["activation"] in ("relu", "gelu_tanh"):
        is_gelu = job.params["activation"] == "gelu_tanh"
        yield "addmm_activation", lambda: (torch._addmm_activation(bias, a, b, use_gelu=is_gelu),)
    elif is_flat and bias is None and residual is not None and activate is None:
        c = torch.empty_like(job["c"])
        yield "addmm out=", lambda: (torch.addmm(residual, a, b, out=c),)


def matmul_forward(job):
    if job.params.get("fp8", "none") != "none":
        return matmul_fp8(job)
    job.require(alpha=1.0)
    torch, (a, b, options) = job.torch, matmul_operands(job)
    options["math"] = MATHS.index(job.params.get("math", MATHS[0]))
    ours = job.ours(alpha=1, has_alpha=1, activation=ACTIVATIONS.index(job.params["activation"]), **options)
    if job.params["activation"] != "none" or any(job[name] is not None for name in ("b_up", "bias", "residual")):
        return Contest(ours, "c", epilogue_paths(job, a, b))
    c = torch.empty_like(job["c"])
    return Contest(ours, "c", [("matmul out=", lambda: (torch.matmul(a, b, out=c),)),
                               ("matmul", lambda: (torch.matmul(a, b),))])


def matmul_backward(job):
    job.require(shared_b=False, activation="none")
    torch, (a, b, options) = job.torch, matmul_operands(job)
    dc, outputs, calls = job["dc"], [], []
    if job["da"] is not None:
        x, y = (b, dc.mT) if options["transpose_a"] else (dc, b.mT)
        outputs, calls = outputs + ["da"], calls + [(x, y, torch.empty_like(job["da"]))]
    if job["db"] is not None:
        x, y = (dc.mT, a) if options["transpose_b"] else (a.mT, dc)
        outputs, calls = outputs + ["db"], calls + [(x, y, torch.empty_like(job["db"]))]

    def products():
        return [torch.matmul(x, y, out=z) for x, y, z in calls]
    if job["dbias"] is None:
        return Contest(job.ours(**options), " ".join(outputs), [("matmul out=", products)])
    rows = dc.reshape(-1, dc.shape[-1])
    sums, ones = rows.new_empty(rows.shape[1]), rows.new_ones(1, rows.shape[0])
    row = rows.new_empty(1, rows.shape[1])
    return Contest(job.ours(**options), " ".join([*outputs, "dbias"]), [
        ("matmul and sum out=", lambda: [*products(), torch.sum(rows, 0, out=sums)]),
        ("matmul and product with ones out=", lambda: [*products(), torch.matmul(ones, rows, out=row)[0]])])


def grouped_operands(job):
    """torch's offsets are the ends of the groups."""
    job.require(ragged=False, activation="none", accumulate=False, alpha=1.0)
    job.without("counts", "b_up", "bias", "bias_up", "a_rows", "dc_rows")
    if not hasattr(job.torch, "_grouped_mm"):
        raise Refusal("this torch has no _grouped_mm")
    transpose_b = job.params["transpose_b"]
    return job["a"], job["offsets"][1:], transpose_b, {"transpose_b": int(transpose_b), "alpha": 1, "has_alpha": 1}


def matmul_grouped_forward(job):
    torch, (a, ends, transpose_b, options) = job.torch, grouped_operands(job)
    b = job["b"].mT if transpose_b else job["b"]
    return Contest(job.ours(**options), "c", [("_grouped_mm", lambda: (torch._grouped_mm(a, b, offs=ends),))])


def matmul_grouped_backward(job):
    torch, (a, ends, transpose_b, options) = job.torch, grouped_operands(job)
    x, y = (job["dc"], a) if transpose_b else (a, job["dc"])
    return Contest(job.ours(**options), "db", [("_grouped_mm", lambda: (torch._grouped_mm(x.mT, y, offs=ends),))])
