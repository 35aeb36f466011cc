// SPDX-License-Identifier: Apache-2.0
// Rows of the products are queries for scores and dq, dims for dk and dv. The transposed products dout^T p and q^T ds take weights
// as the right side, which needs pairs of rows. Two permutations a vector make such pairs right after the exponentials, so no
// weight is transposed.
//
// softmax_scale is split as in forward: its power of two goes into q and into the k of dq, where it is exact; the rest goes into
// the exponent of the weights and into ds.
#include "ops/attention/cpu/backward/attention_grad_mixed.h"

#include <math.h>
#include <string.h>

static const float log2e = 1.44269504089f;

enum { STRIP = ATTENTION_STRIP, PANEL = GEMM_BF16_NR };

static int64_t round_panels(int64_t n) { return (int64_t)tsri_round_up((size_t)n, PANEL); }

// ---- Keys -------------------------------------------------------------------------------------

static const uint16_t *key_at(const struct attention_tile *t, const struct attention_view *view,
                              int64_t key) {
    return attention_at(view, t->batch, t->seq.k_first + key, t->kv_head);
}

// Packs keys [j, j + num_keys) of the block, at most one panel.
static bool load_panel(struct attention_grad_mixed *g, int64_t j, int64_t num_keys) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    const struct attention_bf16_kernels *kernels = attention_bf16_kernels();
    int64_t key = g->block.first + j, panel = round_panels(g->block.num_keys) * PANEL;
    uint16_t rows[PANEL * ATTENTION_MAX_HEAD_DIM];
    bool has_nonfinite = false;
    for (int64_t i = t->seq.k_first + key; i < t->seq.k_first + key + num_keys; i++) {
        attention_prefetch_row(&p->k, t->batch, i, t->kv_head, p->head_dim);
        attention_prefetch_row(&p->v, t->batch, i, t->kv_head, p->head_dim_v);
    }
    g->gemm->pack_cols(key_at(t, &p->k, key), p->k.seq, p->head_dim, num_keys, PANEL,
                       g->k_cols + j * g->depth);
    g->gemm->pack_cols(key_at(t, &p->v, key), p->v.seq, p->head_dim_v, num_keys, PANEL,
                       g->v_cols + j * g->depth_v);
    for (int64_t i = 0; i < num_keys; i++)
        kernels->scale(key_at(t, &p->k, key + i), p->head_dim, g->power, rows + i * g->depth);
    memset(rows + num_keys * g->depth, 0, (size_t)((PANEL - num_keys) * g->depth) * sizeof *rows);
    for (int64_t c = 0; c < p->head_dim; c += PANEL)
        g->gemm->pack_rows(rows + c, g->depth, PANEL, tsri_min(PANEL, p->head_dim - c), PANEL,
                           g->k_rows + c / PANEL * panel + j * PANEL, &has_nonfinite);
    return !has_nonfinite;
}

bool attention_grad_mixed_load_keys(struct attention_grad_mixed *g, int64_t batch, int64_t kv_head,
                                    int64_t first, int64_t num_keys) {
    g->block = (struct attention_block){.first = first, .num_keys = num_keys};
    attention_tile_open(&g->tile, batch, kv_head, 0, 0);
    bool is_finite = true;
    for (int64_t j = 0; j < num_keys; j += PANEL)
        is_finite &= load_panel(g, j, tsri_min(PANEL, num_keys - j));
    return is_finite;
}

void attention_grad_mixed_start(const struct attention_grad_mixed *g) {
    size_t bytes = (size_t)round_panels(g->block.num_keys) * sizeof *g->dk;
    for (int64_t d = 0; d < g->depth; d++) memset(g->dk + d * g->key_stride, 0, bytes);
    for (int64_t d = 0; d < g->depth_v; d++) memset(g->dv + d * g->key_stride, 0, bytes);
}

// ---- Queries ----------------------------------------------------------------------------------

// Transposes [row][stride] to [dim][row].
static void turn_rows(const struct attention_grad_mixed *g, const uint16_t *rows, int64_t stride,
                      int64_t depth, int64_t num_rows, uint16_t *cols) {
    for (int64_t c = 0; c < depth; c += GEMM_BF16_DEPTH)
        g->gemm->pack_a(rows + c, stride, true, GEMM_BF16_DEPTH, num_rows, cols + c * g->row_stride,
                        g->row_stride);
}

