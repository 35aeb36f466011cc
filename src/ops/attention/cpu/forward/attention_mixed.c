// SPDX-License-Identifier: Apache-2.0
// softmax_scale is split: its power of two goes into q, where it is exact; the rest, in [1, 2), goes into the exponent of the
// weights. So nothing is rounded twice, and q k overflows no earlier than the scores.
//
// Weights are 2^(s log2(e) - m log2(e)) in one FMA. The rounding error of m log2(e) is the same for all keys of a row, so it is a
// factor of both numerator and denominator. Rows with scores far from 0, or with dropout, take a slower path.
#include "ops/attention/cpu/forward/attention_mixed.h"

#include <math.h>
#include <string.h>

static const float log2e = 1.44269504089f;

enum { LEAST_EXPONENT = -100, MOST_EXPONENT = 100 };

static int64_t round_depth(int64_t n) { return (int64_t)tsri_round_up((size_t)n, GEMM_BF16_DEPTH); }

static uint16_t *pairs(float *x) { return (uint16_t *)(void *)x; }
static const uint16_t *const_pairs(const float *x) { return (const uint16_t *)(const void *)x; }

float attention_split_scale(const struct attention_problem *p, float *power) {
    int exponent;
    (void)frexp(p->softmax_scale, &exponent);
    exponent--; // frexp's factor is in [1/2, 1)
    exponent = exponent < LEAST_EXPONENT  ? LEAST_EXPONENT
               : exponent > MOST_EXPONENT ? MOST_EXPONENT
                                          : exponent;
    *power = (float)ldexp(1, exponent);
    return (float)ldexp(p->softmax_scale, -exponent);
}

// ---- Packing ----------------------------------------------------------------------------------

struct attention_packed attention_mixed_packed(const struct attention_problem *p,
                                               int64_t num_keys) {
    int64_t nr = GEMM_BF16_NR, keys = (int64_t)tsri_round_up((size_t)num_keys, (size_t)nr);
    struct attention_packed m = {
        .num_keys = num_keys, .k_row = round_depth(p->head_dim) / 2, .v_row = nr / 2};
    m.v_stride = keys * m.v_row;
    m.k_floats = keys * m.k_row;
    m.v_floats = tsri_ceil_div(p->head_dim_v, nr) * m.v_stride;
    return m;
}

static const uint16_t *row_at(const struct attention_tile *t, const struct attention_view *view,
                              int64_t key) {
    return attention_at(view, t->batch, t->seq.k_first + key, t->kv_head);
}

// Rows of one head have a large stride, so a whole panel is prefetched before it is packed.
static void ask_rows(const struct attention_tile *t, const struct attention_view *view,
                     int64_t first, int64_t num_rows, int64_t dims) {
    for (int64_t j = first; j < first + num_rows; j++)
        attention_prefetch_row(view, t->batch, t->seq.k_first + j, t->kv_head, dims);
}

static void pack_k(const struct attention_tile *t, int64_t first, int64_t num_keys, float *k) {
    int64_t dims = t->p->head_dim, row = round_depth(dims);
    ask_rows(t, &t->p->k, first, num_keys, dims);
    ask_rows(t, &t->p->v, first, num_keys, t->p->head_dim_v); // packed next
    for (int64_t j = 0; j < num_keys; j += GEMM_BF16_NR) {
        int64_t keys = tsri_min(GEMM_BF16_NR, num_keys - j); // scores need whole depth steps
        t->gemm_bf16->pack_cols(row_at(t, &t->p->k, first + j), t->p->k.seq, dims, keys,
                                round_depth(keys), pairs(k) + j * row);
    }
}

static bool pack_v(const struct attention_tile *t, int64_t first, int64_t num_keys, float *v,
                   int64_t v_stride) {
    int64_t dims = t->p->head_dim_v;
    const uint16_t *from = row_at(t, &t->p->v, first);
    bool has_nonfinite = false;
    for (int64_t c = 0; c < dims; c += GEMM_BF16_NR, v += v_stride) {
        int64_t cols = tsri_min(GEMM_BF16_NR, dims - c);
        t->gemm_bf16->pack_rows(from + c, t->p->v.seq, num_keys, cols, round_depth(cols), pairs(v),
                                &has_nonfinite);
    }
    return has_nonfinite;
}

// q times a power of two, with zeros up to a whole step of depth.
static void load_q(struct attention_tile *t) {
    const struct attention_problem *p = t->p;
    const struct attention_bf16_kernels *kernels = attention_bf16_kernels();
    float power;
    (void)attention_split_scale(p, &power);
    for (int64_t r = 0; r < t->num_rows; r++) {
        const struct attention_row *at = &t->row[r];
        attention_tile_ask(t, &p->q, r + ATTENTION_ASK, p->head_dim);
        kernels->scale(attention_at(&p->q, t->batch, t->seq.q_first + at->i, at->head), p->head_dim,
                       power, pairs(t->q + r * t->q_stride));
    }
}

