// SPDX-License-Identifier: Apache-2.0
// Backward in linear memory.
//
// Keys outside, queries inside (flash1 with small blocks, tuned with large ones): a block of keys keeps its
// dk and dv, dq adds up in memory of the task's own. A task is a key/value head or, where these are few, a
// few runs of its keys; runs have a dq each, added in their order at the end, or in that order into one where a task has them
// all. In bf16 the runs of a block are a group: they are added to each other first, wherever they were computed. How many
// there are depends on the problem alone, so the result does not depend on the number of threads.
//
// flash2 goes twice, once with the keys outside for dk and dv, once with the queries outside for dq: two
// more products, no dq in memory, no sharing.
//
// amx_bf16 and avx512_bf16 are tuned with products of bf16. Where q, k or dout is not finite a block of keys goes in
// fp32, whose products can leave out what a row does not see.
#include "ops/attention/attention_grad.h"
#include "ops/attention/attention_grad_mixed.h"

#include <string.h>

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct gemm_bf16_kernels *gemm_bf16; // NULL: products in fp32
    int64_t rows, num_runs, run_keys, group_runs, task_runs, dq_rows, dq_stride;
    int64_t num_sums, sum_keys; // of runs, or of groups of them
    int64_t dq_sum;             // from a sum to the next one, 0: it is the same
    bool has_unit;
    float *delta;                // [pair][row of the group]
    float *dq;                   // several sums: [pair][sum][row][dq_stride]
    float *threads;              // plan->grain floats for each
    unsigned char *is_nonfinite; // [pair][chunk of queries]: no more than tiles of rows
    int64_t num_tiles, num_chunks;
    int64_t num_parts; // of the heads: tasks that share a chunk's delta
};

static struct work work_of(tsr_context *ctx, const struct attention_problem *p,
                           const struct tsri_plan *plan, void *workspace,
                           const struct gemm_bf16_kernels *gemm_bf16) {
    struct work w = {.p = p, .plan = plan, .isa = tsr_context_isa(ctx), .gemm_bf16 = gemm_bf16};
    struct attention_backward_layout l = attention_backward_layout(
        p, plan, tsri_context_limits(ctx)->num_threads, gemm_bf16 != NULL);
    w.rows = l.rows;
    w.num_runs = l.num_runs;
    w.run_keys = l.run_keys;
    w.group_runs = l.group_runs;
    w.task_runs = l.task_runs;
    w.num_sums = l.num_sums;
    w.sum_keys = l.sum_keys;
    w.has_unit = l.has_unit;
    w.dq_sum = l.task_runs < l.num_runs ? l.dq_rows * l.dq_stride : 0;
    w.dq_rows = l.dq_rows;
    w.dq_stride = l.dq_stride;
    w.num_tiles = tsri_ceil_div(l.rows, plan->block_m);
    w.num_chunks = l.rows == 0 ? 0 : tsri_ceil_div(p->seqlen_q, plan->block_m);
    w.delta = workspace;
    w.dq = w.delta + l.delta_floats;
    w.threads = w.dq + l.dq_floats;
    w.is_nonfinite =
        (unsigned char *)(w.threads + plan->grain * tsri_context_limits(ctx)->num_threads);
    return w;
}

// The thread's memory: the tile, in fp32 or in bf16, then dk and dv of a block, then dq of a group.
static float *carve(const struct work *w, struct attention_grad *g, int thread) {
    const struct tsri_plan *plan = w->plan;
    float *memory = w->threads + thread * plan->grain;
    attention_grad_carve(g, w->p, w->isa, memory, plan->block_m, plan->block_n);
    return memory + attention_backward_tile_floats(w->p, w->isa, plan->block_m, plan->block_n,
                                                   w->gemm_bf16 != NULL);
}

// The same memory for the way in bf16.
static void carve_mixed(const struct work *w, struct attention_grad_mixed *g, int thread) {
    attention_grad_mixed_carve(g, w->p, w->isa, w->gemm_bf16, w->threads + thread * w->plan->grain,
                               w->plan->block_m, w->plan->block_n);
}

