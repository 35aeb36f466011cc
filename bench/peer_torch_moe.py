# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts for peer_torch.py: the routing, and a whole layer in torch's fastest ways (Layer)."""
from peer_library import Contest, Refusal

# ---- Routing -------------------------------------------------------------------------------------------------


def rule_of(job):
    """The options of Tessera's call."""
    p, scorings, group_scores = job.params, ("softmax", "sigmoid"), ("top2", "max")
    options = {"scoring": scorings.index(p["scoring"]), "no_renormalize": int(p["no_renormalize"])}
    if p["routed_scaling"] != 1:
        options.update(routed_scaling=p["routed_scaling"], has_routed_scaling=1)
    if "group_score" in p:
        options.update(num_groups=p["num_groups"], topk_groups=p["topk_groups"],
                       group_score=group_scores.index(p["group_score"]))
        if p["round_weights"] in ("bf16", "f16"):
            options["round_weights"] = job.number_of[job.dtypes[p["round_weights"]]]
    return options


def scores_of(job, logits):
    x = logits.float()
    return x.sigmoid() if job.params["scoring"] == "sigmoid" else x.softmax(-1)


def topk(x, count):
    return x.topk(count).indices


def lowest_of_equal(x, count):
    """As Tessera does it: of equal numbers the first. topk takes any."""
    return x.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def best_groups(job, choice, top=topk):
    """choice with -inf outside the best groups."""
    p, groups, left = job.params, job.params["num_groups"], job.params["topk_groups"]
    if not 0 < left < groups or groups == choice.shape[1]:
        return choice
    parts = choice.unflatten(1, (groups, -1))
    of_group = parts.amax(-1) if p["group_score"] == "max" else parts.topk(2).values.sum(-1)
    is_left = job.torch.zeros_like(of_group, dtype=job.torch.bool).scatter_(1, top(of_group, left), True)
    return parts.masked_fill(~is_left.unsqueeze(-1), float("-inf")).flatten(1)


def scaled(job, weights):
    p = job.params
    if p["routed_scaling"] != 1:
        weights = weights * p["routed_scaling"]
    return weights.to(job.dtypes[p["round_weights"]]).float() if p["round_weights"] in ("bf16", "f16") else weights


def weights_of(job, scores, ids):
    weights = scores.gather(1, ids)
    if not job.params["no_renormalize"]:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total + 1e-20 if job.params["scoring"] == "sigmoid" else total)
    return scaled(job, weights)


def counts_of(torch, ids, experts):
    """bincount waits for the device, histc does not."""
    if ids.device.type == "cpu" or experts == 1:
        return torch.bincount(ids.flatten(), minlength=experts)
    return torch.histc(ids.flatten().float(), experts, 0, experts - 1)


SUMS = ("tokens_per_expert", "mean_probs", "load_balance_loss", "z_loss", "usage_variance", "lse", "num_nan_rows")


def sums_of(job, logits, scores, ids, wanted):
    """The optional outputs that are wanted, by name."""
    torch, made, experts = job.torch, {}, logits.shape[1]
    if {"tokens_per_expert", "load_balance_loss", "usage_variance"} & set(wanted):
        made["tokens_per_expert"] = counts = counts_of(torch, ids, experts)
        share = counts / ids.numel()
        made["usage_variance"] = share.var(correction=0)
    if {"mean_probs", "load_balance_loss"} & set(wanted):
        if job.params["scoring"] == "sigmoid":
            scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
        made["mean_probs"] = scores.mean(0)
        if "load_balance_loss" in wanted:
            made["load_balance_loss"] = experts * (share * made["mean_probs"]).sum()
    if {"lse", "z_loss"} & set(wanted):
        made["lse"] = logits.float().logsumexp(-1)
        made["z_loss"] = made["lse"].square().mean()
    if "num_nan_rows" in wanted:
        made["num_nan_rows"] = logits.isnan().any(-1).sum()
    return [made[name] for name in wanted]


