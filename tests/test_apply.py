# SPDX-License-Identifier: Apache-2.0
"""tessera apply from outside: NumPy writes the files, NumPy reads them, and float64 says what is right,
element by element, within the bounds that the public headers document. The binary is $TESSERA."""
import itertools
import math
import os
import pathlib
import re
import stat
import struct
import subprocess
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

U32 = 2.0**-24
DTYPES = {
    "f32": (np.dtype(np.float32), 2.0**-24, 2.0**-149),
    "bf16": (np.dtype(ml_dtypes.bfloat16), 2.0**-8, 2.0**-133),
    "f16": (np.dtype(np.float16), 2.0**-11, 2.0**-24),
    "f64": (np.dtype(np.float64), 2.0**-53, 0.0),
    "e4m3": (np.dtype(ml_dtypes.float8_e4m3fn), 2.0**-4, 2.0**-9),
    "e5m2": (np.dtype(ml_dtypes.float8_e5m2), 2.0**-3, 2.0**-16),
    "i32": (np.dtype(np.int32), 0.0, 0.0),
    "i64": (np.dtype(np.int64), 0.0, 0.0),
}
FILE_NAMES = {"F32": "f32", "BF16": "bf16", "F16": "f16", "F64": "f64", "F8_E4M3": "e4m3",
              "F8_E5M2": "e5m2", "I32": "i32", "I64": "i64"}
MAIN = ["f32", "bf16", "f16"]
SHAPES = [(1,), (7,), (129,), (1, 1), (3, 5), (17, 257), (5, 1000), (2, 3, 33), (1, 4, 1, 64),
          (2, 2, 3, 100), (0, 4), (4, 0)]


# ---- Files and the command ---------------------------------------------------------------------

def dtype_of(array):
    return next(name for name, row in DTYPES.items() if row[0] == array.dtype)


def write(path, tensors):
    contiguous = {name: np.ascontiguousarray(t).reshape(t.shape) for name, t in tensors.items()}
    pathlib.Path(path).write_bytes(safetensors.numpy.save(contiguous))


def read(path):
    result = {}
    for name, tensor in safetensors.deserialize(pathlib.Path(path).read_bytes()):
        dtype = DTYPES[FILE_NAMES[tensor["dtype"]]]
        result[name] = np.frombuffer(bytes(tensor["data"]), dtype[0]).reshape(tensor["shape"])
    return result


def run(*arguments):
    return subprocess.run([TESSERA, "apply", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120)


@pytest.fixture
def apply(tmp_path):
    def call(op, tensors, *options):
        write(tmp_path / "in", tensors)
        done = run(op, "--input", tmp_path / "in", "--output", tmp_path / "out", *options)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return read(tmp_path / "out")
    return call


@pytest.fixture
def refuse(tmp_path):
    """Exit code 2, one sentence with the given words, and the earlier output as it was."""
    def call(op, tensors, *options, words=(), code=2):
        (tmp_path / "out").write_bytes(b"earlier")
        if tensors is not None:
            write(tmp_path / "in", tensors)
        done = run(*op.split(), "--input", tmp_path / "in", "--output", tmp_path / "out", *options)
        assert done.returncode == code, done
        assert done.stdout == ""
        sentence = done.stderr
        assert sentence.startswith("tessera apply: ") and sentence.count("\n") == 1, sentence
        for word in words:
            assert word in sentence, (word, sentence)
        assert (tmp_path / "out").read_bytes() == b"earlier"
        assert sorted(p.name for p in tmp_path.iterdir()) in (["in", "out"], ["out"])
        return sentence
    return call


# ---- Numbers -----------------------------------------------------------------------------------

def draw(seed, shape, dtype="f32", scale=1.0, shift=0.0):
    rng = np.random.default_rng(zlib.crc32(f"{seed} {tuple(shape)}".encode()))
    return (rng.standard_normal(shape) * scale + shift).astype(DTYPES[dtype][0])


def wide(array):
    return array.astype(np.float64)


def check(got, expected, bound, dtype, shape=None):
    """Every element within its bound plus the rounding to its dtype."""
    assert dtype_of(got) == dtype
    assert got.shape == (expected.shape if shape is None else shape)
    _, u, smallest = DTYPES[dtype]
    expected = np.asarray(expected).reshape(got.shape)
    limit = np.asarray(bound).reshape(got.shape) if np.ndim(bound) else np.full(got.shape, bound)
    limit = limit * (1 + u) + u * np.abs(expected) + smallest / 2 + 2.0**-126
    error = np.abs(wide(got) - expected)
    assert np.isfinite(wide(got)).all()
    if error.size:
        worst = np.max(error / limit)
        assert worst <= 1.0, f"err/bound {worst}"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True)) if x.size else x
    return e / e.sum(-1, keepdims=True) if x.size else x


