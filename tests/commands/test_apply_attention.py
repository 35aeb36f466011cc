# SPDX-License-Identifier: Apache-2.0
"""tessera apply attention from outside: NumPy in float64 checks it with its own definition of the operation, which shares
nothing with the library. Gradients are also compared with differences of losses."""
import itertools
import math

import numpy as np
import pytest

from apply_support import DTYPES, MAIN, TESSERA, apply, check, draw, refuse, wide

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

# For values of about 1: fp32 sums, and weights that may be stored in 16 bits.
ERROR = {"f32": 3e-5, "f16": 4e-3, "bf16": 3e-2, "f64": 1e-12}


# ---- The operation in NumPy --------------------------------------------------------------------

def philox(seed, counter):
    """Philox4x32-10 for arrays of counters, four words each."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c = [np.asarray(x, np.uint64) & low for x in counter]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> shift ^ c[1] ^ np.uint64(key[0]), b & low, a >> shift ^ c[3] ^ np.uint64(key[1]),
             a & low]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return np.stack(c)


def test_philox():
    """The published test vectors."""
    zero = philox(0, (0, 0, 0, 0))
    assert [int(w) for w in zero] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox(2**64 - 1, (2**32 - 1,) * 4)
    assert [int(w) for w in ones] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def kept(shape, p, seed, offset, batch):
    """The dropout factor of every weight (head, i, j) of a sequence."""
    h, i, j = np.meshgrid(*[np.arange(n) for n in shape], indexing="ij")
    words = philox(seed, (j // 4 + offset, i, h, np.full_like(j, batch)))
    word = np.take_along_axis(words, (j % 4)[None].astype(np.int64), 0)[0]
    return (word >= math.ceil(p * 2**32)) / (1 - p)


def attend(q, k, v, batch=0, mask="none", left=None, right=None, scale=None, softcap=0, bias=None,
           slopes=None, sinks=None, dropout=None, dout=None):
    """One sequence of (rows, heads, dim): out, lse and, with dout, a dictionary of gradients."""
    (sq, heads, dim), (sk, kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(dim) if scale is None else scale
    kk, vv = (np.repeat(t, heads // kv_heads, 1) for t in (k, v))
    s = scale * np.einsum("ihd,jhd->hij", q, kk)
    slope = np.ones_like(s)
    if softcap:
        t = np.tanh(s / softcap)
        s, slope = softcap * t, 1 - t * t
    i, j = np.ogrid[:sq, :sk]
    diagonal = i + (0 if mask == "causal-top-left" else sk - sq)
    seen = np.ones((sq, sk), bool)
    if mask != "none":
        seen &= j <= diagonal
    if left is not None:
        seen &= j >= diagonal - left
    if right is not None:
        seen &= j <= diagonal + right
    if bias is not None:
        s = s + bias
    if slopes is not None:
        s = s - slopes[:, None, None] * np.abs(j - diagonal)
    s = np.where(seen, s, -np.inf)
    sink = np.full((heads, 1), -np.inf) if sinks is None else sinks[:, None]
    top = np.maximum(np.max(s, -1, initial=-np.inf), sink)
    with np.errstate(divide="ignore", invalid="ignore"):
        safe = np.where(np.isinf(top), 0, top)
        total = np.exp(s - safe[..., None]).sum(-1) + np.exp(sink - safe)
        lse = np.where(total > 0, safe + np.log(total), -np.inf)
        weights = np.where(lse[..., None] > -np.inf, np.exp(s - np.where(np.isinf(lse), 0, lse)[..., None]), 0)
    factor = 1 if dropout is None else kept(s.shape, *dropout, batch)
    out = np.einsum("hij,jhd->ihd", weights * factor, vv)
    if dout is None:
        return out, lse
    delta = np.einsum("ihd,ihd->hi", dout, out)
    ds = weights * (factor * np.einsum("ihd,jhd->hij", dout, vv) - delta[..., None])
    dqk = scale * slope * ds
    group = lambda t: t.reshape(sk, kv_heads, heads // kv_heads, t.shape[-1]).sum(2)
    with np.errstate(over="ignore"):
        dsinks = -np.where(lse > -np.inf, np.exp(sink - np.where(np.isinf(lse), 0, lse)) * delta, 0).sum(-1)
    return out, lse, {
        "dq": np.einsum("hij,jhd->ihd", dqk, kk), "dk": group(np.einsum("hij,ihd->jhd", dqk, q)),
        "dv": group(np.einsum("hij,ihd->jhd", weights * factor, dout)), "dbias": ds, "dsinks": dsinks}


def stacked(tensors, **options):
    """attend() over a batch: bias with any broadcasting, slopes and sinks as in the file."""
    t = {name: wide(x) for name, x in tensors.items()}
    batch, sq, heads, _ = t["q"].shape
    full = (batch, heads, sq, t["k"].shape[1])
    results = []
    for b in range(batch):
        more = {name: t[name] for name in ("sinks",) if name in t}
        if "alibi_slopes" in t:
            more["slopes"] = t["alibi_slopes"] if t["alibi_slopes"].ndim == 1 else t["alibi_slopes"][b]
        if "bias" in t:
            more["bias"] = np.broadcast_to(t["bias"], full)[b]
        if "dout" in t:
            more["dout"] = t["dout"][b]
        results.append(attend(t["q"][b], t["k"][b], t["v"][b], b, **options, **more))
    out = {"out": np.stack([r[0] for r in results]), "lse": np.stack([r[1] for r in results])}
    if "dout" in t:
        grads = [r[2] for r in results]
        out |= {n: np.stack([g[n] for g in grads]) for n in ("dq", "dk", "dv")}
        if "bias" in t:
            dbias = np.stack([g["dbias"] for g in grads])
            repeated = tuple(d for d in range(4) if t["bias"].shape[d] == 1)
            out["dbias"] = dbias.sum(repeated, keepdims=True)
        if "sinks" in t:
            out["dsinks"] = sum(g["dsinks"] for g in grads)
    return out


def agree(got, expected, tensors, dtype, scale=1.0):
    assert set(got) == set(expected)
    for name, value in expected.items():
        kind = "f32" if name == "lse" and dtype != "f64" else dtype
        if name in ("dbias", "dsinks"):
            kind = next(d for d in DTYPES if DTYPES[d][0] == tensors[name[1:]].dtype)
        infinite = np.isinf(value)
        assert got[name].shape == value.shape
        np.testing.assert_array_equal(wide(got[name])[infinite], value[infinite])
        sums = 1 + np.abs(value[~infinite]).max(initial=0)
        check(got[name][~infinite], value[~infinite], ERROR[dtype] * scale * sums, kind)


def qkv(dtype="f32", batch=2, sq=17, sk=29, heads=4, kv_heads=2, dim=24, dim_v=None, with_dout=True):
    tensors = {"q": draw("q", (batch, sq, heads, dim), dtype), "k": draw("k", (batch, sk, kv_heads, dim), dtype),
               "v": draw("v", (batch, sk, kv_heads, dim_v or dim), dtype)}
    if with_dout:
        tensors["dout"] = draw("dout", (batch, sq, heads, dim_v or dim), dtype)
    return tensors


# ---- Features ----------------------------------------------------------------------------------

@pytest.mark.parametrize("mask", ["none", "causal", "causal-top-left"])
@pytest.mark.parametrize("dtype", MAIN)
def test_masks(apply, dtype, mask):
    for sq, sk in ((17, 29), (29, 17), (33, 33), (1, 40), (40, 1)):
        tensors = qkv(dtype, sq=sq, sk=sk)
        agree(apply("attention", tensors, "--mask", mask), stacked(tensors, mask=mask), tensors, dtype)


def test_defaults(apply):
    """No mask, scale 1 / sqrt(head_dim). Without dout only forward runs."""
    tensors = qkv(with_dout=False)
    got = apply("attention", tensors)
    assert set(got) == {"out", "lse"}
    agree(got, stacked(tensors), tensors, "f32")


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (6, 6), (6, 3), (6, 1), (28, 4)])
@pytest.mark.parametrize("dim, dim_v", [(1, 1), (3, 3), (46, 46), (64, 64), (72, 72), (96, 40), (40, 96), (256, 256)])
def test_heads(apply, heads, kv_heads, dim, dim_v):
    tensors = qkv(batch=1, sq=9, sk=14, heads=heads, kv_heads=kv_heads, dim=dim, dim_v=dim_v)
    agree(apply("attention", tensors, "--mask", "causal"), stacked(tensors, mask="causal"), tensors, "f32")


@pytest.mark.parametrize("mask", ["none", "causal", "causal-top-left"])
@pytest.mark.parametrize("left, right", [(0, 0), (0, None), (None, 0), (3, 2), (1000, 1), (16, None)])
def test_windows(apply, mask, left, right):
    for sq, sk in ((17, 17), (13, 29), (29, 13)):
        tensors = qkv(sq=sq, sk=sk)
        options = ["--mask", mask]
        options += ["--window-left", left] if left is not None else []
        options += ["--window-right", right] if right is not None else []
        agree(apply("attention", tensors, *options), stacked(tensors, mask=mask, left=left, right=right), tensors, "f32")


@pytest.mark.parametrize("repeated", list(itertools.product((False, True), repeat=4)))
def test_bias(apply, repeated):
    tensors = qkv()
    shape = tuple(1 if r else n for r, n in zip(repeated, (2, 4, 17, 29)))
    tensors["bias"] = draw("bias", shape)
    agree(apply("attention", tensors), stacked(tensors), tensors, "f32")


@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("small", ["as q", "f32"])
def test_everything(apply, dtype, small):
    kind = dtype if small == "as q" else "f32"
    tensors = qkv(dtype, batch=3, sq=33, sk=40, heads=6, kv_heads=2, dim=40)
    tensors |= {"bias": draw("bias", (3, 1, 33, 40), kind), "alibi_slopes": draw("slopes", (6,), kind, 0.1),
                "sinks": draw("sinks", (6,), kind)}
    tensors["bias"][1, 0, 5] = -np.inf
    tensors["bias"][2, 0, :, 7] = -np.inf
    got = apply("attention", tensors, "--mask", "causal", "--window-left", 20, "--softcap", 6, "--softmax-scale", 0.25,
                "--dropout-p", 0.25, "--seed", 2**40 + 3, "--offset", 2**32 - 5, "--deterministic")
    options = {"mask": "causal", "left": 20, "softcap": 6, "scale": 0.25, "dropout": (0.25, 2**40 + 3, 2**32 - 5)}
    agree(got, stacked(tensors, **options), tensors, dtype)


def test_alibi_of_every_batch(apply):
    tensors = qkv() | {"alibi_slopes": np.abs(draw("slopes", (2, 4), scale=0.3))}
    agree(apply("attention", tensors), stacked(tensors), tensors, "f32")


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_dropout(apply, p):
    tensors = qkv()
    got = apply("attention", tensors, "--dropout-p", p, "--seed", 7, "--offset", 123)
    agree(got, stacked(tensors, dropout=(p, 7, 123)), tensors, "f32", scale=1 / (1 - p))


def test_rows_that_see_nothing(apply):
    tensors = qkv(sq=29, sk=17)
    got = apply("attention", tensors, "--mask", "causal")
    assert np.isneginf(got["lse"][:, :, :12]).all() and np.isfinite(got["lse"][:, :, 12:]).all()
    assert not got["out"][:, :12].any() and not got["dq"][:, :12].any()
    tensors["sinks"] = draw("sinks", (4,))
    got = apply("attention", tensors, "--mask", "causal")
    np.testing.assert_allclose(got["lse"][:, :, :12], np.broadcast_to(tensors["sinks"][:, None], (2, 4, 12)), rtol=1e-6)
    assert not got["out"][:, :12].any()


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)])
def test_empty(apply, shape):
    tensors = qkv(batch=shape[0], sq=shape[1], sk=shape[2])
    got = apply("attention", tensors)
    for name in ("dq", "dk", "dv"):
        assert got[name].shape == tensors[name[1:]].shape and not got[name].any()
    assert not got["out"].any() and np.isneginf(got["lse"]).all()


def test_masked_nan_stays_away(apply):
    clean = qkv(sq=20, sk=40)
    dirty = {name: t.copy() for name, t in clean.items()}
    for name in ("k", "v"):
        dirty[name][:, 25:] = np.nan
        clean[name][:, 25:] = 0
    options = ["--mask", "causal-top-left", "--window-right", 3]
    expected, got = apply("attention", clean, *options), apply("attention", dirty, *options)
    assert all(got[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize("variant", ["naive", "flash1", "flash2", "reference"])
def test_variants(apply, variant):
    tensors = qkv(sq=150, sk=170, dim=64)
    got = apply("attention", tensors, "--mask", "causal", "--variant", variant)
    agree(got, stacked(tensors, mask="causal"), tensors, "f32")


# ---- Sequences of their own length -------------------------------------------------------------

@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("mask", ["none", "causal", "causal-top-left"])
def test_packed(apply, dtype, mask):
    cu_q, cu_k = np.array([2, 2, 19, 20, 52], np.int32), np.array([0, 7, 40, 40, 77], np.int32)
    tensors = {"q": draw("q", (55, 6, 24), dtype), "k": draw("k", (80, 2, 24), dtype),
               "v": draw("v", (80, 2, 40), dtype), "dout": draw("dout", (55, 6, 40), dtype),
               "sinks": draw("sinks", (6,)), "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    for name, cu in (("q", cu_q), ("dout", cu_q), ("k", cu_k), ("v", cu_k)):
        tensors[name][cu[-1]:] = np.nan
        tensors[name][:cu[0]] = np.nan
    t = {name: wide(x) for name, x in tensors.items()}
    expected = {"out": np.zeros((55, 6, 40)), "lse": np.full((6, 55), -np.inf),
                "dq": np.zeros((55, 6, 24)), "dk": np.zeros((80, 2, 24)), "dv": np.zeros((80, 2, 40)),
                "dsinks": np.zeros(6)}
    for b in range(4):
        of_q, of_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        out, lse, grads = attend(t["q"][of_q], t["k"][of_k], t["v"][of_k], b, mask=mask, sinks=t["sinks"],
                                 dout=t["dout"][of_q])
        expected["out"][of_q], expected["lse"][:, of_q], expected["dq"][of_q] = out, lse, grads["dq"]
        expected["dk"][of_k], expected["dv"][of_k] = grads["dk"], grads["dv"]
        expected["dsinks"] += grads["dsinks"]
    agree(apply("attention", tensors, "--mask", mask), expected, tensors, dtype)


def test_packed_bias(apply):
    """The bias has the longest sequence's lengths as its last two dimensions."""
    cu = np.array([0, 12, 12, 30], np.int32)
    tensors = {name: draw(name, (30, 2, 16)) for name in ("q", "k", "v")}
    tensors |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "bias": draw("bias", (3, 2, 18, 18))}
    got = apply("attention", tensors)
    for b in range(3):
        rows, n = slice(cu[b], cu[b + 1]), cu[b + 1] - cu[b]
        out, lse = attend(*(wide(tensors[x][rows]) for x in "qkv"), bias=wide(tensors["bias"][b, :, :n, :n]))
        np.testing.assert_allclose(got["out"][rows], out, atol=1e-5)
        np.testing.assert_allclose(got["lse"][:, rows], lse, atol=1e-5)


