// SPDX-License-Identifier: Apache-2.0
// Tensor maps (sm_90): how the copy engine sees a tensor in memory, and the boxes that it moves. See cuda/device/tma.cuh.
#ifndef TSRI_CUDA_TENSOR_MAP_H
#define TSRI_CUDA_TENSOR_MAP_H

#include "core/core_tensor.h"
#include "cuda/cuda_device.h"

enum { TSRI_TENSOR_MAP_RANK = 5 };

// Dimensions innermost first, strides in elements but for the first, whose elements are neighbours. A box's rows are permuted in
// shared memory where is_swizzled: they are 128 bytes then.
struct tsri_tensor_map_args {
    const void *data;
    tsr_dtype dtype; // f32, bf16, f16, e4m3, e5m2
    int64_t size[TSRI_TENSOR_MAP_RANK], stride[TSRI_TENSOR_MAP_RANK];
    int box[TSRI_TENSOR_MAP_RANK];
    bool is_swizzled;
    bool is_tf32; // f32 is rounded to 11 bits on the way to shared memory
};

// Whether hardware takes it: data at a multiple of 16 bytes, sizes from 1 to 2^32, strides multiples of 16 bytes below 2^40.
bool tsri_tensor_map_fits(const struct tsri_tensor_map_args *args);

// Errors: INTERNAL for args that do not fit, those of the driver.
tsr_status tsri_cuda_tensor_map(const char *op, const struct tsri_cuda_driver *driver,
                                const struct tsri_tensor_map_args *args, struct tensor_map *map);
// The same for what is launched on the queue, whose memo keeps it: a map follows from its args alone.
tsr_status tsri_cuda_queue_map(const char *op, const struct tsri_cuda_queue *queue,
                               const struct tsri_tensor_map_args *args, struct tensor_map *map);

#endif