# ---- softmax -----------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", MAIN)
def test_softmax(apply, shape, dtype):
    x, dy = draw("x", shape, dtype, 3), draw("dy", shape, dtype)
    out = apply("softmax", {"dy": dy, "x": x})
    assert set(out) == {"y", "dx"}
    expected = softmax(wide(x))
    cols = shape[-1]
    below = np.abs(wide(x) - wide(x).max(-1, keepdims=True)) if x.size else wide(x)
    check(out["y"], expected, expected * (8 + 2 * below + math.sqrt(cols)) * U32, dtype)
    y, g = wide(out["y"]), wide(dy)
    dot, magnitude = (y * g).sum(-1, keepdims=True), np.abs(y * g).sum(-1, keepdims=True)
    check(out["dx"], y * (g - dot),
          (8 + math.sqrt(cols)) * U32 * np.abs(y) * (np.abs(g) + magnitude), dtype)
    assert set(apply("softmax", {"x": x})) == {"y"}


@pytest.mark.parametrize("variant", ["fused", "online", "unfused", "reference"])
def test_softmax_variants(apply, variant):
    x, dy = draw("x", (6, 333), "f32", 3), draw("dy", (6, 333))
    out = apply("softmax", {"x": x, "dy": dy}, "--variant", variant)
    np.testing.assert_allclose(wide(out["y"]), softmax(wide(x)), rtol=1e-5, atol=1e-12)
    y, g = wide(out["y"]), wide(dy)
    np.testing.assert_allclose(out["dx"], y * (g - (y * g).sum(-1, keepdims=True)), atol=1e-6)


def test_double_precision(apply):
    x, dy = draw("x", (6, 33), "f64", 3), draw("dy", (6, 33), "f64")
    out = apply("softmax", {"x": x, "dy": dy}, "--variant", "reference")
    y = softmax(x)
    np.testing.assert_allclose(out["y"], y, rtol=1e-14)
    np.testing.assert_allclose(out["dx"], y * (dy - (y * dy).sum(-1, keepdims=True)), rtol=1e-9,
                               atol=1e-15)


def test_special_values(apply):
    inf, nan = math.inf, math.nan
    x = np.array([[-inf] * 3, [1, -inf, 1], [nan, 1, 2], [inf, 1, 2]], np.float32)
    y = apply("softmax", {"x": x})["y"]
    assert (y[0] == 0).all()
    np.testing.assert_allclose(y[1], [0.5, 0, 0.5], rtol=1e-6)
    assert np.isnan(y[2:]).all()