def moe_route_forward(job):
    logits, bias, top_k = job["logits"], job["correction_bias"], job.params["top_k"]
    wanted = [name for name in SUMS if job[name] is not None]
    if bias is not None:  # with equal biases tokens whose scores differ in the last bits have the same weights
        bias.zero_()

    def all_scores(top=topk):
        scores = scores_of(job, logits)
        ids = top(best_groups(job, scores if bias is None else scores + bias, top), top_k)
        return [weights_of(job, scores, ids), *sums_of(job, logits, scores, ids, wanted)]

    def chosen_logits():  # a softmax over the chosen ones
        best = logits.topk(top_k)
        scores = scores_of(job, logits) if {"mean_probs", "load_balance_loss"} & set(wanted) else None
        return [scaled(job, best.values.float().softmax(-1)), *sums_of(job, logits, scores, best.indices, wanted)]
    paths = [(job.params["scoring"] + ", topk", all_scores)]
    is_exact = bias is None and best_groups(job, logits) is logits  # logits choose
    if is_exact and job.params["scoring"] == "softmax" and not job.params["no_renormalize"]:
        paths.append(("topk, softmax", chosen_logits))
    names = ["topk_weights", *wanted]
    contest = Contest(job.ours(**rule_of(job)), " ".join(names), paths)
    if job.dtype != job.torch.float32:  # many are equal
        contest.expected = dict(zip(names, all_scores(lowest_of_equal)))
    if is_exact:
        contest.ours()
        if not (job["topk_ids"] == lowest_of_equal(logits.float(), top_k)).all():
            raise RuntimeError("tessera chose other experts than torch's sort")
    return contest


def moe_route_backward(job):
    torch, logits = job.torch, job["logits"]
    job.params["round_weights"] = "none"
    tokens, experts = logits.shape
    ids = logits.float().topk(job.params["top_k"]).indices
    job["topk_ids"].copy_(ids)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    if job["tokens_per_expert"] is not None:
        job["tokens_per_expert"].copy_(counts)
    names = [name for name in ("load_balance_loss", "z_loss") if job["d" + name] is not None]
    given = [job["dtopk_weights"], *(job["d" + name].reshape(()) for name in names)]
    leaf = logits.clone().requires_grad_()
    with torch.enable_grad():
        scores = scores_of(job, leaf)
        made = [weights_of(job, scores, ids), *sums_of(job, leaf, scores, ids, names)]

    def autograd():
        return torch.autograd.grad(made, [leaf], given, retain_graph=True)

    def formula():  # for torch.compile, which cannot compile autograd's backward
        x, is_sigmoid, is_raw = logits.float(), job.params["scoring"] == "sigmoid", job.params["no_renormalize"]
        g = job["dtopk_weights"] * job.params["routed_scaling"]
        if not (names or is_sigmoid or is_raw):
            w = x.gather(1, ids).softmax(-1)
            return [torch.zeros_like(x).scatter(1, ids, w * (g - (w * g).sum(-1, keepdim=True))).to(logits.dtype)]
        s = x.sigmoid() if is_sigmoid else x.softmax(-1)
        if not is_raw:
            w = s.gather(1, ids)
            total = w.sum(-1, keepdim=True) + (1e-20 if is_sigmoid else 0)
            g = (g - (w * g).sum(-1, keepdim=True) / total) / total
        ds = torch.zeros_like(x).scatter(1, ids, g)
        if "load_balance_loss" in names:
            a = counts * (given[1] * experts / (ids.numel() * tokens))
            total = s.sum(-1, keepdim=True) + 1e-20
            ds = ds + ((a - (s * a).sum(-1, keepdim=True) / total) / total if is_sigmoid else a)
        dx = ds * s * (1 - s) if is_sigmoid else s * (ds - (s * ds).sum(-1, keepdim=True))
        if "z_loss" in names:
            dx = dx + x.softmax(-1) * x.logsumexp(-1, keepdim=True) * (2 * given[-1] / tokens)
        return [dx.to(logits.dtype)]
    return Contest(job.ours(**rule_of(job)), "dlogits", [("autograd", autograd), ("formula", formula)])


# ---- A layer -------------------------------------------------------------------------------------------------

ACTIVATIONS = {"none": lambda F, x: x, "silu": lambda F, x: F.silu(x), "gelu": lambda F, x: F.gelu(x),
               "gelu_tanh": lambda F, x: F.gelu(x, approximate="tanh"), "relu": lambda F, x: F.relu(x),
               "relu2": lambda F, x: F.relu(x).square()}


