// SPDX-License-Identifier: Apache-2.0
// Any DLPack tensor of either struct. An accepted view has the producer's memory, type and shape, and the extent that
// they imply, which is recomputed here. After a refusal the tensor is absent, with a sentence.
#include <tessera/dlpack.h>

#include "core/core_dlpack.h"
#include "fuzz.h"

static void check_view(const struct dlpack_tensor *from, tsr_dlpack_use use, tsr_dtype wanted,
                       const tsr_tensor *view) {
    fuzz_require((view->device.type == TSR_CPU && from->device_type == DLPACK_CPU) ||
                 (view->device.type == TSR_CUDA && from->device_type == DLPACK_CUDA &&
                  view->device.index == from->device_id && from->device_id >= 0));
    fuzz_require(view->dtype > TSR_DTYPE_NONE && view->dtype < TSR_DTYPE_COUNT);
    fuzz_require(wanted == TSR_DTYPE_NONE || view->dtype == wanted);
    fuzz_require(tsr_dtype_bytes(view->dtype) * 8 == from->bits && from->lanes == 1);
    fuzz_require(view->ndim == from->ndim && view->ndim >= 0 && view->ndim <= TSR_MAX_DIMS);
    unsigned __int128 elements = 1, last = 0;
    bool is_empty = false;
    for (int i = 0; i < view->ndim; i++) is_empty |= from->shape[i] == 0;
    for (int i = 0; i < view->ndim; i++) {
        fuzz_require(view->shape[i] == from->shape[i] && view->shape[i] >= 0);
        if (view->shape[i] > 1 && !is_empty && from->strides != NULL)
            fuzz_require(view->stride[i] == from->strides[i] && view->stride[i] >= 0);
        elements *= (unsigned __int128)view->shape[i];
    }
    fuzz_require(elements <= (unsigned __int128)1 << 48);
    fuzz_require(tsr_tensor_numel(view) == (int64_t)elements);
    if (elements == 0) return;
    for (int i = 0; i < view->ndim; i++) {
        fuzz_require(use != TSR_DLPACK_OUTPUT || view->shape[i] == 1 || view->stride[i] != 0);
        last += (unsigned __int128)(view->shape[i] - 1) * (uint64_t)view->stride[i];
    }
    fuzz_require(last < (unsigned __int128)1 << 48);
    fuzz_require(from->data != NULL);
    fuzz_require((uintptr_t)view->data == (uintptr_t)from->data + from->byte_offset);
    fuzz_require((uintptr_t)view->data % tsr_dtype_bytes(view->dtype) == 0);
}

// Types and devices of DLPack, which random bytes would seldom give.
static void choose_type(struct fuzz_bytes *in, struct dlpack_tensor *t) {
    static const uint8_t types[][2] = {{2, 32}, {4, 16}, {2, 16}, {10, 8}, {12, 8}, {0, 32},
                                       {2, 64}, {1, 8},  {1, 16}, {6, 8},  {5, 64}};
    uint8_t kind = fuzz_byte(in);
    bool is_known = kind < 2 * sizeof types / sizeof *types;
    t->code = is_known ? types[kind / 2][0] : fuzz_byte(in);
    t->bits = is_known ? types[kind / 2][1] : fuzz_byte(in);
    t->lanes = kind < 240 ? 1 : (uint16_t)fuzz_word(in, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_bytes in = {data, data + bytes};
    struct DLManagedTensorVersioned managed = {1, 0, NULL, NULL, 0, {0}};
    struct dlpack_tensor *t = &managed.tensor;
    uint8_t form =
        fuzz_byte(&in); // bits: legacy, output, other version, flags, NULL strides, NULL shape
    if (form & 4) managed.major = (uint32_t)fuzz_wild(&in);
    if (form & 8) managed.flags = (uint64_t)fuzz_wild(&in);
    tsr_dlpack_use use = form & 2 ? TSR_DLPACK_OUTPUT : TSR_DLPACK_INPUT;
    uint8_t wanted = fuzz_byte(&in);
    tsr_dtype dtype = wanted < 128 ? (tsr_dtype)(wanted % (TSR_DTYPE_COUNT + 1))
                                   : (tsr_dtype)(int32_t)fuzz_wild(&in);
    choose_type(&in, t);
    uint8_t device = fuzz_byte(&in);
    t->device_type = device < 200 ? 1 + device / 128 : (int32_t)fuzz_wild(&in);
    t->device_id = device % 4 == 0 ? 0 : (int32_t)fuzz_wild(&in);
    uint8_t where = fuzz_byte(&in);
    t->data = (void *)(uintptr_t)(where < 128   ? 0x10000u * (where + 1u)
                                  : where < 160 ? 0
                                                : (uint64_t)fuzz_wild(&in));
    t->byte_offset = where % 4 == 0 ? 0 : (uint64_t)fuzz_wild(&in);
    uint8_t rank = fuzz_byte(&in);
    t->ndim = rank < 224 ? rank % (TSR_MAX_DIMS + 2) : (int32_t)fuzz_wild(&in);

    // Blocks of exactly this many dimensions: the library must not read more, and none if ndim is out of range.
    int count = t->ndim >= 0 && t->ndim <= TSR_MAX_DIMS ? t->ndim : 0;
    int64_t *shape = malloc((size_t)count * sizeof *shape + 1);
    int64_t *strides = malloc((size_t)count * sizeof *strides + 1);
    fuzz_require(shape != NULL && strides != NULL);
    for (int i = 0; i < count; i++) shape[i] = fuzz_wild(&in);
    for (int i = 0; i < count; i++) strides[i] = fuzz_wild(&in);
    t->shape = form & 32 ? NULL : shape;
    t->strides = form & 16 ? NULL : strides;

    struct DLManagedTensor legacy = {*t, NULL, NULL};
    tsr_tensor view;
    memset(&view, 0xff, sizeof view);
    tsr_fail(TSR_OK, "");
    tsr_status status = form & 1 ? tsr_tensor_from_dlpack_legacy(&legacy, use, dtype, &view)
                                 : tsr_tensor_from_dlpack(&managed, use, dtype, &view);
    if (status == TSR_OK) {
        fuzz_require(form & 1 || managed.major == 1);
        fuzz_require(form & 1 || use != TSR_DLPACK_OUTPUT || !tsr_dlpack_is_read_only(&managed));
        check_view(t, use, dtype, &view);
    } else {
        fuzz_require(status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED);
        fuzz_require(strncmp(tsr_last_error(), "from_dlpack: ", 13) == 0);
        fuzz_require(view.dtype == TSR_DTYPE_NONE && view.data == NULL);
    }
    free(shape);
    free(strides);
    return 0;
}
