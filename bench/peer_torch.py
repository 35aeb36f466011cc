# SPDX-License-Identifier: Apache-2.0
"""The peer process of `tessera bench --peer torch` and `--peer triton`: loads torch and, with ctypes, libtessera.so, and times
both in turns on the same random tensors. argv[1] is the library, argv[2] the peer. The process first writes {"ready":
version}; then it answers each of the tool's requests, one line of JSON, with one line. Of several ways (`paths`) the fastest
counts. The timing is in peer_cpu.py and peer_device.py.

To add an operation, add a function of its name that returns a Contest, here or in peer_torch_*.py or peer_triton.py."""
import contextlib
import json
import os
import sys

import peer_cpu
import peer_device
import peer_torch_matmul
import peer_torch_moe
import peer_torch_rows
from peer_library import ARGS, BF16, E4M3, E5M2, F16, F32, I32, Contest, Library, Refusal


class Job:
    """A request and its tensors, which are filled with random values."""

    def __init__(self, request, torch, library):
        self.request, self.torch, self.library = request, torch, library
        self.device = torch.device(request["device"])
        self.is_on_cpu = self.device.type == "cpu"
        self.timing = peer_cpu if self.is_on_cpu else peer_device.Timing(torch, self.device)
        self.op, self.params = request["op"], request["params"]
        torch.backends.cuda.matmul.allow_tf32 = self.params.get("math") == "tf32"
        self.dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
                       "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        self.number_of = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16, torch.int32: I32,
                          torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}
        self.dtype = self.dtypes[request["dtype"]]
        self.tensors = {}
        for name, given in request["tensors"].items():
            if name in ("targets", "ids"):
                drawn = torch.randint(self.params["vocab"], given["shape"], device=self.device, dtype=torch.int32)
            elif name == "offsets":  # equal groups
                ends = torch.arange(given["shape"][0]) * self.params["rows"] // (given["shape"][0] - 1)
                drawn = ends.to(self.device, torch.int32)
            elif given["dtype"] == "i32":  # inputs are filled by the operation's function
                drawn = torch.zeros(given["shape"], device=self.device, dtype=torch.int32)
            elif given["dtype"] not in self.dtypes:
                raise Refusal(f"torch has no equivalent of {name}")
            elif name.endswith("_scale"):
                drawn = torch.rand(given["shape"], device=self.device) + 0.5
            else:
                drawn = torch.randn(given["shape"], device=self.device).to(self.dtypes[given["dtype"]])
            self.tensors[name] = drawn

    def __getitem__(self, name):
        return self.tensors.get(name)

    def require(self, **values):
        """Refuses the case unless these parameters have the only values that torch supports."""
        for name, value in values.items():
            if self.params.get(name, value) != value:
                raise Refusal(f"torch has no equivalent of {name} {self.params[name]}")

    def without(self, *names):
        for name in names:
            if name in self.tensors:
                raise Refusal(f"torch has no equivalent of {name}")

    def place(self):
        """A context manager for the calls: on CUDA they run on a separate stream, which can be captured."""
        return contextlib.nullcontext() if self.is_on_cpu else self.timing.place()

    def call(self, op, tensors, **options):
        where = () if self.is_on_cpu else ((1, self.device.index), self.timing.stream.cuda_stream)
        context = self.library.context(self.request["isa"], self.request["threads"], *where)
        return self.library.call(op, context, tensors, self.number_of, **options)

    def ours(self, **options):
        variant = self.request["variant"]
        if variant is not None:
            options["variant"] = variant.encode()
        return self.call(self.op, self.tensors, flags=self.request["flags"], **options)


# ---- Operations ----------------------------------------------------------------------------------------------

def softmax_forward(job):
    torch, x = job.torch, job["x"]
    y = torch.empty_like(x)
    return Contest(job.ours(), "y", [
        ("softmax", lambda: (torch.softmax(x, -1),)),
        ("softmax out=", lambda: (torch.softmax(x, -1, out=y),)),
    ])


