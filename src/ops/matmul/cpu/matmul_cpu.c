// SPDX-License-Identifier: Apache-2.0
// Matmul on CPU threads. The tiled variants share one kind of task, a block of c over all of k. They differ in the
// source of B: panels that all threads packed before (packed), panels that the task packs itself (local; also blocked,
// where A is packed by all threads before, or by each task one panel at a time), or B itself (direct and streamed; for
// small m, many threads take blocks of k as tasks, matmul_parts_cpu.c). One thread owns a task, and k is cut in the
// same places for any number of threads, so the results are the same too.
#include <string.h>

#include "cpu/gemm.h"
#include "ops/matmul/matmul_groups.h"
#include "ops/matmul/matmul_quantised.h"

enum {
    ROWS_OF_PACK_TASK = 4, // panels of A
    // Elements of B packed into one panel before the next: 8 rows of 64 columns, whose lines are adjacent.
    PACK_STEP = 512,
    LEAST_PACK = 4096, // of all panels
    // Floats from the first to the last row of B up to which B is packed beside products. A panel touches every row;
    // rows farther apart miss the TLB each time.
    PASSED_FLOATS = 256 << 10,
};

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    const struct gemm_kernels *gemm;
    const struct matmul_kernels *kernels;
    const struct matmul_quant_kernels *quant;
    enum matmul_b_source source;
    struct matmul_layout layout;
    float *shared;  // panels of b, then of b_up: [batch][panel][k][nr]; or of a, see shared_rows
    float *threads; // thread_floats per thread
    int64_t first_batch, num_batches; // the current stripe
    int64_t first_row, num_rows, first_col, num_cols;
    int64_t pack_depth; // steps of k of a shared panel per packing task
};

static float *shared_panel(const struct work *w, int64_t batch, int64_t col, bool is_up) {
    int64_t k = w->p->k;
    return w->shared + (is_up ? w->layout.stripe_floats : 0) +
           (batch - w->first_batch) * w->layout.stripe_cols * k + (col - w->first_col) * k;
}

// ---- Packing the shared panels: a task is pack_depth steps of nr columns --------------------------

static void pack_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    int64_t nr = w->gemm->nr, panels = tsri_ceil_div(w->num_cols, nr);
    int64_t parts = tsri_ceil_div(p->k, w->pack_depth), step = index % parts * w->pack_depth;
    int64_t depth = tsri_min(w->pack_depth, p->k - step);
    index /= parts;
    bool is_up = index >= panels * w->num_batches;
    if (is_up) index -= panels * w->num_batches;
    int64_t batch = w->first_batch + index / panels, col = w->first_col + index % panels * nr;
    struct matmul_matrix b = matmul_batch(p, is_up ? &p->b_up : &p->b, batch);
    int64_t n = tsri_min(nr, w->first_col + w->num_cols - col);
    float *panel = shared_panel(w, batch, col, is_up) + step * nr;
    if (p->quant.format != TSR_QUANT_NONE) {
        matmul_pack_quant(w->gemm, w->quant, p, is_up, step, depth, col, n, panel);
        return;
    }
    w->gemm->pack_b(b.dtype, matmul_at(&b, step, col), b.row, b.col, depth, n, panel);
    struct matmul_matrix scale = matmul_batch(p, is_up ? &p->b_up_scale : &p->b_scale, batch);
    matmul_scale_b(&scale, step, depth, col, nr, panel);
}

// The panels of rows from `row` on, a multiple of mr, for steps [step, step + depth) of one block of k:
// [batch][block][panel][depth][mr].
static float *shared_rows(const struct work *w, int64_t batch, int64_t row, int64_t step,
                          int64_t depth) {
    int64_t rows = w->layout.stripe_rows;
    return w->shared + (batch - w->first_batch) * rows * w->p->k + step * rows +
           (row - w->first_row) * depth;
}

