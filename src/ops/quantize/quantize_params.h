// SPDX-License-Identifier: Apache-2.0
// The numbers of quantize that both devices use, and the parameters of its CUDA kernel, passed by value. Both compilers read this
// file: no library headers.
#ifndef TSRI_QUANTIZE_PARAMS_H
#define TSRI_QUANTIZE_PARAMS_H

#include "cuda/device/elements_params.h"

#define QUANTIZE_LEAST 1e-10f // what a scale takes for the largest of a block at least

enum {
    QUANTIZE_BLOCK = 128, // columns of a scale
    QUANTIZE_THREADS = 256,
    QUANTIZE_AT_ONCE = 2, // units of 16 bytes of a thread
};

// Blocks of columns are numbered row by row.
struct quantize_params {
    struct elements_view x, up, y, y_scale; // up has no data in a call without a gate
    const int *x_rows;                      // NULL: row i of x
    long long x_rows_stride;
    long long rows, cols, num_x_rows;
    long long blocks_of_row, num_blocks;
    long long row_step, block_step; // from a thread's block to its next one
    int kind;                       // tsr_activation
    int is_e5m2;
    int is_aligned; // every row of x and up begins at a multiple of 16 bytes, every row of y at one of as many elements
};

#endif