def softmax_backward(job):
    torch = job.torch
    job.tensors["y"] = torch.softmax(job["y"].float(), -1).to(job.dtype)
    y, dy, backward = job["y"], job["dy"], torch.ops.aten._softmax_backward_data
    dx = torch.empty_like(y)
    return Contest(job.ours(), "dx", [
        ("softmax_backward", lambda: (backward(dy, y, -1, y.dtype),)),
        ("softmax_backward out=", lambda: (backward.out(dy, y, -1, y.dtype, grad_input=dx),)),
    ])


def norm_forward(job, normalise):
    """normalise: torch's function from the input to y."""
    x, residual = job["x"], job["residual"]
    outputs = ["y"] + (["residual_out"] if residual is not None else [])

    def run():
        total = x + residual if residual is not None else x
        return (normalise(total), total)
    options = {}
    if "eps" in job.params:
        options = {"eps": job.params["eps"], "has_eps": 1}
    return Contest(job.ours(**options), " ".join(outputs), [(normalise.__name__, run)])


def layernorm_forward(job):
    F, cols = job.torch.nn.functional, (job.params["cols"],)

    def layer_norm(x):
        return F.layer_norm(x, cols, job["weight"], job["bias"], job.params["eps"])
    return norm_forward(job, layer_norm)


def rmsnorm_forward(job):
    F, cols = job.torch.nn.functional, (job.params["cols"],)

    def rms_norm(x):
        return F.rms_norm(x, cols, job["weight"], job.params["eps"])
    return norm_forward(job, rms_norm)


def fill_statistics(job, forward, names):
    """Fills mean and rstd with the results of Tessera's forward. Returns the weight for torch: ones if there is none, because
    torch computes dweight only with a weight."""
    job.without("dresidual_out")
    tensors = {name: job[name] for name in ["x", "weight", *names] if job[name] is not None}
    job.call(forward, {**tensors, "y": job.torch.empty_like(job["x"])})()
    is_wanted = job["dweight"] is not None or job["dbias"] is not None
    return job.torch.ones_like(job["x"][0]) if job["weight"] is None and is_wanted else job["weight"]


def column_sums(job):
    """dweight and dbias, computed in fp32."""
    x, dy, rstd = job["x"].float(), job["dy"].float(), job["rstd"].unsqueeze(-1)
    if job["mean"] is not None:
        x = x - job["mean"].unsqueeze(-1)
    return {"dweight": (dy * x * rstd).sum(0), "dbias": dy.sum(0)}


def norm_backward(job, backward):
    """backward: torch's function, which returns dx and those of dweight and dbias that the case has."""
    outputs = [name for name in ("dx", "dweight", "dbias") if job[name] is not None]
    contest = Contest(job.ours(), " ".join(outputs), [(backward.__name__, backward)])
    # On the CPU torch sums 16-bit rows in 16 bits. The error may be a tenth of the largest sum.
    if job.is_on_cpu and job.dtype != job.torch.float32 and len(outputs) > 1:
        contest.expected = column_sums(job)
    return contest


def layernorm_backward(job):
    weight = fill_statistics(job, "layernorm_forward", ("mean", "rstd"))
    aten, cols = job.torch.ops.aten, (job.params["cols"],)
    wanted = [True, job["dweight"] is not None, job["dbias"] is not None]
    x, dy = job["x"], job["dy"]
    bias = job.torch.zeros_like(weight) if wanted[2] else None  # torch checks only that it is present
    # On the CPU torch keeps 16-bit statistics for 16-bit tensors. It gets them here, so that its usual path is timed.
    of_statistics = job.dtype if job.is_on_cpu else job.torch.float32
    mean, rstd = (job[name].unsqueeze(-1).to(of_statistics) for name in ("mean", "rstd"))

    def layer_norm_backward():
        grads = aten.native_layer_norm_backward(dy, x, cols, mean, rstd, weight, bias, wanted)
        return [grad for grad, is_wanted in zip(grads, wanted) if is_wanted]
    return norm_backward(job, layer_norm_backward)