static void pack_rows_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    int64_t rows = ROWS_OF_PACK_TASK * w->gemm->mr, tasks = tsri_ceil_div(w->num_rows, rows);
    int64_t batch = w->first_batch + index / tasks, first = index % tasks * rows;
    struct matmul_matrix a = matmul_batch(w->p, &w->p->a, batch);
    struct matmul_matrix scale = matmul_batch(w->p, &w->p->a_scale, batch);
    for (int64_t step = 0; step < w->p->k; step += w->plan->block_k) {
        int64_t depth = tsri_min(w->plan->block_k, w->p->k - step), row = w->first_row + first;
        int64_t m = tsri_min(rows, w->num_rows - first);
        float *panels = shared_rows(w, batch, row, step, depth);
        w->gemm->pack_a(a.dtype, matmul_at(&a, row, step), a.row, a.col, m, depth, panels);
        matmul_scale_a(&scale, row, m, step, depth, w->gemm->mr, panels);
    }
}

// ---- A block of c -----------------------------------------------------------------------------

struct block {
    int64_t batch, row, col, m, n;
    struct matmul_problem p; // with the matrices of one batch
    float *panels, *a_rows, *acc, *up;
};

static void pack_a(const struct work *w, const struct block *t, int64_t row, int64_t m,
                   int64_t step, int64_t depth) {
    const struct matmul_matrix *a = &t->p.a;
    if (matmul_is_listed(&t->p.groups.of_a)) {
        matmul_pack_listed_a(w->gemm, &t->p, row, m, step, depth, t->a_rows);
        return;
    }
    w->gemm->pack_a(a->dtype, matmul_at(a, row, step), a->row, a->col, m, depth, t->a_rows);
    matmul_scale_a(&t->p.a_scale, row, m, step, depth, w->gemm->mr, t->a_rows);
}

// Rows [row, row + m) of A, steps [step, step + depth), in the form that the micro-kernel takes.
static const float *load_a(const struct work *w, const struct block *t, int64_t step, int64_t depth,
                           enum gemm_a_form *form, int64_t *stride) {
    const struct matmul_matrix *a = &t->p.a;
    *form = GEMM_ROWS;
    *stride = a->row;
    if (!w->layout.is_a_packed && !matmul_is_listed(&t->p.groups.of_a))
        return (const float *)(const void *)matmul_at(a, t->row, step);
    if (!w->layout.is_a_packed) {
        *stride = w->plan->block_k + MATMUL_LIST_PADDING;
        matmul_gather(a, a->row, &t->p.groups.of_a, t->row, t->m, step, depth, t->a_rows, *stride);
        return t->a_rows;
    }
    if (w->source == MATMUL_STREAMED) {
        *stride = w->plan->block_k;
        w->gemm->widen_rows(a->dtype, matmul_at(a, t->row, step), a->row, t->m, depth, t->a_rows,
                            *stride);
        return t->a_rows;
    }
    *form = GEMM_PANELS;
    *stride = depth;
    if (w->layout.is_a_shared) return shared_rows(w, t->batch, t->row, step, depth);
    if (!w->layout.is_a_passing) pack_a(w, t, t->row, t->m, step, depth);
    return t->a_rows;
}

