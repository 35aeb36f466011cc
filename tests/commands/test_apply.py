# SPDX-License-Identifier: Apache-2.0
"""tessera apply from outside: NumPy writes and reads the files, and float64 checks every element within the bounds of
the public headers. The binary is $TESSERA."""
import itertools
import math

import numpy as np
import pytest

from apply_support import DTYPES, MAIN, TESSERA, U32, apply, check, draw, softmax, wide

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")
SHAPES = [(1,), (7,), (129,), (1, 1), (3, 5), (17, 257), (5, 1000), (2, 3, 33), (1, 4, 1, 64),
          (2, 2, 3, 100), (0, 4), (4, 0)]


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
        # Rounded first. The rounded values are normalised.
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

    # Backward uses mean and rstd from the file.
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
    if kind == "swiglu_clamped":
        return np.minimum(v, 7) / (1 + np.exp(-1.702 * np.minimum(v, 7)))
    if kind == "relu2":
        return np.maximum(v, 0) ** 2
    return np.maximum(v, 0) if kind == "relu" else v


def gate(kind, up):
    return np.clip(up, -7, 7) + 1 if kind == "swiglu_clamped" else up


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


@pytest.mark.parametrize("kind", ["none", "gelu", "gelu_tanh", "silu", "relu", "relu2", "swiglu_clamped"])
@pytest.mark.parametrize("dtype", MAIN)
@pytest.mark.parametrize("is_gated", [False, True])
def test_matmul_epilogue(apply, kind, dtype, is_gated):
    if kind == "swiglu_clamped" and not is_gated:
        pytest.skip("only with b_up")
    m, n, k = 19, 37, 53
    tensors = {"a": draw("a", (m, k), dtype), "b": draw("b", (k, n), dtype, 0.2),
               "bias": draw("bias", (n,), "f32"), "residual": draw("r", (m, n), dtype)}
    if is_gated:
        tensors["b_up"] = draw("up", (k, n), dtype, 0.2)
    out = apply("matmul", tensors, "--epilogue", kind)
    v, bound = products(wide(tensors["a"]), wide(tensors["b"]))
    v, bound = v + wide(tensors["bias"]), bound + 2 * U32 * (np.abs(v) + 1)
    slope = 2 * np.abs(v) + bound if kind == "relu2" else 1.13
    c, bound = act(kind, v), slope * bound + 24 * U32 * np.maximum(np.abs(v), act(kind, v))
    if is_gated:
        up, up_bound = products(wide(tensors["a"]), wide(tensors["b_up"]))
        up = gate(kind, up)
        up_bound = up_bound + U32 * np.abs(up)
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
    # preact and g are rounded to the dtype. relu's derivative jumps at 0.
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


# ---- Other operations with the same descriptions ---------------------------------------------------

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


@pytest.mark.parametrize("kind", ["none", "gelu", "gelu_tanh", "silu", "relu", "relu2", "swiglu_clamped"])
def test_activation(apply, kind):
    scale = 6 if kind == "swiglu_clamped" else 1  # beyond the clamps
    x, up, dy = draw("x", (2, 3, 5), scale=scale), draw("up", (2, 3, 5), scale=scale), draw("dy", (2, 3, 5))
    out = apply("activation", {"x": x, "up": up, "dy": dy}, "--kind", kind)
    assert set(out) == {"y", "dx", "dup"}
    of_up = np.abs(up) <= 7 if kind == "swiglu_clamped" else 1
    np.testing.assert_allclose(out["y"], act(kind, wide(x)) * gate(kind, up), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["dx"], act_slope(kind, wide(x)) * gate(kind, up) * dy, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out["dup"], act(kind, wide(x)) * dy * of_up, rtol=1e-5, atol=1e-6)


def test_activation_of_weighted_rows(apply):
    x, up, dy, weights = draw("x", (2, 3, 5)), draw("up", (2, 3, 5)), draw("dy", (2, 3, 5)), draw("w", (2, 3))
    out = apply("activation", {"x": x, "up": up, "dy": dy, "row_weights": weights}, "--kind", "silu")
    assert set(out) == {"y", "dx", "dup", "weighted_y", "drow_weights"}
    w, y = wide(weights)[..., None], act("silu", wide(x)) * up
    np.testing.assert_allclose(out["dx"], w * act_slope("silu", wide(x)) * up * dy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["dup"], w * act("silu", wide(x)) * dy, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["weighted_y"], w * y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["drow_weights"], (y * dy).sum(-1), rtol=1e-5, atol=1e-5)


def test_cast(apply):
    x = draw("x", (3, 4, 5))
    for name in ("bf16", "f16", "e4m3", "e5m2"):
        y = apply("cast", {"x": x}, "--to", name)["y"]
        assert y.tobytes() == x.astype(DTYPES[name][0]).tobytes() and y.shape == x.shape
