# SPDX-License-Identifier: Apache-2.0
"""The other operations of peer_torch.py: activations, cast, RoPE, embedding and AdamW."""
from peer_library import Contest, Refusal


def activation_functions(job):
    """The kind's number, its function, and that of up."""
    F, kinds = job.torch.nn.functional, ("none", "gelu", "gelu_tanh", "silu", "relu", "relu2", "swiglu_clamped")

    def clamped(x):
        x = x.clamp(max=7)
        return x * (1.702 * x).sigmoid()
    functions = (lambda x: x, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.relu,
                 lambda x: F.relu(x).square(), clamped)
    kind = kinds.index(job.params["kind"])
    return kind, functions[kind], (lambda up: up.clamp(-7, 7) + 1) if functions[kind] is clamped else lambda up: up


def activation_forward(job):
    kind, function, gate = activation_functions(job)
    x, up = job["x"], job["up"]

    def activate():
        return (function(x) if up is None else function(x) * gate(up),)
    return Contest(job.ours(kind=kind), "y", [(job.params["kind"], activate)])


def activation_backward(job):
    kind, function, gate = activation_functions(job)
    torch, dy, weights = job.torch, job["dy"], job["row_weights"]
    more = [name for name in ("weighted_y", "drow_weights") if job[name] is not None]
    leaves = [given.clone().requires_grad_() for given in (job["x"], job["up"]) if given is not None]
    with torch.enable_grad():
        y = function(leaves[0]) * gate(leaves[1]) if len(leaves) > 1 else function(leaves[0])
    names = " ".join(["dx", "dup"][:len(leaves)] + more)

    def gradient():
        scale = None if weights is None else weights[..., None].to(dy.dtype)
        grads = torch.autograd.grad(y, leaves, dy if scale is None else dy * scale, retain_graph=True)
        made = {"weighted_y": lambda: y.detach() if scale is None else y.detach() * scale,
                "drow_weights": lambda: (dy * y.detach()).sum(-1, dtype=torch.float32)}
        return [*grads, *(made[name]() for name in more)]
    return Contest(job.ours(kind=kind), names, [(job.params["kind"] + " backward", gradient)])


def cast(job):
    job.without("scale")
    x, y = job["x"], job["y"]
    theirs = job.torch.empty_like(y)
    return Contest(job.ours(), "y", [("to", lambda: (x.to(y.dtype),)), ("copy_", lambda: (theirs.copy_(x),))])


# RoPE as PyTorch models compute it: two products of whole heads, or one of complex numbers.

def rotated(job, x, sign):
    job.without("positions")
    torch, head_dim = job.torch, x.shape[-1]
    if job.params.get("rotary_dim", 0) not in (0, head_dim):
        raise Refusal("the torch peer rotates only whole heads")
    cos, sin = (job[name][:x.shape[1], None, :] for name in ("cos", "sin"))
    sin = sign * sin
    if job.params.get("interleaved", 0):
        turn = torch.complex(cos.float(), sin.float())

        def by_complex():
            pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
            return (torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype),)
        return [("complex", by_complex)]
    whole_cos, whole_sin = (torch.cat((t, t), -1).to(x.dtype) for t in (cos, sin))

    def rotate_half():
        first, second = x.chunk(2, -1)
        return (x * whole_cos + torch.cat((-second, first), -1) * whole_sin,)

    def in_halves():
        first, second = x.chunk(2, -1)
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return (torch.cat((first * c - second * s, second * c + first * s), -1),)
    return [("rotate_half", rotate_half), ("halves", in_halves)]


def rope_forward(job):
    options = {name: job.params[name] for name in ("rotary_dim", "interleaved") if name in job.params}
    return Contest(job.ours(**options), "y", rotated(job, job["x"], 1))


def rope_backward(job):
    options = {name: job.params[name] for name in ("rotary_dim", "interleaved") if name in job.params}
    return Contest(job.ours(**options), "dx", rotated(job, job["dy"], -1))


def embedding_forward(job):
    torch, ids, weight = job.torch, job["ids"].long(), job["weight"]
    return Contest(job.ours(), "y", [
        ("embedding", lambda: (torch.nn.functional.embedding(ids, weight),)),
        ("index_select", lambda: (torch.index_select(weight, 0, ids.flatten()).view(*ids.shape, -1),)),
    ])


def embedding_backward(job):
    job.require(accumulate=0, has_padding_id=0)
    aten, ids, dy = job.torch.ops.aten, job["ids"].long(), job["dy"]
    vocab = job["dweight"].shape[0]
    return Contest(job.ours(), "dweight", [
        ("embedding_dense_backward", lambda: (aten.embedding_dense_backward(dy, ids, vocab, -1, False),)),
    ])


def adamw_step(job):
    from torch.optim.adamw import adamw
    torch, names = job.torch, ("param", "m", "v")
    job.without("master")
    job.require(grad_scale=1.0)
    rates = {name: job.params.get(name, usual) for name, usual in
             (("lr", 1e-3), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01), ("step", 1))}
    job.tensors["v"] = job["v"].abs()
    if job["grad"].dtype != job["param"].dtype:
        raise Refusal("torch needs gradients of the parameters' dtype")

    def way(state, grad, **how):
        """Returns a function that takes a step on the tensors of `state`."""
        steps = torch.tensor(float(rates["step"] - 1))
        given = dict(amsgrad=False, beta1=rates["beta1"], beta2=rates["beta2"], lr=rates["lr"],
                     weight_decay=rates["weight_decay"], eps=rates["eps"], maximize=False)

        def step():
            adamw([state[0]], [grad], [state[1]], [state[2]], [], [steps], **given, **how)
            return state
        return step
    # Steps change their tensors, so one step of each is compared. torch's is computed in fp32, because its m and v have the
    # parameter's dtype.
    after = [job[name].float().clone() for name in names]
    way(after, job["grad"].float(), fused=False, foreach=False)()
    copies = [job[name].to(job.dtype).clone() for name in names]
    contest = Contest(job.ours(**rates), " ".join(names), [
        ("adamw fused", way([copy.clone() for copy in copies], job["grad"], fused=True, foreach=False)),
        ("adamw foreach", way(copies, job["grad"], fused=False, foreach=True)),
    ])
    contest.expected = dict(zip(names, after))
    return contest
