// SPDX-License-Identifier: Apache-2.0
// The parameters of cross-entropy's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_CROSS_ENTROPY_PARAMS_H
#define TSRI_CROSS_ENTROPY_PARAMS_H

#include "cuda/device/elements_params.h"

enum { CROSS_ENTROPY_AT_ONCE = 4 }; // units per thread, in backward

// Element (r, c) of logits is at r * logits_stride + c, target r at r * targets_stride.
struct cross_entropy_forward_params {
    const void *logits;
    const int *targets;
    float *loss, *lse; // lse may be NULL
    long long logits_stride, targets_stride, rows;
    int cols, ignore_index;
    int rows_each; // adjacent rows of a warp, at most 32; 1 if a block has a row
    double label_smoothing;
};

// Values that a row's elements share in backward: factor e^(x - shift) - dloss q_other, and at_target for the target.
// target is -1 in a row of zeros.
struct cross_entropy_row {
    float shift, factor, at_target;
    int target;
};

struct cross_entropy_rows_params {
    const void *logits;
    const int *targets;
    const float *lse, *dloss;
    struct cross_entropy_row *rows_out; // (rows), 16-byte aligned
    long long logits_stride, targets_stride, rows;
    int cols, ignore_index;
    double label_smoothing, other; // other: target probability of every class except the target
};

struct cross_entropy_gradient_params {
    struct cross_entropy_rows_params rows; // without rows_out
    void *dlogits;
    long long dlogits_stride;
};

struct cross_entropy_backward_params {
    struct elements_grid grid;
    struct elements_view logits, dlogits;
    const struct cross_entropy_row *rows;
    const float *dloss;
    float q_other; // target probability of every class except the target
};

#endif
