// SPDX-License-Identifier: Apache-2.0
// What tf32_layouts.cu gets, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_TF32_LAYOUTS_PARAMS_H
#define TSRI_TF32_LAYOUTS_PARAMS_H

#include "cuda/device/tensor_map.h"

// a (64 rows x 32), b (columns x 32), of which k starts at first_k. step: of the four along k that is multiplied, -1: all of them,
// `repeats` times onto the same sums. fragments: 64 x COLS. tile: what lies in shared memory for a.
struct tf32_layouts_params {
    struct tensor_map a, b;
    float *fragments;
    unsigned *tile;
    int first_k, step, repeats;
};

#endif
