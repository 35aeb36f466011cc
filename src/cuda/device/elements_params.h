// SPDX-License-Identifier: Apache-2.0
// How element-wise kernels divide views of (rows, cols) into tiles. context/cuda_elements.c fills it,
// cuda/device/elements.cuh reads it. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_ELEMENTS_PARAMS_H
#define TSRI_ELEMENTS_PARAMS_H

enum { ELEMENTS_THREADS = 256 }; // threads per block

// A unit is a few elements of a row whose address is, in every view, a multiple of the unit's size. Row r starts (base
// + r growth) modulo a unit's elements after such an address.
struct elements_grid {
    long long rows, cols;
    long long tiles, tiles_per_row; // tiles of the first rows, then those of the next rows
    long long tile_rows, tile_units;
    int row_step, unit_step; // between a thread's AT_ONCE units: one of the two is 0
    int log_width;           // 2^log_width threads side by side in a row
    int base, growth;
    int is_apart; // the alignments of the views differ: element by element
    int is_flat;  // one aligned row: no row or alignment arithmetic needed
};

// Element (r, c) is data[r * stride + c]. Kernels that define HAS_GROUPS know rows of two strides, too: with a group, row r
// begins at r / group * group_stride + r % group * stride.
struct elements_view {
    void *data;
    long long stride;
    long long group, group_stride;
};

// ---- Quantised rows to numbers --------------------------------------------------------------------

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
