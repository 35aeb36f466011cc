// SPDX-License-Identifier: Apache-2.0
// Matmul without tiles. "skinny" serves the few rows of a decode step, where reading B once is the whole cost. "naive"
// multiplies row by row and reads all of B for each row: the vectorised triple loop to which speed-ups refer.
// matmul_skinny_block.c computes a block of skinny.
#include <string.h>

#include "cpu/gemm.h"
#include "ops/matmul/matmul_groups.h"

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    const struct tsri_limits *limits;
    const struct gemm_kernels *gemm;
    const struct matmul_kernels *kernels;
    float *scratch;
    float *copies; // matmul_naive_floats per thread, or NULL
    bool is_far, by_units;
};

struct group_work {
    struct work work;
    const struct matmul_problem *p;
    struct matmul_group_blocks blocks;
};

static struct work make_work(tsr_context *ctx, const struct matmul_problem *p,
                             const struct tsri_plan *plan, void *workspace) {
    const struct tsri_limits *limits = tsri_context_limits(ctx);
    return (struct work){.p = p,
                         .plan = plan,
                         .limits = limits,
                         .gemm = gemm_kernels(limits->isa),
                         .kernels = matmul_kernels(limits->isa),
                         .scratch = workspace,
                         .is_far = matmul_is_far(p, limits)};
}

// ---- Skinny: a task is block_m rows and block_n columns of one batch ---------------------------

static const float *rows_of_a(const struct work *w, const struct matmul_problem *p, float *own,
                              int64_t *stride) {
    return matmul_rows_of_a(w->gemm, &p->a, p->a.data, p->m, p->k, own, w->plan->block_k, stride);
}

static void skinny_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t cols = tsri_ceil_div(w->p->n, w->plan->block_n);
    int64_t rows = tsri_ceil_div(w->p->m, w->plan->block_m);
    const struct matmul_problem p = matmul_of_batch(w->p, index / (rows * cols));
    int64_t row = index % rows * w->plan->block_m, col = index / rows % cols * w->plan->block_n;
    matmul_skinny_block(
        w->limits, &p, w->by_units, w->is_far, row, col, tsri_min(w->plan->block_m, p.m - row),
        tsri_min(w->plan->block_n, p.n - col), w->scratch + thread * w->plan->grain);
}

static tsr_status run_skinny(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace, bool by_units) {
    struct work w = make_work(ctx, problem, plan, workspace);
    w.by_units = by_units;
    if (w.p->m > 0)
        tsri_parallel_on(ctx, matmul_skinny_threads(w.p, tsri_context_limits(ctx), by_units),
                         plan->num_tasks, skinny_task, &w);
    return TSR_OK;
}

tsr_status matmul_skinny_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    if (matmul_has_parts(problem, plan))
        return matmul_parts_run(ctx, problem, plan, workspace, MATMUL_PARTS_SKINNY);
    return run_skinny(ctx, problem, plan, workspace, false);
}

tsr_status matmul_skinny_bf16_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    return run_skinny(ctx, problem, plan, workspace, true);
}

// ---- Naive: a task is some rows of c ----------------------------------------------------------

// A row of products. With scales, each block of k with its own scale is multiplied separately.
static void multiply_row(const struct work *w, const struct matmul_problem *p,
                         const struct matmul_matrix *b, const struct matmul_matrix *scale,
                         const float *a, float *acc, float *part) {
    if (p->a_scale.data == NULL && scale->data == NULL) {
        w->kernels->skinny(b->dtype, false, 1, p->n, p->k, a, p->k, b->data, b->row,
                           matmul_column_step(p, b), acc, p->n);
        return;
    }
    memset(acc, 0, (size_t)p->n * sizeof *acc);
    for (int64_t step = 0; step < p->k; step += MATMUL_SCALE_BLOCK) {
        int64_t depth = tsri_min(MATMUL_SCALE_BLOCK, p->k - step),
                block = step / MATMUL_SCALE_BLOCK;
        float of_a = matmul_scale_at(&p->a_scale, 0, block);
        w->kernels->skinny(b->dtype, false, 1, p->n, depth, a + step, p->k, matmul_at(b, step, 0),
                           b->row, matmul_column_step(p, b), part, p->n);
        for (int64_t first = 0; first < p->n; first += MATMUL_SCALE_BLOCK) {
            float factor = of_a * matmul_scale_at(scale, block, first / MATMUL_SCALE_BLOCK);
            for (int64_t j = first; j < tsri_min(first + MATMUL_SCALE_BLOCK, p->n); j++)
                acc[j] += part[j] * factor;
        }
    }
}