// delta of some heads, those of a part, of some queries of a batch: in the order of memory, where the heads of a query lie
// next to each other.
static void delta_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t part = index % w->num_parts, chunk = index / w->num_parts % w->num_chunks;
    int64_t batch = index / w->num_parts / w->num_chunks;
    int64_t group = p->num_heads_q / p->num_heads_kv;
    int64_t kv = p->num_heads_kv * part / w->num_parts;
    int64_t kv_end = p->num_heads_kv * (part + 1) / w->num_parts;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    const struct attention_kernels *kernels = attention_kernels(w->isa);
    (void)thread;
    for (int64_t i = kv; i < kv_end; i++)
        w->is_nonfinite[(batch * p->num_heads_kv + i) * w->num_chunks + chunk] = 0;
    int64_t end = tsri_min((chunk + 1) * w->plan->block_m, seq.len_q);
    for (int64_t i = chunk * w->plan->block_m; i < end; i++)
        for (int64_t h = kv * group, n; h < kv_end * group; h += n) {
            float delta[ATTENTION_MOST_SET];
            n = tsri_min(ATTENTION_MOST_SET, kv_end * group - h);
            bool is_nonfinite =
                attention_grad_delta(p, kernels, batch, seq.q_first + i, h, n, delta);
            for (int64_t j = 0; j < n; j++) {
                int64_t pair = batch * p->num_heads_kv + (h + j) / group;
                float *of_head = w->delta + pair * w->rows + (h + j) % group * seq.len_q + i;
                *of_head = delta[j];
                // Which of them it was: a head's bits do not follow the others'.
                if (is_nonfinite &&
                    attention_grad_delta(p, kernels, batch, seq.q_first + i, h + j, 1, of_head))
                    w->is_nonfinite[pair * w->num_chunks + chunk] = 1;
            }
        }
}

static bool pair_is_exact(const struct work *w, int64_t pair) {
    return memchr(w->is_nonfinite + pair * w->num_chunks, 1, (size_t)w->num_chunks) != NULL;
}

static void store_rows(const struct attention_grad *g, const struct attention_view *view,
                       int64_t row, int64_t head, int64_t num_rows, const float *from,
                       int64_t stride, int64_t dims) {
    if (view->data == NULL) return;
    float one[ATTENTION_MAX_ROWS];
    for (int64_t r = 0; r < tsri_min(num_rows, ATTENTION_MAX_ROWS); r++) one[r] = 1;
    for (int64_t r = 0, n; r < num_rows; r += n) {
        n = tsri_min(num_rows - r, ATTENTION_MAX_ROWS);
        g->tile.kernels->store_rows(view->dtype, from + r * stride, stride, n, dims, one,
                                    attention_at(view, g->tile.batch, row + r, head), view->seq);
    }
}

static void store_queries(const struct attention_grad *g, int64_t rows, const float *dq,
                          int64_t stride) {
    const struct attention_tile *t = &g->tile;
    int64_t first_head = t->kv_head * (t->p->num_heads_q / t->p->num_heads_kv);
    for (int64_t r = 0; r < rows; r += t->seq.len_q)
        store_rows(g, &t->p->dq, t->seq.q_first, first_head + r / t->seq.len_q, t->seq.len_q,
                   dq + r * stride, stride, t->p->head_dim);
}

// ---- Keys outside -----------------------------------------------------------------------------

// Keys [first, first + num_keys) of a head against all of its queries: dk, dv, and what is added to dq, the first key's sum,
// and to the sums after, unless it is NULL. What a run adds to a sum that others have begun is added up in part first.
static void keys_block(const struct work *w, struct attention_grad *g, int64_t pair, int64_t first,
                       int64_t num_keys, float *dk, float *dv, float *dq, float *part) {
    const struct attention_problem *p = w->p;
    const float *delta = w->delta + pair * w->rows;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    int64_t block_m = w->plan->block_m, rows = attention_group_rows(p, &g->tile.seq);
    attention_grad_load_keys(g, batch, kv_head, first, num_keys, dq != NULL);
    memset(dk, 0, (size_t)(num_keys * g->tile.q_stride) * sizeof *dk);
    memset(dv, 0, (size_t)(num_keys * g->tile.o_stride) * sizeof *dv);
    for (int64_t row = 0; row < rows; row += block_m) {
        if (!attention_grad_open(g, batch, kv_head, row, tsri_min(block_m, rows - row),
                                 delta + row))
            continue;
        attention_grad_scores(g);
        attention_grad_keys(g, p->dk.data != NULL ? dk : NULL, g->tile.q_stride,
                            p->dv.data != NULL ? dv : NULL, g->tile.o_stride);
        for (int64_t begin = 0, end; dq != NULL && begin < num_keys; begin = end) {
            int64_t key = first + begin, run = key / w->run_keys * w->run_keys;
            int64_t sum_at = key / w->sum_keys - first / w->sum_keys;
            int64_t floats = tsri_min(block_m, rows - row) * w->dq_stride;
            float *sum = dq + sum_at * w->dq_sum + row * w->dq_stride;
            bool has_begun = run % w->sum_keys != 0; // by other runs
            if (has_begun) memset(part, 0, (size_t)floats * sizeof *part);
            end = tsri_min(run + w->run_keys - first, num_keys);
            attention_grad_queries(g, begin, end, has_begun ? part : sum, w->dq_stride);
            if (has_begun) g->tile.kernels->add(part, floats, sum);
        }
    }
}

