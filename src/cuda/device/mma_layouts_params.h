// SPDX-License-Identifier: Apache-2.0
// The parameters of mma_layouts.cu, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_MMA_LAYOUTS_PARAMS_H
#define TSRI_MMA_LAYOUTS_PARAMS_H

// a and b are tiles of 16 lines of 32 16-bit elements; the first `elements` of each line are copied. Lines of a run
// along k, or along m with a_is_mn; lines of b run along k or along n. Of a tile with lines along k, step 0 multiplies
// columns [0, 16) and step 1 columns [16, 32). c: 16 x 16. raw: 32 lanes x 4 registers of the loads of a.
struct mma_layouts_params {
    const void *a, *b;
    float *c;
    unsigned *raw;
    int a_is_mn, b_is_mn, step, elements;
};

#endif
