# SPDX-License-Identifier: Apache-2.0
"""tessera apply attention-decode and attention-merge from outside, checked by NumPy in float64."""
import math

import numpy as np
import pytest

from apply_support import MAIN, TESSERA, apply, check, draw, refuse, wide

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

ERROR = {"f32": 3e-5, "f16": 4e-3, "bf16": 3e-2}


# ---- The operation in NumPy --------------------------------------------------------------------

def rotate(x, positions, cos, sin, interleaved):
    """Rotates x (rows, heads, dim)."""
    y, half = x.copy(), cos.shape[1]
    first = np.arange(half) * 2 if interleaved else np.arange(half)
    second = first + (1 if interleaved else half)
    c, s = cos[positions][:, None], sin[positions][:, None]
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y


def attend(q, k, v, mask="causal", left=None, softcap=0, sinks=None, tree=None):
    (sq, heads, dim), (sk, kv_heads, _) = q.shape, k.shape
    k, v = (np.repeat(t, heads // kv_heads, 1) for t in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    i, j = np.ogrid[:sq, :sk]
    diagonal = i + sk - sq
    seen = (j <= diagonal) if mask == "causal" else np.ones((sq, sk), bool)
    if left is not None:
        seen = seen & (j >= diagonal - left)
    if tree is not None:
        seen = seen & ((j < sk - sq) | (tree[i, np.maximum(j - sk + sq, 0)] != 0))
    s = np.where(seen, s, -np.inf)
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (heads, sq, 1))], -1)
        v = np.concatenate([v, np.zeros_like(v[:1])])
    lse = np.logaddexp.reduce(s, -1)
    return np.einsum("hij,jhd->ihd", np.exp(s - lse[..., None]), v), lse


def normalise(x, t, name, eps=1e-6, offset=0):
    """RMSNorm of each head, if the file has its weight."""
    if name not in t:
        return x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (wide(t[name]) + offset)


def scale_of(t, name, b):
    """The factors (kv_heads, 1) of a cache."""
    if name not in t:
        return 1
    scale = wide(t[name])
    return (scale[b] if scale.ndim == 2 else np.atleast_1d(scale))[:, None]


def stored(x, scale, dtype):
    """A new row as a cache of a dtype holds it."""
    if dtype.itemsize > 1:
        return x.astype(dtype)
    return np.clip((x / scale).astype(np.float32), -448, 448).astype(dtype)


