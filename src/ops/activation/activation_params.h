// SPDX-License-Identifier: Apache-2.0
// The parameters of activation's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_ACTIVATION_PARAMS_H
#define TSRI_ACTIVATION_PARAMS_H

#include "cuda/device/elements_params.h"

enum { ACTIVATION_FORWARD_AT_ONCE = 2, ACTIVATION_BACKWARD_AT_ONCE = 2 }; // units per thread

// Forward: y = act(x) (up). Backward: y is dx. up and dup exist in gated calls only.
struct activation_params {
    struct elements_grid grid;
    struct elements_view x, up, dy, y, dup;
    int kind; // tsr_activation
};

// Backward of rows that have weights. An absent tensor has no data.
enum {
    ACTIVATION_WEIGHTED_THREADS = 256,
    ACTIVATION_WEIGHTED_AT_ONCE = 2,
    ACTIVATION_WEIGHTED_SHORT =
        32, // units of 16 bytes in the longest row of which a warp takes several
    ACTIVATION_WEIGHTED_LONG = 8 * 32 // and in the longest row of a warp
};

struct activation_weighted_params {
    struct elements_view x, up, dy, dx, dup, weighted_y;
    struct elements_view row_weights, drow_weights; // floats
    long long rows, cols;
    int kind;
    int is_aligned;    // every row of every tensor begins at a multiple of 16 bytes
    int rows_of_block; // 1, one for each warp, or AT_ONCE for each warp
};

#endif
