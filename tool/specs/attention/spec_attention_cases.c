// SPDX-License-Identifier: Apache-2.0
// Random cases of attention, and the values of its tensors. The fills:
//   NORMAL              normal numbers; ragged: random lengths, some -inf in bias, and often NaN
//                       wherever no query looks
//   NAN                 NaN wherever no query looks
//   LARGE, HUGE         scores of about 1e3 and 1e8; HUGE with bias: ordinary scores, but biases near
//                       the lowest finite number, in every other row all of them
//   SHIFTED             scores with a large common part
//   NEGATIVE_INFINITE   biases of -inf, in every other row all of them, and sinks of -inf
//   ZERO                queries and keys are 0, and so is every offset and length
//   SPECIAL             packed or with seqused_k: offsets and lengths out of bounds; else NaN in values
#include <math.h>
#include <stdlib.h>

#include "specs/attention/spec_attention.h"
#include "system/heap.h"

// ---- Random cases -----------------------------------------------------------------------------

static int64_t draw_head_dim(struct rng *rng) {
    static const int64_t usual[] = {64, 128, 96, 72, 80, 32, 16, 256};
    if (rng_chance(rng, 0.4)) return usual[rng_int(rng, 0, 7)];
    int64_t dim = rng_dim(rng, 256);
    return dim > 0 ? dim : 1;
}

static double cost(const struct op_case *c) {
    struct attention_sizes n = attention_sizes_of(c);
    return (double)(n.batch * n.heads) * (double)n.seqlen_q * (double)n.seqlen_k *
           (double)(n.head_dim + n.head_dim_v);
}

static void draw_sizes(struct rng *rng, struct op_case *c, bool is_packed) {
    static const int groups[] = {1, 1, 2, 3, 4, 7};
    double *p = c->param;
    p[ATTN_BATCH] = rng_chance(rng, 0.02) ? 0 : (double)rng_int(rng, 1, is_packed ? 6 : 3);
    p[ATTN_KV_HEADS] = rng_chance(rng, 0.3) ? 1 : (double)rng_int(rng, 1, 3);
    p[ATTN_HEADS] = p[ATTN_KV_HEADS] * groups[rng_int(rng, 0, 5)];
    p[ATTN_HEAD_DIM] = (double)draw_head_dim(rng);
    p[ATTN_HEAD_DIM_V] = rng_chance(rng, 0.75) ? 0 : (double)draw_head_dim(rng);
    p[ATTN_SEQLEN_Q] = rng_chance(rng, 0.1) ? 1 : (double)rng_dim(rng, 300);
    p[ATTN_SEQLEN_K] = rng_chance(rng, 0.5) ? p[ATTN_SEQLEN_Q] : (double)rng_dim(rng, 300);
    // Sometimes more or fewer rows than the sequences need, so that some sequences are cut.
    int64_t all_q = (int64_t)(p[ATTN_BATCH] * p[ATTN_SEQLEN_Q]);
    int64_t all_k = (int64_t)(p[ATTN_BATCH] * p[ATTN_SEQLEN_K]);
    p[ATTN_TOTAL_Q] = is_packed && rng_chance(rng, 0.7) ? (double)rng_int(rng, 0, all_q + 9) : 0;
    p[ATTN_TOTAL_K] = is_packed && rng_chance(rng, 0.7) ? (double)rng_int(rng, 0, all_k + 9) : 0;
}

