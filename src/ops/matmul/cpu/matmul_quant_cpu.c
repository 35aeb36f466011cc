// SPDX-License-Identifier: Apache-2.0
// Quantised weights on the CPU: panels of b for matmul's tiles, and few rows, where a task is some columns of c for all rows.
#include "cpu/gemm.h"
#include "ops/matmul/matmul_quantised.h"

enum {
    LEAST_COLS = 16, // of a task
    TASKS = 8,       // per thread
};

void matmul_pack_quant(const struct gemm_kernels *gemm, const struct matmul_quant_kernels *kernels,
                       const struct matmul_problem *p, bool is_up, int64_t step, int64_t depth,
                       int64_t col, int64_t n, float *panel) {
    enum { UNIT = 32, MOST_COLS = 64 };
    const struct tsri_quant_rows *q = is_up ? &p->quant_up : &p->quant;
    _Alignas(64) float rows[MOST_COLS * UNIT];
    for (int64_t at = step, steps; at < step + depth; at += steps) {
        steps = tsri_min(UNIT - at % UNIT, step + depth - at);
        kernels->widen(q, col, n, at, steps, p->k, rows, UNIT);
        gemm->pack_b(TSR_F32, rows, 1, UNIT, steps, n, panel + (at - step) * gemm->nr);
    }
}

// ---- Few rows -----------------------------------------------------------------------------------

bool matmul_quant_is_skinny(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->m <= MATMUL_SKINNY_M && matmul_has_kernels(problem, limits);
}

// Tiles add in one order for any m; under batch invariance they serve every m.
const char *matmul_quant_prefer(const void *problem, const struct tsri_limits *limits) {
    if (limits->device.type == TSR_CUDA) return "cuda-widened";
    const bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    if (matmul_quant_has_integers(problem, limits)) return "integers"; // of any number of rows
    return !is_invariant && matmul_quant_is_skinny(problem, limits)
               ? "skinny"
               : matmul_prefer(problem, limits);
}

// Floats of a task: rows of a, unless they are used in place, and products with b and with b_up.
static int64_t floats_of_a(const struct matmul_problem *p) {
    if (matmul_is_rows_of_floats(&p->a)) return 0;
    return p->m * (int64_t)tsri_round_up((size_t)p->k, 16);
}

void matmul_quant_plan_skinny(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const int64_t tasks = (int64_t)limits->num_threads * TASKS;
    int64_t cols = (int64_t)tsri_round_up((size_t)tsri_ceil_div(p->n, tasks), LEAST_COLS);
    plan->block_n = tsri_max(cols, LEAST_COLS);
    plan->num_tasks = tsri_ceil_div(p->n, plan->block_n);
    plan->grain = floats_of_a(p) + 2 * p->m * plan->block_n; // floats of a thread
    plan->workspace_bytes = (size_t)(limits->num_threads * plan->grain) * sizeof(float);
}

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    float *scratch;
};

static void skinny_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    const struct matmul_quant_kernels *kernels = matmul_quant_kernels(w->isa);
    float *own = w->scratch + thread * w->plan->grain, *acc = own + floats_of_a(p),
          *up = acc + p->m * w->plan->block_n;
    const int64_t col = index * w->plan->block_n, n = tsri_min(w->plan->block_n, p->n - col),
                  own_stride = (int64_t)tsri_round_up((size_t)p->k, 16);
    int64_t stride;
    const float *a = matmul_rows_of_a(gemm_kernels(w->isa), &p->a, p->a.data, p->m, p->k, own,
                                      own_stride, &stride);
    kernels->few(&p->quant, col, n, p->k, p->m, a, stride, acc, n);
    if (p->b_up.data != NULL) kernels->few(&p->quant_up, col, n, p->k, p->m, a, stride, up, n);
    matmul_kernels(w->isa)->finish(p, 0, col, p->m, n, acc, p->b_up.data != NULL ? up : NULL, n);
}

tsr_status matmul_quant_skinny_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    struct work w = {problem, plan, tsri_context_limits(ctx)->isa, workspace};
    if (w.p->m > 0) tsri_parallel(ctx, plan->num_tasks, skinny_task, &w);
    return TSR_OK;
}