// Packs panels for this task only.
static void pack_b(const struct work *w, const struct block *t, bool is_up, int64_t step,
                   int64_t depth) {
    const struct matmul_matrix *b = is_up ? &t->p.b_up : &t->p.b;
    const struct matmul_matrix *scale = is_up ? &t->p.b_up_scale : &t->p.b_scale;
    int64_t nr = w->gemm->nr, most = b->col == 1 ? PACK_STEP / nr : depth;
    if (t->n * most < LEAST_PACK) most = tsri_max(LEAST_PACK / tsri_max(t->n, 1), 1);
    for (int64_t i = 0; i < depth; i += most)
        for (int64_t j = 0; j < t->n; j += nr) {
            int64_t steps = tsri_min(most, depth - i), n = tsri_min(nr, t->n - j);
            float *panel = t->panels + j * depth + i * nr;
            if (t->p.quant.format != TSR_QUANT_NONE)
                matmul_pack_quant(w->gemm, w->quant, &t->p, is_up, step + i, steps, t->col + j, n,
                                  panel);
            else if (matmul_is_listed(&t->p.groups.of_b))
                matmul_pack_listed_b(w->gemm, &t->p, step + i, steps, t->col + j, n, panel);
            else
                w->gemm->pack_b(b->dtype, matmul_at(b, step + i, t->col + j), b->row, b->col, steps,
                                n, panel);
        }
    for (int64_t j = 0; j < t->n; j += nr)
        matmul_scale_b(scale, step, depth, t->col + j, nr, t->panels + j * depth);
}

// acc (+)= A[:, step..] B[step.., :].
static void multiply_step(const struct work *w, const struct block *t, bool is_up, const float *a,
                          enum gemm_a_form form, int64_t a_stride, int64_t step, int64_t depth,
                          float *acc, int64_t acc_stride, bool is_accumulating) {
    const struct matmul_matrix *b = is_up ? &t->p.b_up : &t->p.b;
    int64_t nr = w->gemm->nr;
    if (w->source == MATMUL_IN_PLACE) {
        const float *from = (const float *)(const void *)matmul_at(b, step, t->col);
        w->gemm->block(t->m, t->n, depth, form, a, a_stride, from, b->row, true, acc, acc_stride,
                       is_accumulating);
        return;
    }
    if (w->source == MATMUL_STREAMED) {
        w->gemm->stream(t->m, t->n, depth, a, a_stride, b->dtype, matmul_at(b, step, t->col),
                        b->row, t->panels, w->layout.sums_stride, acc, acc_stride, is_accumulating);
        return;
    }
    const float *panels;
    int64_t panel_stride;
    bool packs_first = false; // the first rows of A leave packed panels
    if (w->source == MATMUL_SHARED_PANELS) {
        panels = shared_panel(w, t->batch, t->col, is_up) + step * nr;
        panel_stride = t->p.k * nr;
    } else {
        panels = t->panels;
        panel_stride = depth * nr;
        packs_first = w->gemm->pack_block != NULL && form == GEMM_ROWS &&
                      matmul_is_rows_of_floats(b) && depth * b->row <= PASSED_FLOATS &&
                      !matmul_is_listed(&t->p.groups.of_b);
        if (!packs_first) pack_b(w, t, is_up, step, depth);
    }
    // Few columns: each panel of A is packed and multiplied, and the next one replaces it in the first-level cache.
    // Rows of A in place: some rows at a time go through all panels, which stay in the second-level cache.
    int64_t rows = w->layout.is_a_passing ? w->gemm->mr : w->plan->grain;
    int64_t a_step = w->layout.is_a_passing ? 0 : a_stride;
    for (int64_t i = 0; i < t->m; i += rows) {
        int64_t m = tsri_min(rows, t->m - i);
        if (w->layout.is_a_passing) pack_a(w, t, t->row + i, m, step, depth);
        if (i == 0 && packs_first)
            w->gemm->pack_block(m, t->n, depth, a, a_stride,
                                (const float *)(const void *)matmul_at(b, step, t->col), b->row,
                                t->panels, acc, acc_stride, is_accumulating);
        else
            w->gemm->block(m, t->n, depth, form, a + i * a_step, a_stride, panels, panel_stride,
                           false, acc + i * acc_stride, acc_stride, is_accumulating);
    }
}

