#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comparisons with PyTorch on a GPU that `tessera bench` does not make. The calls of a table are measured in turns, each as a
replayed graph of many calls, unless the table says otherwise. Times are medians, in microseconds of one call.

    python3 bench/tables.py build/release/libtessera.so [--tables cold,epilogue] [--budget 0.2] [--device 0]

cold      products with few rows and weights that are read from memory: the calls of a graph use so many matrices in turn that
          none is still in the second-level cache when it is used again
epilogue  the cost of each epilogue over the plain product, and torch's fastest implementation of the same
bias      the gradients of a linear layer's weights and bias, and torch's
features  attention with masks, biases and other features: the time relative to plain attention at equal work (visible scores)
few       causal attention with few queries, 32 query heads and 8 key heads: the library's choice, flash3, torch's flash and cuDNN
grid      attention over 16384 tokens in sequences of 512 to 16384, with heads of 64, 128 and 256 (2048 columns), and torch's
small     small shapes: the latency of a single call on an idle stream and the device time, ours and torch's
models    the shapes of real models between the tuned ones (tables_models.py), five tables that have names of their own, too:
          products, gradients, fp8, rows, blocks
moe       the mixture-of-experts layer (tables_moe.py): layers, loads, decoding

Results are compared with torch's before they are timed against it. $TESSERA_TORCH_COMPILE=0 turns torch.compile off."""
import argparse
import itertools
import statistics
import sys

import tables_models
import tables_moe
from peer_library import Library, Refusal
from tables_bench import Bench, show, tensors_of

SMALL_ROWS = [1, 16, 128]
PRODUCTS = [(4096, 4096, 4096), (8192, 3072, 768), (8192, 11008, 4096)]
# Name, activation, further tensors of a product. Epilogues with b_up compute two products.
EPILOGUES = [("bias", "none", ("bias",)), ("relu", "relu", ()), ("silu", "silu", ()), ("gelu", "gelu", ()),
             ("gelu, tanh", "gelu_tanh", ()), ("bias, gelu", "gelu", ("bias",)),
             ("bias, gelu by tanh", "gelu_tanh", ("bias",)), ("bias, relu", "relu", ("bias",)),
             ("residual", "none", ("residual",)), ("SwiGLU", "silu", ("b_up",)), ("GeGLU", "gelu", ("b_up",))]
LINEAR = [(8192, 3072, 768), (8192, 4096, 4096), (16384, 1024, 1024)]
BATCH, SEQLEN, HEADS = 8, 2048, 8
# Name, fields of the call, tensors besides q, k and v, the number of query heads for each key head.
FEATURES = [("plain", {}, (), 1), ("causal", {"mask": 1}, (), 1),
            ("causal, 512 keys to the left", {"mask": 1, "window_left": 512, "has_window_left": 1}, (), 1),
            ("softcap", {"softcap": 30.0}, (), 1), ("ALiBi", {}, ("alibi_slopes",), 1), ("bias", {}, ("bias",), 1),
            ("sinks", {}, ("sinks",), 1), ("dropout", {"dropout_p": 0.1, "seed": 5}, (), 1), ("GQA, 4 to 1", {}, (), 4),
            ("packed", {"max_seqlen_q": SEQLEN, "max_seqlen_k": SEQLEN}, ("cu_seqlens_q", "cu_seqlens_k"), 1)]


def product(m, n, k, activation="none", extra=(), transpose_b=True):
    """A request for c = a b. With transpose_b, b is (n, k), as weights are stored."""
    of_b = (n, k) if transpose_b else (k, n)
    shapes = {"a": (m, k), "b": of_b, "c": (m, n), "bias": (n,), "residual": (m, n), "b_up": of_b}
    return {"op": "matmul_forward", "tensors": tensors_of({name: shapes[name] for name in ("a", "b", "c", *extra)}),
            "params": {"activation": activation, "accumulate": False, "fp8": "none", "transpose_a": False,
                       "transpose_b": transpose_b, "alpha": 1.0, "batch": 1}}


def linear_gradient(m, n, k, outputs):
    shapes = {"a": (m, k), "b": (n, k), "dc": (m, n), "da": (m, k), "db": (n, k), "dbias": (n,)}
    return {"op": "matmul_backward", "tensors": tensors_of({name: shapes[name] for name in ("a", "b", "dc", *outputs)}),
            "params": {"activation": "none", "accumulate": False, "fp8": "none", "transpose_a": False,
                       "transpose_b": True, "shared_b": False, "batch": 1}}


