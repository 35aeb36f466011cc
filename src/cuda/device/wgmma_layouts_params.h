// SPDX-License-Identifier: Apache-2.0
// What wgmma_layouts.cu gets, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_WGMMA_LAYOUTS_PARAMS_H
#define TSRI_WGMMA_LAYOUTS_PARAMS_H

#include "cuda/device/tensor_map.h"

// The first 64 rows of a and COLS columns of b, from `first_k` on, over the 16 of k number `step` of 64 or, where it is
// negative, over all. `fragments` (64 x COLS) as they leave the registers; out by the copy engine, from its row 16 * first_row
// and column 64 on.
struct wgmma_layouts_params {
    struct tensor_map a, b, out;
    float *fragments;
    int first_k, step, first_row;
};

#endif
