// SPDX-License-Identifier: Apache-2.0
// What a context on CUDA remembers from call to call, so that a warm one asks the driver for its launches and little else: kernels
// that have been launched, and tensor maps. A context has one thread at a time.
#ifndef TSRI_CUDA_MEMO_H
#define TSRI_CUDA_MEMO_H

#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"

enum { TSRI_CUDA_MEMO_KERNELS = 128, TSRI_CUDA_MEMO_MAPS = 256 };

// Both have one place for each hash of what they are asked for. Zero: empty.
struct tsri_cuda_memo {
    unsigned generation; // of the kernels
    struct tsri_cuda_known_kernel {
        struct tsri_cuda_program program; // entry NULL: none
        cu_kernel kernel;
        cu_function function; // what it is in the context's own CUDA context
        int shared_bytes;     // dynamic, that it may have without asking again
    } kernels[TSRI_CUDA_MEMO_KERNELS];
    // All that a map is made of, without gaps: it is compared as bytes. kind 0: none.
    struct tsri_cuda_known_map {
        struct tsri_cuda_map_key {
            uint64_t data, size[5], stride[4];
            uint32_t box[5], kind;
        } key;
        struct tensor_map map;
    } maps[TSRI_CUDA_MEMO_MAPS];
};

#endif
