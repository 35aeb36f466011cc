// SPDX-License-Identifier: Apache-2.0
// A case of attention in numbers: its sizes, the rows of each sequence, which query sees which key, and where the elements of
// contiguous tensors are.
#include <math.h>

#include "specs/attention/spec_attention.h"

// ---- Sizes ------------------------------------------------------------------------------------

static int64_t or_else(double value, int64_t standard) {
    return value != 0 ? (int64_t)value : standard;
}

struct attention_sizes attention_sizes_of(const struct op_case *c) {
    const double *p = c->param;
    struct attention_sizes n = {.is_packed = c->is_present[ATTN_CU_SEQLENS_Q]};
    n.batch = (int64_t)p[ATTN_BATCH];
    n.seqlen_q = n.total_q = (int64_t)p[ATTN_SEQLEN_Q];
    n.seqlen_k = n.total_k = (int64_t)p[ATTN_SEQLEN_K];
    n.heads = (int64_t)p[ATTN_HEADS];
    n.kv_heads = or_else(p[ATTN_KV_HEADS], n.heads);
    n.head_dim = (int64_t)p[ATTN_HEAD_DIM];
    n.head_dim_v = or_else(p[ATTN_HEAD_DIM_V], n.head_dim);
    if (!n.is_packed) return n;
    n.total_q = or_else(p[ATTN_TOTAL_Q], n.batch * n.seqlen_q);
    n.total_k = or_else(p[ATTN_TOTAL_K], n.batch * n.seqlen_k);
    // max_seqlen 0 is the total; no sequence is longer than the total.
    if (n.seqlen_q == 0 || n.seqlen_q > n.total_q) n.seqlen_q = n.total_q;
    if (n.seqlen_k == 0 || n.seqlen_k > n.total_k) n.seqlen_k = n.total_k;
    return n;
}

int attention_bias_shape(const struct op_case *c, const struct attention_sizes *n, int64_t *shape) {
    const int64_t full[4] = {n->batch, n->heads, n->seqlen_q, n->seqlen_k};
    for (int d = 0; d < 4; d++)
        shape[d] = (int)c->param[ATTN_BIAS_BROADCAST] & 8 >> d ? 1 : full[d];
    return 4;
}

// ---- Sequences --------------------------------------------------------------------------------

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// False if the case has no data (yet).
static bool has_data(const struct op_case *c, int slot) {
    return c->is_present[slot] && c->tensor[slot].data != NULL;
}

static int64_t index_at(const struct op_case *c, int slot, int64_t i) {
    return (int64_t)tsr_load(TSR_I32, c->tensor[slot].data, i);
}

static void locate(const struct op_case *c, int cu, int64_t b, int64_t total, int64_t longest,
                   int64_t *first, int64_t *length) {
    *first = clamp(index_at(c, cu, b), 0, total);
    *length = clamp(clamp(index_at(c, cu, b + 1), *first, total) - *first, 0, longest);
}

struct attention_rows attention_rows_of(const struct op_case *c, int64_t batch) {
    struct attention_sizes n = attention_sizes_of(c);
    struct attention_rows rows = {0, 0, n.seqlen_q, n.seqlen_k};
    if (has_data(c, ATTN_CU_SEQLENS_Q) && has_data(c, ATTN_CU_SEQLENS_K)) {
        locate(c, ATTN_CU_SEQLENS_Q, batch, n.total_q, n.seqlen_q, &rows.q_first, &rows.len_q);
        locate(c, ATTN_CU_SEQLENS_K, batch, n.total_k, n.seqlen_k, &rows.k_first, &rows.len_k);
    }
    if (has_data(c, ATTN_SEQUSED_K))
        rows.len_k = clamp(index_at(c, ATTN_SEQUSED_K, batch), 0, rows.len_k);
    return rows;
}

static int64_t diagonal(const struct op_case *c, const struct attention_rows *rows, int64_t i) {
    return c->param[ATTN_MASK] == TSR_MASK_CAUSAL_TOP_LEFT ? i : i + rows->len_k - rows->len_q;
}

bool attention_sees(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                    int64_t j) {
    const double *p = c->param;
    int64_t d = diagonal(c, rows, i);
    if (p[ATTN_MASK] != TSR_MASK_NONE && j > d) return false;
    if (p[ATTN_WINDOW_LEFT] >= 0 && j < d - (int64_t)p[ATTN_WINDOW_LEFT]) return false;
    return p[ATTN_WINDOW_RIGHT] < 0 || j <= d + (int64_t)p[ATTN_WINDOW_RIGHT];
}

double attention_distance(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                          int64_t j) {
    return fabs((double)(j - diagonal(c, rows, i)));
}

double attention_scale(const struct op_case *c) {
    double scale = (double)(float)c->param[ATTN_SOFTMAX_SCALE];
    return scale != 0 ? scale : 1 / sqrt(c->param[ATTN_HEAD_DIM]);
}

double attention_visible_pairs(const struct op_case *c) {
    const double *p = c->param;
    struct attention_sizes n = attention_sizes_of(c);
    bool has_lengths = has_data(c, ATTN_CU_SEQLENS_Q) || has_data(c, ATTN_SEQUSED_K);
    double pairs = 0;
    for (int64_t b = 0; b < (has_lengths ? n.batch : n.batch > 0); b++) {
        struct attention_rows rows = attention_rows_of(c, b);
        for (int64_t i = 0; i < rows.len_q; i++) {
            int64_t d = diagonal(c, &rows, i), first = 0, last = rows.len_k - 1;
            if (p[ATTN_MASK] != TSR_MASK_NONE && last > d) last = d;
            if (p[ATTN_WINDOW_RIGHT] >= 0 && (double)last > (double)d + p[ATTN_WINDOW_RIGHT])
                last = d + (int64_t)p[ATTN_WINDOW_RIGHT];
            if (p[ATTN_WINDOW_LEFT] >= 0 && (double)d - p[ATTN_WINDOW_LEFT] > 0)
                first = d - (int64_t)p[ATTN_WINDOW_LEFT];
            if (last >= first) pairs += (double)(last - first + 1);
        }
    }
    return has_lengths ? pairs : pairs * (double)n.batch;
}

// ---- Elements of contiguous tensors -----------------------------------------------------------

int64_t attention_at_q(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t i, int64_t dim) {
    int64_t row = (n->is_packed ? 0 : batch * n->total_q) + rows->q_first + i;
    return (row * n->heads + head) * dim;
}

int64_t attention_at_k(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t j, int64_t dim) {
    int64_t row = (n->is_packed ? 0 : batch * n->total_k) + rows->k_first + j;
    return (row * n->kv_heads + head / (n->heads / n->kv_heads)) * dim;
}

int64_t attention_at_lse(const struct attention_sizes *n, const struct attention_rows *rows,
                         int64_t batch, int64_t head, int64_t i) {
    return ((n->is_packed ? 0 : batch * n->heads) + head) * n->total_q + rows->q_first + i;
}

int64_t attention_at_bias(const struct op_case *c, const struct attention_sizes *n, int64_t batch,
                          int64_t head, int64_t i, int64_t j) {
    int64_t shape[4];
    const int64_t index[4] = {batch, head, i, j};
    int64_t at = 0;
    attention_bias_shape(c, n, shape);
    for (int d = 0; d < 4; d++) at = at * shape[d] + (shape[d] == 1 ? 0 : index[d]);
    return at;
}