static void draw_options(struct rng *rng, struct op_case *c) {
    static const double scales[] = {1, 0.3, -0.2, 0.01}, drops[] = {0.1, 0.5, 0.9, 1e-3};
    double *p = c->param;
    int64_t longest = (int64_t)fmax(p[ATTN_SEQLEN_Q], p[ATTN_SEQLEN_K]) + 5;
    p[ATTN_MASK] = rng_chance(rng, 0.35) ? 0 : rng_chance(rng, 0.6) ? 1 : 2;
    for (int side = ATTN_WINDOW_LEFT; side <= ATTN_WINDOW_RIGHT; side++)
        if (rng_chance(rng, 0.25))
            p[side] = rng_chance(rng, 0.2) ? 0 : (double)rng_int(rng, 0, longest);
    if (rng_chance(rng, 0.25)) p[ATTN_SOFTMAX_SCALE] = scales[rng_int(rng, 0, 3)];
    if (rng_chance(rng, 0.2)) p[ATTN_SOFTCAP] = exp(4 * rng_uniform(rng) - 0.5);
    if (rng_chance(rng, 0.2)) {
        p[ATTN_DROPOUT_P] = drops[rng_int(rng, 0, 3)];
        p[ATTN_SEED] = (double)rng_int(rng, 0, 1000000007);
        p[ATTN_OFFSET] = rng_chance(rng, 0.7) ? 0 : (double)rng_int(rng, 1, 9999999999);
    }
    p[ATTN_BIAS_BROADCAST] = (double)rng_int(rng, 0, 15);
    p[ATTN_SLOPES_BATCH] = rng_chance(rng, 0.3);
    p[ATTN_RAGGED] = rng_chance(rng, 0.8);
}

void attention_randomize(struct rng *rng, struct op_case *c) {
    bool is_backward = spec_slot(c->spec, "dout") >= 0, is_packed = rng_chance(rng, 0.35);
    double most = is_backward ? 2e5 : 6e5; // multiplications, because the oracle is slow
    bool *is_present = c->is_present;
    is_present[ATTN_CU_SEQLENS_Q] = is_present[ATTN_CU_SEQLENS_K] = is_packed;
    do draw_sizes(rng, c, is_packed);
    while (cost(c) > most);
    draw_options(rng, c);
    is_present[ATTN_SEQUSED_K] = rng_chance(rng, 0.2);
    is_present[ATTN_BIAS] = rng_chance(rng, 0.35);
    is_present[ATTN_SLOPES] = rng_chance(rng, 0.2);
    is_present[ATTN_SINKS] = rng_chance(rng, 0.25);
    if (!is_backward) {
        is_present[ATTN_LSE] = rng_chance(rng, 0.8);
        return;
    }
    for (int s = ATTN_DQ; s <= ATTN_DV; s++) is_present[s] = rng_chance(rng, 0.85);
    is_present[ATTN_DBIAS] = is_present[ATTN_BIAS] && rng_chance(rng, 0.8);
    is_present[ATTN_DSINKS] = is_present[ATTN_SINKS] && rng_chance(rng, 0.8);
}

// ---- Offsets and lengths ----------------------------------------------------------------------

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sequences of equal length, one after the other; ragged: of random lengths, some empty, with rows in no
// sequence at both ends.
static void fill_offsets(struct rng *rng, const struct op_case *c, bool is_k, enum edge_fill fill,
                         double *values) {
    struct attention_sizes n = attention_sizes_of(c);
    int64_t total = is_k ? n.total_k : n.total_q, longest = is_k ? n.seqlen_k : n.seqlen_q;
    int64_t first = rng_chance(rng, 0.3) ? rng_int(rng, 0, total / 4) : 0;
    int64_t last = rng_chance(rng, 0.3) ? rng_int(rng, first, total) : total;
    for (int64_t b = 0; b <= n.batch; b++) {
        if (fill == FILL_ZERO || c->param[ATTN_RAGGED] == 0)
            values[b] = fill == FILL_ZERO ? 0 : fmin((double)(b * longest), (double)total);
        else if (b == 0 || b == n.batch)
            values[b] = (double)(b == 0 ? first : last);
        else
            values[b] =
                b > 1 && rng_chance(rng, 0.15) ? values[b - 1] : (double)rng_int(rng, first, last);
    }
    if (c->param[ATTN_RAGGED] != 0 && fill != FILL_ZERO)
        qsort(values, (size_t)n.batch + 1, sizeof *values, compare_doubles);
    if (fill != FILL_SPECIAL) return;
    // Out of bounds, and falling at the end, but no row belongs to two sequences.
    values[0] = rng_chance(rng, 0.5) ? -5 : (double)INT32_MIN;
    if (n.batch > 0) values[n.batch] = rng_chance(rng, 0.5) ? (double)INT32_MAX : -1;
}