// The same in bf16; false where something in k is not finite.
static bool keys_block_mixed(const struct work *w, int thread, const struct attention_grad *g,
                             int64_t pair, int64_t first, int64_t num_keys, float *dk, float *dv,
                             float *dq, float *part) {
    const struct attention_problem *p = w->p;
    struct attention_grad_mixed m;
    struct attention_grad_mixed_dq to = {.stride = w->dq_stride,
                                         .run_keys = w->run_keys,
                                         .sum_keys = w->sum_keys,
                                         .next = w->dq_sum,
                                         .part = part};
    int64_t block_m = w->plan->block_m, rows = attention_group_rows(p, &g->tile.seq);
    carve_mixed(w, &m, thread);
    if (!attention_grad_mixed_load_keys(&m, pair / p->num_heads_kv, pair % p->num_heads_kv, first,
                                        num_keys))
        return false;
    w->gemm_bf16->open();
    for (int64_t row = 0; row < rows; row += block_m) {
        if (dq != NULL) to.sum = dq + row * w->dq_stride;
        attention_grad_mixed_add(&m, row, tsri_min(block_m, rows - row),
                                 w->delta + pair * w->rows + row, &to);
    }
    w->gemm_bf16->close();
    attention_grad_mixed_finish(&m, dk, g->tile.q_stride, dv, g->tile.o_stride);
    return true;
}

// Keys of a task that are taken at a time, from the j-th of the sequence on: what is left where it fits, else whole runs, or
// blocks of one; not more than to the end of a group that has one sum.
static int64_t keys_at_once(const struct work *w, int64_t j, int64_t left) {
    int64_t most = w->plan->block_n;
    if (left > most && w->run_keys < most) most = most / w->run_keys * w->run_keys;
    if (w->sum_keys > w->run_keys) most = tsri_min(most, w->sum_keys - j % w->sum_keys);
    return tsri_min(left, most);
}

// Under a causal mask the first runs are the heaviest: those of all pairs go first.
static void keys_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pairs = p->num_batches * p->num_heads_kv, pair = index % pairs;
    int64_t first = index / pairs * w->task_runs * w->run_keys;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_grad g;
    float *dk = carve(w, &g, thread), *dv = dk + w->plan->block_n * g.tile.q_stride;
    float *own = dv + w->plan->block_n * g.tile.o_stride, *dq = own;
    attention_tile_open(&g.tile, batch, kv_head, 0, 0);
    struct attention_sequence seq = g.tile.seq;
    int64_t rows = attention_group_rows(p, &seq);
    int64_t end = tsri_min(first + w->task_runs * w->run_keys, seq.len_k);
    int64_t first_sum = first / w->sum_keys, group_keys = w->group_runs * w->run_keys;
    if (p->dq.data == NULL || w->plan->block_k == ATTENTION_TWO_PASSES)
        dq = NULL;
    else if (w->dq_sum > 0)
        dq = w->dq + (pair * w->num_sums + first_sum) * w->dq_sum;
    bool has_unit = w->has_unit && dq == own;
    float *unit = own + w->dq_rows * w->dq_stride;
    float *part = dq != own ? own : has_unit ? unit + w->dq_rows * w->dq_stride : unit;
    if (w->sum_keys > w->run_keys)
        memset(part, 0, (size_t)(ATTENTION_STRIP * w->dq_stride) * sizeof *part);
    int64_t num_sums = tsri_max(w->task_runs * w->run_keys / w->sum_keys, 1);
    num_sums = tsri_min(num_sums, w->num_sums - first_sum);
    for (int64_t i = 0; dq != NULL && i < num_sums; i++)
        memset(dq + i * w->dq_sum, 0, (size_t)(rows * w->dq_stride) * sizeof *dq);
    g.is_exact = pair_is_exact(w, pair);
    for (int64_t j = first, num_keys; j < end; j += num_keys) {
        num_keys = keys_at_once(w, j, end - j);
        float *to = dq != NULL ? dq + (j / w->sum_keys - first_sum) * w->dq_sum : NULL;
        // The first group's sum is dq itself, others are added to it.
        if (has_unit && j >= group_keys) {
            to = unit;
            if (j % group_keys == 0) memset(unit, 0, (size_t)(rows * w->dq_stride) * sizeof *unit);
        }
        bool may_be_mixed = w->gemm_bf16 != NULL && !g.is_exact;
        bool is_done =
            may_be_mixed && keys_block_mixed(w, thread, &g, pair, j, num_keys, dk, dv, to, part);
        // Which keys go in fp32 is not to follow how many a task takes at once.
        if (may_be_mixed && !is_done && num_keys > w->run_keys) {
            num_keys = w->run_keys;
            is_done = keys_block_mixed(w, thread, &g, pair, j, num_keys, dk, dv, to, part);
        }
        if (!is_done) keys_block(w, &g, pair, j, num_keys, dk, dv, to, part);
        if (to == unit && ((j + num_keys) % group_keys == 0 || j + num_keys == end))
            g.tile.kernels->add(unit, rows * w->dq_stride, dq);
        store_rows(&g, &p->dk, seq.k_first + j, kv_head, num_keys, dk, g.tile.q_stride,
                   p->head_dim);
        store_rows(&g, &p->dv, seq.k_first + j, kv_head, num_keys, dv, g.tile.o_stride,
                   p->head_dim_v);
    }
    if (dq == own && rows > 0) {
        attention_tile_open(&g.tile, batch, kv_head, 0, 0);
        store_queries(&g, rows, dq, w->dq_stride);
    }
}

