// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of cross-entropy get, by value. Read by both compilers: no headers of the library's.
#ifndef TSRI_CROSS_ENTROPY_PARAMS_H
#define TSRI_CROSS_ENTROPY_PARAMS_H

#include "cuda/device/elements_params.h"

enum { CROSS_ENTROPY_AT_ONCE = 4 }; // units of a thread, backward

// Element (r, c) of logits is at r logits_stride + c, target r at r targets_stride.
struct cross_entropy_forward_params {
    const void *logits;
    const int *targets;
    float *loss, *lse; // lse may be NULL
    long long logits_stride, targets_stride, rows;
    int cols, ignore_index;
    double label_smoothing;
};

// What the elements of a row share backward: factor e^(x - shift) - dloss q_other, and at_target. target: -1 in a row of 0.
struct cross_entropy_row {
    float shift, factor, at_target;
    int target;
};

struct cross_entropy_rows_params {
    const void *logits;
    const int *targets;
    const float *lse, *dloss;
    struct cross_entropy_row *rows_out; // (rows), at multiples of 16 bytes
    long long logits_stride, targets_stride, rows;
    int cols, ignore_index;
    double label_smoothing;
};

struct cross_entropy_backward_params {
    struct elements_grid grid;
    struct elements_view logits, dlogits;
    const struct cross_entropy_row *rows;
    const float *dloss;
    float q_other; // the distribution to reach, but for the target
};

#endif
