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

// Element (r, c) is data[r * stride + c].
struct elements_view {
    void *data;
    long long stride;
};

#endif