// ---- Runs of rows -----------------------------------------------------------------------------

// Some rows of a tile against a block. Scores are at t->s, later the weights. Column j is the block's key base + j; only columns
// [first, end), multiples of 32, are used.
struct item {
    struct attention_block b;
    int64_t row, num_rows, base, first, end;
};

// False: none of the rows sees a key.
static bool open_item(const struct attention_tile *t, struct item *item) {
    int64_t begin = item->b.num_keys, end = 0;
    for (int64_t r = item->row; r < item->row + item->num_rows; r++) {
        struct attention_range part = attention_row_part(&t->row[r], &item->b);
        if (part.begin >= part.end) continue;
        begin = tsri_min(begin, part.begin);
        end = tsri_max(end, part.end);
    }
    item->base = begin / GEMM_BF16_NR * GEMM_BF16_NR;
    item->first = begin / GEMM_BF16_DEPTH * GEMM_BF16_DEPTH - item->base;
    item->end = round_depth(end) - item->base;
    return begin < end;
}

// The columns of the item that row r sees.
static struct attention_range columns_of(const struct attention_tile *t, const struct item *item,
                                         int64_t r) {
    struct attention_range part = attention_row_part(&t->row[r], &item->b);
    if (part.begin >= part.end) return (struct attention_range){item->end, item->end};
    return (struct attention_range){part.begin - item->base, part.end - item->base};
}

static float *row_of(const struct attention_tile *t, const struct item *item, int64_t r) {
    return t->s + (r - item->row) * t->s_stride;
}

static void scores(const struct attention_tile *t, const struct item *item) {
    t->gemm_bf16->multiply(&(struct gemm_bf16_product){
        .m = item->num_rows,
        .n = item->end,
        .k = round_depth(t->p->head_dim),
        .first = item->first,
        .a = const_pairs(t->q + item->row * t->q_stride),
        .a_stride = 2 * t->q_stride,
        .b = const_pairs(item->b.k + item->base / GEMM_BF16_NR * item->b.k_stride),
        .b_stride = 2 * item->b.k_stride,
        .c = t->s,
        .c_stride = t->s_stride});
}

// ---- Softmax ----------------------------------------------------------------------------------

// The slow path, with dropout and for any score: in fp32, rounded at the end.
static void softmax_row(struct attention_tile *t, const struct item *item, int64_t r,
                        float factor) {
    const struct attention_kernels *kernels = t->kernels;
    struct attention_range seen = columns_of(t, item, r);
    float *row = row_of(t, item, r), *s = row + seen.begin;
    int64_t n = seen.end - seen.begin;
    uint16_t *weights = pairs(row);
    t->alpha[r] = 1;
    if (factor != 1) kernels->scale(s, n, factor);
    float max = n > 0 ? fmaxf(t->max[r], kernels->max(s, n)) : -INFINITY;
    if (max == -INFINITY) { // only -inf so far, or NaN, which a maximum ignores
        if (attention_has_nan(s, n)) t->sum[r] = NAN;
        n = 0;
    } else {
        float sum = kernels->weigh(s, n, max, 0);
        t->alpha[r] = exp2f((t->max[r] - max) * log2e);
        t->sum[r] = t->sum[r] * t->alpha[r] + sum;
        t->max[r] = max;
    }
    if (t->p->dropout_threshold != 0 && n > 0) {
        struct attention_dropout dropout = attention_row_dropout(t, r);
        kernels->drop(&dropout, item->b.first + item->base + seen.begin, n, s);
    }
    kernels->store(TSR_BF16, s, n, 1, weights + seen.begin);
    memset(weights + item->first, 0, (size_t)(seen.begin - item->first) * sizeof *weights);
    memset(weights + seen.begin + n, 0, (size_t)(item->end - seen.begin - n) * sizeof *weights);
}

// Applies a row's terms, if any, after the scale `factor`. Sets the columns that the row does not see to -inf.
static void modify_row(const struct attention_tile *t, const struct item *item, int64_t r,
                       float factor, bool has_terms) {
    struct attention_range seen = columns_of(t, item, r);
    float *s = row_of(t, item, r);
    int64_t n = seen.end - seen.begin;
    if (has_terms && n > 0) {
        struct attention_terms terms = attention_row_terms(t, r);
        if (factor != 1) t->kernels->scale(s + seen.begin, n, factor);
        t->kernels->modify(&terms, item->b.first + item->base + seen.begin, n, s + seen.begin,
                           NULL);
    }
    for (int64_t j = item->first; j < seen.begin; j++) s[j] = -INFINITY;
    for (int64_t j = seen.end; j < item->end; j++) s[j] = -INFINITY;
}