def test_seqused_k(apply):
    tensors = qkv(batch=4, sq=17, sk=29)
    used = np.array([29, 0, 11, 20], np.int32)
    for b, n in enumerate(used):
        tensors["k"][b, n:] = tensors["v"][b, n:] = np.nan
    got = apply("attention", tensors | {"seqused_k": used}, "--mask", "causal")
    for b, n in enumerate(used):
        t = [wide(tensors[x][b]) for x in "qkv"]
        out, lse, grads = attend(t[0], t[1][:n], t[2][:n], mask="causal", dout=wide(tensors["dout"][b]))
        np.testing.assert_allclose(got["out"][b], out, atol=1e-5)
        np.testing.assert_allclose(got["lse"][b], lse, atol=1e-5)
        np.testing.assert_allclose(got["dq"][b], grads["dq"], atol=1e-4)
        for name in ("dk", "dv"):
            np.testing.assert_allclose(got[name][b, :n], grads[name], atol=1e-4)
            assert not got[name][b, n:].any()


# ---- Gradients as slopes -----------------------------------------------------------------------

@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_gradients_are_derivatives(apply, name):
    """In f64: a step in a direction changes the sum of dout out as the gradients predict."""
    tensors = {key: t.astype(np.float64) for key, t in qkv(sq=9, sk=12, dim=8).items()}
    tensors |= {"bias": draw("bias", (1, 4, 9, 12), "f64"), "sinks": draw("sinks", (4,), "f64"),
                "alibi_slopes": draw("slopes", (4,), "f64", 0.1)}
    options = ["--mask", "causal", "--window-left", 7, "--softcap", 2, "--dropout-p", 0.3, "--seed", 11]
    gradient = apply("attention", tensors, *options)["d" + name]
    direction, step = draw("direction", tensors[name].shape, "f64"), 1e-5
    losses = []
    for sign in (1, -1):
        moved = tensors | {name: tensors[name] + sign * step * direction}
        losses.append((apply("attention", moved, *options)["out"] * tensors["dout"]).sum())
    assert (gradient * direction).sum() == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6)