# ---- layernorm, rmsnorm ------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(7,), (3, 1), (17, 257), (0, 4), (2, 3, 33), (2, 2, 3, 100)])
@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("extras", ["plain", "all", "f32 weight"])
def test_norm(apply, op, shape, dtype, extras):
    cols, rows, eps = shape[-1], math.prod(shape[:-1]), 1e-5 if extras == "plain" else 1e-3
    small = "f32" if extras == "f32 weight" else dtype
    tensors = {"x": draw("x", shape, dtype, 1, 2), "weight": draw("w", (cols,), small, 0.5, 1),
               "dy": draw("dy", shape, dtype)}
    if extras != "plain":
        tensors["residual"] = draw("r", shape, dtype)
        tensors["dresidual_out"] = draw("dr", shape, dtype)
        if op == "layernorm":
            tensors["bias"] = draw("b", (cols,), small)
    out = apply(op, tensors, *([] if extras == "plain" else ["--eps", eps]))

    names = {"y", "rstd", "dx", "dweight"} | ({"mean"} if op == "layernorm" else set())
    names |= {"residual_out"} if extras != "plain" else set()
    assert set(out) == names | ({"dbias"} if "bias" in tensors else set())
    s = wide(tensors["x"])
    if extras != "plain":
        # Rounded, then normalised as rounded.
        check(out["residual_out"], s + wide(tensors["residual"]), 2 * U32 * np.abs(s), dtype)
        s = wide(out["residual_out"])
    weight = wide(tensors["weight"])
    bias = wide(tensors["bias"]) if "bias" in tensors else np.zeros(cols)
    mean = s.mean(-1, keepdims=True) if op == "layernorm" else np.zeros(shape[:-1] + (1,))
    variance = ((s - mean) ** 2).mean(-1, keepdims=True)
    sigma = np.sqrt(variance + eps)
    h, kappa = (s - mean) / sigma, (8 + math.sqrt(cols)) * U32
    h_bound = kappa * (1 + np.abs(h))
    y = h * weight + bias
    check(out["y"], y, np.abs(weight) * h_bound + 3 * U32 * (np.abs(h * weight) + np.abs(bias)),
          dtype)
    check(out["rstd"], 1 / sigma[..., 0], kappa / sigma[..., 0], "f32")
    if op == "layernorm":
        check(out["mean"], mean[..., 0], kappa * (sigma + np.abs(mean))[..., 0], "f32")
        mean = wide(out["mean"])[..., None]

    # Backward takes mean and rstd as the file has them.
    rstd = wide(out["rstd"])[..., None]
    dy, h = wide(tensors["dy"]), (s - mean) * rstd
    g = dy * weight
    mean_g = g.mean(-1, keepdims=True) if op == "layernorm" else 0.0
    mean_abs_g = np.abs(g).mean(-1, keepdims=True) if op == "layernorm" else 0.0
    mean_gh, mean_abs_gh = (g * h).mean(-1, keepdims=True), np.abs(g * h).mean(-1, keepdims=True)
    dx = rstd * (g - mean_g - h * mean_gh)
    h_error = 3 * U32 * np.abs(h) + 2 * U32 * np.abs(mean) * rstd
    bound = rstd * ((4 * U32) * (np.abs(g) + mean_abs_g + np.abs(h) * mean_abs_gh) +
                    kappa * (mean_abs_g + np.abs(h) * mean_abs_gh) + h_error * mean_abs_gh +
                    np.abs(h) * (np.abs(g) * h_error).mean(-1, keepdims=True))
    if "dresidual_out" in tensors:
        dx = dx + wide(tensors["dresidual_out"])
        bound = bound + 2 * U32 * np.abs(dx)
    check(out["dx"], dx, bound, dtype)
    axes = tuple(range(len(shape) - 1))
    sums = (8 + 2 * math.sqrt(rows)) * U32
    check(out["dweight"], (dy * h).sum(axes),
          sums * np.abs(dy * h).sum(axes) + (np.abs(dy) * h_error).sum(axes), small)
    if "bias" in tensors:
        check(out["dbias"], dy.sum(axes), sums * np.abs(dy).sum(axes), small)


def test_norm_without_weight(apply):
    x = draw("x", (4, 9))
    out = apply("layernorm", {"x": x, "dy": x})
    assert set(out) == {"y", "mean", "rstd", "dx"}
    np.testing.assert_allclose(out["y"].std(-1), 1, rtol=1e-3)


def test_eps_zero(apply):
    out = apply("rmsnorm", {"x": np.full((1, 4), 1e-10, np.float32), "weight": np.ones(4, np.float32)},
                "--eps", "0")
    np.testing.assert_allclose(out["y"], 1, rtol=1e-5)


# ---- matmul ------------------------------------------------------------------------------------

ERF = np.vectorize(math.erf, otypes=[np.float64])


