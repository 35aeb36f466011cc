// SPDX-License-Identifier: Apache-2.0
// Random cases of decode, and the values of its tensors. The fills:
//   NORMAL   normal numbers; ragged: NaN in every row of the caches that no query sees
//   NAN      also some NaN in rows that queries see
//   LARGE    scores of about 1e2
//   ZERO     queries are 0
//   NEGATIVE_INFINITE  most sinks are -inf
#include <math.h>
#include <stdlib.h>

#include "specs/attention/spec_attention_decode.h"
#include "system/heap.h"

// ---- Random cases -----------------------------------------------------------------------------

static int64_t draw_head_dim(struct rng *rng) {
    static const int64_t usual[] = {64, 128, 96, 72, 80, 32, 16, 256};
    if (rng_chance(rng, 0.5)) return usual[rng_int(rng, 0, 7)];
    int64_t dim = rng_dim(rng, 256);
    return dim > 0 ? dim : 1;
}

static void draw_sizes(struct rng *rng, struct op_case *c) {
    static const int groups[] = {1, 1, 2, 3, 4, 4, 5, 8, 8, 16, 40};
    static const int page_sizes[] = {1, 2, 7, 16, 16, 64, 256};
    double *p = c->param;
    p[DEC_BATCH] = rng_chance(rng, 0.02) ? 0 : (double)rng_int(rng, 1, 5);
    p[DEC_KV_HEADS] = rng_chance(rng, 0.3) ? 1 : (double)rng_int(rng, 1, 4);
    p[DEC_HEADS] = p[DEC_KV_HEADS] * groups[rng_int(rng, 0, 10)];
    p[DEC_HEAD_DIM] = (double)draw_head_dim(rng);
    p[DEC_HEAD_DIM_V] = rng_chance(rng, 0.75) ? 0 : (double)draw_head_dim(rng);
    p[DEC_SEQLEN_Q] = rng_chance(rng, 0.5)   ? 1
                      : rng_chance(rng, 0.6) ? (double)rng_int(rng, 0, 8)
                                             : (double)rng_dim(rng, 120);
    p[DEC_SEQLEN_K] = (double)rng_dim(rng, rng_chance(rng, 0.3) ? 5000 : 900);
    p[DEC_CAPACITY] = rng_chance(rng, 0.5) ? 0 : p[DEC_SEQLEN_K] + (double)rng_int(rng, 0, 300);
    p[DEC_PAGE_SIZE] = page_sizes[rng_int(rng, 0, 6)];
    p[DEC_TOTAL_Q] = rng_chance(rng, 0.5)
                         ? 0
                         : (double)rng_int(rng, 0, (int64_t)(p[DEC_BATCH] * p[DEC_SEQLEN_Q]) + 5);
}

static double cost(const struct op_case *c) {
    struct decode_sizes n = decode_sizes_of(c);
    return (double)(n.batch * n.heads) * (double)n.seqlen_q * (double)n.capacity *
           (double)(n.head_dim + n.head_dim_v);
}

static double cache_elements(const struct op_case *c) {
    struct decode_sizes n = decode_sizes_of(c);
    return (double)(n.num_pages * n.page_size) * (double)(n.kv_heads * (n.head_dim + n.head_dim_v));
}