static void load_rows(struct attention_grad_mixed *g, const struct attention_statistics *stats) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    const struct attention_bf16_kernels *kernels = attention_bf16_kernels();
    int64_t all = (int64_t)tsri_round_up((size_t)t->num_rows, STRIP);
    for (int64_t r = 0; r < t->num_rows; r++) {
        int64_t row = t->seq.q_first + t->row[r].i, head = t->row[r].head;
        attention_tile_ask(t, &p->q, r + ATTENTION_ASK, p->head_dim);
        attention_tile_ask(t, &p->dout, r + ATTENTION_ASK, p->head_dim_v);
        kernels->scale(attention_at(&p->q, t->batch, row, head), p->head_dim, g->power,
                       g->q + r * g->q_stride);
        kernels->scale(attention_at(&p->dout, t->batch, row, head), p->head_dim_v, 1,
                       g->dout + r * g->dout_stride);
        if (stats[r].lse == -INFINITY) // no key that it saw had any weight
            t->row[r].visible.end = t->row[r].visible.begin;
    }
    g->stats = stats;
    memset(g->q + t->num_rows * g->q_stride, 0,
           (size_t)((all - t->num_rows) * g->q_stride) * sizeof *g->q);
    memset(g->dout + t->num_rows * g->dout_stride, 0,
           (size_t)((all - t->num_rows) * g->dout_stride) * sizeof *g->dout);
    turn_rows(g, g->q, g->q_stride, g->depth, all, g->q_cols);
    turn_rows(g, g->dout, g->dout_stride, g->depth_v, all, g->dout_cols);
}

// ---- Weights ----------------------------------------------------------------------------------

// The slow path for any score, with terms and dropout, in fp32. s and ds hold the n keys from `key` on.
static void weigh_row(struct attention_grad_mixed *g, int64_t r, int64_t key, int64_t n, float *s,
                      float *ds) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    const struct attention_kernels *kernels = t->kernels;
    const struct attention_statistics *row = &g->stats[r];
    float slopes[ATTENTION_GRAD_MIXED_MOST_N], *slope = p->softcap != 0 ? slopes : NULL;
    struct attention_terms terms = attention_row_terms(t, r);
    if (g->factor != 1) kernels->scale(s, n, g->factor);
    kernels->modify(&terms, key, n, s, slope);
    kernels->weigh(s, n, row->lse, row->lse_low);
    if (p->dropout_threshold == 0) {
        kernels->score_grad(s, slope, row->delta, n, ds);
        return;
    }
    struct attention_dropout dropout = attention_row_dropout(t, r);
    kernels->drop(&dropout, key, n, ds);
    kernels->score_grad(s, slope, row->delta, n, ds);
    kernels->drop(&dropout, key, n, s);
}

// Weights and gradients of the strip from `row` on. t->s and g->dp hold its scores and dp for the columns cols.
static void weigh_strip(struct attention_grad_mixed *g, int64_t row, struct attention_range cols,
                        bool is_plain) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    struct attention_grad_strip strip = {
        .n = cols.end - cols.begin,
        .s = t->s,
        .dp = g->dp,
        .stride = t->s_stride,
        .exponent = g->factor * log2e,
        .factor = g->factor,
        .p = g->p + cols.begin * g->block_m + row * PANEL,
        .ds = g->ds + cols.begin * g->block_m + row * PANEL,
        .panel = g->block_m * PANEL,
        .ds_rows = g->ds_rows + row * g->ds_stride + cols.begin,
        .ds_stride = g->ds_stride,
    };
    int64_t num_rows = tsri_min(STRIP, t->num_rows - row);
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t r = row + i;
        struct attention_range seen = attention_row_part(&t->row[r], &g->block);
        if (seen.begin >= seen.end) continue;
        strip.seen[i] = (struct attention_range){seen.begin - cols.begin, seen.end - cols.begin};
        strip.reference[i] = -(g->stats[r].lse * log2e);
        strip.delta[i] = -(g->stats[r].delta * g->factor);
        int64_t at = i * t->s_stride + strip.seen[i].begin;
        // Decided for each row alone: a row's bits do not depend on the other rows.
        if (is_plain && g->stats[r].lse_low == 0 && !attention_grad_is_coarse(p, g->stats[r].lse))
            continue;
        strip.done |= 1u << i;
        weigh_row(g, r, g->block.first + seen.begin, seen.end - seen.begin, t->s + at, g->dp + at);
    }
    attention_bf16_kernels()->grad_strip(&strip);
}

// ---- Products ---------------------------------------------------------------------------------