def act(kind, v):
    if kind == "gelu":
        return 0.5 * v * (1 + ERF(v / math.sqrt(2)))
    if kind == "gelu_tanh":
        return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    if kind == "silu":
        return v / (1 + np.exp(-v))
    return np.maximum(v, 0) if kind == "relu" else v


def act_slope(kind, v):
    step = 1e-6
    if kind == "relu":
        return (v > 0).astype(np.float64)
    return (act(kind, v + step) - act(kind, v - step)) / (2 * step)


def products(a, b):
    k = a.shape[-1]
    return a @ b, (8 + 4 * math.sqrt(k)) * U32 * (np.abs(a) @ np.abs(b))


MATRICES = [(1, 1, 1), (17, 33, 65), (64, 48, 129), (5, 130, 0), (0, 3, 4), (3, 0, 4)]


@pytest.mark.parametrize("mnk", MATRICES)
@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("transposes", list(itertools.product([False, True], repeat=2)))
def test_matmul(apply, mnk, dtype, transposes):
    m, n, k = mnk
    a, b = draw("a", (m, k), dtype), draw("b", (k, n), dtype)
    options = [f"--transpose-{name}" for name, is_set in zip("ab", transposes) if is_set]
    dc = draw("dc", (m, n), dtype)
    out = apply("matmul", {"a": a.T if transposes[0] else a, "b": b.T if transposes[1] else b,
                           "dc": dc}, *options)
    assert set(out) == {"c", "da", "db"}
    check(out["c"], *products(wide(a), wide(b)), dtype)
    da, da_bound = products(wide(dc), wide(b).T)
    db, db_bound = products(wide(a).T, wide(dc))
    flip = lambda t, is_set: t.T if is_set else t
    check(out["da"], flip(da, transposes[0]), flip(da_bound, transposes[0]), dtype)
    check(out["db"], flip(db, transposes[1]), flip(db_bound, transposes[1]), dtype)


@pytest.mark.parametrize("kind", ["none", "gelu", "gelu_tanh", "silu", "relu"])
@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("is_gated", [False, True])
def test_matmul_epilogue(apply, kind, dtype, is_gated):
    m, n, k = 19, 37, 53
    tensors = {"a": draw("a", (m, k), dtype), "b": draw("b", (k, n), dtype, 0.2),
               "bias": draw("bias", (n,), "f32"), "residual": draw("r", (m, n), dtype)}
    if is_gated:
        tensors["b_up"] = draw("up", (k, n), dtype, 0.2)
    out = apply("matmul", tensors, "--epilogue", kind)
    v, bound = products(wide(tensors["a"]), wide(tensors["b"]))
    v, bound = v + wide(tensors["bias"]), bound + 2 * U32 * (np.abs(v) + 1)
    c, bound = act(kind, v), 1.13 * bound + 24 * U32 * np.abs(v)
    if is_gated:
        up, up_bound = products(wide(tensors["a"]), wide(tensors["b_up"]))
        c, bound = c * up, bound * np.abs(up) + np.abs(c) * up_bound + bound * up_bound
    c = c + wide(tensors["residual"])
    check(out["c"], c, bound + 3 * U32 * (np.abs(c) + np.abs(wide(tensors["residual"]))), dtype)


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu", "relu"])
@pytest.mark.parametrize("dtype", MAIN)
def test_matmul_backward_epilogue(apply, kind, dtype):
    m, n, k = 19, 37, 53
    a, b, bias = draw("a", (m, k), dtype), draw("b", (k, n), dtype, 0.2), draw("bias", (n,), dtype)
    dc = draw("dc", (m, n), dtype)
    out = apply("matmul", {"a": a, "b": b, "bias": bias, "dc": dc}, "--epilogue", kind)
    assert set(out) == {"c", "da", "db", "dbias"}
    u = DTYPES[dtype][1]
    v, v_bound = products(wide(a), wide(b))
    v, v_bound = v + wide(bias), v_bound + u * np.abs(v + wide(bias)) + 2 * U32 * np.abs(v)
    g = wide(dc) * act_slope(kind, v)
    # preact and g are held in the dtype; relu's slope jumps at 0.
    jump = (np.abs(v) <= 2 * v_bound) if kind == "relu" else 0.0
    g_bound = np.abs(wide(dc)) * (1.2 * v_bound + jump) + (u + 64 * U32) * np.abs(g) + 1e-6
    g_bound = g_bound + 64 * U32 * np.abs(wide(dc))
    da, da_bound = products(g, wide(b).T)
    db, db_bound = products(wide(a).T, g)
    check(out["da"], da, 2 * da_bound + g_bound @ np.abs(wide(b)).T, dtype)
    check(out["db"], db, 2 * db_bound + np.abs(wide(a)).T @ g_bound, dtype)
    check(out["dbias"], g.sum(0), g_bound.sum(0) + 16 * U32 * np.abs(g).sum(0), dtype)


