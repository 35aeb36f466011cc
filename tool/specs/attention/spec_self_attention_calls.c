// SPDX-License-Identifier: Apache-2.0
// The calls of the self-attention module that a case describes, and the oracle's results of a case.
#include <stdlib.h>

#include "specs/attention/spec_self_attention.h"
#include "system/heap.h"

#define OPTIONS                                                                                    \
    .num_heads = (int64_t)p[SA_HEADS], .num_kv_heads = (int64_t)p[SA_KV_HEADS],                    \
    .mask = (tsr_mask)p[SA_MASK], .softmax_scale = (float)p[SA_SOFTMAX_SCALE],                     \
    .softcap = (float)p[SA_SOFTCAP], .has_window_left = p[SA_WINDOW_LEFT] != -1,                   \
    .has_window_right = p[SA_WINDOW_RIGHT] != -1, .window_left = (int64_t)p[SA_WINDOW_LEFT],       \
    .window_right = (int64_t)p[SA_WINDOW_RIGHT], .dropout_p = p[SA_DROPOUT_P],                     \
    .seed = (uint64_t)p[SA_SEED], .offset = (uint64_t)p[SA_OFFSET],                                \
    .interleaved = p[SA_INTERLEAVED] != 0
#define CALL                                                                                       \
    .flags = c->flags, .variant = variant, .workspace = workspace, .workspace_bytes = given_bytes
#define SHARED_TENSORS                                                                             \
    .x = c->tensor[SA_X], .w_qkv = c->tensor[SA_W_QKV], .w_out = c->tensor[SA_W_OUT],              \
    .cos = c->tensor[SA_COS], .sin = c->tensor[SA_SIN], .qkv = c->tensor[SA_QKV],                  \
    .attention = c->tensor[SA_ATTENTION], .lse = c->tensor[SA_LSE]

tsr_status self_attention_call_forward(tsr_context *ctx, const struct op_case *c,
                                       const char *variant, void *workspace, size_t given_bytes,
                                       size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_self_attention_forward_args args = TSR_SELF_ATTENTION_FORWARD_ARGS(
        CALL, SHARED_TENSORS, .b_qkv = c->tensor[SA_B_QKV], .b_out = c->tensor[SA_B_OUT],
        .y = c->tensor[SA_Y], OPTIONS);
    return workspace_bytes != NULL ? tsr_self_attention_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_self_attention_forward(ctx, &args);
}

tsr_status self_attention_call_backward(tsr_context *ctx, const struct op_case *c,
                                        const char *variant, void *workspace, size_t given_bytes,
                                        size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_self_attention_backward_args args = TSR_SELF_ATTENTION_BACKWARD_ARGS(
        CALL, SHARED_TENSORS, .dy = c->tensor[SA_DY], .dx = c->tensor[SA_DX],
        .dw_qkv = c->tensor[SA_DW_QKV], .db_qkv = c->tensor[SA_DB_QKV],
        .dw_out = c->tensor[SA_DW_OUT], .db_out = c->tensor[SA_DB_OUT], OPTIONS);
    return workspace_bytes != NULL
               ? tsr_self_attention_backward_prepare(ctx, &args, workspace_bytes)
               : tsr_self_attention_backward(ctx, &args);
}

tsr_context *self_attention_oracle_context(void) {
    static tsr_context *ctx; // used by one thread at a time
    if (ctx == NULL &&
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR), &ctx) !=
            TSR_OK)
        heap_exhausted(); // there is no other reason for a failure
    return ctx;
}

tsr_status self_attention_oracle(const struct op_case *c, double *qkv, double *attention,
                                 double *lse, double *y) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    const double *p = c->param;
    double *scratch = y == NULL ? heap_get((size_t)(n.rows * n.embed_dim + 1), sizeof *scratch) : y;
    tsr_self_attention_forward_args args = TSR_SELF_ATTENTION_FORWARD_ARGS(
            .variant = "reference", .x = c->tensor[SA_X], .w_qkv = c->tensor[SA_W_QKV],
            .w_out = c->tensor[SA_W_OUT], .cos = c->tensor[SA_COS], .sin = c->tensor[SA_SIN],
            .y = TSR_TENSOR(scratch, TSR_F64, n.batch, n.seqlen, n.embed_dim),
            .qkv = TSR_TENSOR(qkv, TSR_F64, n.batch, n.seqlen, n.qkv_dim),
            .attention = TSR_TENSOR(attention, TSR_F64, n.batch, n.seqlen, n.attention_dim),
            .lse = TSR_TENSOR(lse, TSR_F64, n.batch, n.heads, n.seqlen), OPTIONS);
    if (!self_attention_is_backward(c)) {
        args.b_qkv = c->tensor[SA_B_QKV];
        args.b_out = c->tensor[SA_B_OUT];
    }
    tsr_status status = tsr_self_attention_forward(self_attention_oracle_context(), &args);
    if (y == NULL) free(scratch);
    return status;
}

bool self_attention_estimate(tsr_context *ctx, const struct op_case *c, const char *variant,
                             bool has_tables, bool has_bias, tsr_self_attention_memory *memory) {
    const double *p = c->param;
    struct self_attention_sizes n = self_attention_sizes_of(c);
    tsr_self_attention_estimate_args args =
        TSR_SELF_ATTENTION_ESTIMATE_ARGS(.flags = c->flags, .variant = variant, .dtype = c->dtype,
                                         .has_bias = has_bias, .batch = n.batch, .seqlen = n.seqlen,
                                         .embed_dim = n.embed_dim, .head_dim = n.head_dim,
                                         .rotary_dim = has_tables ? 2 * n.pairs : 0, OPTIONS);
    return tsr_self_attention_estimate(ctx, &args, memory) == TSR_OK;
}
