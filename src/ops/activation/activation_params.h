// SPDX-License-Identifier: Apache-2.0
// The parameters of activation's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_ACTIVATION_PARAMS_H
#define TSRI_ACTIVATION_PARAMS_H

#include "cuda/device/elements_params.h"

enum { ACTIVATION_FORWARD_AT_ONCE = 2, ACTIVATION_BACKWARD_AT_ONCE = 2 }; // units per thread

// Forward: y = act(x) (up). Backward: y is dx. up and dup exist in gated calls only.
struct activation_params {
    struct elements_grid grid;
    struct elements_view x, up, dy, y, dup;
    int kind; // tsr_activation
};

#endif
