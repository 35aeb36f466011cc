// SPDX-License-Identifier: Apache-2.0
// Matmul by quantised weights in integers: first rows of a become integers, then a task multiplies all of them by some columns.
// What is not finite, or might not be, is multiplied again in fp32, so that infinities and NaN are those of fp32.
#include <math.h>

#include "cpu/gemm.h"
#include "ops/matmul/cpu/matmul_quant_vnni.h"
#include "ops/matmul/matmul_quantised.h"

#if defined(TSRI_HAS_VNNI_KERNELS)
enum {
    LEAST_COLS = 32, // of a task
    TASKS = 8,       // per thread
    FEW_ROWS = 2,    // one thread makes integers of them
    LEAST_PANEL_ROWS = 6,
};

// Zeros and minima are added in fp32 only: they may cancel.
static bool is_served(const struct tsri_quant_rows *q) {
    const bool has_offset = q->format == TSR_QUANT_Q4_1 || q->format == TSR_QUANT_Q4_K;
    return !has_offset && q->zero.dtype == TSR_DTYPE_NONE && q->minimum.dtype == TSR_DTYPE_NONE;
}

bool matmul_quant_has_integers(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return limits->has_vnni && matmul_has_kernels(p, limits) && is_served(&p->quant) &&
           is_served(&p->quant_up);
}

// ---- Plan -------------------------------------------------------------------------------------

static int64_t bytes_of_row(const struct matmul_problem *p) {
    return tsri_ceil_div(p->k, MATMUL_INTEGERS) * MATMUL_INTEGERS_BYTES;
}

// Floats of a thread: a row of a, then products with b and with b_up.
static int64_t floats_of_row(const struct matmul_problem *p) {
    return (int64_t)tsri_round_up((size_t)p->k, 16);
}

void matmul_quant_plan_integers(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const int64_t tasks = (int64_t)limits->num_threads * TASKS;
    plan->block_n =
        (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(p->n, tasks), 1), LEAST_COLS);
    plan->num_tasks = tsri_ceil_div(p->n, plan->block_n);
    // block_k: whether panels serve the call. Both kernels have their own order of additions.
    plan->block_k = p->m >= LEAST_PANEL_ROWS || (limits->flags & TSR_BATCH_INVARIANT) != 0;
    plan->grain = floats_of_row(p) + 2 * (int64_t)tsri_round_up((size_t)(p->m * plan->block_n), 16);
    plan->workspace_bytes = (size_t)(p->m * bytes_of_row(p)) +
                            (size_t)(limits->num_threads * plan->grain) * sizeof(float);
}

// ---- Run --------------------------------------------------------------------------------------

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    char *integers;
    float *scratch;
};

// A row of a in fp32.
static const float *row_of_a(const struct work *w, int64_t row, float *own) {
    const struct matmul_matrix *a = &w->p->a;
    const char *from = a->data + row * a->row * tsri_dtype_bytes(a->dtype);
    int64_t stride;
    return matmul_rows_of_a(gemm_kernels(w->isa), a, from, 1, w->p->k, own, floats_of_row(w->p),
                            &stride);
}

static void row_task(void *arg, int64_t row, int thread) {
    const struct work *w = arg;
    const float *a = row_of_a(w, row, w->scratch + thread * w->plan->grain);
    tsri_matmul_integers(w->p->quant.format, a, w->p->k, w->integers + row * bytes_of_row(w->p));
}

static void multiply(const struct work *w, const struct tsri_quant_rows *q, int64_t col, int64_t n,
                     float *own, float *acc) {
    const struct matmul_problem *p = w->p;
    (w->plan->block_k > 0 ? tsri_matmul_integer_panels : tsri_matmul_integer_columns)(
        q, col, n, p->k, p->m, w->integers, bytes_of_row(p), acc, n);
    for (int64_t i = 0; i < p->m; i++) {
        const float *a = NULL;
        for (int64_t j = 0; j < n; j++) {
            if (isfinite(acc[i * n + j])) continue;
            if (a == NULL) a = row_of_a(w, i, own);
            matmul_quant_kernels(w->isa)->few(q, col + j, 1, p->k, 1, a, 0, &acc[i * n + j], n);
        }
    }
}

static void column_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    const int64_t col = index * w->plan->block_n, n = tsri_min(w->plan->block_n, p->n - col);
    float *own = w->scratch + thread * w->plan->grain, *acc = own + floats_of_row(p);
    float *up = acc + (int64_t)tsri_round_up((size_t)(p->m * w->plan->block_n), 16);
    multiply(w, &p->quant, col, n, own, acc);
    if (p->b_up.data != NULL) multiply(w, &p->quant_up, col, n, own, up);
    matmul_kernels(w->isa)->finish(p, 0, col, p->m, n, acc, p->b_up.data != NULL ? up : NULL, n);
}

tsr_status matmul_quant_integers_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    struct work w = {p, plan, tsri_context_limits(ctx)->isa, workspace,
                     (float *)(void *)((char *)workspace + p->m * bytes_of_row(p))};
    if (p->m > FEW_ROWS)
        tsri_parallel(ctx, p->m, row_task, &w);
    else
        for (int64_t row = 0; row < p->m; row++) row_task(&w, row, 0);
    if (p->m > 0) tsri_parallel(ctx, plan->num_tasks, column_task, &w);
    return TSR_OK;
}
#else
bool matmul_quant_has_integers(const void *problem, const struct tsri_limits *limits) {
    (void)problem, (void)limits;
    return false;
}
void matmul_quant_plan_integers(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    (void)problem, (void)limits, (void)plan;
}
tsr_status matmul_quant_integers_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)problem, (void)plan, (void)workspace;
    return TSR_UNSUPPORTED;
}
#endif
