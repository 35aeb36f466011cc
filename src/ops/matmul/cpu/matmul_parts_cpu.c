// SPDX-License-Identifier: Apache-2.0
// Products of small m whose k is cut too. A task is block_n columns of one block of k. The thread that finishes the
// last block of those columns adds their sums, in the same order as one thread, and finishes them. So a thread has long
// runs of some rows of B, which the hardware prefetches and which stay in its second-level cache from call to call. A
// few columns of many rows a multiple of 4 KiB apart would map to the same cache sets.
#include <stdatomic.h>

#include "cpu/gemm.h"
#include "ops/matmul/matmul_problem.h"

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    const struct gemm_kernels *gemm;
    const struct matmul_kernels *kernels;
    enum matmul_parts_kernel kernel;
    struct matmul_parts_layout layout;
    char *counts; // number of finished blocks, for each block of columns
    float *rows;  // of A, per thread
    float *sums;  // [block of k][m][stride]
};

static atomic_int *count_of(const struct work *w, int64_t block) {
    return (atomic_int *)(void *)(w->counts + block * MATMUL_PARTS_COUNT_BYTES);
}

static float *sums_of(const struct work *w, int64_t part, int64_t col) {
    return w->sums + part * w->p->m * w->layout.sums_stride + col;
}

static void multiply(const struct work *w, int64_t step, int64_t depth, int64_t col, int64_t n,
                     int thread, float *sums) {
    const struct matmul_problem *p = w->p;
    int64_t stride = w->layout.sums_stride, a_stride = p->a.row;
    const void *a = matmul_at(&p->a, 0, step), *b = matmul_at(&p->b, step, col);
    switch (w->kernel) {
    case MATMUL_PARTS_TILES:
        w->gemm->block(p->m, n, depth, GEMM_ROWS, a, a_stride, b, p->b.row, true, sums, stride,
                       false);
        break;
    case MATMUL_PARTS_STREAMED:
        w->gemm->stream(p->m, n, depth, a, a_stride, TSR_F32, b, p->b.row, sums, stride, sums,
                        stride, false);
        break;
    default:
        a = matmul_rows_of_a(w->gemm, &p->a, a, p->m, depth,
                             w->rows + thread * w->layout.rows_floats, w->plan->block_k, &a_stride);
        w->kernels->skinny(p->b.dtype, false, p->m, n, depth, a, a_stride, b, p->b.row, 1, sums,
                           stride);
    }
}

static void add_parts(const struct work *w, int64_t col, int64_t n) {
    const struct matmul_problem *p = w->p;
    int64_t stride = w->layout.sums_stride;
    float *sums = sums_of(w, 0, col);
    for (int64_t part = 1; part < w->layout.num_parts; part++) {
        const float *more = sums_of(w, part, col);
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < n; j++) sums[i * stride + j] += more[i * stride + j];
    }
    w->kernels->finish(p, 0, col, p->m, n, sums, NULL, stride);
}

static void part_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    int64_t blocks = tsri_ceil_div(p->n, w->plan->block_n);
    int64_t part = index / blocks, block = index % blocks;
    int64_t step = part * w->plan->block_k, depth = tsri_min(w->plan->block_k, p->k - step);
    int64_t col = block * w->plan->block_n, n = tsri_min(w->plan->block_n, p->n - col);
    multiply(w, step, depth, col, n, thread, sums_of(w, part, col));
    int before = atomic_fetch_add_explicit(count_of(w, block), 1, memory_order_acq_rel);
    if (before + 1 == w->layout.num_parts) add_parts(w, col, n);
}

tsr_status matmul_parts_run(tsr_context *ctx, const struct matmul_problem *problem,
                            const struct tsri_plan *plan, void *workspace,
                            enum matmul_parts_kernel kernel) {
    tsr_isa isa = tsr_context_isa(ctx);
    const struct matmul_problem p = matmul_of_batch(problem, 0);
    struct work w = {.p = &p,
                     .plan = plan,
                     .gemm = gemm_kernels(isa),
                     .kernels = matmul_kernels(isa),
                     .kernel = kernel,
                     .layout = matmul_parts_layout(&p, plan, kernel),
                     .counts = workspace};
    int64_t blocks = tsri_ceil_div(p.n, plan->block_n);
    w.rows = (float *)(void *)(w.counts + blocks * MATMUL_PARTS_COUNT_BYTES);
    w.sums = w.rows + w.layout.rows_floats * tsr_context_num_threads(ctx);
    for (int64_t i = 0; i < blocks; i++) atomic_init(count_of(&w, i), 0);
    int threads = kernel == MATMUL_PARTS_SKINNY
                      ? matmul_skinny_threads(&p, tsri_context_limits(ctx), false)
                      : matmul_threads(&p, tsri_context_limits(ctx), false);
    tsri_parallel_on(ctx, threads, plan->num_tasks, part_task, &w);
    return TSR_OK;
}