// The panels that at least one row of the strip sees.
static struct attention_range strip_cols(const struct attention_grad_mixed *g, int64_t row) {
    const struct attention_tile *t = &g->tile;
    struct attention_range cols = {INT64_MAX, 0};
    for (int64_t r = row; r < tsri_min(row + STRIP, t->num_rows); r++) {
        struct attention_range seen = attention_row_part(&t->row[r], &g->block);
        if (seen.begin >= seen.end) continue;
        cols.begin = tsri_min(cols.begin, seen.begin / PANEL * PANEL);
        cols.end = tsri_max(cols.end, round_panels(seen.end));
    }
    return cols.begin < cols.end ? cols : (struct attention_range){0, 0};
}

// c = a b for a strip of rows and columns cols of the block.
static void multiply_keys(const struct attention_grad_mixed *g, const uint16_t *a, int64_t stride,
                          int64_t depth, const uint16_t *panels, struct attention_range cols,
                          float *c) {
    g->gemm->multiply(&(struct gemm_bf16_product){.m = STRIP,
                                                  .n = cols.end - cols.begin,
                                                  .k = depth,
                                                  .a = a,
                                                  .a_stride = stride,
                                                  .b = panels + cols.begin * depth,
                                                  .b_stride = PANEL * depth,
                                                  .c = c,
                                                  .c_stride = g->tile.s_stride});
}

// c[dim][key] += a[dim][row] weights[row][key] for rows [from, to), whole strips, and the panels cols.
static void add_keys(const struct attention_grad_mixed *g, const uint16_t *a, int64_t depth,
                     const uint16_t *weights, int64_t from, int64_t to, struct attention_range cols,
                     float *c) {
    g->gemm->multiply(
        &(struct gemm_bf16_product){.m = depth,
                                    .n = cols.end - cols.begin,
                                    .k = to - from,
                                    .a = a + from,
                                    .a_stride = g->row_stride,
                                    .b = weights + cols.begin * g->block_m + from * PANEL,
                                    .b_stride = PANEL * g->block_m,
                                    .c = c + cols.begin,
                                    .c_stride = g->key_stride,
                                    .is_accumulating = true});
}

static void add_dk_dv(const struct attention_grad_mixed *g, int64_t from, int64_t to,
                      struct attention_range cols) {
    if (g->tile.p->dv.data != NULL)
        add_keys(g, g->dout_cols, g->depth_v, g->p, from, to, cols, g->dv);
    if (g->tile.p->dk.data != NULL) add_keys(g, g->q_cols, g->depth, g->ds, from, to, cols, g->dk);
}

static bool is_equal(struct attention_range a, struct attention_range b) {
    return a.begin == b.begin && a.end == b.end;
}

// If all strips see the same panels, one product takes them all. Otherwise each panel is a product of the neighbouring strips that
// see it.
static void spread_keys(const struct attention_grad_mixed *g, int64_t num_strips) {
    bool is_uniform = true;
    for (int64_t i = 1; i < num_strips; i++) is_uniform &= is_equal(g->cols[i], g->cols[0]);
    if (is_uniform && g->cols[0].end > 0) add_dk_dv(g, 0, num_strips * STRIP, g->cols[0]);
    if (is_uniform) return;
    for (int64_t j = 0; j < g->block.num_keys; j += PANEL)
        for (int64_t i = 0, from = -1; i <= num_strips; i++) {
            bool sees = i < num_strips && g->cols[i].begin <= j && j < g->cols[i].end;
            if (sees && from < 0) from = i;
            if (sees || from < 0) continue;
            add_dk_dv(g, from * STRIP, i * STRIP, (struct attention_range){j, j + PANEL});
            from = -1;
        }
}

// c = ds k, or c += ds k, for strips [from, to) and the panels cols.
static void add_queries(const struct attention_grad_mixed *g, int64_t from, int64_t to,
                        struct attention_range cols, float *c, int64_t stride,
                        bool is_accumulating) {
    g->gemm->multiply(
        &(struct gemm_bf16_product){.m = (to - from) * STRIP,
                                    .n = g->tile.p->head_dim,
                                    .k = cols.end - cols.begin,
                                    .a = g->ds_rows + from * STRIP * g->ds_stride + cols.begin,
                                    .a_stride = g->ds_stride,
                                    .b = g->k_rows + cols.begin * PANEL,
                                    .b_stride = round_panels(g->block.num_keys) * PANEL,
                                    .c = c,
                                    .c_stride = stride,
                                    .is_accumulating = is_accumulating});
}

