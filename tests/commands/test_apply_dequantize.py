# SPDX-License-Identifier: Apache-2.0
"""tessera apply dequantize has the bits of PyPI's gguf, for any bytes of a row: also scales that are infinite, NaN or
subnormal. matmul-quant multiplies by these numbers. TESSERA_TEST_SEED repeats an earlier run."""
import os
import secrets

import gguf
import numpy as np
import pytest

from apply_support import TESSERA, apply  # noqa: F401

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA is not set")
SEED = int(os.environ.get("TESSERA_TEST_SEED", "0")) or secrets.randbits(32)
TYPES = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1", "q4_k": "Q4_K", "q6_k": "Q6_K", "mxfp4_gguf": "MXFP4"}
# Where a block's f16 scales are.
SCALES = {"q8_0": [0], "q4_0": [0], "q4_1": [0, 2], "q4_k": [0, 2], "q6_k": [208], "mxfp4_gguf": []}


def draw(rng, name, has_usual_scales):
    """(bytes, columns) of some rows."""
    cols, block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[TYPES[name]]]
    rows, blocks = rng.integers(1, 40), rng.integers(1, 5000 // cols)
    x = rng.integers(0, 256, (rows, blocks, block), np.uint8)
    for at in SCALES[name] if has_usual_scales else ():
        x[:, :, at:at + 2] = rng.standard_normal((rows, blocks, 1)).astype(np.float16).view(np.uint8)
    if name == "mxfp4_gguf" and has_usual_scales:
        x[:, :, 0] = rng.integers(110, 135, (rows, blocks))
    return x.reshape(rows, -1), int(blocks) * cols


@pytest.mark.parametrize("has_usual_scales", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_bits_of_gguf(apply, name, has_usual_scales):  # noqa: F811
    print(f"TESSERA_TEST_SEED={SEED}")
    x, cols = draw(np.random.default_rng(SEED), name, has_usual_scales)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(x, gguf.GGMLQuantizationType[TYPES[name]])
    y = apply("dequantize", {"x": x}, f"--quant={name}", f"--cols={cols}")["y"]
    assert y.dtype == np.float32 and y.shape == expected.shape
    is_same = (y.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(y) & np.isnan(expected))
    assert is_same.all(), f"{np.count_nonzero(~is_same)} of {y.size} differ, first at {np.argwhere(~is_same)[0]}"
    assert not has_usual_scales or np.isfinite(y).all()


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "mxfp4_gguf"])
def test_numbers_that_gguf_quantized(apply, name):  # noqa: F811
    """Real numbers, through gguf's quantisation and back: within a step of the block's largest."""
    numbers = np.random.default_rng(SEED).standard_normal((17, 1536)).astype(np.float32)
    x = gguf.quantize(numbers, gguf.GGMLQuantizationType[TYPES[name]])
    y = apply("dequantize", {"x": x}, f"--quant={name}", "--cols=1536")["y"]
    largest = np.abs(numbers).reshape(17, -1, 32).max(-1, keepdims=True)
    step = {"q8_0": 1 / 127, "q4_0": 1 / 7, "q4_1": 2 / 15, "mxfp4_gguf": 1 / 2}[name] * largest
    assert (np.abs(y - numbers).reshape(17, -1, 32) <= step).all()


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("name", TYPES)
def test_products_by_rows_of_gguf(apply, name, rows):  # noqa: F811
    """Against NumPy in double, with a bias and a gate. Products in integers round a by 2^-15 of the largest in 32 columns."""
    rng = np.random.default_rng(SEED)
    b, cols = draw(rng, name, True)
    up = b[::-1].copy()
    a = rng.standard_normal((rows, cols)).astype(np.float32)
    bias = rng.standard_normal(len(b)).astype(np.float32)
    numbers = [gguf.dequantize(w, gguf.GGMLQuantizationType[TYPES[name]]).astype(np.float64) for w in (b, up)]
    gate, factor = (a.astype(np.float64) @ w.T for w in numbers)
    terms, of_factor = (np.abs(a.astype(np.float64)) @ np.abs(w.T) for w in numbers)
    gate = np.maximum(gate + bias, 0)
    c = apply("matmul_quant", {"a": a, "b": b, "b_up": up, "bias": bias}, f"--quant={name}", "--activation=relu")["c"]
    unit = (8 + 4 * np.sqrt(cols)) * 2.0**-24
    largest = np.abs(a.astype(np.float64)).reshape(rows, -1, 32).max(-1).repeat(32, -1)
    of_gate, of_factor = (unit * t + 2.0**-14.98 * (largest @ np.abs(w.T)) for t, w in zip((terms, of_factor), numbers))
    bound = (of_gate + unit * np.abs(bias)) * (np.abs(factor) + of_factor) + gate * of_factor
    assert c.shape == gate.shape and (np.abs(c - gate * factor) <= bound + 2.0**-22 * np.abs(gate * factor)).all()
