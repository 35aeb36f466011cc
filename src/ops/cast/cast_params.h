// SPDX-License-Identifier: Apache-2.0
// The parameters of cast's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_CAST_PARAMS_H
#define TSRI_CAST_PARAMS_H

#include "cuda/device/elements_params.h"

enum { CAST_AT_ONCE = 4, CAST_COPY_UNIT = 16, CAST_COPY_AT_ONCE = 4 }; // units per thread; bytes

// Blocks per multiprocessor. For Blackwell, and for rows of two strides, the compiler wants more registers than four blocks
// leave, and spilled up to 264 bytes.
#define CAST_BLOCKS (__CUDA_ARCH__ < 1000 ? 4 - HAS_GROUPS : 3 - HAS_GROUPS)
#define CAST_COPY_BLOCKS (__CUDA_ARCH__ < 1000 ? 4 - HAS_GROUPS : 2)

struct cast_params {
    struct elements_grid grid;
    struct elements_view x, y;
    int from, to; // tsr_dtype
    int has_scale;
    float scale;
};

#endif
