// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the self-attention module: a context, and a call in f32 without biases and RoPE. One test
// program includes this file.
#ifndef SELF_ATTENTION_CASE_H
#define SELF_ATTENTION_CASE_H

#include "test_support.h"

static tsr_context *ctx;

static inline int setup(void **state) {
    (void)state;
    ctx = test_context(2);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

enum { B = 3, S = 50, E = 48, H = 4, D = 12 };

struct plain {
    float x[B * S * E], w_qkv[3 * H * D * E], w_out[E * H * D], y[B * S * E];
    float qkv[B * S * 3 * H * D], attention[B * S * H * D], lse[B * H * S];
};

static inline tsr_self_attention_forward_args plain_args(struct plain *p, bool is_saving) {
    tsr_self_attention_forward_args args =
        TSR_SELF_ATTENTION_FORWARD_ARGS(.x = TSR_TENSOR(p->x, TSR_F32, B, S, E),
                                        .w_qkv = TSR_TENSOR(p->w_qkv, TSR_F32, 3 * H * D, E),
                                        .w_out = TSR_TENSOR(p->w_out, TSR_F32, E, H * D),
                                        .y = TSR_TENSOR(p->y, TSR_F32, B, S, E), .num_heads = H);
    if (!is_saving) return args;
    args.qkv = TSR_TENSOR(p->qkv, TSR_F32, B, S, 3 * H * D);
    args.attention = TSR_TENSOR(p->attention, TSR_F32, B, S, H * D);
    args.lse = TSR_TENSOR(p->lse, TSR_F32, B, H, S);
    return args;
}

#endif