def decode(t, interleaved=False, norm={}, **options):
    """All outputs for the file's tensors, sequence by sequence."""
    packed, paged = "cu_seqlens_q" in t, "page_table" in t
    dtype = t["k_cache"].dtype
    k_cache, v_cache = t["k_cache"].copy(), t["v_cache"].copy()
    out = np.zeros(t["q"].shape[:-1] + v_cache.shape[-1:])
    lse = np.zeros(tuple(np.moveaxis(out[..., 0], -1, -2).shape))
    for b, old in enumerate(t["cache_seqlens"]):
        rows = slice(t["cu_seqlens_q"][b], t["cu_seqlens_q"][b + 1]) if packed else b
        q = normalise(wide(t["q"][rows]), t, "q_norm", **norm)
        total = old + len(q) if "k_new" in t else old
        slot = t["cache_batch_idx"][b] if "cache_batch_idx" in t else b
        pad = t["leftpad_k"][b] if "leftpad_k" in t else 0
        places = [(t["page_table"][b, j // k_cache.shape[1]], j % k_cache.shape[1]) if paged else (slot, j)
                  for j in range(pad, total)]
        old, total = old - pad, total - pad
        if "cos" in t:
            angles = (wide(t["cos"]), wide(t["sin"]), interleaved)
            q = rotate(q, np.arange(total - len(q), total), *angles)
        if "k_new" in t:
            k_new = normalise(wide(t["k_new"][rows]), t, "k_norm", **norm)
            if "cos" in t:
                k_new = rotate(k_new, np.arange(old, total), *angles)
            for place, k, v in zip(places[old:], k_new, t["v_new"][rows]):
                k_cache[place] = stored(k, scale_of(t, "k_scale", b), dtype)
                v_cache[place] = stored(wide(v), scale_of(t, "v_scale", b), dtype)
        k, v = (np.stack([wide(cache[place]) for place in places]) * scale_of(t, name, b)
                for cache, name in ((k_cache, "k_scale"), (v_cache, "v_scale")))
        tree = t.get("tree_mask")
        if tree is not None and tree.ndim == 3:
            tree = tree[b]
        o, l = attend(q, k, v, tree=tree, sinks=wide(t["sinks"]) if "sinks" in t else None, **options)
        out[rows] = o
        if packed:
            lse[:, rows] = l
        else:
            lse[b] = l
    return {"out": out, "lse": lse, "k_cache": wide(k_cache), "v_cache": wide(v_cache)}


def agree(got, expected, dtype):
    assert set(got) == set(expected)
    for name, value in expected.items():
        bound = {"v_cache": 0, "k_cache": 1e-6}.get(name, ERROR[dtype] * (1 + np.abs(value).max(initial=0)))
        check(got[name], value, bound, "f32" if name == "lse" else dtype)


def tensors_of(dtype="f32", lengths=(5, 0, 70), sq=1, heads=6, kv_heads=2, dim=40, dim_v=None, capacity=96,
               page_size=None, rope=True, seqlens=None):
    batch, dim_v = len(lengths), dim_v or dim
    rows = (batch, sq) if seqlens is None else (sum(seqlens),)
    pages = (batch, capacity) if page_size is None else (batch * capacity // page_size + 2, page_size)
    t = {"q": draw("q", (*rows, heads, dim), dtype), "k_new": draw("kn", (*rows, kv_heads, dim), dtype),
         "v_new": draw("vn", (*rows, kv_heads, dim_v), dtype),
         "k_cache": draw("k", (*pages, kv_heads, dim), dtype), "v_cache": draw("v", (*pages, kv_heads, dim_v), dtype),
         "cache_seqlens": np.array(lengths, np.int32)}
    if page_size is not None:
        order = np.random.default_rng(3).permutation(pages[0]).astype(np.int32)
        t["page_table"] = order[:batch * capacity // page_size].reshape(batch, -1)
    if seqlens is not None:
        t["cu_seqlens_q"] = np.cumsum([0, *seqlens]).astype(np.int32)
    if rope:
        angle = np.arange(capacity)[:, None] * 0.5 ** np.arange(dim // 2)
        t |= {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    return t


# ---- attention-decode --------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("sq", [1, 3, 20])
def test_decode(apply, dtype, page_size, sq):
    tensors = tensors_of(dtype, sq=sq, page_size=page_size)
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), dtype)


@pytest.mark.parametrize("page_size", [None, 1, 7, 32])
def test_prefill_and_decode(apply, page_size):
    tensors = tensors_of(lengths=(0, 60, 31, 95), seqlens=(40, 1, 13, 1), page_size=page_size, capacity=224, dim=64)
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), "f32")


@pytest.mark.parametrize("sq", [1, 20])
def test_slots(apply, refuse, sq):
    tensors = tensors_of(sq=sq)
    for name in ("k_cache", "v_cache"):  # five slots for three sequences
        tensors[name] = np.concatenate([tensors[name], tensors[name][:2]])
    tensors["cache_batch_idx"] = np.array([3, 0, 4], np.int32)
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), "f32")
    bad = tensors | {"cache_batch_idx": np.array([3, 5, 4], np.int32)}
    refuse("attention-decode", bad, words=["cache_batch_idx[1]", "5"])


@pytest.mark.parametrize("names", [("q_norm", "k_norm"), ("q_norm",), ("k_norm",)])
@pytest.mark.parametrize("dtype", MAIN)
def test_norms(apply, dtype, names):
    tensors = tensors_of(dtype, sq=3, rope=dtype == "f32") | {n: draw(n, (40,), dtype) for n in names}
    rounded = 1 if dtype == "f32" or "k_norm" not in names else 3  # keys are rounded here twice
    for option, norm in ((), {}), (("--zero-centered-weight", "--norm-eps", 0.01), {"eps": 0.01, "offset": 1}):
        got, expected = apply("attention-decode", tensors, "--mask", "causal", *option), decode(tensors, norm=norm)
        for name, value in expected.items():
            bound = 0 if name == "v_cache" else rounded * ERROR[dtype] * (1 + np.abs(value).max())
            check(got[name], value, bound, "f32" if name == "lse" else dtype)


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
@pytest.mark.parametrize("sq", [1, 20])
@pytest.mark.parametrize("dtype", MAIN)
def test_e4m3(apply, refuse, dtype, sq, shape):
    tensors = tensors_of(dtype, sq=sq, rope=False)
    for name in ("k", "v"):
        tensors[name + "_cache"] = draw(name, tensors[name + "_cache"].shape, "e4m3", 10)
        tensors[name + "_scale"] = np.asarray(0.05 + np.abs(draw(name + "s", shape)) / 10, np.float32)
    tensors["v_new"][0, 0, 0, :2] *= 1000  # more than e4m3 holds
    got, expected = apply("attention-decode", tensors, "--mask", "causal"), decode(tensors)
    assert set(got) == set(expected)
    for name, value in expected.items():
        bound = 0 if name.endswith("cache") else ERROR[dtype] * (1 + np.abs(value).max())
        check(got[name], value, bound, {"lse": "f32", "out": dtype}.get(name, "e4m3"))
    for name in ("k_scale", "v_scale"):
        refuse("attention-decode", {n: t for n, t in tensors.items() if n != name}, words=[name])


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("sq", [5, 20])
def test_tree(apply, sq, shape):
    tree = (np.random.default_rng(4).random((*shape, sq, sq)) < 0.4) | np.eye(sq, dtype=bool)
    tensors = tensors_of(sq=sq, page_size=16) | {"tree_mask": tree.astype(np.uint8)}
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), "f32")
    got = apply("attention-decode", tensors, "--mask", "none", "--softcap", 4)
    agree(got, decode(tensors, mask="none", softcap=4), "f32")


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("sq", [1, 20])
def test_padding(apply, refuse, sq, page_size):
    tensors = tensors_of(sq=sq, page_size=page_size) | {"leftpad_k": np.array([2, 0, 33], np.int32)}
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), "f32")
    bad = tensors | {"leftpad_k": np.array([2, 0, 71], np.int32)}
    refuse("attention-decode", bad, words=["leftpad_k[2]", "71"])