def rmsnorm_backward(job):
    weight = fill_statistics(job, "rmsnorm_forward", ("rstd",))
    torch, cols = job.torch, (job.params["cols"],)
    leaves = [given.clone().requires_grad_() for given in (job["x"], weight) if given is not None]
    with torch.enable_grad():
        y = torch.nn.functional.rms_norm(leaves[0], cols, *leaves[1:], eps=1e-5)
    wanted = leaves if job["dweight"] is not None else leaves[:1]

    def rms_norm_backward():
        return torch.autograd.grad(y, wanted, job["dy"], retain_graph=True)

    def formula():  # for torch.compile, which cannot compile autograd's backward
        x, dy, rstd = job["x"].float(), job["dy"].float(), job["rstd"].unsqueeze(-1)
        scaled = dy * weight.float() if weight is not None else dy
        normal = x * rstd
        dx = (scaled - normal * (scaled * normal).mean(-1, keepdim=True)) * rstd
        sums = [(dy * normal).sum(0).to(weight.dtype)] if len(wanted) > 1 else []
        return [dx.to(job.dtype), *sums]
    contest = norm_backward(job, rms_norm_backward)
    if not job.is_on_cpu:
        contest.paths.append(("formula", formula))
    return contest


# Attention: Tessera's tensors are (batch, seqlen, heads, head_dim), torch's (batch, heads, seqlen, head_dim). Each of torch's
# implementations is tried with transposed views of ours and with contiguous tensors in torch's order.

def attention_options(job):
    """The options of Tessera's call, and those of torch's."""
    job.require(window_left=-1, window_right=-1, softcap=0.0, dropout_p=0.0, ragged=0)
    job.without("bias", "alibi_slopes", "sinks", "dbias", "dsinks")
    masks, given = ("none", "causal", "causal-top-left"), job.params["mask"]
    scale, seqlen_q, seqlen_k = job.params["softmax_scale"], job["q"].shape[1], job["k"].shape[1]
    theirs = {"scale": scale or None}
    if given == "causal-top-left" or (given == "causal" and seqlen_q == seqlen_k):
        theirs["is_causal"] = True
    elif given == "causal":
        ones = job.torch.ones(seqlen_q, seqlen_k, dtype=job.torch.bool, device=job.device)
        theirs["attn_mask"] = ones.tril(seqlen_k - seqlen_q)
    if job["q"].shape[2] != job["k"].shape[2]:
        theirs["enable_gqa"] = True
    return {"mask": masks.index(given), "softmax_scale": scale}, theirs


def attention_paths(job, names, make):
    """make: returns a path, given a function to call and tensors in torch's order. Paths are made one at a time, as a path of
    backward keeps all attention weights in memory."""
    torch = job.torch
    views = [job[name].transpose(1, 2) for name in names]
    back_ends = ("flash", "math") if job.is_on_cpu else ("flash", "cudnn", "mem_efficient", "math")
    for layout, tensors in (("", views), (", heads first", [view.contiguous() for view in views])):
        for back_end in back_ends:
            def sdpa(*qkv, enabled={back_end, "math"} if job.is_on_cpu else {back_end}, **options):
                for name in ("flash", "cudnn", "mem_efficient", "math"):
                    getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in enabled)  # also applies to the CPU
                return torch.nn.functional.scaled_dot_product_attention(*qkv, **options)
            try:
                path = make(sdpa, tensors)
            except RuntimeError:  # this back end cannot compute the case
                continue
            yield "sdpa " + back_end + layout, path


def attention_forward(job):
    ours, theirs = attention_options(job)

    def make(sdpa, qkv):
        return lambda: (sdpa(*qkv, **theirs).transpose(1, 2),)
    return Contest(job.ours(**ours), "out", attention_paths(job, "qkv", make))


def attention_backward(job):
    ours, theirs = attention_options(job)
    torch, wanted = job.torch, [name for name in ("dq", "dk", "dv") if job[name] is not None]
    forward = {name: job[name] for name in ("q", "k", "v", "out", "lse")}
    job.call("attention_forward", forward, **ours)()

    def make(sdpa, tensors):
        *qkv, dout = tensors
        # Clones keep the layout, so a gradient is a view like q.
        leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in qkv]
        with torch.enable_grad():
            out = sdpa(*leaves, **theirs)
        inputs = [leaf for leaf, name in zip(leaves, ("dq", "dk", "dv")) if name in wanted]

        def run():
            grads = torch.autograd.grad(out, inputs, dout, retain_graph=True)
            return [grad.transpose(1, 2) for grad in grads]
        return run
    return Contest(job.ours(**ours), " ".join(wanted), attention_paths(job, ("q", "k", "v", "dout"), make))


