// SPDX-License-Identifier: Apache-2.0
// Tensor maps (sm_90): they describe to the copy engine a tensor in memory and the boxes to copy. See
// cuda/device/tma.cuh.
#ifndef TSRI_CUDA_TENSOR_MAP_H
#define TSRI_CUDA_TENSOR_MAP_H

#include "core/core_tensor.h"
#include "cuda/cuda_device.h"

enum { TSRI_TENSOR_MAP_RANK = 5 };

// Dimensions are ordered innermost first. Strides are in elements, except that the first dimension is contiguous. With
// is_swizzled, a box has rows of 128 bytes, which are permuted in shared memory.
struct tsri_tensor_map_args {
    const void *data;
    tsr_dtype dtype; // f32, bf16, f16, e4m3 or e5m2
    int64_t size[TSRI_TENSOR_MAP_RANK], stride[TSRI_TENSOR_MAP_RANK];
    int box[TSRI_TENSOR_MAP_RANK];
    bool is_swizzled;
    bool is_tf32; // rounds f32 to 11 bits on the way to shared memory
};

// Whether the hardware supports it: data aligned to 16 bytes, sizes from 1 to 2^32, strides that are multiples of 16
// bytes below 2^40.
bool tsri_tensor_map_fits(const struct tsri_tensor_map_args *args);

// Errors: INTERNAL for args that do not fit, those of the driver.
tsr_status tsri_cuda_tensor_map(const char *op, const struct tsri_cuda_driver *driver,
                                const struct tsri_tensor_map_args *args, struct tensor_map *map);
// The same for launches on the queue; the queue's memo keeps the map, because it depends on the args only.
tsr_status tsri_cuda_queue_map(const char *op, const struct tsri_cuda_queue *queue,
                               const struct tsri_tensor_map_args *args, struct tensor_map *map);

#endif
