// SPDX-License-Identifier: Apache-2.0
// Backward in linear memory.
//
// Keys outside, queries inside (flash1 with small blocks, tuned with large ones): a block of keys keeps its dk and dv; dq adds up
// in the task's own memory. A task is a key/value head or, if there are few heads, some runs of its keys. Each run has its own dq,
// and these are added in order at the end; a task with all runs of a head adds them in the same order into one dq. In bf16 the
// runs of a block are a group: they are added to each other first, whichever task computed them. The number of runs depends only
// on the problem, so the result does not depend on the number of threads. If heads and runs are few, and rows are at least twice
// as many as keys, the rows are divided into spans. Each span has its own dk and dv; the task adds them in order, or a reduction
// at the end does.
//
// flash2 runs twice: once with the keys outside for dk and dv, once with the queries outside for dq. It needs two more products,
// but no dq in memory and no sums across tasks.
//
// amx_bf16 and avx512_bf16 are tuned with products of bf16. A head whose q or dout is not finite uses fp32, and so does a block of
// keys whose k is not: fp32 products can leave out what a row does not see.
#include "ops/attention/cpu/backward/attention_backward_block.h"

#include <string.h>

enum { REDUCED_KEYS = 64 }; // of a task that adds spans

static struct attention_backward_work work_of(tsr_context *ctx, const struct attention_problem *p,
                                              const struct tsri_plan *plan, void *workspace,
                                              const struct gemm_bf16_kernels *gemm_bf16) {
    struct attention_backward_work w = {
        .p = p, .plan = plan, .isa = tsr_context_isa(ctx), .gemm_bf16 = gemm_bf16};
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
    w.stats = workspace;
    w.dq = (float *)workspace + l.stats_floats;
    w.num_spans = l.num_spans;
    w.span_rows = l.span_rows;
    w.own_rows = l.own_rows;
    w.task_spans = l.has_all_spans ? l.num_spans : 1;
    w.span_keys = l.span_keys;
    w.dk_stride = l.dk_stride;
    w.dv_stride = l.dv_stride;
    w.dk = w.dq + l.dq_floats;
    w.dv = w.dk + l.dkv_floats / (l.dk_stride + l.dv_stride) * l.dk_stride;
    w.threads = w.dk + l.dkv_floats;
    w.is_nonfinite =
        (unsigned char *)(w.threads + plan->grain * tsri_context_limits(ctx)->num_threads);
    return w;
}

// The thread's memory: the tile (fp32 or bf16), dk and dv of a block, dk and dv of its next span, the task's own dq.
static float *carve(const struct attention_backward_work *w, struct attention_grad *g, int thread) {
    const struct tsri_plan *plan = w->plan;
    float *memory = w->threads + thread * plan->grain;
    attention_grad_carve(g, w->p, w->isa, memory, plan->block_m, plan->block_n);
    return memory + attention_backward_tile_floats(w->p, w->isa, plan->block_m, plan->block_n,
                                                   w->gemm_bf16 != NULL);
}

// Statistics of some heads (one part of them) for some queries of a batch, in the order of memory: the heads of a query are
// adjacent.
static void statistics_task(void *arg, int64_t index, int thread) {
    const struct attention_backward_work *w = arg;
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
            struct attention_statistics stats[ATTENTION_MOST_SET];
            n = tsri_min(ATTENTION_MOST_SET, kv_end * group - h);
            bool is_nonfinite =
                attention_grad_statistics(p, kernels, batch, seq.q_first + i, h, n, stats);
            for (int64_t j = 0; j < n; j++) {
                int64_t pair = batch * p->num_heads_kv + (h + j) / group;
                struct attention_statistics *of_head =
                    w->stats + pair * w->rows + (h + j) % group * seq.len_q + i;
                *of_head = stats[j];
                // Looks at each head alone: a head's bits do not depend on the other heads.
                if (is_nonfinite && attention_grad_statistics(p, kernels, batch, seq.q_first + i,
                                                              h + j, 1, of_head))
                    w->is_nonfinite[pair * w->num_chunks + chunk] = 1;
            }
        }
}

static bool pair_is_exact(const struct attention_backward_work *w, int64_t pair) {
    return memchr(w->is_nonfinite + pair * w->num_chunks, 1, (size_t)w->num_chunks) != NULL;
}

