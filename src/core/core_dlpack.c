// SPDX-License-Identifier: Apache-2.0
#include "core/core_dlpack.h"

#include <string.h>

#include <tessera/dlpack.h>

#include "core/core_status.h"
#include "core/core_tensor.h"

static const char op[] = "from_dlpack";

static const struct {
    uint8_t code, bits;
    tsr_dtype dtype;
} types[] = {
    {DLPACK_FLOAT, 64, TSR_F64},         {DLPACK_FLOAT, 32, TSR_F32},
    {DLPACK_FLOAT, 16, TSR_F16},         {DLPACK_BFLOAT, 16, TSR_BF16},
    {DLPACK_FLOAT8_E4M3FN, 8, TSR_E4M3}, {DLPACK_FLOAT8_E5M2, 8, TSR_E5M2},
    {DLPACK_INT, 32, TSR_I32},           {DLPACK_UINT, 8, TSR_U8},
};

// A caller may ask to read these unsigned integers as the bits of a floating-point type.
static const struct {
    uint8_t bits;
    tsr_dtype dtype;
} readings[] = {{8, TSR_E4M3}, {8, TSR_E5M2}, {16, TSR_BF16}, {16, TSR_F16}};

static tsr_status find_dtype(const struct dlpack_tensor *from, tsr_dtype wanted, tsr_dtype *dtype) {
    if (from->lanes != 1)
        return tsri_fail(TSR_UNSUPPORTED, "%s: dtype.lanes is %d, expected 1", op,
                         (int)from->lanes);
    *dtype = TSR_DTYPE_NONE;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].code == from->code && types[i].bits == from->bits) *dtype = types[i].dtype;
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++)
        if (from->code == DLPACK_UINT && readings[i].bits == from->bits &&
            readings[i].dtype == wanted)
            *dtype = wanted;
    if (*dtype == TSR_DTYPE_NONE)
        return tsri_fail(
            TSR_UNSUPPORTED,
            "%s: dtype has code %d and %d bits, expected a float of 16, 32 or 64 bits, "
            "bfloat16, float8_e4m3fn, float8_e5m2, int32 or uint8 (or uint16 with a dtype "
            "given to read it as)",
            op, (int)from->code, (int)from->bits);
    if (wanted != TSR_DTYPE_NONE && wanted != *dtype)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: dtype is %s, expected %s", op,
                         tsr_dtype_name(*dtype), tsr_dtype_name(wanted));
    return TSR_OK;
}

static tsr_status find_device(const struct dlpack_tensor *from, tsr_device *device) {
    if (from->device_type == DLPACK_CPU) {
        *device = (tsr_device){TSR_CPU, 0};
        return TSR_OK;
    }
    if (from->device_type != DLPACK_CUDA)
        return tsri_fail(TSR_UNSUPPORTED,
                         "%s: device.device_type is %d, expected 1 (CPU) or 2 (CUDA)", op,
                         (int)from->device_type);
    if (from->device_id < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: device.device_id is %d, expected 0 or more", op,
                         (int)from->device_id);
    *device = (tsr_device){TSR_CUDA, from->device_id};
    return TSR_OK;
}

static tsr_status read_layout(const struct dlpack_tensor *from, tsr_tensor *t) {
    if (from->ndim < 0 || from->ndim > TSR_MAX_DIMS)
        return tsri_fail(from->ndim < 0 ? TSR_INVALID_ARGUMENT : TSR_UNSUPPORTED,
                         "%s: ndim is %d, expected 0 to %d", op, (int)from->ndim, TSR_MAX_DIMS);
    if (from->ndim > 0 && from->shape == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: shape is NULL, expected %d dimensions", op,
                         (int)from->ndim);
    for (int i = 0; i < from->ndim; i++)
        if (from->shape[i] < 0)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: shape[%d] is %lld, expected 0 or more", op,
                             i, (long long)from->shape[i]);
    tsr_device device = t->device;
    *t = tsr_tensor_contiguous(NULL, t->dtype, from->ndim, from->shape);
    t->device = device;
    bool is_empty = tsr_tensor_numel(t) == 0;
    for (int i = 0; i < from->ndim && from->strides != NULL; i++) {
        if (from->shape[i] <= 1 || is_empty) continue; // a producer may leave any stride
        t->stride[i] = from->strides[i];
        if (t->stride[i] < 0)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: strides[%d] is %lld, expected 0 or more (copy the tensor first)",
                             op, i, (long long)t->stride[i]);
    }
    return TSR_OK;
}

