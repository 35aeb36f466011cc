// SPDX-License-Identifier: Apache-2.0
// The part of DLPack's ABI that a consumer needs, in our own declarations: the structs of version 1.x, whose layout is
// fixed for a major version, and the older unversioned ones. tests/library/test_dlpack.c checks the offsets;
// tests/library/test_dlpack.py compares them with what NumPy exports.
#ifndef TSRI_CORE_DLPACK_H
#define TSRI_CORE_DLPACK_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1 };
enum { DLPACK_READ_ONLY = 1 }; // a bit of `flags`
enum { DLPACK_CPU = 1, DLPACK_CUDA = 2 };
enum {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_FLOAT8_E4M3FN = 10,
    DLPACK_FLOAT8_E5M2 = 12
};

struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; // in elements; NULL means row-major
    uint64_t byte_offset;
};

struct DLManagedTensor {
    struct dlpack_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags; // every version has the same layout up to here
    struct dlpack_tensor tensor;
};

#endif
