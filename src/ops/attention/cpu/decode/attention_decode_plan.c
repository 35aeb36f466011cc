// SPDX-License-Identifier: Apache-2.0
// The plans of decode's variants, pure, and the run of the default variant: it makes tasks from lengths, runs them, and merges
// their partial results.
//
// Only the room in the cache decides where keys are split. So a sequence's bits depend neither on the number of threads nor on the
// other sequences. The number of heads of a task changes no bit, so it may depend on the number of threads.
#include <string.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/decode/attention_decode_split.h"

enum {
    LEAST_SPLIT = 256, // keys; with fewer, merging costs more than balance gains
    MOST_SPLIT = 1024,
    TILE_BLOCK_M = 96,    // a multiple of the register tile's 6 and 4 rows
    TILE_BLOCK_N = 512,   // AVX-512
    NARROW_BLOCK_N = 256, // the others
    TASKS_PER_THREAD = 8,
    TASKS_OF_FEW = 2,       // for two or three threads, with several splits
    LEAST_WORK = 100 << 10, // of a task; handing on less costs more than doing it
    // The cost of a query and of one of its keys, in multiplications of fp32 tiles. Measured; most of it is not the products.
    WORK_OF_QUERY = 10 << 10,
    WORK_OF_KEY = 512,
    WORK_OF_DIM = 4,
    // The cost of a merged row, and of one of its parts.
    WORK_OF_MERGED = 1 << 10,
    WORK_OF_PART = 512,
};

static int64_t round_to_line(int64_t floats) { return (int64_t)tsri_round_up((size_t)floats, 16); }
static size_t line_bytes(int64_t bytes) { return tsri_round_up((size_t)bytes, 64); }

static int64_t split_keys(const struct attention_decode_problem *p) {
    int64_t keys = LEAST_SPLIT;
    while (keys < MOST_SPLIT && 16 * keys < p->most_keys) keys *= 2;
    return keys;
}

// The number of queries of all sequences.
static int64_t most_rows(const struct attention_problem *a) {
    return a->is_packed ? a->total_q : a->num_batches * a->total_q;
}

// The most rows of partial results: rows of q in sequences with few queries.
static int64_t most_partial_rows(const struct attention_problem *a) {
    int64_t few = tsri_max(DECODE_FEW_ROWS / tsri_max(decode_group_of(a), 1), 1);
    return tsri_min(a->num_batches * tsri_min(few, a->seqlen_q), most_rows(a));
}

void attention_decode_plan_split(const void *problem, const struct tsri_limits *limits,
                                 struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    const struct attention_problem *a = &p->a;
    plan->block_k = split_keys(p);
    plan->block_m = TILE_BLOCK_M;
    plan->block_n = tsri_min(limits->isa == TSR_ISA_AVX512 ? TILE_BLOCK_N : NARROW_BLOCK_N,
                             (int64_t)tsri_round_up((size_t)tsri_max(p->most_keys, 1), 64));
    plan->grain = decode_split_floats(p);
    if (!attention_decode_is_few(a, a->seqlen_q))
        plan->grain = tsri_max(plan->grain, decode_tile_floats(p, plan, limits->isa));
    int64_t splits = tsri_ceil_div(p->most_keys, plan->block_k);
    plan->num_tasks = a->num_batches * a->num_heads_kv * splits; // at most, for few queries
    int64_t partial = splits > 1 ? most_partial_rows(a) * a->num_heads_q * splits : 0;
    plan->workspace_bytes = line_bytes(a->num_batches * (int64_t)sizeof(struct decode_job)) +
                            line_bytes(partial * (int64_t)sizeof(struct attention_decode_state)) +
                            (size_t)(partial * attention_lane_floats(a->head_dim_v) +
                                     plan->grain * limits->num_threads) *
                                sizeof(float);
}