static tsr_status read_data(const struct dlpack_tensor *from, tsr_tensor *t) {
    uintptr_t address;
    if (from->byte_offset > UINTPTR_MAX ||
        __builtin_add_overflow((uintptr_t)from->data, (uintptr_t)from->byte_offset, &address))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: byte_offset is %llu, which leaves the address space", op,
                         (unsigned long long)from->byte_offset);
    t->data = from->data != NULL ? (void *)address : NULL;
    return TSR_OK;
}

static tsr_status read_tensor(const struct dlpack_tensor *from, tsr_dlpack_use use,
                              tsr_dtype wanted, tsr_tensor *result) {
    tsr_tensor t = {0};
    if ((unsigned)wanted >= TSR_DTYPE_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: dtype is %d, expected a tsr_dtype", op,
                         (int)wanted);
    TSRI_TRY(find_dtype(from, wanted, &t.dtype));
    TSRI_TRY(find_device(from, &t.device));
    TSRI_TRY(read_layout(from, &t));
    TSRI_TRY(read_data(from, &t));
    tsr_tensor on_cpu = t; // the checks of span and alignment are the same for any memory
    on_cpu.device = (tsr_device){TSR_CPU, 0};
    TSRI_TRY(
        tsri_check_tensor(op, "tensor", &on_cpu, use == TSR_DLPACK_OUTPUT ? TSRI_OUT : TSRI_IN));
    memcpy(t.stride, on_cpu.stride, sizeof t.stride);
    *result = t;
    return TSR_OK;
}

static tsr_status check_arguments(const void *managed, tsr_tensor *tensor) {
    if (managed != NULL && tensor != NULL) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is NULL", op,
                     managed == NULL ? "managed" : "tensor");
}

tsr_status tsr_tensor_from_dlpack(const struct DLManagedTensorVersioned *managed,
                                  tsr_dlpack_use use, tsr_dtype dtype, tsr_tensor *tensor) {
    if (tensor != NULL) *tensor = (tsr_tensor){0};
    TSRI_TRY(check_arguments(managed, tensor));
    if (managed->major != DLPACK_MAJOR)
        return tsri_fail(TSR_UNSUPPORTED, "%s: version is %u.%u, expected %d.x", op,
                         (unsigned)managed->major, (unsigned)managed->minor, DLPACK_MAJOR);
    if (use == TSR_DLPACK_OUTPUT && (managed->flags & DLPACK_READ_ONLY) != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: the tensor is read-only, expected one that may be written", op);
    return read_tensor(&managed->tensor, use, dtype, tensor);
}

tsr_status tsr_tensor_from_dlpack_legacy(const struct DLManagedTensor *managed, tsr_dlpack_use use,
                                         tsr_dtype dtype, tsr_tensor *tensor) {
    if (tensor != NULL) *tensor = (tsr_tensor){0};
    TSRI_TRY(check_arguments(managed, tensor));
    return read_tensor(&managed->tensor, use, dtype, tensor);
}

int tsr_dlpack_is_read_only(const struct DLManagedTensorVersioned *managed) {
    return managed == NULL || managed->major != DLPACK_MAJOR ||
           (managed->flags & DLPACK_READ_ONLY) != 0;
}

void tsr_dlpack_release(struct DLManagedTensorVersioned *managed) {
    if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}

void tsr_dlpack_release_legacy(struct DLManagedTensor *managed) {
    if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}
