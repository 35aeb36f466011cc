// SPDX-License-Identifier: Apache-2.0
// What a CUDA context remembers between calls, so that a warm call makes few driver calls besides its launches:
// launched kernels, and tensor maps. One thread at a time uses a context.
#ifndef TSRI_CUDA_MEMO_H
#define TSRI_CUDA_MEMO_H

#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"

enum { TSRI_CUDA_MEMO_KERNELS = 128, TSRI_CUDA_MEMO_MAPS = 256 };

// Both tables have one entry per hash value. Zero: empty.
struct tsri_cuda_memo {
    unsigned generation; // of the loaded kernels
    struct tsri_cuda_known_kernel {
        struct tsri_cuda_program program; // entry NULL: empty
        cu_kernel kernel;
        cu_function function; // the kernel's function in this CUDA context
        int shared_bytes;     // dynamic shared memory allowed so far
    } kernels[TSRI_CUDA_MEMO_KERNELS];
    // The complete input of a map, without padding, because it is compared as bytes. kind 0: empty.
    struct tsri_cuda_known_map {
        struct tsri_cuda_map_key {
            uint64_t data, size[5], stride[4];
            uint32_t box[5], kind;
        } key;
        struct tensor_map map;
    } maps[TSRI_CUDA_MEMO_MAPS];
};

#endif