@pytest.mark.parametrize("leading", [(1,), (3,), (0,), (2, 3), (1, 2, 2), (1, 1)])
@pytest.mark.parametrize("is_shared", [False, True])
def test_matmul_batches(apply, leading, is_shared):
    m, n, k = 5, 6, 9
    a, b = draw("a", leading + (m, k)), draw("b", (() if is_shared else leading) + (k, n))
    dc = draw("dc", leading + (m, n))
    out = apply("matmul", {"a": a, "b": b, "dc": dc})
    check(out["c"], *products(wide(a), wide(b)), "f32")
    np.testing.assert_allclose(out["da"], wide(dc) @ np.swapaxes(wide(b), -1, -2), atol=1e-4)
    db = np.swapaxes(wide(a), -1, -2) @ wide(dc)
    if is_shared:
        db = db.sum(tuple(range(len(leading))))
    assert out["db"].shape == b.shape
    np.testing.assert_allclose(out["db"], db, atol=1e-4)


def test_matmul_accumulate_alpha(apply):
    a, b, c = draw("a", (4, 5), "bf16"), draw("b", (5, 6), "bf16"), draw("c", (4, 6))
    out = apply("matmul", {"a": a, "b": b, "c": c}, "--accumulate", "--alpha", "-0.5")
    expected, bound = products(wide(a), wide(b))
    check(out["c"], wide(c) - 0.5 * expected, bound + 4 * U32 * np.abs(wide(c)), "f32")


# ---- Other operations through the same descriptions ------------------------------------------------

@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_embedding(apply, shape):
    ids = np.array([0, 4, 4, 6, 1, 4], np.int32).reshape(shape)
    weight, dy = draw("w", (7, 5)), draw("dy", shape + (5,))
    out = apply("embedding", {"ids": ids, "weight": weight, "dy": dy})
    np.testing.assert_array_equal(out["y"], weight[ids])
    expected = np.zeros((7, 5))
    np.add.at(expected, ids.reshape(-1), wide(dy).reshape(-1, 5))
    np.testing.assert_allclose(out["dweight"], expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 9), (2, 3, 9)])
def test_cross_entropy(apply, shape):
    logits, targets = draw("l", shape), np.arange(6, dtype=np.int32).reshape(shape[:-1])
    dloss = draw("d", shape[:-1])
    out = apply("cross-entropy", {"logits": logits, "targets": targets, "dloss": dloss})
    one_hot, p = np.eye(9)[targets], softmax(wide(logits))
    np.testing.assert_allclose(out["loss"], -np.log((p * one_hot).sum(-1)), rtol=1e-5)
    np.testing.assert_allclose(out["dlogits"], (p - one_hot) * wide(dloss)[..., None], atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "gelu", "gelu_tanh", "silu", "relu"])
def test_activation(apply, kind):
    x, up, dy = draw("x", (2, 3, 5)), draw("up", (2, 3, 5)), draw("dy", (2, 3, 5))
    out = apply("activation", {"x": x, "up": up, "dy": dy}, "--kind", kind)
    assert set(out) == {"y", "dx", "dup"}
    np.testing.assert_allclose(out["y"], act(kind, wide(x)) * up, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["dx"], act_slope(kind, wide(x)) * up * dy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["dup"], act(kind, wide(x)) * dy, rtol=1e-5, atol=1e-6)


