# SPDX-License-Identifier: Apache-2.0
"""Calls the library on Python's arrays without a copy: softmax of a NumPy array or a torch tensor, with ctypes and DLPack.
Producers must support DLPack 1.0 (NumPy does since 2.1); for older ones there is tsr_tensor_from_dlpack_legacy.

    python3 examples/dlpack_from_python.py build/release/libtessera.so          # numpy
    python3 examples/dlpack_from_python.py build/release/libtessera.so torch    # bfloat16 too
"""
import ctypes
import sys


class Tensor(ctypes.Structure):  # tsr_tensor, filled in by the library
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("device", ctypes.c_int * 2),
                ("ndim", ctypes.c_int32), ("shape", ctypes.c_int64 * 5), ("stride", ctypes.c_int64 * 5)]


class SoftmaxArgs(ctypes.Structure):  # tsr_softmax_forward_args; every args struct starts with these first five fields
    _fields_ = [("size", ctypes.c_size_t), ("flags", ctypes.c_uint32), ("variant", ctypes.c_char_p),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
                ("x", Tensor), ("y", Tensor)]


INPUT, OUTPUT = 0, 1
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Tessera:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.tsr_last_error.restype = ctypes.c_char_p
        self.lib.tsr_tensor_from_dlpack.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int,
                                                    ctypes.POINTER(Tensor)]
        self.ctx = ctypes.c_void_p()
        self.check(self.lib.tsr_context_create(None, ctypes.byref(self.ctx)))

    def check(self, status):
        if status != 0:
            raise ValueError(self.lib.tsr_last_error().decode())

    def softmax(self, x, y):
        """Writes the softmax over x's last dimension to y. Both have the same shape and dtype; y may be x."""
        args = SoftmaxArgs(size=ctypes.sizeof(SoftmaxArgs))
        # A capsule keeps its array alive. As nobody takes ownership of it, Python calls the producer's deleter when it frees it.
        capsules = [array.__dlpack__(max_version=(1, 0)) for array in (x, y)]
        for capsule, use, tensor in zip(capsules, (INPUT, OUTPUT), (args.x, args.y)):
            pointer = capsule_pointer(capsule, b"dltensor_versioned")
            self.check(self.lib.tsr_tensor_from_dlpack(pointer, use, 0, ctypes.byref(tensor)))
        self.check(self.lib.tsr_softmax_forward(self.ctx, ctypes.byref(args)))

    def __del__(self):
        if self.ctx:
            self.lib.tsr_context_destroy(self.ctx)


def main(path, framework="numpy"):
    tessera = Tessera(path)
    if framework == "torch":
        import torch
        x = torch.randn(3, 100, dtype=torch.bfloat16)[:, 10:]  # a view: rows of 90 elements, with a stride of 100
        y = torch.empty(3, 90, dtype=torch.bfloat16)
        tessera.softmax(x, y)
        error = (y.double() - x.double().softmax(-1)).abs().max().item()
    else:
        import numpy as np
        x = np.random.default_rng(1).standard_normal((3, 100), np.float32)[:, 10:]
        y = np.empty((3, 90), np.float32)
        tessera.softmax(x, y)
        e = np.exp(x.astype(np.float64))
        error = np.abs(y - e / e.sum(-1, keepdims=True)).max()
        x.flags.writeable = False
        try:
            tessera.softmax(y, x)
        except ValueError as refused:
            print("refused:", refused)
    print(f"{framework}: off by at most {error:.1e}")
    return 0 if error < (2e-3 if framework == "torch" else 1e-6) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
