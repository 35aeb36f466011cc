// SPDX-License-Identifier: Apache-2.0
// The parameters of the CUDA kernels of the weighted sum, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_MOE_COMBINE_PARAMS_H
#define TSRI_MOE_COMBINE_PARAMS_H

enum {
    MOE_COMBINE_AT_ONCE = 8,        // rows in flight
    MOE_COMBINE_FORWARD_WARPS = 4,  // of a block
    MOE_COMBINE_BACKWARD_WARPS = 8, // at most
    MOE_COMBINE_NARROW = 8,         // hidden up to which a thread takes an element
};

// Element (r, c) is data[r * stride + c]; NULL: absent.
struct moe_combine_view {
    void *data;
    long long stride;
};

struct moe_combine_assignments {
    const int *rows;
    const float *weights; // NULL: each is 1
    long long rows_stride, weights_stride;
    int top_k, num_rows;
};

// A warp takes a span of a token's columns; of narrow rows (spans 0) a thread takes an element.
struct moe_combine_forward_params {
    struct moe_combine_assignments assignments;
    struct moe_combine_view rows, shared, residual, y;
    const float *shared_gate;
    long long gate_stride;
    long long num_units;     // spans of all tokens; elements
    int hidden, spans, span; // spans of a token, columns of a span
    int tiles;               // groups of columns that a lane has at once: 1, 2 or 4
    int is_aligned;          // every row begins and ends at a multiple of 16 bytes
    int is_residual_f32;
};

// A block takes a token.
struct moe_combine_backward_params {
    struct moe_combine_assignments assignments;
    struct moe_combine_view dy, rows, shared, drows, dweights, dshared, dshared_gate;
    const float *shared_gate;
    long long gate_stride, tokens;
    int hidden, is_aligned;
    int is_past; // drows do not stay in the second-level cache
};

#endif