void attention_decode_plan_naive(const void *problem, const struct tsri_limits *limits,
                                 struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    const struct attention_problem *a = &p->a;
    // Keys, values, scores; a query; an output and the two scratch rows of attention_decode_finish.
    plan->grain = round_to_line(p->most_keys * (a->head_dim + a->head_dim_v + 1)) +
                  attention_lane_floats(a->head_dim) + 3 * attention_lane_floats(a->head_dim_v);
    plan->num_tasks = a->num_batches * a->num_heads_kv;
    plan->workspace_bytes = (size_t)(plan->grain * limits->num_threads) * sizeof(float);
}

// ---- Jobs -------------------------------------------------------------------------------------

// Adds the job of one sequence; its tasks are numbered later.
static void add_job(struct decode_work *w, const struct attention_decode_sequence *seq,
                    int64_t *next_row) {
    const struct attention_problem *a = &w->base.p->a;
    int64_t keys = w->base.plan->block_k;
    struct decode_job *job = &w->jobs[w->num_jobs++];
    *job = (struct decode_job){.batch = seq->batch,
                               .is_tiled = !attention_decode_is_few(a, seq->s.len_q)};
    job->seen = attention_decode_seen(a, &seq->s);
    job->first_split = job->seen.begin / keys;
    job->num_splits = tsri_max(tsri_ceil_div(job->seen.end, keys) - job->first_split, 1);
    if (job->is_tiled || job->num_splits == 1) return;
    // Offsets that fall may give a row to several sequences, and so more rows than the arrays hold.
    if (*next_row + seq->s.len_q > w->most_rows) {
        job->num_splits = 1;
        return;
    }
    job->first_row = *next_row;
    *next_row += seq->s.len_q;
}

static double work_of(const struct attention_problem *a, double queries, int64_t num_keys) {
    double of_key = WORK_OF_KEY + WORK_OF_DIM * (double)(a->head_dim + a->head_dim_v);
    return queries * (WORK_OF_QUERY + (double)num_keys * of_key);
}

// The work of one split of a head, at most.
static double head_work(const struct decode_work *w) {
    const struct attention_decode_problem *p = w->base.p;
    return work_of(&p->a, (double)(p->a.seqlen_q * decode_group_of(&p->a)),
                   tsri_min(p->most_keys, w->base.plan->block_k));
}

int attention_decode_threads(const struct attention_decode_problem *p,
                             const struct tsri_limits *limits) {
    double queries = (double)most_rows(&p->a) * (double)p->a.num_heads_q;
    return tsri_worth_threads(limits, work_of(&p->a, queries, p->most_keys));
}

// Threads for merging all rows, each from most_splits parts.
static int merge_threads(const struct decode_work *w, const struct tsri_limits *limits) {
    const struct attention_problem *a = &w->base.p->a;
    double of_part = WORK_OF_PART + WORK_OF_DIM * (double)a->head_dim_v;
    return tsri_worth_threads(limits, (double)(w->most_rows * a->num_heads_q) *
                                          (WORK_OF_MERGED + (double)w->most_splits * of_part));
}