static void fill_seqused(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                         double *values) {
    struct attention_sizes n = attention_sizes_of(c);
    const double bad[4] = {(double)INT32_MAX, 0, (double)INT32_MIN, floor((double)n.seqlen_k / 2)};
    for (int64_t b = 0; b < n.batch; b++) {
        values[b] = fill == FILL_ZERO ? 0 : (double)n.seqlen_k;
        if (fill == FILL_SPECIAL) values[b] = bad[b % 4];
        if (fill != FILL_SPECIAL && fill != FILL_ZERO && c->param[ATTN_RAGGED] != 0)
            values[b] = (double)rng_int(rng, rng_chance(rng, 0.1) ? -3 : 0, n.seqlen_k + 3);
    }
}

// ---- Rows that no query sees ------------------------------------------------------------------

// Row of a tensor, or element of bias, that belongs to a query and a key of a sequence.
static int64_t touched(const struct op_case *c, const struct attention_sizes *n,
                       const struct attention_rows *rows, int slot, int64_t b, int64_t h, int64_t i,
                       int64_t j) {
    switch (slot) {
    case ATTN_BIAS: return attention_at_bias(c, n, b, h, i, j);
    case ATTN_K:
    case ATTN_V: return attention_at_k(n, rows, b, h, j, 1);
    default: return attention_at_q(n, rows, b, h, i, 1);
    }
}

// Writes NaN into keys, values and biases that no query sees, and into queries in no sequence.
static void plant_nan(const struct op_case *c, int slot, int64_t dim, double *values) {
    struct attention_sizes n = attention_sizes_of(c);
    bool is_refused = dim < 1 || n.kv_heads < 1 || n.heads % n.kv_heads != 0;
    int64_t num_rows = is_refused ? 0 : case_numel(c, slot) / dim;
    if (num_rows == 0) return;
    bool *is_seen = heap_get((size_t)num_rows + 1, sizeof *is_seen);
    for (int64_t b = 0; b < n.batch; b++) {
        struct attention_rows rows = attention_rows_of(c, b);
        for (int64_t h = 0; h < n.heads; h++)
            for (int64_t i = 0; i < rows.len_q; i++) {
                if (slot == ATTN_Q || slot == ATTN_DOUT)
                    is_seen[touched(c, &n, &rows, slot, b, h, i, 0)] = true;
                for (int64_t j = 0; j < rows.len_k; j++)
                    if (slot != ATTN_Q && slot != ATTN_DOUT && attention_sees(c, &rows, i, j))
                        is_seen[touched(c, &n, &rows, slot, b, h, i, j)] = true;
            }
    }
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t d = 0; d < dim && !is_seen[r]; d++) values[r * dim + d] = NAN;
    free(is_seen);
}

// ---- Numbers ----------------------------------------------------------------------------------

static double draw_score_part(struct rng *rng, const struct op_case *c, enum edge_fill fill) {
    double x = rng_normal(rng);
    switch (fill) {
    case FILL_LARGE: return 30 * x;
    case FILL_HUGE: return c->is_present[ATTN_BIAS] ? x : 1e4 * x;
    case FILL_SHIFTED: return 30 + x;
    case FILL_ZERO: return 0;
    default: return x;
    }
}

