// SPDX-License-Identifier: Apache-2.0
// The sizes of a case of the self-attention module, and its attention as a case of its own.
#include <math.h>

#include "specs/attention/spec_self_attention.h"

extern const struct op_spec attention_forward_spec, attention_backward_spec;

struct self_attention_sizes self_attention_sizes_of(const struct op_case *c) {
    const double *p = c->param;
    struct self_attention_sizes n = {.batch = (int64_t)p[SA_BATCH],
                                     .seqlen = (int64_t)p[SA_SEQLEN],
                                     .embed_dim = (int64_t)p[SA_EMBED_DIM]};
    n.heads = (int64_t)(p[SA_HEADS] > 0 ? p[SA_HEADS] : fmax(floor(p[SA_EMBED_DIM] / 64), 1));
    n.rows = n.batch * n.seqlen;
    n.kv_heads = p[SA_KV_HEADS] > 0 ? (int64_t)p[SA_KV_HEADS] : n.heads;
    n.head_dim =
        p[SA_HEAD_DIM] > 0 ? (int64_t)p[SA_HEAD_DIM] : n.embed_dim / (n.heads > 0 ? n.heads : 1);
    n.qkv_dim = (n.heads + 2 * n.kv_heads) * n.head_dim;
    n.attention_dim = n.heads * n.head_dim;
    n.pairs = (p[SA_ROTARY_DIM] > 0 ? (int64_t)p[SA_ROTARY_DIM] : n.head_dim) / 2;
    return n;
}

struct op_case self_attention_core(const struct op_case *c, bool backward) {
    struct op_case core =
        case_default(backward ? &attention_backward_spec : &attention_forward_spec);
    struct self_attention_sizes n = self_attention_sizes_of(c);
    double *p = core.param;
    core.dtype = core.small_dtype = c->dtype;
    p[ATTN_BATCH] = (double)n.batch;
    p[ATTN_SEQLEN_Q] = p[ATTN_SEQLEN_K] = (double)n.seqlen;
    p[ATTN_HEADS] = (double)n.heads;
    p[ATTN_KV_HEADS] = (double)n.kv_heads;
    p[ATTN_HEAD_DIM] = (double)n.head_dim;
    p[ATTN_MASK] = c->param[SA_MASK];
    p[ATTN_WINDOW_LEFT] = c->param[SA_WINDOW_LEFT];
    p[ATTN_WINDOW_RIGHT] = c->param[SA_WINDOW_RIGHT];
    p[ATTN_SOFTMAX_SCALE] = c->param[SA_SOFTMAX_SCALE];
    p[ATTN_SOFTCAP] = c->param[SA_SOFTCAP];
    p[ATTN_DROPOUT_P] = c->param[SA_DROPOUT_P];
    p[ATTN_SEED] = c->param[SA_SEED];
    p[ATTN_OFFSET] = c->param[SA_OFFSET];
    return core;
}