// The same for rows of b by a list, copied some columns and one block of k of skinny's at a time. A single column may be
// multiplied by dot products, whose blocks are longer.
static void multiply_listed_row(const struct work *w, const struct matmul_problem *p,
                                const float *a, float *acc, float *part, float *copy) {
    const struct matmul_matrix *b = &p->b;
    const int64_t most_cols = MATMUL_NAIVE_COLS, step_of_column = matmul_column_step(p, b);
    const int64_t most = p->n == 1 ? tsri_max(p->k, 1) : MATMUL_SKINNY_DEPTH;
    if (p->k == 0) memset(acc, 0, (size_t)p->n * sizeof *acc);
    for (int64_t step = 0; step < p->k; step += most)
        for (int64_t col = 0; col < p->n; col += most_cols) {
            int64_t depth = tsri_min(most, p->k - step), n = tsri_min(most_cols, p->n - col);
            matmul_gather(b, b->row, &p->groups.of_b, step, depth, col, n, copy, n);
            float *to = step == 0 ? acc + col : part;
            w->kernels->skinny(b->dtype, false, 1, n, depth, a + step, p->k, copy, n,
                               step_of_column, to, p->n);
            for (int64_t j = 0; j < n && step > 0; j++) acc[col + j] += part[j];
        }
}

// Row `row` of the single product in p.
static void naive_row(const struct work *w, struct matmul_problem p, int64_t row, int thread) {
    float *own = w->scratch + thread * (w->plan->block_k + 3 * w->plan->block_n);
    float *acc = own + w->plan->block_k, *up = acc + w->plan->block_n,
          *part = up + w->plan->block_n;
    int64_t stride;
    const struct matmul_groups *groups = &p.groups;
    const bool is_column = groups->are_depths && matmul_is_listed(&groups->of_a);
    float *copy = w->copies != NULL ? w->copies + thread * matmul_naive_floats(w->p) : NULL;
    if (is_column) { // in the order of the list
        matmul_gather(&p.a, p.a.col, &groups->of_a, 0, p.k, row, 1, copy, 1);
        p.a.data = (char *)copy;
        p.a.col = 1;
        copy += w->plan->block_k;
    } else {
        p.a.data = matmul_at(&p.a, groups->are_depths ? row : matmul_line(&groups->of_a, row), 0);
    }
    if (p.a_scale.data != NULL) p.a_scale.data = matmul_at(&p.a_scale, row, 0);
    p.m = 1;
    const float *a = rows_of_a(w, &p, own, &stride);
    if (matmul_is_listed(&groups->of_b))
        multiply_listed_row(w, &p, a, acc, part, copy);
    else
        multiply_row(w, &p, &p.b, &p.b_scale, a, acc, part);
    if (p.b_up.data != NULL) multiply_row(w, &p, &p.b_up, &p.b_up_scale, a, up, part);
    w->kernels->finish(&p, row, 0, 1, p.n, acc, p.b_up.data != NULL ? up : NULL, p.n);
}

static void naive_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t rows = w->p->m * w->p->num_batches, first = index * w->plan->grain;
    int64_t last = tsri_min(first + w->plan->grain, rows);
    for (int64_t r = first; r < last; r++)
        naive_row(w, matmul_of_batch(w->p, r / w->p->m), r % w->p->m, thread);
}

tsr_status matmul_naive_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                            void *workspace) {
    struct work w = make_work(ctx, problem, plan, workspace);
    if (w.p->n > 0) tsri_parallel(ctx, plan->num_tasks, naive_task, &w);
    return TSR_OK;
}

// The same for groups: a task is a block of rows of a group.
static void naive_group_task(void *arg, int64_t index, int thread) {
    const struct group_work *w = arg;
    struct matmul_group_block at = matmul_group_block(&w->blocks, index);
    const struct matmul_problem p = matmul_of_group(w->p, at.group);
    int64_t last = tsri_min(at.row + w->work.plan->block_m, p.m);
    for (int64_t row = at.row; row < last; row++) naive_row(&w->work, p, row, thread);
}

tsr_status matmul_grouped_naive_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    struct group_work w = {.p = problem};
    if (w.p->n == 0) return TSR_OK;
    w.work = make_work(ctx, problem, plan, NULL);
    w.blocks = matmul_group_blocks(problem, plan, NULL, workspace, &w.work.scratch);
    if (matmul_naive_floats(w.p) > 0)
        w.work.copies =
            w.work.scratch + w.work.limits->num_threads * (plan->block_k + 3 * plan->block_n);
    tsri_parallel(ctx, w.blocks.num_blocks, naive_group_task, &w);
    return TSR_OK;
}