# ---- What is refused ---------------------------------------------------------------------------

T = qkv(with_dout=False)
REFUSED = {
    "no k": ({"q": T["q"], "v": T["v"]}, [], ["'k'"]),
    "heads": ({**T, "k": draw("k", (2, 29, 3, 24)), "v": draw("v", (2, 29, 3, 24))}, [], ["heads"]),
    "rank": ({**T, "q": T["q"][0]}, [], ["q"]),
    "head_dim of k": ({**T, "k": draw("k", (2, 29, 2, 23))}, [], ["k has shape (2, 29, 2, 23)"]),
    "rows of v": ({**T, "v": draw("v", (2, 28, 2, 24))}, [], ["v has shape (2, 28, 2, 24)"]),
    "dtype of v": ({**T, "v": draw("v", (2, 29, 2, 24), "f16")}, [], ["v.dtype is f16"]),
    "head_dim 257": ({n: draw(n, (1, 3, 2, 257)) for n in "qkv"}, [], ["head_dim", "257"]),
    "bias": ({**T, "bias": draw("b", (2, 4, 17, 28))}, [], ["bias"]),
    "sinks": ({**T, "sinks": draw("s", (3,))}, [], ["sinks"]),
    "slopes": ({**T, "alibi_slopes": draw("s", (2,))}, [], ["alibi_slopes"]),
    "half of packed": ({"q": T["q"][0], "k": T["k"][0], "v": T["v"][0],
                        "cu_seqlens_q": np.array([0, 17], np.int32)}, [], ["cu_seqlens_k"]),
    "int64 offsets": ({**T, "cu_seqlens_q": np.array([0, 17])}, [], ["cu_seqlens_q"]),
    "unknown mask": (T, ["--mask", "bottom"], ["bottom", "causal-top-left"]),
    "dropout 1": (T, ["--dropout-p", 1], ["dropout_p"]),
    "negative softcap": (T, ["--softcap", -1], ["softcap"]),
    "a result": ({**T, "out": T["q"]}, [], ["'out'", "result"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(refuse, case):
    tensors, options, words = REFUSED[case]
    refuse("attention", tensors, *options, words=words)
