// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu/backward/attention_grad.h"

#include <math.h>
#include <string.h>

// ---- Memory -----------------------------------------------------------------------------------

int64_t attention_grad_floats(const struct attention_problem *p, int64_t block_m, int64_t block_n,
                              int nr) {
    return attention_tile_floats(p, block_m, block_n) + block_m * attention_row_stride(block_n) +
           attention_round16(block_n) + attention_k_floats(p, block_n, nr) +
           attention_round16(tsri_ceil_div(block_n, nr) * nr * p->head_dim_v) +
           (int64_t)tsri_round_up((size_t)p->head_dim, (size_t)nr) * block_n;
}

void attention_grad_carve(struct attention_grad *g, const struct attention_problem *p, tsr_isa isa,
                          float *memory, int64_t block_m, int64_t block_n) {
    struct attention_tile *t = &g->tile;
    attention_tile_carve(t, p, isa, memory, block_m, block_n);
    int nr = t->gemm->nr;
    g->ds = memory + attention_tile_floats(p, block_m, block_n);
    g->slope = g->ds + block_m * t->s_stride;
    g->k_panels = g->slope + attention_round16(block_n);
    g->v_panels = g->k_panels + attention_k_floats(p, block_n, nr);
    g->k_rows = g->v_panels + attention_round16(tsri_ceil_div(block_n, nr) * nr * p->head_dim_v);
    g->is_exact = g->is_before_cap = false;
}

// ---- Loading ----------------------------------------------------------------------------------

bool attention_grad_statistics(const struct attention_problem *p,
                               const struct attention_kernels *kernels, int64_t batch, int64_t row,
                               int64_t head, int64_t num_heads,
                               struct attention_statistics *stats) {
    const void *dout = attention_at(&p->dout, batch, row, head);
    const float *lse = (const float *)(const void *)p->lse;
    float delta[ATTENTION_MOST_SET];
    kernels->dots(p->dtype, dout, p->dout.head, attention_at(&p->out, batch, row, head),
                  p->out.head, num_heads, p->head_dim_v, delta);
    for (int64_t h = 0; h < num_heads; h++)
        stats[h] = (struct attention_statistics){
            delta[h], lse[attention_lse_index(p, batch, head + h, row)], 0};
    return kernels->have_nonfinite(p->dtype, dout, p->dout.head, num_heads, p->head_dim_v) ||
           kernels->have_nonfinite(p->dtype, attention_at(&p->q, batch, row, head), p->q.head,
                                   num_heads, p->head_dim);
}

void attention_grad_load_keys(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_keys, bool with_rows) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    attention_tile_open(t, batch, kv_head, 0, 0);
    g->block = (struct attention_block){.first = first, .num_keys = num_keys, .k = g->k_panels};
    g->block.k_stride = p->head_dim * t->gemm->nr;
    attention_pack_keys(t, &p->k, p->head_dim, first, num_keys, g->k_panels);
    attention_pack_keys(t, &p->v, p->head_dim_v, first, num_keys, g->v_panels);
    if (!with_rows) return;
    int64_t panel = num_keys * t->gemm->nr;
    g->block.v_has_nonfinite =
        attention_pack_dims(t, &p->k, p->head_dim, first, num_keys, g->k_rows, panel);
    t->kernels->scale(g->k_rows, tsri_ceil_div(p->head_dim, t->gemm->nr) * panel,
                      (float)p->softmax_scale);
}

bool attention_grad_open(struct attention_grad *g, int64_t batch, int64_t kv_head, int64_t first,
                         int64_t num_rows, const struct attention_statistics *stats) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    attention_tile_open(t, batch, kv_head, first, num_rows);
    if (t->seen.begin >= g->block.first + g->block.num_keys || t->seen.end <= g->block.first)
        return false;
    attention_tile_load_q(t);
    attention_tile_load_rows(t, &p->dout, p->head_dim_v, 1, t->o, t->o_stride);
    g->stats = stats;
    for (int64_t r = 0; r < num_rows; r++) {
        if (stats[r].lse != -INFINITY) continue;
        t->row[r].visible.end = t->row[r].visible.begin; // no key that it saw had any weight
        t->common.end = 0;
    }
    return true;
}

// ---- Scores -----------------------------------------------------------------------------------

void attention_grad_weights(struct attention_grad *g) {
    struct attention_tile *t = &g->tile;
    const struct attention_problem *p = t->p;
    const struct attention_kernels *kernels = t->kernels;
    bool has_terms = p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL;
    for (int64_t r = 0; r < t->num_rows; r++) {
        struct attention_range part = attention_row_part(&t->row[r], &g->block);
        const struct attention_statistics *row = &g->stats[r];
        float *s = t->s + r * t->s_stride, *ds = g->ds + r * t->s_stride;
        if (part.begin >= part.end) part.begin = part.end = 0;
        int64_t n = part.end - part.begin;
        memset(s, 0, (size_t)part.begin * sizeof *s);
        memset(ds, 0, (size_t)part.begin * sizeof *s);
        memset(s + part.end, 0, (size_t)(g->block.num_keys - part.end) * sizeof *s);
        memset(ds + part.end, 0, (size_t)(g->block.num_keys - part.end) * sizeof *s);
        if (n == 0) continue;
        s += part.begin;
        ds += part.begin;
        float *slope = p->softcap != 0 && !g->is_before_cap ? g->slope : NULL;
        if (has_terms) {
            struct attention_terms terms = attention_row_terms(t, r);
            kernels->modify(&terms, g->block.first + part.begin, n, s, slope);
        }
        if (p->dropout_threshold == 0 && slope == NULL) {
            kernels->weigh_grad(s, n, row->lse, row->lse_low, row->delta, ds);
            continue;
        }
        kernels->weigh(s, n, row->lse, row->lse_low);
        if (p->dropout_threshold == 0) {
            kernels->score_grad(s, slope, row->delta, n, ds);
            continue;
        }
        struct attention_dropout dropout = attention_row_dropout(t, r);
        kernels->drop(&dropout, g->block.first + part.begin, n, ds);
        kernels->score_grad(s, slope, row->delta, n, ds);
        kernels->drop(&dropout, g->block.first + part.begin, n, s);
    }
}