def attention(op, batch, seqlen, heads, head_dim, mask="causal"):
    names = ["q", "k", "v", "out"] + (["dout", "dq", "dk", "dv"] if op.endswith("backward") else [])
    return {"op": op, "tensors": tensors_of({name: (batch, seqlen, heads, head_dim) for name in names},
                                            lse=((batch, heads, seqlen), "f32")),
            "params": {"mask": mask, "softmax_scale": 0.0, "window_left": -1, "window_right": -1, "softcap": 0.0,
                       "dropout_p": 0.0, "ragged": 0}}


def rows(op, count, cols, extra=(), **params):
    shapes = {"x": (count, cols), "y": (count, cols), "weight": (cols,), "bias": (cols,)}
    return {"op": op, "tensors": tensors_of({name: shapes[name] for name in ("x", "y", *extra)}),
            "params": {"rows": count, "cols": cols, **params}}


SMALL = [("softmax 64 x 512", rows("softmax_forward", 64, 512)),
         ("layernorm 64 x 768", rows("layernorm_forward", 64, 768, ("weight", "bias"), eps=1e-5)),
         ("rmsnorm 16 x 4096", rows("rmsnorm_forward", 16, 4096, ("weight",), eps=1e-5)),
         *((f"matmul {n}³", product(n, n, n, transpose_b=False)) for n in (128, 256, 512, 1024)),
         ("matmul 16 x 4096 x 4096", product(16, 4096, 4096)),
         *((f"{op} {b} x {s} x {h} x {d}, causal", attention(op, b, s, h, d))
           for op in ("attention_forward", "attention_backward")
           for b, s, h, d in ((1, 128, 12, 64), (4, 256, 8, 64), (1, 512, 16, 128), (2, 1024, 16, 64)))]


def visible_share(fields, seqlen):
    """The number of visible scores over that of plain attention."""
    if not fields.get("mask"):
        return 1.0
    most = fields.get("window_left", seqlen) + 1
    return sum(min(i + 1, most) for i in range(seqlen)) / seqlen ** 2


# ---- The tables ----------------------------------------------------------------------------------------------

