// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_tensor_map.h"

#include <stdbool.h>
#include <string.h>

enum { UNIT = 16, MAX_BOX = 256, ROW_BYTES = 128 };

// The first rule that the args break; NULL if there is none.
static const char *broken_rule(const struct tsri_tensor_map_args *args) {
    const int64_t most = INT64_C(1) << 32, far = INT64_C(1) << 40;
    if (args->dtype < TSR_F32 || args->dtype > TSR_E5M2)
        return "its dtype is none of f32, bf16, f16, e4m3 and e5m2";
    const int64_t element = tsri_dtype_bytes(args->dtype);
    if (args->data == NULL || (uintptr_t)args->data % UNIT != 0)
        return "its data is not at a multiple of 16 bytes";
    for (int i = 0; i < TSRI_TENSOR_MAP_RANK; i++) {
        if (args->size[i] < 1 || args->size[i] > most) return "a size is not from 1 to 2^32";
        if (args->box[i] < 1 || args->box[i] > MAX_BOX) return "a box is not from 1 to 256";
        if (i == 0) continue;
        if (args->stride[i] < 1 || args->stride[i] >= far || args->stride[i] * element >= far)
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

// All arguments of the driver except those that are the same for every map.
static struct tsri_cuda_map_key key_of(const struct tsri_tensor_map_args *args) {
    enum { IS_THERE = 128, IS_SWIZZLED = 256, IS_TF32 = 512 };
    const uint64_t element = (uint64_t)tsri_dtype_bytes(args->dtype);
    struct tsri_cuda_map_key key;
    key.data = (uint64_t)(uintptr_t)args->data;
    key.kind = (uint32_t)args->dtype | IS_THERE | (args->is_swizzled ? IS_SWIZZLED : 0) |
               (args->is_tf32 ? IS_TF32 : 0);
    for (int i = 0; i < TSRI_TENSOR_MAP_RANK; i++) {
        key.size[i] = (uint64_t)args->size[i];
        key.box[i] = (uint32_t)args->box[i];
        // The driver takes no stride for the first dimension.
        if (i > 0) key.stride[i - 1] = (uint64_t)args->stride[i] * element;
    }
    return key;
}

tsr_status tsri_cuda_tensor_map(const char *op, const struct tsri_cuda_driver *driver,
                                const struct tsri_tensor_map_args *args, struct tensor_map *map) {
    static const uint32_t steps[TSRI_TENSOR_MAP_RANK] = {1, 1, 1, 1, 1};
    static const cu_map_type types[] = {[TSR_F32] = CU_MAP_F32,
                                        [TSR_BF16] = CU_MAP_BF16,
                                        [TSR_F16] = CU_MAP_F16,
                                        [TSR_E4M3] = CU_MAP_U8,
                                        [TSR_E5M2] = CU_MAP_U8};
    const char *rule = broken_rule(args);
    if (rule != NULL) return tsri_fail(TSR_INTERNAL, "%s: no tensor map, for %s", op, rule);
    const struct tsri_cuda_map_key key = key_of(args);
    return TSRI_CUDA(
        op, driver, tensor_map_encode, map, args->is_tf32 ? CU_MAP_TF32 : types[args->dtype],
        TSRI_TENSOR_MAP_RANK, (void *)(uintptr_t)args->data, key.size, key.stride, key.box, steps,
        CU_MAP_NOT_INTERLEAVED, args->is_swizzled ? CU_MAP_SWIZZLE_128 : CU_MAP_SWIZZLE_NONE,
        CU_MAP_PROMOTE_256, CU_MAP_FILL_ZEROS);
}

// Uses the fields that differ between the tensors of one call.
static unsigned hash_of(const struct tsri_cuda_map_key *key) {
    const uint64_t mix = 0x9e3779b97f4a7c15u;
    uint64_t hash = (key->data >> 4) * mix;
    hash = (hash ^ key->size[0] ^ key->size[1] << 20 ^ (uint64_t)key->box[1] << 40) * mix;
    return (unsigned)(hash >> 40) % TSRI_CUDA_MEMO_MAPS;
}

tsr_status tsri_cuda_queue_map(const char *op, const struct tsri_cuda_queue *queue,
                               const struct tsri_tensor_map_args *args, struct tensor_map *map) {
    const struct tsri_cuda_map_key key = key_of(args);
    struct tsri_cuda_known_map *known = &queue->memo->maps[hash_of(&key)];
    if (memcmp(&known->key, &key, sizeof key) != 0) {
        known->key.kind = 0; // stays empty if the driver fails
        TSRI_TRY(tsri_cuda_tensor_map(op, queue->device.driver, args, &known->map));
        known->key = key;
    }
    *map = known->map;
    return TSR_OK;
}
