// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the self-attention spec.
#ifndef TOOL_SPEC_SELF_ATTENTION_H
#define TOOL_SPEC_SELF_ATTENTION_H

#include "specs/attention/spec_attention.h"

// The slots of both passes up to SA_LSE, then those of forward, then those of backward.
enum self_attention_slot {
    SA_X,
    SA_W_QKV,
    SA_W_OUT,
    SA_COS,
    SA_SIN,
    SA_QKV,
    SA_ATTENTION,
    SA_LSE,
    SA_B_QKV,
    SA_B_OUT,
    SA_Y,
    SA_DY = SA_B_QKV,
    SA_DX,
    SA_DW_QKV,
    SA_DB_QKV,
    SA_DW_OUT,
    SA_DB_OUT
};

enum self_attention_param {
    SA_BATCH,
    SA_SEQLEN,
    SA_EMBED_DIM,
    SA_HEADS,
    SA_KV_HEADS,   // 0: as heads
    SA_HEAD_DIM,   // 0: embed_dim / heads
    SA_ROTARY_DIM, // 0: all of head_dim
    SA_MASK,
    SA_WINDOW_LEFT, // -1: none
    SA_WINDOW_RIGHT,
    SA_SOFTMAX_SCALE,
    SA_SOFTCAP,
    SA_DROPOUT_P,
    SA_SEED,
    SA_OFFSET,
    SA_INTERLEAVED
};

struct self_attention_sizes {
    int64_t batch, seqlen, rows, embed_dim, heads, kv_heads, head_dim, qkv_dim, attention_dim,
        pairs;
};
struct self_attention_sizes self_attention_sizes_of(const struct op_case *c);

static inline bool self_attention_is_backward(const struct op_case *c) {
    return c->spec->pass[0] == 'b';
}

// The module's attention, forward or backward, as a case of its own, without tensors.
struct op_case self_attention_core(const struct op_case *c, bool is_backward);

// As op_spec.call.
tsr_status self_attention_call_forward(tsr_context *ctx, const struct op_case *c,
                                       const char *variant, void *workspace, size_t given_bytes,
                                       size_t *workspace_bytes);
tsr_status self_attention_call_backward(tsr_context *ctx, const struct op_case *c,
                                        const char *variant, void *workspace, size_t given_bytes,
                                        size_t *workspace_bytes);
// The library's estimate of the memory. False if it does not cover the case.
bool self_attention_estimate(tsr_context *ctx, const struct op_case *c, const char *variant,
                             bool has_tables, bool has_bias, tsr_self_attention_memory *memory);

// Runs forward with the oracle into qkv, attention, lse and y, f64 and contiguous; y may be NULL. c has the
// inputs of either pass.
tsr_status self_attention_oracle(const struct op_case *c, double *qkv, double *attention,
                                 double *lse, double *y);
tsr_context *self_attention_oracle_context(void);

void self_attention_randomize(struct rng *rng, struct op_case *c);
bool self_attention_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values);
void self_attention_forward_bound(const struct op_case *c, int slot, double *bound);
void self_attention_backward_bound(const struct op_case *c, int slot, double *bound);
extern const struct edge_case self_attention_forward_edges[], self_attention_backward_edges[];

#endif