def cold(b):
    n = k = 4096
    cache = getattr(b.torch.cuda.get_device_properties(b.device), "L2_cache_size", 0) or 60 << 20
    many = 1 + -(-4 * cache // (2 * n * k))

    def lines():
        for m, transpose_b, count in itertools.product(SMALL_ROWS, (True, False), (many, 1)):
            def measure(m=m, transpose_b=transpose_b, count=count):
                a, c = b.random(m, k), b.random(m, n)
                weights = [b.random(n, k) for _ in range(count)]
                ours = [b.ours("matmul_forward", {"a": a, "b": w, "c": c}, alpha=1, has_alpha=1,
                               transpose_b=int(transpose_b)) for w in weights]
                views = [w.mT if transpose_b else w for w in weights]
                ours[0]()
                expected = b.torch.matmul(a, views[0])
                if not (c - expected).abs().max() <= 4e-2 * expected.abs().max():
                    raise Refusal("torch and tessera differ")
                variant = b.variant(ours[0])
                turn, their_turn = itertools.cycle(ours), itertools.cycle(views)
                us = b.in_turns([lambda: next(turn)(), lambda: b.torch.matmul(a, next(their_turn), out=c)])
                return [*us, us[1] / us[0], 2e-3 * n * k / us[0], variant]
            yield f"{m}, b {'(n, k)' if transpose_b else '(k, n)'}, {'cold' if count > 1 else 'warm'}", measure
    show(f"Few rows, n = k = 4096, bf16; cold: {many} matrices in turn",
         ["m", "ours us", "torch us", "torch / ours", "GB/s of b", "variant"], lines())


def epilogue(b):
    for m, n, k in PRODUCTS:
        plain, path, _ = b.contest(product(m, n, k))

        def lines(m=m, n=n, k=k, plain=plain, path=path):
            def first():
                us = b.in_turns([plain, path])
                return [us[0], "", us[1], us[1] / us[0], "matmul", b.variant(plain)]
            yield "plain", first
            for name, activation, extra in EPILOGUES:
                def measure(activation=activation, extra=extra):
                    ours, theirs, way = b.contest(product(m, n, k, activation, extra))
                    us = b.in_turns([plain, ours, theirs])
                    cost = us[1] / us[0] / (2 if "b_up" in extra else 1) - 1
                    return [us[1], f"{100 * cost:.1f} %", us[2], us[2] / us[1], way, b.variant(ours)]
                yield name, measure
        show(f"Epilogues, {m} x {n} x {k}, bf16, b (n, k)",
             ["epilogue", "ours us", "cost over the plain product(s)", "torch us", "torch / ours", "torch's path", "variant"],
             lines())


def bias(b):
    def lines():
        for m, n, k in LINEAR:
            def measure(m=m, n=n, k=k):
                without, their_without, _ = b.contest(linear_gradient(m, n, k, ["db"]))
                ours, theirs, way = b.contest(linear_gradient(m, n, k, ["db", "dbias"]))
                us = b.in_turns([without, ours, their_without, theirs])
                return [us[0], us[1], us[1] - us[0], us[2], us[3], us[3] - us[2], us[3] / us[1], way]
            yield f"{m} x {n} x {k}", measure
    show("Gradients of a linear layer's weights (n, k) and bias (n), bf16",
         ["m x n x k", "db us", "with dbias us", "difference", "torch db", "with dbias", "difference", "torch / ours",
          "torch's path"],
         lines())


def attention_inputs(b, head_dim, extra, group, is_backward):
    torch, batch, heads = b.torch, BATCH, HEADS
    of_k = heads // group
    is_packed = "cu_seqlens_q" in extra
    lead = (batch * SEQLEN,) if is_packed else (batch, SEQLEN)
    t = {"q": b.random(*lead, heads, head_dim), "k": b.random(*lead, of_k, head_dim),
         "v": b.random(*lead, of_k, head_dim), "out": b.random(*lead, heads, head_dim)}
    of_lse = (heads, batch * SEQLEN) if is_packed else (batch, heads, SEQLEN)
    t["lse"] = torch.empty(of_lse, device=b.device)
    starts = torch.arange(batch + 1, device=b.device, dtype=torch.int32) * SEQLEN
    others = {"alibi_slopes": lambda: torch.rand(heads, device=b.device), "sinks": lambda: b.random(heads),
              "bias": lambda: b.random(1, heads, SEQLEN, SEQLEN), "cu_seqlens_q": lambda: starts,
              "cu_seqlens_k": lambda: starts}
    t.update({name: others[name]() for name in extra})
    grads = {"d" + name: torch.empty_like(t[name]) for name in ("q", "k", "v")} if is_backward else {}
    return t, {**t, "dout": b.random(*lead, heads, head_dim), **grads} if is_backward else None


def features(b):
    for op, head_dim in itertools.product(("attention_forward", "attention_backward"), (64, 128)):
        is_backward = op.endswith("backward")

        def call_of(fields, extra, group, op=op, head_dim=head_dim, is_backward=is_backward):
            t, with_grads = attention_inputs(b, head_dim, extra, group, is_backward)
            forward = b.ours("attention_forward", t, **fields)
            forward()
            return b.ours(op, with_grads, **fields) if is_backward else forward
        plain = call_of(*FEATURES[0][1:])

        def lines(plain=plain, call_of=call_of):
            for name, fields, extra, group in FEATURES:
                def measure(fields=fields, extra=extra, group=group):
                    ours, share = call_of(fields, extra, group), visible_share(fields, SEQLEN)
                    us = b.in_turns([plain, ours])
                    return [us[1], f"{100 * share:.0f} %", us[1] / us[0] / share, b.variant(ours)]
                yield name, measure
        show(f"{op}, {BATCH} x {SEQLEN} x {HEADS} x {head_dim}, bf16",
             ["feature", "us", "visible scores", "time / plain, at equal work", "variant"], lines())


def few(b):
    torch, sdpa = b.torch, b.torch.nn.functional.scaled_dot_product_attention
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    def measure(batch, head_dim, seqlen_q, seqlen_k):
        q = b.random(batch, seqlen_q, 32, head_dim)
        t = {"q": q, "out": torch.empty_like(q), "k": b.random(batch, seqlen_k, 8, head_dim),
             "v": b.random(batch, seqlen_k, 8, head_dim)}
        ours, flash3 = (b.ours("attention_forward", t, mask=1, **more) for more in ({}, {"variant": b"cuda-flash3"}))
        flash3()
        ours()
        qkv = [t[name].transpose(1, 2) for name in "qkv"]
        mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=b.device).tril(seqlen_k - seqlen_q)
        of = {SDPBackend.FLASH_ATTENTION: causal_lower_right(seqlen_q, seqlen_k), SDPBackend.CUDNN_ATTENTION: mask}

        def theirs(back_end):
            with sdpa_kernel(back_end):
                return sdpa(*qkv, attn_mask=of[back_end] if seqlen_q > 1 else None, enable_gqa=True)
        if not (theirs(SDPBackend.FLASH_ATTENTION).transpose(1, 2) - t["out"]).abs().max() <= 2e-2:
            raise Refusal("torch and tessera differ")
        us = b.in_turns([ours, flash3, *(lambda end=end: theirs(end) for end in of)])
        keys_bytes = 4 * batch * seqlen_k * 8 * head_dim
        return [*us, us[1] / us[0], min(us[2:]) / us[0], 1e-3 * keys_bytes / us[0], b.variant(ours)]
    shapes = itertools.product((128, 64), (8192, 2048), (1, 8), (1, 8, 16, 32, 64, 128))
    show("Attention forward with few queries, causal to the last key, 32 query heads, 8 key heads, bf16",
         ["batch, queries, keys, head_dim", "us", "flash3", "torch flash", "cuDNN", "flash3 / ours", "torch / ours",
          "GB/s of keys and values", "variant"],
         ((f"{batch}, {seqlen_q}, {seqlen_k}, {head_dim}",
           lambda of=(batch, head_dim, seqlen_q, seqlen_k): measure(*of))
          for head_dim, seqlen_k, batch, seqlen_q in shapes))