void decode_randomize(struct rng *rng, struct op_case *c) {
    static const double scales[] = {1, 0.3, -0.2, 0.01};
    double *p = c->param;
    bool *is_present = c->is_present;
    is_present[DEC_CU_SEQLENS_Q] = rng_chance(rng, 0.5);
    is_present[DEC_PAGE_TABLE] = rng_chance(rng, 0.5);
    is_present[DEC_CACHE_BATCH_IDX] = !is_present[DEC_PAGE_TABLE] && rng_chance(rng, 0.5);
    is_present[DEC_K_NEW] = is_present[DEC_V_NEW] = rng_chance(rng, 0.8);
    is_present[DEC_LEFTPAD_K] = rng_chance(rng, 0.25);
    is_present[DEC_TREE_MASK] = !is_present[DEC_CU_SEQLENS_Q] && rng_chance(rng, 0.4);
    do draw_sizes(rng, c);
    while (cost(c) > 1.5e6 || cache_elements(c) > 2e5);
    is_present[DEC_COS] = is_present[DEC_SIN] = p[DEC_HEAD_DIM] >= 2 && rng_chance(rng, 0.5);
    is_present[DEC_SLOPES] = rng_chance(rng, 0.25);
    is_present[DEC_SINKS] = rng_chance(rng, 0.25);
    is_present[DEC_LSE] = rng_chance(rng, 0.7);
    static const double epses[] = {1e-5, 0.1, 1e-12};
    is_present[DEC_Q_NORM] = rng_chance(rng, 0.25);
    is_present[DEC_K_NORM] = is_present[DEC_K_NEW] && rng_chance(rng, 0.25);
    if (rng_chance(rng, 0.5)) p[DEC_NORM_EPS] = epses[rng_int(rng, 0, 2)];
    p[DEC_ZERO_CENTERED] = rng_chance(rng, 0.4);
    p[DEC_E4M3] = rng_chance(rng, 0.25);
    if (p[DEC_E4M3] != 0) p[DEC_SCALE_DIMS] = (double)rng_int(rng, 0, 2);
    is_present[DEC_K_SCALE] = is_present[DEC_V_SCALE] = p[DEC_E4M3] != 0;
    int64_t half = (int64_t)p[DEC_HEAD_DIM] / 2;
    if (rng_chance(rng, 0.4) && half > 0) p[DEC_ROTARY_DIM] = 2 * (double)rng_int(rng, 1, half);
    p[DEC_ALIBI_BATCH] = rng_chance(rng, 0.3);
    p[DEC_TREE_BATCH] = rng_chance(rng, 0.5);
    p[DEC_RAGGED] = rng_chance(rng, 0.85);
    p[DEC_MASK] = rng_chance(rng, 0.7);
    bool may_precede =
        is_present[DEC_COS] && !is_present[DEC_K_NEW]; // queries before the first key
    if (may_precede) p[DEC_MASK] = TSR_MASK_CAUSAL;
    struct decode_sizes n = decode_sizes_of(c);
    if (is_present[DEC_K_NEW] && n.seqlen_q > n.capacity)
        p[DEC_CAPACITY] = (double)(n.capacity + n.seqlen_q);
    if (rng_chance(rng, 0.3)) p[DEC_NUM_PAGES] = (double)(decode_sizes_of(c).num_pages + 3);
    p[DEC_INTERLEAVED] = rng_chance(rng, 0.4);
    for (int side = DEC_WINDOW_LEFT; side <= DEC_WINDOW_RIGHT; side++)
        if (rng_chance(rng, 0.2)) p[side] = (double)rng_int(rng, 0, (int64_t)p[DEC_SEQLEN_K]);
    if (rng_chance(rng, 0.2)) p[DEC_SOFTMAX_SCALE] = scales[rng_int(rng, 0, 3)];
    if (rng_chance(rng, 0.2)) p[DEC_SOFTCAP] = exp(4 * rng_uniform(rng) - 0.5);
}

// ---- Metadata ---------------------------------------------------------------------------------

static int64_t draw_length(struct rng *rng, int64_t longest) {
    if (rng_chance(rng, 0.15)) return 0;
    if (rng_chance(rng, 0.5)) return longest < 1 ? longest : 1;
    return rng_int(rng, 0, longest);
}

static void fill_offsets(struct rng *rng, const struct op_case *c, double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    int64_t at = 0;
    bool is_ragged = c->param[DEC_RAGGED] != 0;
    for (int64_t b = 0; b <= n.batch; b++) {
        values[b] = (double)at;
        int64_t longest = n.seqlen_q < n.total_q - at ? n.seqlen_q : n.total_q - at;
        at += is_ragged ? draw_length(rng, longest) : longest;
        if (is_ragged && rng_chance(rng, 0.1) && at < n.total_q) at++; // a row in no sequence
    }
}

static void fill_lengths(struct rng *rng, const struct op_case *c, double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    for (int64_t b = 0; b < n.batch; b++) {
        struct decode_rows rows = decode_rows_of(c, b);
        double most_keys = (double)n.capacity, old = c->param[DEC_SEQLEN_K] - (double)rows.num_new;
        int64_t most = n.capacity > rows.num_new ? n.capacity - rows.num_new : 0;
        values[b] = fmax(0, fmin(old, most_keys));
        if (c->param[DEC_RAGGED] == 0) continue;
        values[b] = rng_chance(rng, 0.1)   ? 0
                    : rng_chance(rng, 0.2) ? (double)most
                                           : (double)rng_int(rng, 0, most);
    }
}