def test_cast(apply):
    x = draw("x", (3, 4, 5))
    for name in ("bf16", "f16", "e4m3", "e5m2"):
        y = apply("cast", {"x": x}, "--to", name)["y"]
        assert y.tobytes() == x.astype(DTYPES[name][0]).tobytes() and y.shape == x.shape


# ---- The command line --------------------------------------------------------------------------

def test_options_in_any_order(tmp_path):
    x = draw("x", (3, 4))
    write(tmp_path / "in", {"x": x, "weight": np.ones(4, np.float32)})
    i, o = ["--input", tmp_path / "in"], ["--output", tmp_path / "out"]
    results = []
    for arguments in (["layernorm", *i, *o, "--eps", "0.5"], ["--eps", "0.5", *o, "layernorm", *i],
                      [*o, *i, "--eps=0.5", "layernorm"],
                      ["-i", tmp_path / "in", "layernorm", "-o", tmp_path / "out", "--eps", "5e-1"]):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        results.append((tmp_path / "out").read_bytes())
        (tmp_path / "out").unlink()
    assert len(set(results)) == 1


def test_a_file_named_as_the_operation(tmp_path):
    write(tmp_path / "softmax", {"x": draw("x", (3, 4))})
    done = subprocess.run([TESSERA, "apply", "--input", "softmax", "--output", "matmul", "softmax"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(read(tmp_path / "matmul")) == {"y"}


def test_help():
    done = run("--help")
    assert done.returncode == 0 and "softmax" in done.stdout and "--input" in done.stdout
    done = run("matmul", "--help")
    assert done.returncode == 0 and "--transpose-a" in done.stdout and "gelu_tanh" in done.stdout
    assert "--epilogue" in done.stdout


@pytest.mark.parametrize("dtype", MAIN)
def test_dtype_converts(apply, dtype):
    x = draw("x", (5, 40), "f64")
    out = apply("softmax", {"x": x, "dy": x.astype(np.float32)}, "--dtype", dtype)
    rounded = apply("softmax", {"x": x.astype(DTYPES[dtype][0]), "dy": x.astype(np.float32).astype(
        DTYPES[dtype][0])})
    for name in ("y", "dx"):
        assert dtype_of(out[name]) == dtype
        assert out[name].tobytes() == rounded[name].tobytes()


def test_threads_and_isa_agree(apply):
    x = draw("x", (50, 300))
    base = apply("softmax", {"x": x}, "--threads", 1)["y"].tobytes()
    assert apply("softmax", {"x": x}, "--threads", 3, "--deterministic")["y"].tobytes() == base
    scalar = apply("softmax", {"x": x}, "--isa", "scalar")["y"]
    np.testing.assert_allclose(scalar, softmax(wide(x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", MAIN)
def test_batch_invariant(apply, dtype):
    """A row alone has the bits that it has among others, in both passes."""
    a, b, dc = draw("a", (40, 300), dtype), draw("b", (300, 200), dtype), draw("dc", (40, 200), dtype)
    flags = "--batch-invariant", "--deterministic", "--epilogue", "gelu"
    every = apply("matmul", {"a": a, "b": b, "dc": dc}, *flags)
    for count in (1, 5):
        few = apply("matmul", {"a": a[:count], "b": b, "dc": dc[:count]}, *flags)
        assert few["c"].tobytes() == every["c"][:count].tobytes()
        assert few["da"].tobytes() == every["da"][:count].tobytes()


def test_output_may_be_the_input(tmp_path):
    x = draw("x", (3, 4))
    write(tmp_path / "file", {"x": x})
    done = run("softmax", "--input", tmp_path / "file", "--output", tmp_path / "file")
    assert done.returncode == 0
    assert set(read(tmp_path / "file")) == {"y"}
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_misaligned_and_metadata(tmp_path):
    """Odd header and offsets, as some writers leave them."""
    x = draw("x", (3, 5))
    header = ('{"__metadata__":{"format":"np"},"x":{"dtype":"F32","shape":[3,5],"data_offsets":[0,60]}}')
    header += " " * (3 - len(header) % 2)
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header.encode() + x.tobytes())
    done = run("softmax", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(read(tmp_path / "out")["y"], softmax(wide(x)), rtol=1e-5)


# ---- What is refused ---------------------------------------------------------------------------

X = draw("x", (3, 4))
W = np.ones(4, np.float32)

REFUSED = {
    "unknown name": ("softmax", {"x": X, "z": X}, [], ["'z'", "x, dy"]),
    "unknown name of odd type": ("softmax", {"x": X, "z": X.astype(np.int64)}, [], ["'z'"]),
    "wrong name": ("softmax", {"input": X}, [], ["'input'"]),
    "control characters": ("softmax", {"x": X, "\x1b[2J\n": X}, [], ["?[2J?"]),
    "missing": ("softmax", {"dy": X}, [], ["'x'", "dy (3, 4)"]),
    "nothing": ("softmax", {}, [], ["'x'", "no tensor"]),
    "a result": ("softmax", {"x": X, "y": X}, [], ["'y'", "result"]),
    "half of backward": ("layernorm", {"x": X, "weight": W, "dresidual_out": X}, [],
                         ["'dresidual_out'", "'dy'"]),
    "rank 0": ("softmax", {"x": np.float32(1).reshape(())}, [], ["x has shape ()"]),
    "rank 6": ("softmax", {"x": X.reshape(1, 1, 1, 1, 3, 4)}, [], ["'x'", "6 dimensions"]),
    "other shape": ("softmax", {"x": X, "dy": X[:2]}, [], ["dy", "(2, 4)", "(3, 4)"]),
    "other rank": ("softmax", {"x": X, "dy": X.reshape(1, 3, 4)}, [], ["(1, 3, 4)", "(3, 4)"]),
    "other leading": ("softmax", {"x": X.reshape(3, 1, 4), "dy": X.reshape(1, 3, 4)}, [],
                      ["(1, 3, 4)", "(3, 1, 4)"]),
    "other dtype": ("softmax", {"x": X, "dy": X.astype(np.float16)}, [], ["dy.dtype is f16", "f32"]),
    "int32": ("softmax", {"x": X.astype(np.int32)}, [], ["x", "i32"]),
    "int64": ("softmax", {"x": X.astype(np.int64)}, [], ["'x'", "I64"]),
    "fp8": ("softmax", {"x": X.astype(ml_dtypes.float8_e4m3fn)}, [], ["x", "e4m3"]),
    "weight's shape": ("layernorm", {"x": X, "weight": W[:3]}, [], ["weight", "(3,)", "(4,)"]),
    "weight's rank": ("layernorm", {"x": X, "weight": W.reshape(1, 4)}, [], ["weight", "(1, 4)"]),
    "weight's dtype": ("layernorm", {"x": X, "weight": W.astype(np.float16)}, [],
                       ["weight.dtype is f16"]),
    "bias without weight": ("layernorm", {"x": X, "bias": W}, [], ["bias"]),
    "negative eps": ("layernorm", {"x": X, "weight": W}, ["--eps", "-1"], ["eps"]),
    "k": ("matmul", {"a": X, "b": X}, [], ["b has shape (3, 4)"]),
    "a's rank": ("matmul", {"a": W, "b": X}, [], ["a has shape (4,)"]),
    "batch of b": ("matmul", {"a": X.reshape(1, 3, 4), "b": np.ones((2, 4, 5), np.float32)}, [],
                   ["a (1, 3, 4), b (2, 4, 5)"]),
    "bias of matmul": ("matmul", {"a": X, "b": X.T.copy(), "bias": W}, [], ["bias", "(4,)", "(3,)"]),
    "dtypes of matmul": ("matmul", {"a": X, "b": X.T.astype(np.float16)}, [], ["b.dtype is f16"]),
    "c without accumulate": ("matmul", {"a": X, "b": X.T.copy(), "c": np.ones((3, 3), np.float32)},
                             [], ["'c'"]),
    "accumulate without c": ("matmul", {"a": X, "b": X.T.copy()}, ["--accumulate"], ["'c'"]),
    "gradient of a gate": ("matmul", {"a": X, "b": X.T.copy(), "b_up": X.T.copy(),
                                      "dc": np.ones((3, 3), np.float32)}, [], ["b_up"]),
    "unknown operation": ("soft", {"x": X}, [], ["'soft'", "softmax"]),
    "two operations": ("softmax layernorm", {"x": X}, [], ["one operation"]),
    "unknown option": ("softmax", {"x": X}, ["--exp", "1"], ["--exp"]),
    "another operation's option": ("softmax", {"x": X}, ["--transpose-a"], ["--transpose-a"]),
    "no number": ("layernorm", {"x": X, "weight": W}, ["--eps", "x"], ["--eps", "'x'"]),
    "NaN": ("layernorm", {"x": X, "weight": W}, ["--eps", "nan"], ["--eps"]),
    "no value": ("layernorm", {"x": X, "weight": W}, ["--eps"], ["--eps"]),
    "value of a flag": ("matmul", {"a": X, "b": X}, ["--transpose-b=1"], ["--transpose-b"]),
    "unknown epilogue": ("matmul", {"a": X, "b": X}, ["--epilogue", "gelo"], ["gelo", "gelu_tanh"]),
    "unknown variant": ("softmax", {"x": X}, ["--variant", "best"], ["'best'", "fused"]),
    "unknown dtype": ("softmax", {"x": X}, ["--dtype", "f12"], ["'f12'"]),
    "dtype int32": ("softmax", {"x": X}, ["--dtype", "i32"], ["'i32'"]),
    "unknown device": ("softmax", {"x": X}, ["--device", "gpu"], ["'gpu'"]),
    "bad cuda": ("softmax", {"x": X}, ["--device", "cuda:x"], ["'cuda:x'"]),
    "unknown isa": ("softmax", {"x": X}, ["--isa", "sse"], ["'sse'"]),
    "no threads": ("softmax", {"x": X}, ["--threads", "0"], ["--threads"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(refuse, case):
    op, tensors, options, words = REFUSED[case]
    refuse(op, tensors, *options, words=words)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_no_such_device(refuse, device):
    refuse("softmax", {"x": X}, "--device", device, words=[device], code=77)


def test_missing_arguments():
    for arguments, word in ((["softmax"], "--input"), (["softmax", "--input", "x"], "--output"),
                            ([], "operation"), (["--input", "x", "--output", "y"], "operation")):
        done = run(*arguments)
        assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1


def test_truncated_at_every_byte(refuse, tmp_path):
    write(tmp_path / "whole", {"x": X[:1]})
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    for count in range(0, len(whole), 3):
        (tmp_path / "in").write_bytes(whole[:count])
        refuse("softmax", None, words=["safetensors", str(tmp_path / "in")])
    (tmp_path / "in").write_bytes(whole + b"\0")
    refuse("softmax", None, words=["bytes of data"])


def test_no_input_file(refuse, tmp_path):
    refuse("softmax", None, words=["No such file", str(tmp_path / "in")])


def test_directories(tmp_path):
    write(tmp_path / "in", {"x": X})
    done = run("softmax", "--input", tmp_path, "--output", tmp_path / "out")
    assert done.returncode == 2 and "directory" in done.stderr
    (tmp_path / "folder").mkdir()
    for output in (tmp_path / "folder", tmp_path / "none" / "out", "/dev/full"):
        done = run("softmax", "--input", tmp_path / "in", "--output", output)
        assert done.returncode == 4 and str(output) in done.stderr and done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "in"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path):
    write(tmp_path / "in", {"x": X})
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = run("softmax", "--input", tmp_path / "in", "--output", folder / "out")
    assert done.returncode == 4 and re.search("denied", done.stderr)


def test_disk_full(tmp_path):
    """A limit on file sizes stands for a full disk: no new file, the earlier one intact."""
    write(tmp_path / "in", {"x": draw("x", (1000, 64))})
    (tmp_path / "out").write_bytes(b"earlier")
    done = subprocess.run(
        ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh", TESSERA, "apply", "softmax",
         "--input", tmp_path / "in", "--output", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 4 and "cannot be written" in done.stderr
    assert (tmp_path / "out").read_bytes() == b"earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]