def grid(b):
    for op, mask in itertools.product(("attention_forward", "attention_backward"), ("none", "causal")):
        def lines(op=op, mask=mask):
            for head_dim, seqlen in itertools.product((64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384)):
                def measure(seqlen=seqlen, head_dim=head_dim):
                    heads = 2048 // head_dim
                    ours, path, way = b.contest(attention(op, 16384 // seqlen, seqlen, heads, head_dim, mask))
                    us = b.in_turns([ours, path])
                    pairs = 16384 * (seqlen if mask == "none" else (seqlen + 1) / 2)
                    flops = 2048 * pairs * (4 if op.endswith("forward") else 10)
                    ratios.append(us[1] / us[0])
                    return [*(1e-6 * flops / t for t in us), ratios[-1], way, b.variant(ours)]
                yield f"{head_dim}, {seqlen}", measure
        ratios = []
        show(f"{op}, 16384 tokens, {'all keys' if mask == 'none' else mask}, bf16",
             ["head_dim, seqlen", "TFLOP/s", "torch TFLOP/s", "torch / ours", "torch's path", "variant"], lines())
        if ratios:
            print(f"\nGeometric mean of torch / ours {statistics.geometric_mean(ratios):.3f}, lowest {min(ratios):.2f}")


def small(b):
    def lines():
        for name, request in SMALL:
            def measure(request=request):
                ours, path, way = b.contest(request)
                got = b.timing.measure(ours, path, b.budget_s, 0)
                us = [1e3 * got[key] for key in ("ours_call_ms", "median_ms", "ours_ms", "graph_ms")]
                return [us[0], us[1], us[1] / us[0], us[2], us[3], us[3] / us[2], way, b.variant(ours)]
            yield name, measure
    show("Small shapes, bf16", ["", "our call us", "torch's", "torch / ours", "our device time us", "torch's",
                                "torch / ours", "torch's path", "variant"], lines())


TABLES = {table.__name__: table for table in (cold, epilogue, bias, features, few, grid, small, tables_models.models, tables_moe.moe)}
PARTS = {table.__name__: table for table in tables_models.KINDS + tables_moe.KINDS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libtessera.so")
    parser.add_argument("--tables", default=",".join(TABLES), help="names, separated by commas (all)")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds to measure each call (0.2)")
    parser.add_argument("--device", type=int, default=0, help="index of the GPU (0)")
    given = parser.parse_args()
    wanted = given.tables.split(",")
    known = {**TABLES, **PARTS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"--tables: unknown table '{unknown[0]}'; the tables are {', '.join(known)}")
    try:
        import torch
    except ImportError as problem:
        sys.exit(f"tables.py: this Python has no PyTorch, which the tables compare with: {problem}")
    if not torch.cuda.is_available():
        sys.exit("tables.py: PyTorch finds no GPU here (torch.cuda.is_available())")
    b = Bench(torch, Library(given.library), given.device, given.budget)
    print(f"{torch.cuda.get_device_name(b.device)}, torch {torch.__version__}, tessera {b.library.version}")
    torch.manual_seed(1)
    with torch.no_grad(), b.timing.place():
        for name in wanted:
            known[name](b)


if __name__ == "__main__":
    main()
