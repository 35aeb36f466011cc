# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/tables.py at the shapes of real models, between the sizes that kernels are tuned for. Weights are read
from memory: the calls of a graph use so many of them in turn that none is still in the second-level cache. A table ends with
the geometric mean of torch's time ÷ ours, and with the worst points."""
import itertools
import statistics

from peer_library import Refusal
from tables_bench import show, tensors_of

# (n, k) of weights: GPT-2's qkv, Llama 3 8B's qkv and down, Qwen2.5 7B's qkv and down, Llama 2 13B's out, Llama 3 70B's key and
# value, and gate with up.
WEIGHTS = [(2304, 768), (6144, 4096), (4096, 14336), (4608, 3584), (3584, 18944), (5120, 5120), (1024, 8192), (57344, 8192)]
TOKENS = [1, 2, 4, 8, 16, 33, 64, 65, 80, 100, 128, 144, 192, 257, 333, 512, 777, 1000, 1536, 2048, 3333, 4096, 6000, 8192]
WIDTHS = [63, 100, 250, 333, 513, 777, 1000, 1031, 1537, 2049, 2500, 3000, 3585, 4097, 5001, 5121, 6001, 7169, 8193, 9999,
          11009, 12289, 13825, 14337, 16385, 18945, 20001, 24001, 27001, 28673, 32001, 36865, 43691, 50257, 60001, 65537, 100001,
          128257, 151937, 200019]
LARGE_BYTES, SMALL_ROWS = 64 << 20, 8
# Layers, width and heads of a GPT-2 model; batches and lengths.
BLOCKS = [("small", 12, 768, 12, ((1, 128), (4, 512), (16, 2048))), ("medium", 24, 2048, 16, ((1, 128), (4, 512), (8, 1024))),
          ("large", 32, 4096, 32, ((1, 128), (4, 512), (8, 2048)))]


def table(title, columns, lines):
    """lines: pairs of a name and a function that returns the cells; the one of the column "torch / ours" is summed up."""
    ratios, at = {}, columns.index("torch / ours")

    def keep(name, measure):
        def measured():
            cells = measure()
            ratios[name] = cells[at]
            return cells
        return name, measured
    show(title, ["", *columns], (keep(*line) for line in lines))
    if ratios:
        worst = sorted(ratios, key=ratios.get)[:5]
        print(f"\n{len(ratios)} points, geometric mean of torch / ours {statistics.geometric_mean(ratios.values()):.3f}; worst: " +
              "; ".join(f"{name}: {ratios[name]:.2f}" for name in worst), flush=True)


