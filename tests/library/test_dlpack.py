# SPDX-License-Identifier: Apache-2.0
"""DLPack with a real producer: versioned and legacy exports of NumPy, read through the library.
$TESSERA_LIBRARY is libtessera.so."""
import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

LIBRARY = os.environ.get("TESSERA_LIBRARY", "")
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="$TESSERA_LIBRARY names no file")

DTYPES = {"float64": 1, "float32": 2, "float16": 4, "int32": 7}
OK, INVALID_ARGUMENT, UNSUPPORTED = 0, 1, 2
INPUT, OUTPUT = 0, 1


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("device_type", ctypes.c_int),
                ("device_index", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 5), ("stride", ctypes.c_int64 * 5)]


@pytest.fixture(scope="module")
def library():
    lib = ctypes.CDLL(LIBRARY)
    for name in ("tsr_tensor_from_dlpack", "tsr_tensor_from_dlpack_legacy"):
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int,
                                       ctypes.POINTER(Tensor)]
    lib.tsr_dlpack_is_read_only.argtypes = [ctypes.c_void_p]
    lib.tsr_last_error.restype = ctypes.c_char_p
    return lib


get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def read(library, array, use, is_legacy, dtype=0):
    tensor = Tensor()
    if is_legacy:
        capsule = array.__dlpack__()
        pointer = get_pointer(capsule, b"dltensor")
        status = library.tsr_tensor_from_dlpack_legacy(pointer, use, dtype, ctypes.byref(tensor))
    else:
        capsule = array.__dlpack__(max_version=(1, 3))
        pointer = get_pointer(capsule, b"dltensor_versioned")
        status = library.tsr_tensor_from_dlpack(pointer, use, dtype, ctypes.byref(tensor))
        assert library.tsr_dlpack_is_read_only(pointer) == (not array.flags.writeable)
    return status, tensor


def views():
    base = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    yield "whole", base
    yield "scalar", base[0, 0, 0, :1].reshape(())
    yield "vector", base[1, 2, 3]
    yield "transposed", base.T
    yield "sliced", base[1:, ::2, 1:3, ::2]
    yield "repeated", np.broadcast_to(base[0, 0, 0], (7, 5))
    yield "empty", base[:, :0]
    yield "rank 5", base[None]
    for name in DTYPES:
        yield name, np.ones((3, 4), name)[:, 1:]


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize("array", [a for _, a in views()], ids=[n for n, _ in views()])
def test_views(library, array, is_legacy):
    if is_legacy and not array.flags.writeable:
        return  # NumPy does not export read-only arrays that way
    status, t = read(library, array, INPUT, is_legacy)
    assert status == OK, library.tsr_last_error()
    assert t.dtype == DTYPES[array.dtype.name]
    assert (t.device_type, t.device_index) == (0, 0)
    assert tuple(t.shape[: t.ndim]) == array.shape
    assert array.size == 0 or t.data == array.ctypes.data
    for size, stride, expected in zip(array.shape, t.stride, array.strides):
        assert size == 1 or array.size == 0 or stride * array.itemsize == expected


@pytest.mark.parametrize("is_legacy", [False, True])
def test_outputs(library, is_legacy):
    array = np.zeros((3, 4), np.float32)
    status, _ = read(library, array, OUTPUT, is_legacy)
    assert status == OK
    array.flags.writeable = False
    if not is_legacy:
        status, t = read(library, array, OUTPUT, False)
        assert status == INVALID_ARGUMENT and b"read-only" in library.tsr_last_error()
        assert t.dtype == 0


@pytest.mark.parametrize("array, status, word", [
    (np.zeros((3, 4), np.float32)[::-1], INVALID_ARGUMENT, b"strides[0]"),
    (np.zeros((3, 4), np.int64), UNSUPPORTED, b"64 bits"),
    (np.zeros((3, 4), np.int8), UNSUPPORTED, b"8 bits"),
    (np.zeros((3, 4), np.bool_), UNSUPPORTED, b"8 bits"),
    (np.zeros((3, 4), np.complex64), UNSUPPORTED, b"64 bits"),
    (np.zeros((1, 1, 1, 1, 1, 1), np.float32), UNSUPPORTED, b"ndim is 6"),
])
def test_refused(library, array, status, word):
    got, tensor = read(library, array, INPUT, False)
    assert got == status and word in library.tsr_last_error()
    assert tensor.dtype == 0


def test_bytes_as_fp8(library):
    status, tensor = read(library, np.zeros((3, 4), np.uint8), INPUT, False, dtype=5)
    assert status == OK and tensor.dtype == 5


def test_the_example_runs():
    example = pathlib.Path(__file__).parents[2] / "examples/dlpack_from_python.py"
    done = subprocess.run([sys.executable, str(example), LIBRARY], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "read-only" in done.stdout and "off by at most" in done.stdout