class Layer:
    """y = sum over a token's top_k experts of w_k down(activation(gate x) up x), without w_gate of down(activation(up x)), with
    a softmax over the chosen logits of x router^T.

    x (T, H), router (E, H), w_gate and w_up (E, I, H), w_down (E, H, I). Gate and up are concatenated once, not in the paths.
    forward() and backward(dy) return paths, as Contest has them; those of forward return [y], those of backward the gradients of
    x, router, [w_gate,] w_up, w_down. Ways: torch's grouped product of sorted rows, whose results are added by index_add or by
    a product of each token's rows and weights; and a loop over experts. backward has compiled ways of its own, because
    torch.compile compiles a gradient with its forward; forward's are compiled by who calls them (peer_device.py), or here with
    compiles=True."""

    def __init__(self, torch, x, router, w_gate, w_up, w_down, top_k, activation):
        if activation not in ACTIVATIONS:
            raise Refusal(f"the torch peer has no activation {activation}")
        self.torch, self.top_k, self.activation, self.is_gated = torch, top_k, ACTIVATIONS[activation], w_gate is not None
        w_in = torch.cat((w_gate, w_up), 1) if self.is_gated else w_up
        self.inputs = [x, router, w_in, w_down]
        self.grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

    def activate(self, h):
        F = self.torch.nn.functional
        if not self.is_gated:
            return self.activation(F, h)
        gate, up = h.chunk(2, -1)
        return self.activation(F, gate) * up

    def sort(self, x, router):
        """Weights (T, K), then of the assignments in the experts' order: their places, tokens, the experts' ends."""
        torch, F = self.torch, self.torch.nn.functional
        best = F.linear(x, router).topk(self.top_k, -1)
        weights = best.values.float().softmax(-1)
        experts, places = best.indices.flatten().sort()
        ends = torch.searchsorted(experts, torch.arange(len(router), device=x.device), right=True, out_int32=True)
        return weights, places, places // self.top_k, ends

    def add_rows(self, y, weights, places, tokens, shape):
        y = y * weights.flatten()[places].unsqueeze(-1).to(y.dtype)
        return self.torch.zeros(shape, dtype=y.dtype, device=y.device).index_add(0, tokens, y)

    def gather_rows(self, y, weights, places, tokens, shape):
        torch, (count, top_k) = self.torch, weights.shape
        back = torch.empty_like(places).scatter_(0, places, torch.arange(len(places), device=places.device))
        return torch.bmm(weights.unsqueeze(1).to(y.dtype), y[back].view(count, top_k, -1)).squeeze(1)

    def grouped(self, combine):
        def layer(x, router, w_in, w_down):
            weights, places, tokens, ends = self.sort(x, router)
            h = self.grouped_mm(x[tokens], w_in.transpose(1, 2), offs=ends)
            y = self.grouped_mm(self.activate(h), w_down.transpose(1, 2), offs=ends)
            return combine(y, weights, places, tokens, x.shape)
        return layer

    def loop(self, x, router, w_in, w_down):
        F = self.torch.nn.functional
        weights, places, tokens, ends = self.sort(x, router)
        last, parts, rows = 0, [], x[tokens]
        for e, end in enumerate(ends.tolist()):  # waits for the device once
            if end > last:
                parts.append(F.linear(self.activate(F.linear(rows[last:end], w_in[e])), w_down[e]))
            last = end
        return self.gather_rows(self.torch.cat(parts), weights, places, tokens, x.shape)

    def ways(self, compiles):
        torch = self.torch
        plain = [("grouped_mm, index_add", self.grouped(self.add_rows)), ("grouped_mm, bmm", self.grouped(self.gather_rows)),
                 ("loop over experts", self.loop)]
        for name, layer in plain:
            yield name, layer
            if compiles:
                torch._dynamo.reset()
                yield name + ", torch.compile", torch.compile(layer, dynamic=False)

    def forward(self, compiles=False):
        def path(layer):
            return lambda: [layer(*self.inputs)]
        for name, layer in self.ways(compiles):
            yield name, path(layer)

    def backward(self, dy, compiles=True):
        from torch._functorch import config
        torch, config.donated_buffer = self.torch, False  # a gradient is computed more than once

        def path(layer):
            leaves = [given.detach().requires_grad_() for given in self.inputs]
            with torch.enable_grad():
                y = layer(*leaves)

            def gradient():
                dx, drouter, dw_in, dw_down = torch.autograd.grad(y, leaves, dy, retain_graph=True)
                return [dx, drouter, *(dw_in.chunk(2, 1) if self.is_gated else [dw_in]), dw_down]
            gradient.is_final = True  # peer_device.py does not compile it
            return gradient
        for name, layer in self.ways(compiles):
            try:
                made = path(layer)
            except Exception:  # noqa: BLE001: torch has no such product for this dtype or device
                continue
            yield name, made


# ---- The layer beside ours -----------------------------------------------------------------------------------

