// SPDX-License-Identifier: Apache-2.0
// The parameters of wgmma_layouts.cu, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_WGMMA_LAYOUTS_PARAMS_H
#define TSRI_WGMMA_LAYOUTS_PARAMS_H

#include "cuda/device/tensor_map.h"

// Multiplies the first 64 rows of a by COLS columns of b, with k from `first_k` on: the 16 values of k of step `step`
// out of 64, or all 64 if step is negative. `fragments` (64 x COLS): the registers of the result. `out` is written by
// the copy engine, from row 16 * first_row and column 64 on.
struct wgmma_layouts_params {
    struct tensor_map a, b, out;
    float *fragments;
    int first_k, step, first_row;
};

#endif
