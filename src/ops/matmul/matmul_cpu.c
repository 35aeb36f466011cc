// SPDX-License-Identifier: Apache-2.0
// Matmul on CPU threads. The tiled variants share one task, a block of c over all of k, and differ in
// where B comes from: panels that all threads packed before (packed), panels that the task packs as it
// goes (local), or B itself (direct). A task is owned by one thread and k is cut in the same places
// whatever the number of threads, so results are too.
#include <string.h>

#include "cpu/gemm.h"
#include "ops/matmul/matmul_problem.h"

enum b_source { SHARED_PANELS, PRIVATE_PANELS, IN_PLACE };

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    const struct gemm_kernels *gemm;
    const struct matmul_kernels *kernels;
    enum b_source source;
    struct matmul_layout layout;
    float *shared;                    // panels of b, then of b_up: [batch][panel][k][nr]
    float *threads;                   // thread_floats for each
    int64_t first_batch, num_batches; // the stripe at hand
    int64_t first_col, num_cols;
};

static float *shared_panel(const struct work *w, int64_t batch, int64_t col, bool is_up) {
    int64_t k = w->p->k;
    return w->shared + (is_up ? w->layout.stripe_floats : 0) +
           (batch - w->first_batch) * w->layout.stripe_cols * k + (col - w->first_col) * k;
}

// ---- Packing the shared panels: a task is one panel of nr columns ---------------------------------

static void pack_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    int64_t nr = w->gemm->nr, panels = tsri_ceil_div(w->num_cols, nr);
    bool is_up = index >= panels * w->num_batches;
    if (is_up) index -= panels * w->num_batches;
    int64_t batch = w->first_batch + index / panels, col = w->first_col + index % panels * nr;
    struct matmul_matrix b = matmul_batch(p, is_up ? &p->b_up : &p->b, batch);
    int64_t n = tsri_min(nr, w->first_col + w->num_cols - col);
    w->gemm->pack_b(b.dtype, matmul_at(&b, 0, col), b.row, b.col, p->k, n,
                    shared_panel(w, batch, col, is_up));
}

// ---- A block of c -----------------------------------------------------------------------------

struct block {
    int64_t batch, row, col, m, n;
    struct matmul_problem p; // its matrices are those of the batch
    float *panels, *a_rows, *acc, *up;
};

// Rows [row, row + m) of A, steps [step, step + depth), as the micro-kernel takes them.
static const float *load_a(const struct work *w, const struct block *t, int64_t step, int64_t depth,
                           enum gemm_a_form *form, int64_t *stride) {
    const struct matmul_matrix *a = &t->p.a;
    const char *from = matmul_at(a, t->row, step);
    *form = GEMM_ROWS;
    *stride = a->row;
    if (a->col == 1 && a->dtype == TSR_F32) return (const float *)(const void *)from;
    *stride = w->plan->block_k;
    if (a->col == 1) {
        w->gemm->widen_rows(a->dtype, from, a->row, t->m, depth, t->a_rows, *stride);
    } else {
        *form = GEMM_PANELS;
        *stride = depth;
        w->gemm->pack_a(a->dtype, from, a->col, t->m, depth, t->a_rows);
    }
    return t->a_rows;
}

// acc (+)= A[:, step..] B[step.., :].
static void multiply_step(const struct work *w, const struct block *t, bool is_up, const float *a,
                          enum gemm_a_form form, int64_t a_stride, int64_t step, int64_t depth,
                          float *acc, int64_t acc_stride, bool is_accumulating) {
    const struct matmul_matrix *b = is_up ? &t->p.b_up : &t->p.b;
    int64_t nr = w->gemm->nr;
    if (w->source == IN_PLACE) {
        const float *from = (const float *)(const void *)matmul_at(b, step, t->col);
        w->gemm->block(t->m, t->n, depth, form, a, a_stride, from, b->row, true, acc, acc_stride,
                       is_accumulating);
        return;
    }
    const float *panels;
    int64_t panel_stride;
    if (w->source == SHARED_PANELS) {
        panels = shared_panel(w, t->batch, t->col, is_up) + step * nr;
        panel_stride = t->p.k * nr;
    } else {
        panels = t->panels;
        panel_stride = depth * nr;
        for (int64_t j = 0; j < t->n; j += nr)
            w->gemm->pack_b(b->dtype, matmul_at(b, step, t->col + j), b->row, b->col, depth,
                            tsri_min(nr, t->n - j), t->panels + j * depth);
    }
    w->gemm->block(t->m, t->n, depth, form, a, a_stride, panels, panel_stride, false, acc,
                   acc_stride, is_accumulating);
}