PLAIN = {"no_renormalize": 0, "routed_scaling": 1, "capacity": 0, "capacity_factor": 0, "weights_on_input": 0, "num_groups": 0,
         "topk_groups": 0, "scoring": "softmax", "round_weights": "none"}
NOT_TORCHS = ("logits_bias", "logits", "b_gate", "b_up", "b_down", "shared_w_gate", "shared_w_up", "shared_w_down", "shared_gate",
              "correction_bias", "residual", "dlogits", "dtopk_weights", "dload_balance_loss", "dz_loss", "offsets", "mean_probs",
              "load_balance_loss", "z_loss", "usage_variance", "num_nan_rows", "num_dropped")


def layer_of(job):
    """The layer, and the options of our call. Gate and up become halves of one tensor, as torch's ways have them, and so do
    their gradients; numbers get the size that a layer has."""
    torch, p, hidden, inner = job.torch, job.params, job["x"].shape[-1], job["w_up"].shape[1]
    job.require(**PLAIN)
    job.without(*NOT_TORCHS)
    if job["router"] is None:
        raise Refusal("torch's ways of a layer have a router")
    names = ("gelu", "gelu_tanh", "silu", "relu", "relu2")
    activation = p["activation"] if p["activation"] != "none" else "silu" if job["w_gate"] is not None else "gelu"
    if activation not in ACTIVATIONS:
        raise Refusal(f"torch has no equivalent of activation {activation}")
    for before in ("", "d"):
        if job[before + "w_gate"] is not None and job[before + "w_up"] is not None:
            both = torch.cat((job[before + "w_gate"], job[before + "w_up"]), 1)
            job.tensors[before + "w_gate"], job.tensors[before + "w_up"] = both[:, :inner], both[:, inner:]
    for name, size in (("router", hidden), ("w_gate", hidden), ("w_up", hidden), ("w_down", inner)):
        if job[name] is not None:
            job[name].mul_(size ** -0.5)
    tokens = job["x"].shape[0]
    for name, dtype in (("topk_ids", torch.int32), ("topk_weights", torch.float32)):
        job.tensors.setdefault(name, torch.zeros(tokens, p["top_k"], dtype=dtype, device=job.device))
    layer = Layer(torch, job["x"], job["router"].to(job.dtype), job["w_gate"], job["w_up"], job["w_down"], p["top_k"], activation)
    return layer, {"top_k": p["top_k"], "activation": 1 + names.index(activation)}


def by_ids(job, layer, x, router, w_in, w_down):
    """The layer in fp32 with our ids: torch's router rounds logits to 16 bits and may choose other experts."""
    ids, F = job["topk_ids"].long(), job.torch.nn.functional
    weights = (x @ router.T).gather(1, ids).softmax(-1)
    parts = [job.torch.zeros_like(x)]
    for e in ids.unique().tolist():
        token, place = (ids == e).nonzero(as_tuple=True)
        y = F.linear(layer.activate(F.linear(x[token], w_in[e])), w_down[e]) * weights[token, place].unsqueeze(-1)
        parts.append(job.torch.zeros_like(x).index_add(0, token, y))
    return sum(parts)


def moe_forward(job):
    layer, options = layer_of(job)
    ours = job.ours(**options)
    ours()
    expected = by_ids(job, layer, *(given.float() for given in layer.inputs))
    return Contest(ours, "y", layer.forward(), {"y": expected})


def moe_backward(job):
    layer, options = layer_of(job)
    torch, wanted = job.torch, ["dx", "drouter", *(["dw_gate"] if layer.is_gated else []), "dw_up", "dw_down"]
    missing = [name for name in wanted if job[name] is None]
    if missing:
        raise Refusal(f"torch's ways of a layer give all gradients, {missing[0]} too")
    given = {name: job[name] for name in ("x", "router", "w_gate", "w_up", "w_down", "preact", "topk_ids", "topk_weights")
             if job[name] is not None}
    job.call("moe_forward", {**given, "y": torch.empty_like(job["x"])}, **options)()
    leaves = [given.detach().float().requires_grad_() for given in layer.inputs]
    with torch.enable_grad():
        grads = torch.autograd.grad(by_ids(job, layer, *leaves), leaves, job["dy"].float())
    expected = [*grads[:2], *(grads[2].chunk(2, 1) if layer.is_gated else grads[2:3]), grads[3]]
    ours = job.ours(**options, accumulate=int(job.params["accumulate"]))
    return Contest(ours, " ".join(wanted), layer.backward(job["dy"]), dict(zip(wanted, expected)))
