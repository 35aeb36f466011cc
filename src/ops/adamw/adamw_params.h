// SPDX-License-Identifier: Apache-2.0
// The parameters of AdamW's CUDA kernel, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_ADAMW_PARAMS_H
#define TSRI_ADAMW_PARAMS_H

#include "cuda/device/elements_params.h"

enum { ADAMW_UNIT = 4, ADAMW_AT_ONCE = 1 }; // elements per unit, units per thread

// The scalars are those of adamw_problem. master is NULL if there is none.
struct adamw_params {
    struct elements_grid grid;
    struct elements_view param, grad, m, v, master;
    float grad_scale, beta1, rest1, beta2, rest2, rate, root_factor, eps, decay;
    int grad_is_f32;
};

#endif
