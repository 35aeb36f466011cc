// SPDX-License-Identifier: Apache-2.0
// The two published loop orders, in linear memory and as plain as possible.
//
// flash1 (Dao et al., arXiv:2205.14135): keys outside, queries inside. Every query's output so far is in memory, divided by its
// denominator at each step and multiplied back at the next.
// flash2 (Dao, arXiv:2307.08691): queries outside, keys inside. The output stays with its tile and is divided once, at the end.
#include "ops/attention/cpu/attention_tile.h"

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    float *memory; // plan->grain floats for each thread
};

static struct work work_of(tsr_context *ctx, const struct attention_problem *p,
                           const struct tsri_plan *plan, void *workspace) {
    return (struct work){p, plan, tsr_context_isa(ctx), workspace};
}

// One block of keys and values for this tile's head; the caller packs them to k and v.
static struct attention_block block_at(const struct attention_tile *t, float *k, float *v,
                                       int64_t first, int64_t most_keys) {
    int64_t num_keys = tsri_min(most_keys, t->seq.len_k - first);
    return (struct attention_block){.first = first,
                                    .num_keys = num_keys,
                                    .k = k,
                                    .v = v,
                                    .k_stride = t->p->head_dim * t->gemm->nr,
                                    .v_stride = num_keys * t->gemm->nr};
}

static void load_values(const struct attention_tile *t, struct attention_block *b, float *v) {
    b->v_has_nonfinite = attention_pack_v(t, b->first, b->num_keys, v, b->v_stride);
}

// ---- flash2 -----------------------------------------------------------------------------------

// A block's values replace its keys after the scores: both together would be as large as the first-level cache.
static void flash2_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t tiles = tsri_ceil_div(p->num_heads_q / p->num_heads_kv * p->seqlen_q, w->plan->block_m);
    int64_t pair = index / tiles, first = index % tiles * w->plan->block_m;
    struct attention_tile t;
    float *memory = w->memory + thread * w->plan->grain;
    attention_tile_carve(&t, p, w->isa, memory, w->plan->block_m, w->plan->block_n);
    float *panels = memory + attention_tile_floats(p, w->plan->block_m, w->plan->block_n);

    struct attention_sequence seq = attention_sequence_at(p, pair / p->num_heads_kv);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return;
    attention_tile_open(&t, pair / p->num_heads_kv, pair % p->num_heads_kv, first, rows);
    attention_tile_load_q(&t);
    attention_tile_clear(&t);
    for (int64_t j = t.seen.begin; j < t.seen.end; j += w->plan->block_n) {
        struct attention_block b =
            block_at(&t, panels, panels, j, tsri_min(w->plan->block_n, t.seen.end - j));
        attention_pack_k(&t, b.first, b.num_keys, panels);
        attention_tile_scores(&t, &b);
        attention_tile_softmax(&t, &b);
        load_values(&t, &b, panels);
        attention_tile_values(&t, &b);
    }
    attention_tile_finish(&t);
}

tsr_status attention_flash2_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    struct work w = work_of(ctx, problem, plan, workspace);
    attention_clear_gaps(w.p);
    tsri_parallel_on(ctx, attention_flash2_threads(w.p, tsri_context_limits(ctx)), plan->num_tasks,
                     flash2_task, &w);
    return TSR_OK;
}

// ---- flash1 -----------------------------------------------------------------------------------

static void flash1_step(struct attention_tile *t, const struct attention_block *b) {
    float before[ATTENTION_MAX_ROWS];
    for (int64_t r = 0; r < t->num_rows; r++) before[r] = t->sum[r];
    attention_tile_scores(t, b);
    attention_tile_softmax(t, b);
    for (int64_t r = 0; r < t->num_rows; r++) t->alpha[r] *= before[r];
    attention_tile_values(t, b);
    for (int64_t r = 0; r < t->num_rows; r++)
        if (t->sum[r] != 0)
            t->kernels->scale(t->o + r * t->o_stride, t->p->head_dim_v, 1 / t->sum[r]);
}

static void flash1_task(void *arg, int64_t pair, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t block_m = w->plan->block_m, block_n = w->plan->block_n;
    struct attention_tile t;
    struct attention_block b;
    float *memory = w->memory + thread * w->plan->grain;
    attention_tile_carve(&t, p, w->isa, memory, block_m, block_n);
    float *k = memory + attention_tile_floats(p, block_m, block_n);
    float *v = k + attention_k_floats(p, block_n, t.gemm->nr);
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t rows = attention_group_rows(p, &seq);
    // The state of all rows of the group: o, maximum, denominator.
    float *o = v + attention_v_floats(p, block_n, t.gemm->nr), *max = o + rows * t.o_stride;
    float *sum = max + rows;

    for (int64_t j = 0; j < tsri_max(seq.len_k, 1); j += block_n)
        for (int64_t first = 0; first < rows; first += block_m) {
            t.o = o + first * t.o_stride;
            t.max = max + first;
            t.sum = sum + first;
            attention_tile_open(&t, batch, kv_head, first, tsri_min(block_m, rows - first));
            if (j == 0) attention_tile_clear(&t);
            if (first == 0) {
                b = block_at(&t, k, v, j, block_n);
                attention_pack_k(&t, b.first, b.num_keys, k);
                load_values(&t, &b, v);
            }
            if (t.seen.begin >= b.first + b.num_keys || t.seen.end <= b.first) continue;
            attention_tile_load_q(&t);
            flash1_step(&t, &b);
        }
    for (int64_t first = 0; first < rows; first += block_m) {
        t.o = o + first * t.o_stride;
        t.max = max + first;
        t.sum = sum + first;
        attention_tile_open(&t, batch, kv_head, first, tsri_min(block_m, rows - first));
        for (int64_t r = 0; r < t.num_rows; r++) // finish divides once more
            t.kernels->scale(t.o + r * t.o_stride, p->head_dim_v, t.sum[r]);
        attention_tile_finish(&t);
    }
}

tsr_status attention_flash1_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    struct work w = work_of(ctx, problem, plan, workspace);
    attention_clear_gaps(w.p);
    tsri_parallel(ctx, plan->num_tasks, flash1_task, &w);
    return TSR_OK;
}
