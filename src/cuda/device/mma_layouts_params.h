// SPDX-License-Identifier: Apache-2.0
// What mma_layouts.cu gets, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_MMA_LAYOUTS_PARAMS_H
#define TSRI_MMA_LAYOUTS_PARAMS_H

// Tiles of 16 lines of 32 16-bit elements, of which the first `elements` of a line are copied. Lines of a run along k or
// along m (is_mn), those of b along k or along n; columns [0, 16) of a tile whose lines run along k are multiplied
// where step is 0, [16, 32) where it is 1. c: 16 x 16. raw: 32 lanes x 4 registers of a's loads.
struct mma_layouts_params {
    const void *a, *b;
    float *c;
    unsigned *raw;
    int a_is_mn, b_is_mn, step, elements;
};

#endif