// dq of a pair: the runs of a group in their order, then the groups.
static void reduce_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_tiles, first = index % w->num_tiles * w->plan->block_m;
    int64_t batch = pair / p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return;
    struct attention_grad g;
    carve(w, &g, thread);
    attention_tile_open(&g.tile, batch, pair % p->num_heads_kv, first, rows);
    float *sum = w->dq + (pair * w->num_sums * w->dq_rows + first) * w->dq_stride;
    int64_t of_group = w->group_runs * w->run_keys / w->sum_keys; // 1: those of groups
    for (int64_t i = 0; i < w->num_sums; i += of_group) {
        float *group = sum + i * w->dq_sum;
        for (int64_t j = 1; j < tsri_min(of_group, w->num_sums - i); j++)
            g.tile.kernels->add(group + j * w->dq_sum, rows * w->dq_stride, group);
        if (i > 0) g.tile.kernels->add(group, rows * w->dq_stride, sum);
    }
    for (int64_t r = 0; r < rows; r++)
        g.tile.kernels->store(
            p->dtype, sum + r * w->dq_stride, p->head_dim, 1,
            attention_at(&p->dq, batch, seq.q_first + g.tile.row[r].i, g.tile.row[r].head));
}

// ---- Queries outside --------------------------------------------------------------------------

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
    g.is_exact = pair_is_exact(w, pair);
    memset(dq, 0, (size_t)(rows * w->dq_stride) * sizeof *dq);
    for (int64_t j = 0; j < seq.len_k; j += w->plan->block_n) {
        attention_grad_load_keys(&g, batch, kv_head, j, tsri_min(w->plan->block_n, seq.len_k - j),
                                 true);
        if (!attention_grad_open(&g, batch, kv_head, first, rows,
                                 w->delta + pair * w->rows + first))
            continue;
        attention_grad_scores(&g);
        attention_grad_queries(&g, 0, g.block.num_keys, dq, w->dq_stride);
    }
    attention_tile_open(&g.tile, batch, kv_head, first, rows);
    for (int64_t r = 0; r < rows; r++)
        g.tile.kernels->store(
            p->dtype, dq + r * w->dq_stride, p->head_dim, 1,
            attention_at(&p->dq, batch, seq.q_first + g.tile.row[r].i, g.tile.row[r].head));
}

// ---- Running ----------------------------------------------------------------------------------

static tsr_status run(tsr_context *ctx, const struct attention_problem *p,
                      const struct tsri_plan *plan, void *workspace,
                      const struct gemm_bf16_kernels *gemm_bf16) {
    struct work w = work_of(ctx, p, plan, workspace, gemm_bf16);
    int64_t pairs = p->num_batches * p->num_heads_kv;
    attention_clear_gradients(p);
    int64_t threads = tsri_context_limits(ctx)->num_threads, chunks = p->num_batches * w.num_chunks;
    w.num_parts = tsri_ceil_div(4 * threads, tsri_max(chunks, 1)); // tasks enough for all threads
    w.num_parts = threads == 1 ? 1 : tsri_max(tsri_min(w.num_parts, p->num_heads_kv), 1);
    tsri_parallel(ctx, chunks * w.num_parts, delta_task, &w);
    if (p->dk.data != NULL || p->dv.data != NULL ||
        (p->dq.data != NULL && plan->block_k != ATTENTION_TWO_PASSES))
        tsri_parallel(ctx, pairs * tsri_ceil_div(w.num_runs, w.task_runs), keys_task, &w);
    if (p->dq.data != NULL && plan->block_k == ATTENTION_TWO_PASSES)
        tsri_parallel(ctx, pairs * w.num_tiles, queries_task, &w);
    else if (p->dq.data != NULL && w.dq_sum > 0)
        tsri_parallel(ctx, pairs * w.num_tiles, reduce_task, &w);
    attention_grad_sinks(ctx, p, w.delta);
    attention_grad_bias(ctx, p, w.delta, w.threads, plan->grain);
    return TSR_OK;
}

tsr_status attention_backward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, NULL);
}

tsr_status attention_amx_bf16_backward_run(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, gemm_bf16_kernels(true));
}

tsr_status attention_avx512_bf16_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, gemm_bf16_kernels(false));
}
