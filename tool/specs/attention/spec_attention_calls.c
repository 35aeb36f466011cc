// SPDX-License-Identifier: Apache-2.0
// The calls of attention that a case describes.
#include "specs/attention/spec_attention.h"

// max_seqlen for the call: the given one, else the case's.
static int64_t longest(const struct op_case *c, int given, int seqlen) {
    if (c->param[given] != 0) return (int64_t)c->param[given];
    return c->is_present[ATTN_CU_SEQLENS_Q] ? (int64_t)c->param[seqlen] : 0;
}

// Absent tensors are {0} in the case.
#define SHARED_FIELDS                                                                              \
    .flags = c->flags, .variant = variant, .workspace = workspace, .workspace_bytes = given_bytes, \
    .q = c->tensor[ATTN_Q], .k = c->tensor[ATTN_K], .v = c->tensor[ATTN_V],                        \
    .bias = c->tensor[ATTN_BIAS], .alibi_slopes = c->tensor[ATTN_SLOPES],                          \
    .sinks = c->tensor[ATTN_SINKS], .cu_seqlens_q = c->tensor[ATTN_CU_SEQLENS_Q],                  \
    .cu_seqlens_k = c->tensor[ATTN_CU_SEQLENS_K], .seqused_k = c->tensor[ATTN_SEQUSED_K],          \
    .out = c->tensor[ATTN_OUT], .lse = c->tensor[ATTN_LSE], .mask = (tsr_mask)p[ATTN_MASK],        \
    .softmax_scale = (float)p[ATTN_SOFTMAX_SCALE], .softcap = (float)p[ATTN_SOFTCAP],              \
    .has_window_left = p[ATTN_WINDOW_LEFT] != -1, .has_window_right = p[ATTN_WINDOW_RIGHT] != -1,  \
    .window_left = (int64_t)p[ATTN_WINDOW_LEFT], .window_right = (int64_t)p[ATTN_WINDOW_RIGHT],    \
    .max_seqlen_q = longest(c, ATTN_MAX_SEQLEN_Q, ATTN_SEQLEN_Q),                                  \
    .max_seqlen_k = longest(c, ATTN_MAX_SEQLEN_K, ATTN_SEQLEN_K), .dropout_p = p[ATTN_DROPOUT_P],  \
    .seed = (uint64_t)p[ATTN_SEED], .offset = (uint64_t)p[ATTN_OFFSET]

tsr_status attention_call_forward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                  void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_attention_forward_args args = TSR_ATTENTION_FORWARD_ARGS(SHARED_FIELDS);
    return workspace_bytes != NULL ? tsr_attention_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_forward(ctx, &args);
}

tsr_status attention_call_backward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                   void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_attention_backward_args args = TSR_ATTENTION_BACKWARD_ARGS(
        SHARED_FIELDS, .dout = c->tensor[ATTN_DOUT], .dq = c->tensor[ATTN_DQ],
        .dk = c->tensor[ATTN_DK], .dv = c->tensor[ATTN_DV], .dbias = c->tensor[ATTN_DBIAS],
        .dsinks = c->tensor[ATTN_DSINKS]);
    return workspace_bytes != NULL ? tsr_attention_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_backward(ctx, &args);
}
