// SPDX-License-Identifier: Apache-2.0
// The baseline of backward: all weights and all gradients of the scores are kept in memory between three passes, batch x
// num_heads_q x seqlen_q x seqlen_k each.
#include "ops/attention/cpu/backward/attention_grad.h"

#include <string.h>

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    struct attention_statistics *stats; // [pair][row of the group]
    float *weights, *grads;             // [pair][row of the group][seqlen_k]
    float *threads;                     // plan->grain floats for each
    unsigned char *is_nonfinite;        // [pair][tile]
    int64_t rows, num_tiles, num_blocks;
};

static float *carve(const struct work *w, struct attention_grad *g, int thread) {
    const struct attention_problem *p = w->p;
    float *memory = w->threads + thread * w->plan->grain;
    int64_t most_keys = tsri_max(p->seqlen_k, 1);
    attention_grad_carve(g, p, w->isa, memory, w->plan->block_m, most_keys);
    return memory + attention_grad_floats(p, w->plan->block_m, most_keys, g->tile.gemm->nr);
}

// Points the tile's weights and gradients into the big matrices, from key on.
static void point_into(const struct work *w, struct attention_grad *g, int64_t row, int64_t key) {
    g->tile.s = w->weights + row * w->p->seqlen_k + key;
    g->ds = w->grads + row * w->p->seqlen_k + key;
    g->tile.s_stride = w->p->seqlen_k;
}

static bool pair_is_exact(const struct work *w, int64_t pair) {
    return memchr(w->is_nonfinite + pair * w->num_tiles, 1, (size_t)w->num_tiles) != NULL;
}

// ---- Weights and their gradients --------------------------------------------------------------

static void scores_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_tiles, first = index % w->num_tiles * w->plan->block_m;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    struct attention_grad g;
    w->is_nonfinite[index] = 0;
    if (rows <= 0) return;
    carve(w, &g, thread);
    struct attention_statistics *stats = w->stats + pair * w->rows + first;
    struct attention_grad_sum sums[ATTENTION_MAX_ROWS];
    attention_tile_open(&g.tile, batch, kv_head, first, rows);
    for (int64_t r = 0; r < rows; r++)
        if (attention_grad_statistics(p, g.tile.kernels, batch, seq.q_first + g.tile.row[r].i,
                                      g.tile.row[r].head, 1, stats + r))
            w->is_nonfinite[index] = 1;
    const bool has_coarse = attention_grad_start_sums(&g.tile, stats, sums);
    attention_grad_load_keys(&g, batch, kv_head, 0, seq.len_k, false);
    point_into(w, &g, pair * w->rows + first, 0);
    if (has_coarse) {
        attention_grad_sum_block(&g, batch, kv_head, first, rows, stats, sums);
        attention_grad_finish_sums(p, rows, sums, stats);
    }
    if (attention_grad_open(&g, batch, kv_head, first, rows, stats)) attention_grad_scores(&g);
}

// ---- dk and dv --------------------------------------------------------------------------------

static void store_keys(const struct attention_grad *g, const struct attention_view *view,
                       const float *from, int64_t stride, int64_t dims) {
    const struct attention_tile *t = &g->tile;
    for (int64_t j = 0; j < g->block.num_keys && view->data != NULL; j++)
        t->kernels->store(
            view->dtype, from + j * stride, dims, 1,
            attention_at(view, t->batch, t->seq.k_first + g->block.first + j, t->kv_head));
}

static void keys_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_blocks, key = index % w->num_blocks * w->plan->block_n;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t num_keys = tsri_min(w->plan->block_n, seq.len_k - key);
    if (num_keys <= 0) return;
    struct attention_grad g;
    float *dk = carve(w, &g, thread), *dv = dk + w->plan->block_n * g.tile.q_stride;
    memset(dk, 0, (size_t)(num_keys * g.tile.q_stride) * sizeof *dk);
    memset(dv, 0, (size_t)(num_keys * g.tile.o_stride) * sizeof *dv);
    g.is_exact = pair_is_exact(w, pair);
    g.block = (struct attention_block){.first = key, .num_keys = num_keys};
    int64_t rows = attention_group_rows(p, &seq);
    for (int64_t first = 0; first < rows; first += w->plan->block_m) {
        point_into(w, &g, pair * w->rows + first, key);
        if (attention_grad_open(&g, batch, kv_head, first, tsri_min(w->plan->block_m, rows - first),
                                w->stats + pair * w->rows + first))
            attention_grad_keys(&g, p->dk.data != NULL ? dk : NULL, g.tile.q_stride,
                                p->dv.data != NULL ? dv : NULL, g.tile.o_stride);
    }
    attention_tile_open(&g.tile, batch, kv_head, 0, 0);
    store_keys(&g, &p->dk, dk, g.tile.q_stride, p->head_dim);
    store_keys(&g, &p->dv, dv, g.tile.o_stride, p->head_dim_v);
}

// ---- dq ---------------------------------------------------------------------------------------

static void queries_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_tiles, first = index % w->num_tiles * w->plan->block_m;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return;
    struct attention_grad g;
    float *dq = carve(w, &g, thread);
    int64_t stride = g.tile.q_stride;
    g.is_exact = pair_is_exact(w, pair);
    memset(dq, 0, (size_t)(rows * stride) * sizeof *dq);
    attention_grad_load_keys(&g, batch, kv_head, 0, seq.len_k, true);
    point_into(w, &g, pair * w->rows + first, 0);
    if (attention_grad_open(&g, batch, kv_head, first, rows, w->stats + pair * w->rows + first))
        attention_grad_queries(&g, 0, g.block.num_keys, dq, stride);
    for (int64_t r = 0; r < rows; r++)
        g.tile.kernels->store(
            p->dtype, dq + r * stride, p->head_dim, 1,
            attention_at(&p->dq, batch, seq.q_first + g.tile.row[r].i, g.tile.row[r].head));
}

tsr_status attention_naive_backward_run(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct work w = {.p = p, .plan = plan, .isa = tsr_context_isa(ctx), .stats = workspace};
    int64_t pairs = p->num_batches * p->num_heads_kv;
    w.rows = p->num_heads_q / tsri_max(p->num_heads_kv, 1) * p->seqlen_q;
    w.num_tiles = tsri_ceil_div(w.rows, plan->block_m);
    w.num_blocks = tsri_ceil_div(p->seqlen_k, plan->block_n);
    w.weights = (float *)workspace + attention_statistics_floats(pairs * w.rows);
    w.grads = w.weights + tsri_round_up((size_t)(pairs * w.rows * p->seqlen_k), 16);
    w.threads = w.grads + tsri_round_up((size_t)(pairs * w.rows * p->seqlen_k), 16);
    w.is_nonfinite =
        (unsigned char *)(w.threads + plan->grain * tsri_context_limits(ctx)->num_threads);
    attention_clear_gradients(p);
    tsri_parallel(ctx, plan->num_tasks, scores_task, &w);
    if (p->dk.data != NULL || p->dv.data != NULL)
        tsri_parallel(ctx, pairs * w.num_blocks, keys_task, &w);
    if (p->dq.data != NULL) tsri_parallel(ctx, plan->num_tasks, queries_task, &w);
    attention_grad_sinks(ctx, p, w.stats);
    attention_grad_bias(ctx, p, w.stats, w.threads, plan->grain);
    return TSR_OK;
}