static void softmax(struct attention_tile *t, const struct item *item) {
    enum { SET = 16 };
    const struct attention_problem *p = t->p;
    float power, factor = attention_split_scale(p, &power);
    // If the factor is positive, the largest product is also the largest score.
    bool has_terms =
        p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL || factor < 0;
    int64_t end = item->row + item->num_rows;
    for (int64_t r = item->row; r < end; r++) modify_row(t, item, r, factor, has_terms);
    if (has_terms) factor = 1;
    for (int64_t r = item->row; r < end; r += SET) {
        int64_t rows = tsri_min(SET, end - r);
        float *s = row_of(t, item, r);
        unsigned left = (1u << rows) - 1;
        if (p->dropout_threshold == 0)
            left = attention_bf16_kernels()->weigh_rows(
                (int)rows, item->end - item->first, factor, s + item->first, pairs(s) + item->first,
                t->s_stride, t->max + r, t->sum + r, t->alpha + r);
        for (int64_t i = 0; i < rows && left >> i != 0; i++)
            if (left >> i & 1) softmax_row(t, item, r + i, factor);
    }
}

// ---- Values -----------------------------------------------------------------------------------

// In fp32, key by key: 0 times NaN is NaN, so no row may touch a key that it does not see.
static void exact_values(const struct attention_tile *t, const struct item *item) {
    enum { STEP = 16 };
    int64_t dims = t->p->head_dim_v, last = tsri_min(item->end, item->b.num_keys - item->base);
    float v[STEP * ATTENTION_MAX_HEAD_DIM], weights[STEP];
    for (int64_t j = item->first; j < last; j += STEP) {
        int64_t end = tsri_min(j + STEP, last);
        t->gemm->widen_rows(TSR_BF16, row_at(t, &t->p->v, item->b.first + item->base + j),
                            t->p->v.seq, end - j, dims, v, dims);
        for (int64_t r = item->row; r < item->row + item->num_rows; r++) {
            struct attention_range seen = columns_of(t, item, r);
            int64_t first = tsri_max(seen.begin, j), n = tsri_min(seen.end, end) - first;
            if (n <= 0) continue;
            t->kernels->load(TSR_BF16, const_pairs(row_of(t, item, r)) + first, n, 1, weights);
            t->gemm->block(1, dims, n, GEMM_ROWS, weights, STEP, v + (first - j) * dims, dims, true,
                           t->o + r * t->o_stride, t->o_stride, true);
        }
    }
}

// Checks only the chunks of this item: which rows share a tile depends on the number of threads.
static bool has_nonfinite(const struct item *item) {
    int64_t last = tsri_min(item->end, item->b.num_keys - item->base);
    for (int64_t j = item->first; j < last; j = (j / ATTENTION_CHUNK + 1) * ATTENTION_CHUNK)
        if (item->b.is_nonfinite[(item->base + j) / ATTENTION_CHUNK]) return true;
    return false;
}

static void values(const struct attention_tile *t, const struct item *item) {
    for (int64_t r = item->row; r < item->row + item->num_rows; r++)
        if (t->alpha[r] != 1.0f)
            t->kernels->scale(t->o + r * t->o_stride, t->p->head_dim_v, t->alpha[r]);
    if (has_nonfinite(item)) {
        exact_values(t, item);
        return;
    }
    t->gemm_bf16->multiply(&(struct gemm_bf16_product){
        .m = item->num_rows,
        .n = t->p->head_dim_v,
        .k = item->end - item->first,
        .a = const_pairs(t->s) + item->first,
        .a_stride = 2 * t->s_stride,
        .b = const_pairs(item->b.v) + (item->base + item->first) * GEMM_BF16_NR,
        .b_stride = 2 * item->b.v_stride,
        .c = t->o + item->row * t->o_stride,
        .c_stride = t->o_stride,
        .is_accumulating = true});
}

// ---- All blocks -------------------------------------------------------------------------------

static void sweep(struct attention_tile *t, const struct attention_head *head,
                  struct attention_range keys) {
    int64_t mr = t->gemm_bf16->mr;
    t->gemm_bf16->open();
    for (int64_t j = keys.begin; j < keys.end; j += head->block_n) {
        struct attention_block b = attention_block_at(t, head, j);
        for (int64_t r = 0; r < t->num_rows; r += mr) {
            struct item item = {.b = b, .row = r, .num_rows = tsri_min(mr, t->num_rows - r)};
            if (!open_item(t, &item)) continue;
            scores(t, &item);
            softmax(t, &item);
            values(t, &item);
        }
    }
    t->gemm_bf16->close();
}

const struct attention_steps attention_mixed_steps = {
    .load_q = load_q,
    .sweep = sweep,
    .pack_k = pack_k,
    .pack_v = pack_v,
};
