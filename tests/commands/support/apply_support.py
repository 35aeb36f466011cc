# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of `tessera apply`: safetensors files by NumPy, the command, numbers and their bounds. The binary
is $TESSERA."""
import os
import pathlib
import subprocess
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

TESSERA = os.environ.get("TESSERA", "")

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
    "u8": (np.dtype(np.uint8), 0.0, 0.0),
}
FILE_NAMES = {"F32": "f32", "BF16": "bf16", "F16": "f16", "F64": "f64", "F8_E4M3": "e4m3",
              "F8_E5M2": "e5m2", "I32": "i32", "I64": "i64", "U8": "u8"}
MAIN = ["f32", "bf16", "f16"]


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
    """Expects exit code 2, one sentence with the given words, and the earlier output unchanged."""
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
    """Every element must be within its bound plus the rounding to its dtype."""
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
