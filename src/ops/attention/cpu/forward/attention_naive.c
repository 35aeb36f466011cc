// SPDX-License-Identifier: Apache-2.0
// The baseline that attention is measured against: a matrix of all scores in memory, batch x num_heads_q x seqlen_q x seqlen_k,
// and three passes over it: scores; softmax; product with the values.
#include "ops/attention/cpu/attention_tile.h"

#include <string.h>

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    float *scores;           // [pair][row of the group][seqlen_k]
    float *max, *sum;        // [pair][row of the group]
    float *threads;          // plan->grain floats for each
    int64_t rows, num_tiles; // of a group
};

// Points the tile's scores, maxima and denominators into the big arrays.
static bool open_tile(const struct work *w, struct attention_tile *t, int64_t index, int thread,
                      float **panels) {
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_tiles, first = index % w->num_tiles * w->plan->block_m;
    float *memory = w->threads + thread * w->plan->grain;
    struct attention_sequence seq = attention_sequence_at(p, pair / p->num_heads_kv);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return false;
    attention_tile_carve(t, p, w->isa, memory, w->plan->block_m, 0);
    *panels = memory + attention_tile_floats(p, w->plan->block_m, 0);
    int64_t row = pair * w->rows + first;
    t->s = w->scores + row * p->seqlen_k;
    t->s_stride = p->seqlen_k;
    t->max = w->max + row;
    t->sum = w->sum + row;
    attention_tile_open(t, pair / p->num_heads_kv, pair % p->num_heads_kv, first, rows);
    return true;
}

static void scores_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    struct attention_tile t;
    float *k;
    if (!open_tile(w, &t, index, thread, &k)) return;
    attention_tile_load_q(&t);
    attention_pack_k(&t, 0, t.seq.len_k, k);
    struct attention_block b = {
        .num_keys = t.seq.len_k, .k = k, .k_stride = w->p->head_dim * t.gemm->nr};
    attention_tile_scores(&t, &b);
}

static void softmax_task(void *arg, int64_t index, int thread) {
    struct attention_tile t;
    float *unused;
    if (!open_tile(arg, &t, index, thread, &unused)) return;
    attention_tile_clear(&t);
    attention_tile_softmax(&t, &(struct attention_block){.num_keys = t.seq.len_k});
}

static void values_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    struct attention_tile t;
    float *v;
    if (!open_tile(w, &t, index, thread, &v)) return;
    int64_t stride = t.seq.len_k * t.gemm->nr;
    struct attention_block b = {.num_keys = t.seq.len_k, .v = v, .v_stride = stride};
    b.v_has_nonfinite = attention_pack_v(&t, 0, t.seq.len_k, v, stride);
    for (int64_t r = 0; r < t.num_rows; r++) {
        t.alpha[r] = 1;
        memset(t.o + r * t.o_stride, 0, (size_t)w->p->head_dim_v * sizeof(float));
    }
    attention_tile_values(&t, &b);
    attention_tile_finish(&t);
}

tsr_status attention_naive_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct attention_problem *p = problem;
    struct work w = {.p = p, .plan = plan, .isa = tsr_context_isa(ctx), .scores = workspace};
    int64_t pairs = p->num_batches * p->num_heads_kv;
    w.rows = p->num_heads_q / tsri_max(p->num_heads_kv, 1) * p->seqlen_q;
    w.num_tiles = tsri_ceil_div(w.rows, plan->block_m);
    w.max = w.scores + tsri_round_up((size_t)(pairs * w.rows * p->seqlen_k), 16);
    w.sum = w.max + tsri_round_up((size_t)(pairs * w.rows), 16);
    w.threads = w.sum + tsri_round_up((size_t)(pairs * w.rows), 16);
    attention_clear_gaps(p);
    tsri_parallel(ctx, plan->num_tasks, scores_task, &w);
    tsri_parallel(ctx, plan->num_tasks, softmax_task, &w);
    tsri_parallel(ctx, plan->num_tasks, values_task, &w);
    return TSR_OK;
}
