// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the attention spec: its slots and parameters, the sizes of a case, and which
// query sees which key. The rules are written anew from tessera/attention.h, because the library's own
// rules are under test.
#ifndef TOOL_SPEC_ATTENTION_H
#define TOOL_SPEC_ATTENTION_H

#include "specs/spec.h"

// The slots of both passes; forward ends after lse. Metadata is filled first, because it determines which
// keys are seen.
enum attention_slot {
    ATTN_CU_SEQLENS_Q,
    ATTN_CU_SEQLENS_K,
    ATTN_SEQUSED_K,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_BIAS,
    ATTN_SLOPES,
    ATTN_SINKS,
    ATTN_OUT,
    ATTN_LSE,
    ATTN_DOUT,
    ATTN_DQ,
    ATTN_DK,
    ATTN_DV,
    ATTN_DBIAS,
    ATTN_DSINKS
};

enum attention_param {
    ATTN_BATCH,
    ATTN_SEQLEN_Q,
    ATTN_SEQLEN_K,
    ATTN_HEADS,
    ATTN_KV_HEADS, // 0: as heads
    ATTN_HEAD_DIM,
    ATTN_HEAD_DIM_V, // 0: as head_dim
    ATTN_TOTAL_Q,    // packed: rows; 0: batch times seqlen
    ATTN_TOTAL_K,
    ATTN_BIAS_BROADCAST, // sum of 8 batch, 4 heads, 2 queries, 1 keys: dimensions that are 1
    ATTN_SLOPES_BATCH,   // slopes for every batch
    ATTN_RAGGED,         // 1: random lengths, and NaN wherever no query looks
    ATTN_MASK,
    ATTN_WINDOW_LEFT, // -1: none
    ATTN_WINDOW_RIGHT,
    ATTN_SOFTMAX_SCALE,
    ATTN_SOFTCAP,
    ATTN_DROPOUT_P,
    ATTN_SEED,
    ATTN_OFFSET,
    ATTN_MAX_SEQLEN_Q, // 0: as the case's seqlen_q
    ATTN_MAX_SEQLEN_K
};

// The sizes of a case. Packed: seqlen_q and seqlen_k are those of the longest sequence, total_q and total_k the numbers of
// rows; otherwise total and seqlen are equal.
struct attention_sizes {
    int64_t batch, seqlen_q, seqlen_k, total_q, total_k, heads, kv_heads, head_dim, head_dim_v;
    bool is_packed;
};
struct attention_sizes attention_sizes_of(const struct op_case *c);
// The shape of bias, with its broadcast dimensions 1; returns the number of dimensions.
int attention_bias_shape(const struct op_case *c, const struct attention_sizes *n, int64_t *shape);

// One sequence: where its rows start and how many count, by the metadata of the case if it has data.
struct attention_rows {
    int64_t q_first, k_first, len_q, len_k;
};
struct attention_rows attention_rows_of(const struct op_case *c, int64_t batch);

// Whether query i sees key j < len_k of the same sequence.
bool attention_sees(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                    int64_t j);
// |j - d| of ALiBi.
double attention_distance(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                          int64_t j);

double attention_scale(const struct op_case *c);

// Positions of elements in contiguous tensors. at_q: row i of q, out, dout or dq of a sequence; at_k: of k, v, dk or dv.
int64_t attention_at_q(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t i, int64_t dim);
int64_t attention_at_k(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t j, int64_t dim);
int64_t attention_at_lse(const struct attention_sizes *n, const struct attention_rows *rows,
                         int64_t batch, int64_t head, int64_t i);
int64_t attention_at_bias(const struct op_case *c, const struct attention_sizes *n, int64_t batch,
                          int64_t head, int64_t i, int64_t j);

// The number of visible pairs of query and key in all batches, for one head.
double attention_visible_pairs(const struct op_case *c);

// The parts of the two specs that are in other files.
bool attention_traffic(const struct op_case *c, const char *variant, struct op_traffic *traffic);
void attention_randomize(struct rng *rng, struct op_case *c);
bool attention_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                    double *values);
void attention_forward_bound(const struct op_case *c, int slot, double *bound);
void attention_backward_bound(const struct op_case *c, int slot, double *bound);
extern const struct edge_case attention_forward_edges[], attention_backward_edges[];

// op_spec.call of both passes. Forward also runs the oracle into the tensors of an f64 case; lse may be absent.
tsr_status attention_call_forward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                  void *workspace, size_t given_bytes, size_t *workspace_bytes);
tsr_status attention_call_backward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                   void *workspace, size_t given_bytes, size_t *workspace_bytes);

#endif
