// SPDX-License-Identifier: Apache-2.0
// How element-wise kernels cut views of (rows, cols) into tiles. Made by context/cuda_elements.c, read by
// cuda/device/elements.cuh. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ELEMENTS_PARAMS_H
#define TSRI_ELEMENTS_PARAMS_H

enum { ELEMENTS_THREADS = 256 }; // of a block

// A unit is a few elements of a row that lie at a multiple of their bytes in every view. Row r starts
// (base + r growth) modulo a unit's elements behind such a place.
struct elements_grid {
    long long rows, cols;
    long long tiles, tiles_per_row; // tiles of rows follow one another, then those of the next rows
    long long tile_rows, tile_units;
    int row_step, unit_step; // between the units of a thread, AT_ONCE of them: one of the two is 0
    int log_width;           // threads side by side in a row: 2^log_width
    int base, growth;
    int is_apart; // the views agree on no such place: element by element
    int is_flat;  // one row, which begins at such a place: nothing of all this to find out
};

// Element (r, c) is data[r stride + c].
struct elements_view {
    void *data;
    long long stride;
};

#endif