static void fill_leftpad(struct rng *rng, const struct op_case *c, double *values) {
    for (int64_t b = 0; b < decode_sizes_of(c).batch; b++) {
        int64_t most = decode_rows_of(c, b).cache_len;
        values[b] = rng_chance(rng, 0.2)   ? 0
                    : rng_chance(rng, 0.2) ? (double)most
                                           : (double)rng_int(rng, 0, most);
    }
}

// Pages for all places, shuffled.
static void shuffle_pages(struct rng *rng, const struct decode_sizes *n, double *values) {
    int64_t places = n->batch * n->max_pages;
    if (n->num_pages == 0) {
        for (int64_t i = 0; i < places; i++) values[i] = 0;
        return;
    }
    int64_t *pages = heap_get((size_t)n->num_pages, sizeof *pages);
    for (int64_t i = 0; i < n->num_pages; i++) pages[i] = i;
    for (int64_t i = n->num_pages - 1; i > 0; i--) {
        int64_t other = rng_int(rng, 0, i), page = pages[i];
        pages[i] = pages[other];
        pages[other] = page;
    }
    for (int64_t i = 0; i < places; i++) values[i] = (double)pages[i % n->num_pages];
    free(pages);
}

// A slot for every sequence. Ragged: sequences share slots to which the call appends nothing, and some without queries have none.
static void fill_slots(struct rng *rng, const struct op_case *c, double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    shuffle_pages(rng, &n, values);
    if (c->param[DEC_RAGGED] == 0) return;
    for (int64_t b = 0; b < n.batch && !n.has_new; b++)
        if (rng_chance(rng, 0.3)) values[b] = values[0];
    for (int64_t b = 0; b < n.batch; b++)
        if (decode_rows_of(c, b).len_q == 0 && rng_chance(rng, 0.5))
            values[b] = b % 2 == 0 ? -7 : (double)n.num_pages + 1e9;
}

// A page for every entry; ragged: sequences share pages to which the call appends nothing.
static void fill_pages(struct rng *rng, const struct op_case *c, double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    shuffle_pages(rng, &n, values);
    if (n.num_pages == 0) return;
    for (int64_t b = 0; b < n.batch && c->param[DEC_RAGGED] != 0; b++) {
        struct decode_rows rows = decode_rows_of(c, b), first = decode_rows_of(c, 0);
        int64_t first_new = rows.leftpad + rows.cache_len;
        double *table = values + b * n.max_pages;
        for (int64_t i = 0; i < n.max_pages; i++) {
            bool is_read_only = (i + 1) * n.page_size <= first_new;
            bool is_so_first = (i + 1) * n.page_size <= first.leftpad + first.cache_len;
            if (is_read_only && is_so_first && rng_chance(rng, 0.2)) table[i] = values[i];
            bool is_unused = i * n.page_size >= first_new + rows.num_new ||
                             (b > 0 && (i + 1) * n.page_size <= rows.leftpad);
            if (is_unused && rng_chance(rng, 0.5)) table[i] = -1;
            if (is_unused && rng_chance(rng, 0.3))
                table[i] = rng_chance(rng, 0.5) ? -7 : (double)n.num_pages + 1e9;
        }
    }
}

// Each query sees itself, mostly, and about half of the others; a few see no draft at all.
static void fill_tree(struct rng *rng, const struct op_case *c, double *values) {
    int64_t n = (int64_t)c->param[DEC_SEQLEN_Q];
    for (int64_t at = 0; at < case_numel(c, DEC_TREE_MASK); at += n) {
        bool is_alone = rng_chance(rng, 0.05), sees_itself = rng_chance(rng, 0.95);
        for (int64_t t = 0; t < n; t++) {
            bool is_seen = rng_chance(rng, 0.5);
            if (t == at / n % n) is_seen = sees_itself;
            int64_t word = rng_int(rng, 1, 255);
            values[at + t] = is_seen && !is_alone ? (double)word : 0;
        }
    }
}

// ---- Numbers ----------------------------------------------------------------------------------