static void block_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    int64_t cols = tsri_ceil_div(w->num_cols, w->plan->block_n);
    int64_t rows = tsri_ceil_div(p->m, w->plan->block_m);
    float *own = w->threads + thread * w->layout.thread_floats;
    // Column blocks outside, rows inside: threads that run side by side share B.
    struct block t = {.batch = w->first_batch + index / (rows * cols),
                      .row = index % rows * w->plan->block_m,
                      .col = w->first_col + index / rows % cols * w->plan->block_n};
    t.m = tsri_min(w->plan->block_m, p->m - t.row);
    t.n = tsri_min(w->plan->block_n, w->first_col + w->num_cols - t.col);
    t.panels = own;
    t.a_rows = own + w->layout.panels_floats;
    t.acc = t.a_rows + w->layout.a_floats;
    t.up = t.acc + w->layout.tile_floats;
    t.p = matmul_of_batch(p, t.batch);

    bool is_plain = matmul_is_plain(p), has_up = p->b_up.data != NULL;
    float *acc = is_plain ? (float *)(void *)matmul_at(&t.p.c, t.row, t.col) : t.acc;
    int64_t acc_stride = is_plain ? t.p.c.row : w->plan->block_n;
    bool is_accumulating = is_plain && p->is_accumulating;
    if (p->k == 0 && !is_accumulating) {
        for (int64_t i = 0; i < t.m; i++)
            memset(acc + i * acc_stride, 0, (size_t)t.n * sizeof *acc);
        if (has_up) memset(t.up, 0, (size_t)(t.m * acc_stride) * sizeof *acc);
    }
    for (int64_t step = 0; step < p->k; step += w->plan->block_k) {
        int64_t depth = tsri_min(w->plan->block_k, p->k - step), a_stride;
        enum gemm_a_form form;
        const float *a = load_a(w, &t, step, depth, &form, &a_stride);
        multiply_step(w, &t, false, a, form, a_stride, step, depth, acc, acc_stride,
                      is_accumulating || step > 0);
        if (has_up)
            multiply_step(w, &t, true, a, form, a_stride, step, depth, t.up, acc_stride, step > 0);
    }
    if (!is_plain)
        w->kernels->finish(&t.p, t.row, t.col, t.m, t.n, t.acc, has_up ? t.up : NULL, acc_stride);
}

// Runs every task: on the calling thread alone where they are small.
static void spread(tsr_context *ctx, struct work *w, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread)) {
    if (!matmul_is_small(w->p, w->source != IN_PLACE))
        tsri_parallel(ctx, num_tasks, task, w);
    else
        for (int64_t i = 0; i < num_tasks; i++) task(w, i, 0);
}

// ---- The tiled variants -----------------------------------------------------------------------

static tsr_status run_tiled(tsr_context *ctx, const struct matmul_problem *p,
                            const struct tsri_plan *plan, void *workspace, enum b_source source) {
    tsr_isa isa = tsr_context_isa(ctx);
    struct work w = {.p = p,
                     .plan = plan,
                     .gemm = gemm_kernels(isa),
                     .kernels = matmul_kernels(isa),
                     .source = source,
                     .shared = workspace};
    w.layout = matmul_layout(p, plan, source == SHARED_PANELS, source == PRIVATE_PANELS);
    int64_t num_b = p->b_up.data != NULL ? 2 : 1;
    w.threads = w.shared + tsri_round_up((size_t)(w.layout.stripe_floats * num_b), 16);
    if (p->m == 0 || p->n == 0) return TSR_OK;
    int64_t blocks_m = tsri_ceil_div(p->m, plan->block_m);
    for (w.first_batch = 0; w.first_batch < p->num_batches; w.first_batch += w.num_batches)
        for (w.first_col = 0; w.first_col < p->n; w.first_col += w.num_cols) {
            w.num_batches = tsri_min(w.layout.stripe_batches, p->num_batches - w.first_batch);
            w.num_cols = tsri_min(w.layout.stripe_cols, p->n - w.first_col);
            if (source == SHARED_PANELS && p->k > 0)
                spread(ctx, &w, num_b * w.num_batches * tsri_ceil_div(w.num_cols, w.gemm->nr),
                       pack_task);
            spread(ctx, &w, w.num_batches * blocks_m * tsri_ceil_div(w.num_cols, plan->block_n),
                   block_task);
        }
    return TSR_OK;
}

tsr_status matmul_packed_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, SHARED_PANELS);
}

tsr_status matmul_local_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                            void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, PRIVATE_PANELS);
}

tsr_status matmul_direct_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    return run_tiled(ctx, problem, plan, workspace, IN_PLACE);
}
