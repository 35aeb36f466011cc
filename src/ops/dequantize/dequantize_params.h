// SPDX-License-Identifier: Apache-2.0
// The parameters of dequantize's CUDA kernel, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_DEQUANTIZE_PARAMS_H
#define TSRI_DEQUANTIZE_PARAMS_H

#include "cuda/device/elements_params.h"

enum {
    DEQUANTIZE_THREADS = 256,
    DEQUANTIZE_NUMBERS = 8, // of a row, for each thread
};

// Groups of eight columns are numbered row by row.
struct dequantize_params {
    struct elements_view x, scale, zero, minimum, y; // the three beside x have no data where absent
    const int *x_rows;                               // NULL: row i of x
    long long x_rows_stride;
    long long rows, cols, num_x_rows;
    long long units_of_row, num_units; // of eight columns
    long long group;                   // columns of a scale
    int format;                        // tsr_quant_format
    int block_cols, block_bytes;
    int scale_dtype; // of zero and minimum too
    int is_aligned;  // every row of y begins at a multiple of 16 bytes, and cols is a multiple of 8
};

#endif