static void fill_cache(const struct op_case *c, int64_t row_elements, double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    int64_t num_rows = n.num_pages * n.page_size;
    bool *is_read = heap_get((size_t)num_rows + 1, sizeof *is_read);
    for (int64_t b = 0; b < n.batch; b++) {
        struct decode_rows rows = decode_rows_of(c, b);
        for (int64_t j = 0; j < rows.len_k; j++)
            for (int64_t i = 0; i < rows.len_q; i++)
                if (decode_sees(c, &rows, i, j)) {
                    is_read[decode_cache_row(c, b, j)] = true;
                    break;
                }
    }
    for (int64_t b = 0; b < n.batch; b++) { // rows that the call writes before it reads them
        struct decode_rows rows = decode_rows_of(c, b);
        for (int64_t t = 0; t < rows.num_new; t++)
            if (decode_is_appended(c, &rows, b, t))
                is_read[decode_cache_row(c, b, rows.cache_len + t)] = false;
    }
    for (int64_t i = 0; i < num_rows * row_elements; i++)
        if (!is_read[i / row_elements]) values[i] = (double)NAN;
    free(is_read);
}

static double draw(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill) {
    double x = rng_normal(rng);
    bool is_vector = slot == DEC_Q || slot == DEC_K_NEW || slot == DEC_V_NEW ||
                     slot == DEC_K_CACHE || slot == DEC_V_CACHE;
    // Caches of e4m3 hold numbers of about 10, times scales of about 0.1. Some new elements exceed what e4m3 holds.
    const bool is_cache = slot == DEC_K_CACHE || slot == DEC_V_CACHE;
    const bool is_new = slot == DEC_K_NEW || slot == DEC_V_NEW;
    if (slot == DEC_K_SCALE || slot == DEC_V_SCALE) return 0.1 * exp(0.5 * x);
    if (c->param[DEC_E4M3] != 0 && is_cache) x *= 10;
    if (c->param[DEC_E4M3] != 0 && is_new && rng_chance(rng, 0.005)) x *= 100;
    if (slot == DEC_SLOPES) return rng_uniform(rng);
    if (slot == DEC_SINKS && fill == FILL_NEGATIVE_INFINITE) return x < 0.5 ? -INFINITY : x;
    if (!is_vector) return x;
    if (fill == FILL_NAN && slot != DEC_Q && rng_chance(rng, 0.0005)) return (double)NAN;
    if (fill == FILL_LARGE && slot == DEC_Q) return 40 * x;
    // Squares that fp32 does not hold, of heads that are normalised.
    bool is_normed = slot == DEC_Q || slot == DEC_K_NEW;
    if (fill == FILL_HUGE && is_normed) return (c->dtype == TSR_F16 ? 1e4 : 1e37) * x;
    if (fill == FILL_SPECIAL && is_normed) return (c->dtype == TSR_F16 ? 1e-6 : 1e-37) * x;
    return fill == FILL_ZERO && slot == DEC_Q ? 0 : x;
}

// A random rotation for every position and pair; the sines follow from the cosines.
static void fill_angles(struct rng *rng, const struct op_case *c, int slot, double *values) {
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        double angle = 6.283185307 * rng_uniform(rng);
        double cosine = slot == DEC_SIN ? case_values(c, "cos")[i] : cos(angle);
        values[i] =
            slot == DEC_COS ? cosine : copysign(sqrt(fmax(1 - cosine * cosine, 0)), sin(angle));
    }
}

bool decode_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    struct decode_sizes n = decode_sizes_of(c);
    switch (slot) {
    case DEC_CU_SEQLENS_Q: fill_offsets(rng, c, values); return true;
    case DEC_CACHE_SEQLENS: fill_lengths(rng, c, values); return true;
    case DEC_LEFTPAD_K: fill_leftpad(rng, c, values); return true;
    case DEC_PAGE_TABLE: fill_pages(rng, c, values); return true;
    case DEC_TREE_MASK: fill_tree(rng, c, values); return true;
    case DEC_CACHE_BATCH_IDX: fill_slots(rng, c, values); return true;
    case DEC_COS:
    case DEC_SIN: fill_angles(rng, c, slot, values); return true;
    default: break;
    }
    for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = draw(rng, c, slot, fill);
    if ((slot == DEC_K_CACHE || slot == DEC_V_CACHE) && c->param[DEC_RAGGED] != 0)
        fill_cache(c, n.kv_heads * (slot == DEC_V_CACHE ? n.head_dim_v : n.head_dim), values);
    return true;
}