// Multiplies a block completely. t says which block of which product; its size is cut to that of c.
static void multiply_block(const struct work *w, struct block *t, int thread) {
    const struct matmul_problem *p = &t->p;
    float *own = w->threads + thread * w->layout.thread_floats;
    t->panels = own;
    t->a_rows = own + w->layout.panels_floats;
    t->acc = t->a_rows + w->layout.a_floats;
    t->up = t->acc + w->layout.tile_floats;

    bool is_plain = matmul_is_plain(p), has_up = p->b_up.data != NULL;
    float *acc = is_plain ? (float *)(void *)matmul_at(&p->c, t->row, t->col) : t->acc;
    int64_t acc_stride = is_plain ? p->c.row : w->plan->block_n;
    bool is_accumulating = is_plain && p->is_accumulating;
    if (p->k == 0 && !is_accumulating) {
        for (int64_t i = 0; i < t->m; i++)
            memset(acc + i * acc_stride, 0, (size_t)t->n * sizeof *acc);
        if (has_up) memset(t->up, 0, (size_t)(t->m * acc_stride) * sizeof *acc);
    }
    for (int64_t step = 0; step < p->k; step += w->plan->block_k) {
        int64_t depth = tsri_min(w->plan->block_k, p->k - step), a_stride;
        enum gemm_a_form form;
        const float *a = load_a(w, t, step, depth, &form, &a_stride);
        multiply_step(w, t, false, a, form, a_stride, step, depth, acc, acc_stride,
                      is_accumulating || step > 0);
        if (has_up)
            multiply_step(w, t, true, a, form, a_stride, step, depth, t->up, acc_stride, step > 0);
    }
    if (!is_plain)
        w->kernels->finish(p, t->row, t->col, t->m, t->n, t->acc, has_up ? t->up : NULL,
                           acc_stride);
}

static void block_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t cols = tsri_ceil_div(w->num_cols, w->plan->block_n);
    int64_t rows = tsri_ceil_div(w->num_rows, w->plan->block_m);
    // Column blocks outside, rows inside: threads that run at the same time share B.
    struct block t = {.batch = w->first_batch + index / (rows * cols),
                      .row = w->first_row + index % rows * w->plan->block_m,
                      .col = w->first_col + index / rows % cols * w->plan->block_n};
    t.m = tsri_min(w->plan->block_m, w->first_row + w->num_rows - t.row);
    t.n = tsri_min(w->plan->block_n, w->first_col + w->num_cols - t.col);
    t.p = matmul_of_batch(w->p, t.batch);
    multiply_block(w, &t, thread);
}

static void spread(tsr_context *ctx, struct work *w, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread)) {
    int threads = matmul_threads(w->p, tsri_context_limits(ctx), w->source < MATMUL_IN_PLACE);
    tsri_parallel_on(ctx, threads, num_tasks, task, w);
}

// ---- The tiled variants -----------------------------------------------------------------------

static void run_stripe(tsr_context *ctx, struct work *w) {
    int64_t num_b = w->p->b_up.data != NULL ? 2 : 1, batches = w->num_batches;
    if (w->source == MATMUL_SHARED_PANELS && w->p->k > 0) {
        int64_t panels = num_b * batches * tsri_ceil_div(w->num_cols, w->gemm->nr);
        w->pack_depth = matmul_pack_depth(w->p->k, panels, tsr_context_num_threads(ctx));
        spread(ctx, w, panels * tsri_ceil_div(w->p->k, w->pack_depth), pack_task);
    }
    if (w->layout.is_a_shared && w->p->k > 0)
        spread(ctx, w, batches * tsri_ceil_div(w->num_rows, ROWS_OF_PACK_TASK * w->gemm->mr),
               pack_rows_task);
    spread(ctx, w,
           batches * tsri_ceil_div(w->num_rows, w->plan->block_m) *
               tsri_ceil_div(w->num_cols, w->plan->block_n),
           block_task);
}