static void fill_bias(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                      double *values) {
    int64_t shape[4], numel = case_numel(c, ATTN_BIAS);
    c->spec->shape(c, ATTN_BIAS, shape);
    bool is_strewn = fill == FILL_NORMAL && c->param[ATTN_RAGGED] != 0 && rng_chance(rng, 0.5);
    double low = fill == FILL_HUGE ? -3.38e38 : -INFINITY, share = is_strewn ? 0.1 : 0;
    if (fill == FILL_HUGE || fill == FILL_NEGATIVE_INFINITE) share = 0.3;
    for (int64_t at = 0; at < numel; at++) {
        bool is_odd_row = at / shape[3] % 2 == 1;
        values[at] = rng_normal(rng);
        if (rng_chance(rng, share) || (share == 0.3 && is_odd_row)) values[at] = low;
    }
}

static void fill_per_head(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    int64_t numel = case_numel(c, slot), heads = (int64_t)c->param[ATTN_HEADS];
    for (int64_t i = 0; i < numel; i++)
        if (slot == ATTN_SLOPES) { // some steep, some negative
            values[i] = exp2(-8 * (double)(i % heads + 1) / (double)heads);
            if (rng_chance(rng, 0.2)) values[i] *= rng_chance(rng, 0.5) ? 20 : -1;
        } else
            values[i] =
                fill == FILL_NEGATIVE_INFINITE && i % 2 == 0 ? -INFINITY : 2 * rng_normal(rng);
}

// ---- Results of forward -----------------------------------------------------------------------

// Large cases are only measured, so any plausible values are good enough.
static bool is_large(const struct op_case *c) { return cost(c) > 5e7; }

// The oracle fills out and lse together when out is filled; lse then keeps its values.
static bool fill_out(const struct op_case *c) {
    static tsr_context *ctx; // used by one thread at a time
    if (ctx == NULL &&
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR), &ctx) !=
            TSR_OK)
        return false;
    return attention_call_forward(ctx, c, "reference", NULL, 0, NULL) == TSR_OK;
}

static void fill_large_lse(const struct op_case *c, double *values) {
    struct attention_sizes n = attention_sizes_of(c);
    int64_t numel = case_numel(c, ATTN_LSE);
    for (int64_t i = 0; i < numel; i++) values[i] = log((double)n.seqlen_k + 1) + 0.5;
}

// ---- All of it --------------------------------------------------------------------------------

bool attention_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                    double *values) {
    struct attention_sizes n = attention_sizes_of(c);
    int64_t numel = case_numel(c, slot), dim = slot == ATTN_BIAS ? 1 : n.head_dim_v;
    switch (slot) {
    case ATTN_CU_SEQLENS_Q:
    case ATTN_CU_SEQLENS_K:
        fill_offsets(rng, c, slot == ATTN_CU_SEQLENS_K, fill, values);
        return true;
    case ATTN_SEQUSED_K: fill_seqused(rng, c, fill, values); return true;
    case ATTN_SLOPES:
    case ATTN_SINKS: fill_per_head(rng, c, slot, fill, values); return true;
    case ATTN_OUT: return !is_large(c) && fill_out(c);
    case ATTN_LSE:
        if (is_large(c)) fill_large_lse(c, values);
        return true;
    case ATTN_BIAS: fill_bias(rng, c, fill, values); break;
    case ATTN_Q:
    case ATTN_K:
        dim = n.head_dim;
        for (int64_t i = 0; i < numel; i++) values[i] = draw_score_part(rng, c, fill);
        break;
    default: // v, dout
        for (int64_t i = 0; i < numel; i++) values[i] = rng_normal(rng);
    }
    bool is_bad_metadata = c->is_present[ATTN_CU_SEQLENS_Q] || c->is_present[ATTN_SEQUSED_K];
    if (fill == FILL_SPECIAL && !is_bad_metadata && slot == ATTN_V)
        for (int64_t i = 0; i < numel; i++)
            if (rng_chance(rng, 0.002)) values[i] = NAN;
    bool is_planted = fill == FILL_NAN || (fill == FILL_SPECIAL && is_bad_metadata) ||
                      (c->param[ATTN_RAGGED] != 0 && rng_chance(rng, 0.4));
    if (is_planted) plant_nan(c, slot, dim, values);
    return true;
}
