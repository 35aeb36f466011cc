// SPDX-License-Identifier: Apache-2.0
// The parameters of tf32_layouts.cu, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_TF32_LAYOUTS_PARAMS_H
#define TSRI_TF32_LAYOUTS_PARAMS_H

#include "cuda/device/tensor_map.h"

// a (64 rows x 32) and b (columns x 32), with k from first_k on. step: which of the four steps along k to multiply; -1:
// all, `repeats` times onto the same sums. fragments: 64 x COLS. tile: the contents of shared memory for a.
struct tf32_layouts_params {
    struct tensor_map a, b;
    float *fragments;
    unsigned *tile;
    int first_k, step, repeats;
};

#endif