static void make_jobs(struct decode_work *w, int num_threads) {
    const struct attention_decode_problem *p = w->base.p;
    const struct attention_view *k = &p->k_cache;
    int64_t heads = p->a.num_heads_kv, splits = 0, next_row = 0;
    for (int tiled = 1; tiled >= 0; tiled--)
        for (int64_t b = 0; b < p->a.num_batches; b++) {
            struct attention_decode_sequence seq = attention_decode_sequence_at(p, b);
            if (seq.s.len_q == 0 || attention_decode_is_few(&p->a, seq.s.len_q) == (tiled == 1))
                continue;
            add_job(w, &seq, &next_row);
            if (!tiled) splits += w->jobs[w->num_jobs - 1].num_splits;
        }
    // Heads that are adjacent in a cache row are read together, unless that leaves threads idle.
    bool is_adjacent = k->head <= k->seq, has_few = num_threads <= ATTENTION_FEW_THREADS;
    int64_t of_thread = has_few && splits > 1 ? TASKS_OF_FEW : TASKS_PER_THREAD;
    w->heads_per_task = is_adjacent ? heads : 1;
    while (w->heads_per_task > 1 && num_threads > 1 &&
           (double)w->heads_per_task * head_work(w) >= LEAST_WORK &&
           splits * tsri_ceil_div(heads, w->heads_per_task) < of_thread * num_threads)
        w->heads_per_task = tsri_ceil_div(w->heads_per_task, 2);
    for (int64_t j = 0; j < w->num_jobs; j++) {
        struct decode_job *job = &w->jobs[j];
        job->first_task = w->num_tasks;
        struct attention_decode_sequence seq = attention_decode_sequence_at(p, job->batch);
        w->num_tasks += job->is_tiled ? heads * tsri_ceil_div(attention_group_rows(&p->a, &seq.s),
                                                              w->base.plan->block_m)
                                      : job->num_splits * tsri_ceil_div(heads, w->heads_per_task);
    }
}

// ---- Run --------------------------------------------------------------------------------------

static void attend_task(void *arg, int64_t index, int thread) {
    const struct decode_work *w = arg;
    int64_t low = 0, high = w->num_jobs; // finds the last job that starts at or before index
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (w->jobs[middle].first_task <= index)
            low = middle;
        else
            high = middle;
    }
    const struct decode_job *job = &w->jobs[low];
    (job->is_tiled ? decode_tile_task : decode_split_task)(
        w, job, index - job->first_task, w->threads + thread * w->base.plan->grain);
}

// Merges all rows of one key head of one sequence.
static void merge_task(void *arg, int64_t index, int thread) {
    const struct decode_work *w = arg;
    const struct attention_problem *a = &w->base.p->a;
    const struct decode_job *job = &w->jobs[index / a->num_heads_kv];
    if (job->is_tiled || job->num_splits == 1) return;
    struct attention_decode_sequence seq = attention_decode_sequence_at(w->base.p, job->batch);
    int64_t group = decode_group_of(a), head = index % a->num_heads_kv * group;
    for (int64_t i = 0; i < seq.s.len_q; i++)
        for (int64_t h = head; h < head + group; h++) {
            int64_t row = (job->first_row + i) * a->num_heads_q + h;
            attention_decode_finish(&w->base, &seq, i, h, w->states + row * w->most_splits,
                                    job->num_splits, w->base.p->v_cache.dtype,
                                    w->threads + thread * w->base.plan->grain);
        }
}

tsr_status attention_decode_split_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    const struct attention_decode_problem *p = problem;
    const struct attention_problem *a = &p->a;
    struct decode_work w = {.base = attention_decode_work_of(ctx, p, plan), .jobs = workspace};
    w.most_splits = tsri_ceil_div(p->most_keys, plan->block_k);
    w.most_rows = most_partial_rows(a);
    int64_t partial = w.most_splits > 1 ? w.most_rows * a->num_heads_q * w.most_splits : 0;
    char *memory = (char *)workspace + line_bytes(a->num_batches * (int64_t)sizeof *w.jobs);
    w.states = (struct attention_decode_state *)(void *)memory;
    w.partial = (float *)(void *)(memory + line_bytes(partial * (int64_t)sizeof *w.states));
    w.threads = w.partial + partial * attention_lane_floats(a->head_dim_v);
    attention_decode_append(ctx, &w.base);
    attention_clear_gaps(a);
    if (a->num_heads_kv == 0) return TSR_OK;
    int num_threads = attention_decode_threads(p, tsri_context_limits(ctx));
    make_jobs(&w, num_threads);
    tsri_parallel_on(ctx, num_threads, w.num_tasks, attend_task, &w);
    if (w.most_splits > 1)
        tsri_parallel_on(ctx, merge_threads(&w, tsri_context_limits(ctx)),
                         w.num_jobs * a->num_heads_kv, merge_task, &w);
    return TSR_OK;
}
