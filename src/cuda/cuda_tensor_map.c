// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_tensor_map.h"

#include <stdbool.h>

enum { UNIT = 16, MAX_BOX = 256, ROW_BYTES = 128 };

// The first rule that the args break; NULL for none.
static const char *broken_rule(const struct tsri_tensor_map_args *args) {
    const int64_t element = (int64_t)tsr_dtype_bytes(args->dtype);
    const int64_t most = INT64_C(1) << 32, far = INT64_C(1) << 40;
    if (args->dtype < TSR_F32 || args->dtype > TSR_E5M2)
        return "its dtype is none of f32, bf16, f16, e4m3 and e5m2";
    if (args->data == NULL || (uintptr_t)args->data % UNIT != 0)
        return "its data is not at a multiple of 16 bytes";
    for (int i = 0; i < TSRI_TENSOR_MAP_RANK; i++) {
        if (args->size[i] < 1 || args->size[i] > most) return "a size is not from 1 to 2^32";
        if (args->box[i] < 1 || args->box[i] > MAX_BOX) return "a box is not from 1 to 256";
        if (i == 0) continue;
        if (args->stride[i] < 1 || args->stride[i] >= far / element)
            return "a stride is not from 1 element to 2^40 bytes";
        if (args->stride[i] * element % UNIT != 0) return "a stride is no multiple of 16 bytes";
    }
    const int64_t row = args->box[0] * element;
    if (row % UNIT != 0) return "a row of the box is no multiple of 16 bytes";
    if (args->is_swizzled && row != ROW_BYTES) return "a row of the box is not 128 bytes";
    return NULL;
}

bool tsri_tensor_map_fits(const struct tsri_tensor_map_args *args) {
    return broken_rule(args) == NULL;
}

tsr_status tsri_cuda_tensor_map(const char *op, const struct tsri_cuda_driver *driver,
                                const struct tsri_tensor_map_args *args, struct tensor_map *map) {
    static const uint32_t steps[TSRI_TENSOR_MAP_RANK] = {1, 1, 1, 1, 1};
    uint64_t size[TSRI_TENSOR_MAP_RANK], stride[TSRI_TENSOR_MAP_RANK];
    uint32_t box[TSRI_TENSOR_MAP_RANK];
    const char *rule = broken_rule(args);
    if (rule != NULL) return tsri_fail(TSR_INTERNAL, "%s: no tensor map, for %s", op, rule);
    for (int i = 0; i < TSRI_TENSOR_MAP_RANK; i++) {
        size[i] = (uint64_t)args->size[i];
        box[i] = (uint32_t)args->box[i];
        stride[i] = (uint64_t)args->stride[i] * tsr_dtype_bytes(args->dtype);
    }
    static const cu_map_type types[] = {[TSR_F32] = CU_MAP_F32,
                                        [TSR_BF16] = CU_MAP_BF16,
                                        [TSR_F16] = CU_MAP_F16,
                                        [TSR_E4M3] = CU_MAP_U8,
                                        [TSR_E5M2] = CU_MAP_U8};
    // The driver takes no stride of the first dimension.
    return TSRI_CUDA(
        op, driver, tensor_map_encode, map, args->is_tf32 ? CU_MAP_TF32 : types[args->dtype],
        TSRI_TENSOR_MAP_RANK, (void *)(uintptr_t)args->data, size, stride + 1, box, steps,
        CU_MAP_NOT_INTERLEAVED, args->is_swizzled ? CU_MAP_SWIZZLE_128 : CU_MAP_SWIZZLE_NONE,
        CU_MAP_PROMOTE_256, CU_MAP_FILL_ZEROS);
}