static tsr_status run_tiled(tsr_context *ctx, const struct matmul_problem *p,
                            const struct tsri_plan *plan, void *workspace,
                            enum matmul_b_source source, bool is_blocked) {
    tsr_isa isa = tsr_context_isa(ctx);
    struct work w = {.p = p,
                     .plan = plan,
                     .gemm = gemm_kernels(isa),
                     .kernels = matmul_kernels(isa),
                     .quant = matmul_quant_kernels(isa),
                     .source = source,
                     .shared = workspace};
    w.layout = matmul_layout(p, plan, source, is_blocked);
    int64_t num_b = p->b_up.data != NULL ? 2 : 1;
    w.threads =
        w.shared +
        tsri_round_up((size_t)(w.layout.stripe_floats * (w.layout.is_a_shared ? 1 : num_b)), 16);
    if (p->m == 0 || p->n == 0) return TSR_OK;
    for (w.first_batch = 0; w.first_batch < p->num_batches; w.first_batch += w.num_batches) {
        w.num_batches = tsri_min(w.layout.stripe_batches, p->num_batches - w.first_batch);
        for (w.first_row = 0; w.first_row < p->m; w.first_row += w.num_rows) {
            w.num_rows = tsri_min(w.layout.stripe_rows, p->m - w.first_row);
            for (w.first_col = 0; w.first_col < p->n; w.first_col += w.num_cols) {
                w.num_cols = tsri_min(w.layout.stripe_cols, p->n - w.first_col);
                run_stripe(ctx, &w);
            }
        }
    }
    return TSR_OK;
}

tsr_status matmul_packed_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, MATMUL_SHARED_PANELS, false);
}

tsr_status matmul_local_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                            void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, MATMUL_PRIVATE_PANELS, false);
}

tsr_status matmul_direct_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    if (matmul_has_parts(problem, plan))
        return matmul_parts_run(ctx, problem, plan, workspace, MATMUL_PARTS_TILES);
    return run_tiled(ctx, problem, plan, workspace, MATMUL_IN_PLACE, false);
}

tsr_status matmul_streamed_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    if (matmul_has_parts(problem, plan))
        return matmul_parts_run(ctx, problem, plan, workspace, MATMUL_PARTS_STREAMED);
    return run_tiled(ctx, problem, plan, workspace, MATMUL_STREAMED, false);
}

tsr_status matmul_blocked_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, MATMUL_PRIVATE_PANELS, true);
}

// ---- Groups -----------------------------------------------------------------------------------

struct group_work {
    struct work work;
    const struct matmul_problem *p; // with its groups
    struct matmul_group_blocks blocks;
};

static void group_task(void *arg, int64_t index, int thread) {
    const struct group_work *w = arg;
    struct matmul_group_block at = matmul_group_block(&w->blocks, index);
    struct block t = {.row = at.row, .col = at.col, .p = matmul_of_group(w->p, at.group)};
    if (matmul_group_is_done_as_few(&w->blocks, &t.p, at, false, thread)) return;
    t.m = tsri_min(w->work.plan->block_m, t.p.m - t.row);
    t.n = tsri_min(w->work.plan->block_n, t.p.n - t.col);
    multiply_block(&w->work, &t, thread);
}

tsr_status matmul_grouped_tiled_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem equal = matmul_equal_groups(problem);
    struct tsri_limits with_flags = *tsri_context_limits(ctx), *limits = &with_flags;
    limits->flags = plan->flags;
    tsr_isa isa = limits->isa;
    struct group_work w = {
        .work = {.p = &equal,
                 .plan = plan,
                 .gemm = gemm_kernels(isa),
                 .kernels = matmul_kernels(isa),
                 .quant = matmul_quant_kernels(isa),
                 .source = MATMUL_PRIVATE_PANELS,
                 .layout = matmul_layout(&equal, plan, MATMUL_PRIVATE_PANELS, false)},
        .p = problem};
    if (equal.n == 0) return TSR_OK;
    w.blocks = matmul_group_blocks(problem, plan, limits, workspace, &w.work.threads);
    tsri_parallel_on(ctx, matmul_threads(&equal, limits, true), w.blocks.num_blocks, group_task,
                     &w);
    return TSR_OK;
}