@pytest.mark.parametrize("heads, kv_heads, dim, dim_v", [(1, 1, 1, 1), (8, 8, 128, 128), (16, 1, 64, 33), (4, 2, 256, 8)])
def test_heads(apply, heads, kv_heads, dim, dim_v):
    tensors = tensors_of(heads=heads, kv_heads=kv_heads, dim=dim, dim_v=dim_v, rope=False)
    agree(apply("attention-decode", tensors, "--mask", "causal"), decode(tensors), "f32")


def test_options(apply):
    tensors = tensors_of(sq=4, page_size=16) | {"sinks": draw("sinks", (6,))}
    got = apply("attention-decode", tensors, "--mask", "causal", "--window-left", 9, "--softcap", 4, "--interleaved")
    agree(got, decode(tensors, interleaved=True, left=9, softcap=4), "f32")


@pytest.mark.parametrize("variant", ["split", "naive", "reference"])
def test_variants(apply, variant):
    tensors = tensors_of(sq=2)
    agree(apply("attention-decode", tensors, "--mask", "causal", "--variant", variant), decode(tensors), "f32")


def test_cache_alone(apply):
    """Without new keys the caches are unchanged."""
    tensors = tensors_of(lengths=(9, 40), rope=False)
    del tensors["k_new"], tensors["v_new"]
    got = apply("attention-decode", tensors, "--mask", "causal")
    agree(got, decode(tensors), "f32")
    for name in ("k_cache", "v_cache"):
        assert got[name].tobytes() == tensors[name].tobytes()


def test_refusals(refuse):
    tensors = tensors_of(page_size=16)
    table = tensors["page_table"].copy()
    table[2, 4] = 99
    refuse("attention-decode", tensors | {"page_table": table}, words=["page_table[2][4]", "99"])
    refuse("attention-decode", {n: t for n, t in tensors.items() if n != "v_new"}, words=["v_new"])
    refuse("attention-decode", tensors, "--mask", "causal-top-left", words=["mask"])


# ---- attention-merge ---------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 4, 3)])
def test_merge(apply, dtype, shape):
    outs, lses = draw("outs", (4, *shape, 72), dtype), draw("lses", (4, *shape), scale=5)
    lses[0, ..., 0] = -np.inf
    total = np.logaddexp.reduce(wide(lses), 0)
    got = apply("attention-merge", {"outs": outs, "lses": lses})
    assert set(got) == {"out", "lse"}
    expected = (np.exp(wide(lses) - total)[..., None] * wide(outs)).sum(0)
    check(got["out"], expected, 1e-5, dtype)
    check(got["lse"], total, 1e-5, "f32")


def test_merge_is_decode(apply):
    """Attention on both halves of the keys, merged."""
    tensors = tensors_of(lengths=(64, 64), rope=False)
    del tensors["k_new"], tensors["v_new"]
    whole = apply("attention-decode", tensors)
    parts = []
    for half in (slice(0, 20), slice(20, 64)):
        cut = {"k_cache": tensors["k_cache"][:, half], "v_cache": tensors["v_cache"][:, half],
               "cache_seqlens": np.full(2, half.stop - half.start, np.int32)}
        parts.append(apply("attention-decode", tensors | cut))
    lses = np.stack([p["lse"].transpose(0, 2, 1) for p in parts])
    got = apply("attention-merge", {"outs": np.stack([p["out"] for p in parts]), "lses": lses})
    check(got["out"], wide(whole["out"]), 1e-5, "f32")
    check(got["lse"], wide(whole["lse"]).transpose(0, 2, 1), 1e-5, "f32")