# The loss.

def cross_entropy_inputs(job):
    job.require(label_smoothing=0.0, has_ignore_index=False)
    return job["logits"], job["targets"].long()


def cross_entropy_forward(job):
    logits, targets = cross_entropy_inputs(job)
    cross_entropy = job.torch.nn.functional.cross_entropy

    def loss():  # with 16-bit logits torch's loss has 16 bits, so torch writes fewer bytes
        return (cross_entropy(logits, targets, reduction="none"),)
    return Contest(job.ours(), "loss", [("cross_entropy", loss)])


def cross_entropy_backward(job):
    logits, targets = cross_entropy_inputs(job)
    torch, forward = job.torch, {name: job[name] for name in ("logits", "targets", "lse")}
    loss = torch.empty_like(job["dloss"])
    job.call("cross_entropy_forward", {**forward, "loss": loss})()
    leaf = logits.clone().requires_grad_()
    with torch.enable_grad():
        theirs = torch.nn.functional.cross_entropy(leaf, targets, reduction="none")
    dloss = job["dloss"].to(theirs.dtype)

    def gradient():
        return torch.autograd.grad(theirs, [leaf], dloss, retain_graph=True)
    return Contest(job.ours(), "dlogits", [("cross_entropy backward", gradient)])


KNOWN = {**globals(), **vars(peer_torch_matmul), **vars(peer_torch_moe), **vars(peer_torch_rows)}
OPERATIONS = {name: KNOWN[name] for name in ARGS}

# ---- Comparing and timing ------------------------------------------------------------------------------------

ALLOWED = {"f32": 1e-3, "bf16": 4e-2, "f16": 6e-3}  # times the largest value: rounding and another order of summation


def compare(job, contest, path):
    """The largest difference, and the largest ratio of a difference to its output's largest value."""
    contest.ours()
    worst, worst_share = 0.0, 0.0
    for name, given in zip(contest.outputs.split(), path()):
        ours, theirs = job[name].float(), contest.expected.get(name, given).detach().float()
        off, largest = (ours - theirs).abs().max().item(), theirs.abs().max().item()
        if not off <= 1e30:
            return off, off
        worst = max(worst, off)
        worst_share = max(worst_share, off / largest if off > 0 else 0.0)
    return worst, worst_share


def answer(request, peer):
    """peer: the peer's name, its functions by operation, torch, and the Tessera library."""
    name, operations, torch, library = peer
    if request["op"] not in operations:
        raise Refusal(f"the {name} peer does not have {request['op']}")
    if request["threads"] > 0:
        torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    job = Job(request, torch, library)
    with torch.no_grad(), job.place():
        contest = operations[job.op](job)
        way, path = job.timing.fastest(contest.paths)
        off, share = compare(job, contest, path)
        if not share <= ALLOWED[request["dtype"]]:
            return {"disagrees": f"{name} ({way}) and tessera differ by {share:.2g} of the largest value"}
        return {"path": way, "max_abs_err": off,
                **job.timing.measure(contest.ours, path, request["budget_s"], request["rep"])}


def operations_of(name):
    if name == "torch":
        return OPERATIONS
    import peer_triton
    return peer_triton.OPERATIONS


def main():
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # all other output goes to stderr

    def say(**reply):
        print(json.dumps(reply), file=replies, flush=True)
    try:
        import torch
        peer = (sys.argv[2], operations_of(sys.argv[2]), torch, Library(sys.argv[1]))
    except Exception as problem:  # noqa: BLE001: a broken torch counts as missing
        say(error=str(problem).splitlines()[0])
        return
    say(ready=str(torch.__version__), library=peer[3].version)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(**answer(request, peer))
        except Refusal as refusal:
            say(unsupported=str(refusal))
        except Exception as problem:  # noqa: BLE001: torch may raise anything; the next case may work
            say(error=f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}")
