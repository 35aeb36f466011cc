// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of the activations get, by value. Read by both compilers: no headers of the library's.
#ifndef TSRI_ACTIVATION_PARAMS_H
#define TSRI_ACTIVATION_PARAMS_H

#include "cuda/device/elements_params.h"

enum { ACTIVATION_FORWARD_AT_ONCE = 2, ACTIVATION_BACKWARD_AT_ONCE = 2 }; // units of a thread

// Forward: y = act(x) (up). Backward: y is dx. up and dup are those of a gated call.
struct activation_params {
    struct elements_grid grid;
    struct elements_view x, up, dy, y, dup;
    int kind; // tsr_activation
};

#endif