// The run that starts at key `first`. With `part` it goes strip by strip, so that part stays in the first-level cache.
static void add_run(const struct attention_grad_mixed *g, int64_t from, int64_t to,
                    struct attention_range cols, int64_t first,
                    const struct attention_grad_mixed_dq *dq) {
    int64_t stride = dq->stride;
    float *sum = dq->sum + (first / dq->sum_keys - g->block.first / dq->sum_keys) * dq->next;
    bool has_begun = first % dq->sum_keys != 0;
    if (!has_begun) add_queries(g, from, to, cols, sum + from * STRIP * stride, stride, true);
    for (int64_t i = from; has_begun && i < to; i++) {
        add_queries(g, i, i + 1, cols, dq->part, stride, false);
        g->tile.kernels->add(dq->part, STRIP * stride, sum + i * STRIP * stride);
    }
}

// Neighbouring strips that see the same panels share a product.
static void spread_queries(const struct attention_grad_mixed *g, int64_t num_strips,
                           const struct attention_grad_mixed_dq *dq) {
    for (int64_t i = 0, next; i < num_strips; i = next) {
        struct attention_range cols = g->cols[i], of_run = cols;
        for (next = i + 1; next < num_strips && is_equal(g->cols[next], cols);) next++;
        for (; of_run.begin < cols.end; of_run.begin = of_run.end) {
            int64_t first = (g->block.first + of_run.begin) / dq->run_keys * dq->run_keys;
            of_run.end = tsri_min(first + dq->run_keys - g->block.first, cols.end);
            add_run(g, i, next, of_run, first, dq);
        }
    }
}

void attention_grad_mixed_add(struct attention_grad_mixed *g, int64_t first, int64_t num_rows,
                              const struct attention_statistics *stats,
                              const struct attention_grad_mixed_dq *dq) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    bool is_plain = p->softcap == 0 && p->bias.data == NULL && p->slopes.data == NULL &&
                    p->dropout_threshold == 0;
    attention_tile_open(t, t->batch, t->kv_head, first, num_rows);
    if (t->seen.begin >= g->block.first + g->block.num_keys || t->seen.end <= g->block.first)
        return;
    load_rows(g, stats);
    int64_t num_strips = tsri_ceil_div(num_rows, STRIP);
    for (int64_t i = 0; i < num_strips; i++) {
        struct attention_range cols = g->cols[i] = strip_cols(g, i * STRIP);
        if (cols.end == 0) continue;
        multiply_keys(g, g->q + i * STRIP * g->q_stride, g->q_stride, g->depth, g->k_cols, cols,
                      t->s);
        multiply_keys(g, g->dout + i * STRIP * g->dout_stride, g->dout_stride, g->depth_v,
                      g->v_cols, cols, g->dp);
        weigh_strip(g, i * STRIP, cols, is_plain);
    }
    spread_keys(g, num_strips);
    if (dq->sum != NULL) spread_queries(g, num_strips, dq);
}

void attention_grad_mixed_sum_block(struct attention_grad_mixed *g, int64_t first, int64_t num_rows,
                                    const struct attention_statistics *stats,
                                    struct attention_grad_sum *sums) {
    struct attention_tile *t = &g->tile;
    attention_tile_open(t, t->batch, t->kv_head, first, num_rows);
    load_rows(g, stats);
    for (int64_t row = 0; row < num_rows; row += STRIP) {
        struct attention_range cols = strip_cols(g, row);
        if (cols.end == 0) continue;
        multiply_keys(g, g->q + row * g->q_stride, g->q_stride, g->depth, g->k_cols, cols, t->s);
        for (int64_t r = row; r < tsri_min(row + STRIP, num_rows); r++) {
            struct attention_range seen = attention_row_part(&t->row[r], &g->block);
            if (seen.begin >= seen.end || !attention_grad_is_coarse(t->p, stats[r].lse)) continue;
            float *s = t->s + (r - row) * t->s_stride + seen.begin - cols.begin;
            if (g->factor != 1) t->kernels->scale(s, seen.end - seen.begin, g->factor);
            attention_grad_sum_scores(t, r, g->block.first + seen.begin, seen.end - seen.begin, s,
                                      &sums[r]);
        }
    }
}

// ---- Results ----------------------------------------------------------------------------------

void attention_grad_mixed_finish(const struct attention_grad_mixed *g, float *dk, int64_t dk_stride,
                                 float *dv, int64_t dv_stride) {
    const struct attention_problem *p = g->tile.p;
    const struct attention_bf16_kernels *kernels = attention_bf16_kernels();
    kernels->transpose(g->dk, g->key_stride, p->head_dim, g->block.num_keys, dk, dk_stride);
    kernels->transpose(g->dv, g->key_stride, p->head_dim_v, g->block.num_keys, dv, dv_stride);
}