void attention_grad_scores(struct attention_grad *g) {
    struct attention_tile *t = &g->tile;
    attention_tile_scores(t, &g->block);
    attention_tile_product(t, &g->block, t->o, t->o_stride, t->p->head_dim_v, g->v_panels,
                           t->p->head_dim_v * t->gemm->nr, g->ds);
    attention_grad_weights(g);
}

// ---- Products ---------------------------------------------------------------------------------

// c[key] += weights[rows][key]^T b[rows] for keys [from, to), over the rows that see at least one of them.
static void accumulate_keys(const struct attention_grad *g, const float *weights, const float *b,
                            int64_t b_stride, int64_t dims, int64_t from, int64_t to, float *c,
                            int64_t c_stride) {
    const struct attention_tile *t = &g->tile;
    int64_t first = t->num_rows, last = 0;
    for (int64_t r = 0; r < t->num_rows; r++) {
        struct attention_range part = attention_row_part(&t->row[r], &g->block);
        part.begin = tsri_max(part.begin, from);
        part.end = tsri_min(part.end, to);
        if (part.begin >= part.end) continue;
        first = tsri_min(first, r);
        last = r + 1;
        if (g->is_exact)
            t->gemm->block(part.end - part.begin, dims, 1, GEMM_COLS,
                           weights + r * t->s_stride + part.begin, t->s_stride, b + r * b_stride,
                           b_stride, true, c + part.begin * c_stride, c_stride, true);
    }
    if (first < last && !g->is_exact)
        t->gemm->block(to - from, dims, last - first, GEMM_COLS,
                       weights + first * t->s_stride + from, t->s_stride, b + first * b_stride,
                       b_stride, true, c + from * c_stride, c_stride, true);
}

void attention_grad_keys(const struct attention_grad *g, float *dk, int64_t dk_stride, float *dv,
                         int64_t dv_stride) {
    enum { STRIP = 48 }; // keys: a multiple of the register tile's 6 and 4 rows
    const struct attention_tile *t = &g->tile;
    bool is_full =
        t->common.begin <= g->block.first && t->common.end >= g->block.first + g->block.num_keys;
    int64_t strip = is_full ? g->block.num_keys : STRIP;
    for (int64_t j = 0; j < g->block.num_keys; j += strip) {
        int64_t end = tsri_min(j + strip, g->block.num_keys);
        if (dv != NULL)
            accumulate_keys(g, t->s, t->o, t->o_stride, t->p->head_dim_v, j, end, dv, dv_stride);
        if (dk != NULL)
            accumulate_keys(g, g->ds, t->q, t->q_stride, t->p->head_dim, j, end, dk, dk_stride);
    }
}

void attention_grad_queries(const struct attention_grad *g, int64_t begin, int64_t end, float *dq,
                            int64_t dq_stride) {
    const struct attention_tile *t = &g->tile;
    int64_t nr = t->gemm->nr;
    struct attention_block part = g->block;
    part.first += begin;
    part.num_keys = end - begin;
    attention_tile_accumulate(t, &part, g->ds + begin, g->k_rows + begin * nr,
                              g->block.num_keys * nr, t->p->head_dim,
                              g->is_exact || g->block.v_has_nonfinite, dq, dq_stride);
}

// ---- Rows of no sequence ----------------------------------------------------------------------

static void clear_rows(const struct attention_view *view, int64_t batch, int64_t from, int64_t to,
                       int64_t num_heads, int64_t dims) {
    for (int64_t row = from; row < to && view->data != NULL; row++)
        for (int64_t h = 0; h < num_heads; h++)
            memset(attention_at(view, batch, row, h), 0,
                   (size_t)dims * tsr_dtype_bytes(view->dtype));
}

void attention_clear_gradients(const struct attention_problem *p) {
    int64_t q_covered = 0, k_covered = 0; // packed: rows below are of a sequence or cleared
    for (int64_t b = 0; b < p->num_batches + (p->is_packed ? 1 : 0); b++) {
        struct attention_sequence seq = {.q_first = p->total_q, .k_first = p->total_k};
        if (b < p->num_batches) seq = attention_sequence_at(p, b);
        if (!p->is_packed) {
            clear_rows(&p->dk, b, seq.len_k, p->total_k, p->num_heads_kv, p->head_dim);
            clear_rows(&p->dv, b, seq.len_k, p->total_k, p->num_heads_kv, p->head_dim_v);
            continue;
        }
        clear_rows(&p->dq, 0, q_covered, seq.q_first, p->num_heads_q, p->head_dim);
        clear_rows(&p->dk, 0, k_covered, seq.k_first, p->num_heads_kv, p->head_dim);
        clear_rows(&p->dv, 0, k_covered, seq.k_first, p->num_heads_kv, p->head_dim_v);
        q_covered = tsri_max(q_covered, seq.q_first + seq.len_q);
        k_covered = tsri_max(k_covered, seq.k_first + seq.len_k);
    }
}