def num_cold(b, size):
    cache = getattr(b.torch.cuda.get_device_properties(b.device), "L2_cache_size", 0) or 60 << 20
    return 1 + -(-2 * cache // size)


def in_turn(calls):
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


def check(b, ours, theirs, allowed=4e-2):
    off, most = (ours.float() - theirs.float()).abs().max(), theirs.float().abs().max()
    if not off <= allowed * most:
        raise Refusal(f"torch and tessera differ by {(off / most).item():.2g} of the largest value")


def products(b):
    torch = b.torch

    def measure(m, n, k):
        a, c = b.random(m, k), b.random(m, n)
        weights = [b.random(n, k) for _ in range(num_cold(b, 2 * n * k))]
        ours = [b.ours("matmul_forward", {"a": a, "b": w, "c": c}, transpose_b=1) for w in weights]
        ours[0]()
        check(b, c, torch.matmul(a, weights[0].mT))
        variant = b.variant(ours[0])
        us = b.in_turns([in_turn(ours), in_turn([lambda w=w: torch.matmul(a, w.mT, out=c) for w in weights])])
        return [*us, us[1] / us[0], 2e-6 * m * n * k / us[0], variant]
    table("Products by weights (n, k), bf16", ["ours us", "torch us", "torch / ours", "TFLOP/s", "variant"],
          ((f"{m} x {n} x {k}", lambda of=(m, n, k): measure(*of)) for (n, k), m in itertools.product(WEIGHTS, TOKENS)))


def gradients(b):
    torch = b.torch

    def measure(m, n, k):
        a, w, dc = b.random(m, k), b.random(n, k), b.random(m, n)
        da, dw = torch.empty_like(a), torch.empty_like(w)
        ours = b.ours("matmul_backward", {"a": a, "b": w, "dc": dc, "da": da, "db": dw}, transpose_b=1)
        ours()
        their_da, their_dw = torch.matmul(dc, w), torch.matmul(dc.mT, a)
        check(b, da, their_da)
        check(b, dw, their_dw)
        variant = b.variant(ours)
        us = b.in_turns([ours, lambda: (torch.matmul(dc, w, out=their_da), torch.matmul(dc.mT, a, out=their_dw))])
        return [*us, us[1] / us[0], 4e-6 * m * n * k / us[0], variant]
    table("Gradients of a and of weights (n, k), bf16", ["ours us", "torch us", "torch / ours", "TFLOP/s", "variant"],
          ((f"{m} x {n} x {k}", lambda of=(m, n, k): measure(*of))
           for (n, k), m in itertools.product(WEIGHTS, (m for m in TOKENS if m >= 256))))


def fp8(b):
    torch = b.torch
    one = torch.ones((), device=b.device)
    scale = torch.tensor(0.5, device=b.device)

    def measure(m, n, k):
        def drawn(*shape):
            return torch.randn(shape, device=b.device).to(torch.float8_e4m3fn)
        a, c = drawn(m, k), b.random(m, n)
        weights = [drawn(n, k) for _ in range(num_cold(b, n * k))]
        ours = [b.ours("matmul_forward", {"a": a, "b": w, "c": c, "a_scale": scale, "b_scale": one}, transpose_b=1,
                       fast_accumulate=1) for w in weights]

        def theirs(w):
            return torch._scaled_mm(a, w.mT, scale_a=scale, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
        ours[0]()
        check(b, c, theirs(weights[0]))
        variant = b.variant(ours[0])
        us = b.in_turns([in_turn(ours), in_turn([lambda w=w: theirs(w) for w in weights])])
        return [*us, us[1] / us[0], 2e-6 * m * n * k / us[0], variant]
    table("fp8 products by weights (n, k), scales of tensors, fast sums", ["ours us", "torch us", "torch / ours", "TFLOP/s", "variant"],
          ((f"{m} x {n} x {k}", lambda of=(m, n, k): measure(*of))
           for (n, k), m in itertools.product(WEIGHTS, (m for m in TOKENS if m >= 64))))


# ---- Row operations --------------------------------------------------------------------------------------------

def row_requests(cols, count):
    """By name: the request, and the bytes that it must move."""
    x, of_cols, of_rows = (count, cols), ((cols,), "bf16"), ((count,), "f32")
    params = {"rows": count, "cols": cols}
    one, targets = 2 * count * cols, ((count,), "i32")
    loss = {"vocab": cols, "label_smoothing": 0.0, "has_ignore_index": False}

    def request(op, shapes, params, **others):
        return {"op": op, "tensors": tensors_of({name: x for name in shapes.split()}, **others), "params": params}
    norm = {**params, "eps": 1e-5}
    yield "softmax", request("softmax_forward", "x y", params), 2 * one
    yield "softmax backward", request("softmax_backward", "y dy dx", params), 3 * one
    yield "rmsnorm", request("rmsnorm_forward", "x y", norm, weight=of_cols), 2 * one
    yield "rmsnorm, residual", request("rmsnorm_forward", "x residual y residual_out", norm, weight=of_cols), 4 * one
    yield "rmsnorm backward", request("rmsnorm_backward", "x dy dx", params, weight=of_cols, rstd=of_rows, dweight=of_cols), 3 * one
    yield "layernorm", request("layernorm_forward", "x y", norm, weight=of_cols, bias=of_cols), 2 * one
    yield ("layernorm backward", request("layernorm_backward", "x dy dx", params, weight=of_cols, mean=of_rows, rstd=of_rows,
                                         dweight=of_cols, dbias=of_cols), 3 * one)
    yield "cross-entropy", request("cross_entropy_forward", "logits", loss, targets=targets, loss=of_rows, lse=of_rows), one
    yield ("cross-entropy backward", request("cross_entropy_backward", "logits dlogits", loss, targets=targets, lse=of_rows,
                                             dloss=of_rows), 2 * one)


def rows(b):
    """Large calls beside a copy of as many bytes, small ones beside torch's fastest way."""
    torch = b.torch
    names = [name for name, *_ in row_requests(1, 1)]

    def large(cols):
        cells = []
        for _, request, size in row_requests(cols, -(-LARGE_BYTES // (2 * cols))):
            ours = b.ours_of(request)
            source = torch.empty(size // 2, dtype=torch.int8, device=b.device)
            copied = torch.empty_like(source)
            us = b.in_turns([ours, lambda s=source, c=copied: c.copy_(s)])
            cells.append(us[1] / us[0])
        shares.extend(cells)
        return [f"{100 * cell:.0f}" for cell in cells]
    shares = []
    show("Rows of odd widths, bf16, 64 MiB a tensor: % of the rate of a copy", ["columns", *names],
         ((f"{cols}", lambda cols=cols: large(cols)) for cols in WIDTHS))
    if shares:
        print(f"\nMean {100 * statistics.mean(shares):.0f} %, least {100 * min(shares):.0f} %", flush=True)

    def small(cols, at):
        _, request, _ = list(row_requests(cols, SMALL_ROWS))[at]
        ours, path, way = b.contest(request)
        us = b.in_turns([ours, path])
        return [*us, us[1] / us[0], way]
    table(f"{SMALL_ROWS} rows of odd widths, bf16", ["ours us", "torch us", "torch / ours", "torch's path"],
          ((f"{names[at]} {cols}", lambda of=(cols, at): small(*of))
           for cols, at in itertools.product(WIDTHS[1::8], range(len(names)))))


# ---- GPT-2's blocks --------------------------------------------------------------------------------------------

def our_blocks(b, net, x):
    """The layers' calls in order, with attention reading q, k and v where the product has stored them."""
    torch, (batch, seqlen, width) = b.torch, x.shape
    flat = (batch * seqlen, width)

    def empty(*shape):
        return torch.empty(shape, dtype=torch.bfloat16, device=b.device)
    qkv, out, normal, inner = empty(flat[0], 3 * width), empty(*flat), empty(*flat), empty(flat[0], 4 * width)
    streams = [x.view(flat), empty(*flat), empty(*flat)]  # the input stays as it is
    calls, now = [], 0

    def norm(layer, source, y):
        calls.append(b.ours("layernorm_forward", {"x": source, "weight": layer.weight, "bias": layer.bias, "y": y}, eps=1e-5,
                            has_eps=1))

    def linear(layer, a, c, **more):
        extra = {"residual": more.pop("residual")} if "residual" in more else {}
        calls.append(b.ours("matmul_forward", {"a": a, "b": layer.weight, "bias": layer.bias, "c": c, **extra}, transpose_b=1,
                            **more))
    for block in net:
        q, k, v = qkv.view(batch, seqlen, 3, block.heads, -1).unbind(2)
        then, last = (1, 2) if now != 1 else (2, 1)
        norm(block.n1, streams[now], normal)
        linear(block.qkv, normal, qkv)
        calls.append(b.ours("attention_forward", {"q": q, "k": k, "v": v, "out": out.view(*q.shape)}, mask=1))
        linear(block.out, out, streams[then], residual=streams[now])
        norm(block.n2, streams[then], normal)
        linear(block.up, normal, inner, activation=2)
        linear(block.down, inner, streams[last], residual=streams[then])
        now = last
    return calls, streams[now].view(x.shape)


def network(b, layers, width, heads):
    torch, F = b.torch, b.torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = heads
            self.n1, self.n2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            batch, seqlen, _ = x.shape
            q, k, v = self.qkv(self.n1(x)).view(batch, seqlen, 3, heads, -1).permute(2, 0, 3, 1, 4)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
    with b.device:
        return torch.nn.Sequential(*[Block() for _ in range(layers)]).bfloat16().eval()


def blocks(b):
    torch = b.torch

    def measure(model, layers, width, heads, batch, seqlen):
        if nets.get("of") != model:
            nets.clear()
            nets.update(of=model, net=network(b, layers, width, heads))
        net, x = nets["net"], b.random(batch, seqlen, width)
        calls, y = our_blocks(b, net, x)

        def ours():
            for call in calls:
                call()
        ours()
        check(b, y, net(x), 6e-2)
        torch._dynamo.reset()
        paths = [("a graph", lambda: net(x))]
        if b.is_compiling:
            compiled = torch.compile(net, dynamic=False)
            paths.append(("torch.compile in a graph", lambda: compiled(x)))
        us = b.in_turns([ours, *(path for _, path in paths)], most=1)
        best = min(range(len(paths)), key=lambda i: us[1 + i])
        tokens = batch * seqlen
        flops = layers * (24 * tokens * width ** 2 + 2 * tokens * seqlen * width)
        return [us[0], us[1 + best], us[1 + best] / us[0], 1e-6 * flops / us[0], 1e6 * tokens / us[0], paths[best][0]]
    nets = {}
    table("GPT-2's blocks in one graph, bf16, without embedding and head",
          ["ours us", "torch us", "torch / ours", "TFLOP/s", "tokens/s", "torch's path"],
          ((f"{model}, {batch} x {seqlen}", lambda of=(model, layers, width, heads, batch, seqlen): measure(*of))
           for model, layers, width, heads, sizes in BLOCKS for batch, seqlen in sizes))


KINDS = (products, gradients, fp8, rows, blocks)


def models(b):
    for kind in KINDS:
        kind(b)