// One tile of rows. If none of the rows is coarse, it only reads lse.
static void refine_task(void *arg, int64_t index, int thread) {
    const struct attention_backward_work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pair = index / w->num_tiles, first = index % w->num_tiles * w->plan->block_m;
    struct attention_sequence seq = attention_sequence_at(p, pair / p->num_heads_kv);
    int64_t num_rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    struct attention_grad g;
    if (num_rows <= 0) return;
    carve(w, &g, thread);
    attention_backward_refine(w, &g, thread, pair, first, num_rows,
                              w->gemm_bf16 != NULL && !pair_is_exact(w, pair));
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

// Stores dq of rows [first, end) of the group; dq points to the row `first`.
static void store_queries(const struct attention_grad *g, int64_t first, int64_t end,
                          const float *dq, int64_t stride) {
    const struct attention_tile *t = &g->tile;
    int64_t first_head = t->kv_head * (t->p->num_heads_q / t->p->num_heads_kv);
    for (int64_t r = first, n; r < end; r += n) {
        int64_t i = r % t->seq.len_q;
        n = tsri_min(t->seq.len_q - i, end - r);
        store_rows(g, &t->p->dq, t->seq.q_first + i, first_head + r / t->seq.len_q, n,
                   dq + (r - first) * stride, stride, t->p->head_dim);
    }
}

// Stores dk and dv of keys from `first` on.
static void store_keys(const struct attention_backward_work *w, const struct attention_grad *g,
                       int64_t first, int64_t num_keys, const float *dk, const float *dv) {
    const struct attention_problem *p = w->p;
    int64_t key = g->tile.seq.k_first + first, head = g->tile.kv_head;
    store_rows(g, &p->dk, key, head, num_keys, dk, w->dk_stride, p->head_dim);
    store_rows(g, &p->dv, key, head, num_keys, dv, w->dv_stride, p->head_dim_v);
}

// ---- Keys outside -----------------------------------------------------------------------------

// How many keys a task takes at a time, from key j of the sequence on: all that are left if they fit, otherwise whole runs, or
// blocks of one run. Never beyond the end of a group that has one sum.
static int64_t keys_at_once(const struct attention_backward_work *w, int64_t j, int64_t left) {
    int64_t most = w->plan->block_n;
    if (left > most && w->run_keys < most) most = most / w->run_keys * w->run_keys;
    if (w->sum_keys > w->run_keys) most = tsri_min(most, w->sum_keys - j % w->sum_keys);
    return tsri_min(left, most);
}

// Under a causal mask the first runs are the heaviest, so the first runs of all pairs come first.
static void keys_task(void *arg, int64_t index, int thread) {
    const struct attention_backward_work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pairs = p->num_batches * p->num_heads_kv, pair = index % pairs;
    int64_t parts = w->num_spans / w->task_spans, span = index / pairs % parts;
    int64_t first = index / pairs / parts * w->task_runs * w->run_keys;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_grad g;
    float *own_dk = carve(w, &g, thread), *own_dv = own_dk + w->plan->block_n * w->dk_stride;
    float *next = own_dv + w->plan->block_n * w->dv_stride, *own = next, *dq;
    if (w->task_spans > 1) own += w->plan->block_n * (w->dk_stride + w->dv_stride);
    attention_tile_open(&g.tile, batch, kv_head, 0, 0);
    struct attention_sequence seq = g.tile.seq;
    int64_t rows = attention_group_rows(p, &seq), row = tsri_min(span * w->span_rows, rows);
    int64_t end_row = tsri_min(row + w->task_spans * w->span_rows, rows);
    if (span > 0 && row == end_row) return; // this sequence has fewer rows
    int64_t end = tsri_min(first + w->task_runs * w->run_keys, seq.len_k);
    int64_t first_sum = first / w->sum_keys, group_keys = w->group_runs * w->run_keys;
    dq = w->dq_sum > 0 ? w->dq + (pair * w->num_sums + first_sum) * w->dq_sum : own;
    if (p->dq.data == NULL || w->plan->block_k == ATTENTION_TWO_PASSES) dq = NULL;
    bool has_unit = w->has_unit && dq == own;
    float *unit = own + w->own_rows * w->dq_stride;
    float *part = dq != own ? own : has_unit ? unit + w->own_rows * w->dq_stride : unit;
    if (w->sum_keys > w->run_keys)
        memset(part, 0, (size_t)(ATTENTION_STRIP * w->dq_stride) * sizeof *part);
    int64_t num_sums = tsri_max(w->task_runs * w->run_keys / w->sum_keys, 1);
    num_sums = tsri_min(num_sums, w->num_sums - first_sum);
    int64_t dq_row = dq == own ? row : 0; // the row at which dq begins
    int64_t skipped = (row - dq_row) * w->dq_stride, dq_floats = (end_row - row) * w->dq_stride;
    for (int64_t i = 0; dq != NULL && i < num_sums; i++)
        memset(dq + i * w->dq_sum + skipped, 0, (size_t)dq_floats * sizeof *dq);
    g.is_exact = pair_is_exact(w, pair);
    struct attention_backward_block b = {
        .pair = pair, .row = row, .end_row = end_row, .dq_row = dq_row, .next = next, .part = part};
    for (int64_t j = first; j < end; j += b.num_keys) {
        b.first = j;
        b.num_keys = keys_at_once(w, j, end - j);
        b.dk = own_dk;
        b.dv = own_dv;
        if (w->task_spans < w->num_spans) {
            int64_t key = (pair * w->num_spans + span) * w->span_keys + j;
            b.dk = w->dk + key * w->dk_stride;
            b.dv = w->dv + key * w->dv_stride;
        }
        b.dq = dq != NULL ? dq + (j / w->sum_keys - first_sum) * w->dq_sum : NULL;
        // The first group adds directly into dq; each other group has a sum that is added to dq.
        bool goes_by_unit = has_unit && j >= group_keys;
        if (goes_by_unit) {
            b.dq = unit;
            if (j % group_keys == 0) memset(unit + skipped, 0, (size_t)dq_floats * sizeof *unit);
        }
        bool may_be_mixed = w->gemm_bf16 != NULL && !g.is_exact;
        bool is_done = may_be_mixed && attention_backward_add_mixed(w, thread, &b);
        // Which keys use fp32 must not depend on how many keys a task takes at once.
        if (may_be_mixed && !is_done && b.num_keys > w->run_keys) {
            b.num_keys = w->run_keys;
            is_done = attention_backward_add_mixed(w, thread, &b);
        }
        if (!is_done) attention_backward_add(w, &g, &b);
        if (goes_by_unit && ((j + b.num_keys) % group_keys == 0 || j + b.num_keys == end))
            g.tile.kernels->add(unit + skipped, dq_floats, dq + skipped);
        if (b.dk == own_dk) store_keys(w, &g, j, b.num_keys, b.dk, b.dv);
    }
    if (dq == own && rows > 0) {
        attention_tile_open(&g.tile, batch, kv_head, 0, 0);
        store_queries(&g, row, end_row, dq, w->dq_stride);
    }
}

// Adds dk and dv of some keys of a pair over its spans, in order.
static void reduce_keys_task(void *arg, int64_t index, int thread) {
    const struct attention_backward_work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t chunks = tsri_ceil_div(p->seqlen_k, REDUCED_KEYS), pair = index / chunks;
    int64_t first = index % chunks * REDUCED_KEYS;
    struct attention_grad g;
    carve(w, &g, thread);
    attention_tile_open(&g.tile, pair / p->num_heads_kv, pair % p->num_heads_kv, 0, 0);
    int64_t num_keys = tsri_min(REDUCED_KEYS, g.tile.seq.len_k - first);
    if (num_keys <= 0) return;
    int64_t key = pair * w->num_spans * w->span_keys + first;
    float *dk = w->dk + key * w->dk_stride, *dv = w->dv + key * w->dv_stride;
    int64_t spans = tsri_ceil_div(attention_group_rows(p, &g.tile.seq), w->span_rows);
    for (int64_t i = 1; i < spans; i++) {
        int64_t keys = i * w->span_keys;
        g.tile.kernels->add(dk + keys * w->dk_stride, num_keys * w->dk_stride, dk);
        g.tile.kernels->add(dv + keys * w->dv_stride, num_keys * w->dv_stride, dv);
    }
    store_keys(w, &g, first, num_keys, dk, dv);
}

// Adds dq of a pair: the runs of a group in order, then the groups.
static void reduce_task(void *arg, int64_t index, int thread) {
    const struct attention_backward_work *w = arg;
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
    int64_t of_group = w->group_runs * w->run_keys / w->sum_keys; // 1: sums are those of groups
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
    const struct attention_backward_work *w = arg;
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
                                 w->stats + pair * w->rows + first))
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
    struct attention_backward_work w = work_of(ctx, p, plan, workspace, gemm_bf16);
    int64_t pairs = p->num_batches * p->num_heads_kv;
    attention_clear_gradients(p);
    int64_t threads = tsri_context_limits(ctx)->num_threads, chunks = p->num_batches * w.num_chunks;
    w.num_parts = tsri_ceil_div(4 * threads, tsri_max(chunks, 1)); // tasks enough for all threads
    w.num_parts = threads == 1 ? 1 : tsri_max(tsri_min(w.num_parts, p->num_heads_kv), 1);
    tsri_parallel(ctx, chunks * w.num_parts, statistics_task, &w);
    tsri_parallel(ctx, pairs * w.num_tiles, refine_task, &w);
    if (p->dk.data != NULL || p->dv.data != NULL ||
        (p->dq.data != NULL && plan->block_k != ATTENTION_TWO_PASSES))
        tsri_parallel(ctx,
                      pairs * tsri_ceil_div(w.num_runs, w.task_runs) * (w.num_spans / w.task_spans),
                      keys_task, &w);
    if (w.task_spans < w.num_spans && (p->dk.data != NULL || p->dv.data != NULL))
        tsri_parallel(ctx, pairs * tsri_ceil_div(p->seqlen_k, REDUCED_KEYS), reduce_keys_task, &w);
    if (p->dq.data != NULL && plan->block_k == ATTENTION_TWO_PASSES)
        tsri_parallel(ctx, pairs * w.num_tiles, queries_task, &w);
    else if (p->dq.data != NULL && w.dq_sum > 0)
        tsri_parallel(ctx, pairs * w.num_tiles, reduce_task, &w);
    attention_grad_sinks(ctx, p, w.stats);
    attention_grad_bias(ctx, p, w.stats, w.threads, plan->grain);
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
