// SPDX-License-Identifier: Apache-2.0
// Plans and launches of cross-entropy on CUDA. In forward, each row has a warp, or a block of one of three sizes.
#include "context/cuda_elements.h"
#include "context/cuda_rows.h"
#include "ops/cross_entropy/cross_entropy_params.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

enum { MAX_COLS = INT32_MAX - 65536 };
enum { WARP = 32, NARROW_COLS = 512, MEDIUM = 128, MEDIUM_COLS = 8192, WIDE = 256, WIDEST = 512 };
static const int sizes[] = {WARP, MEDIUM, WIDE, WIDEST};

static const char forward_source[] = "ops/cross_entropy/cross_entropy_forward.cu",
                  forward_name[] = "cross_entropy_forward",
                  backward_source[] = "ops/cross_entropy/cross_entropy_backward.cu",
                  backward_name[] = "cross_entropy_backward";

bool cross_entropy_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct cross_entropy_problem *p = problem;
    (void)limits;
    return p->logits.dtype != TSR_F64 && p->logits.cols <= MAX_COLS;
}

// ---- Forward ----------------------------------------------------------------------------------

void cross_entropy_cuda_plan(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    int64_t cols = p->logits.cols;
    // Wide rows: four blocks of 256 threads fit on a multiprocessor, and fewer threads of a row wait for its last
    // groups. With too few rows for that, a row gets more threads.
    int wide = p->logits.rows >= 3 * limits->num_sms ? WIDE : WIDEST;
    plan->block_m = cols <= NARROW_COLS ? WARP : cols <= MEDIUM_COLS ? MEDIUM : wide;
    plan->grain = tsri_cuda_block_threads(plan) / plan->block_m;
    plan->num_tasks = tsri_min(tsri_ceil_div(p->logits.rows, plan->grain), INT32_MAX);
}

tsr_status cross_entropy_cuda_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_rows_program(forward_source, forward_name, p->logits.dtype, plan);
    return tsri_cuda_prepare(forward_name, tsri_context_queue(ctx), &program);
}

tsr_status cross_entropy_cuda_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_rows_program(forward_source, forward_name, p->logits.dtype, plan);
    (void)workspace;
    const struct cross_entropy_forward_params params = {
        .logits = p->logits.data,
        .targets = p->targets.data,
        .loss = p->loss,
        .lse = p->lse,
        .logits_stride = p->logits.stride,
        .targets_stride = p->targets.stride,
        .rows = p->logits.rows,
        .cols = (int)p->logits.cols,
        .ignore_index = p->ignore_index,
        .label_smoothing = p->label_smoothing,
    };
    return tsri_cuda_rows_launch(ctx, forward_name, plan, &program, &params);
}

bool cross_entropy_cuda_forward_kernel(int index, int cuda_arch,
                                       struct tsri_cuda_program *program) {
    enum { NUM_SIZES = TSRI_COUNT(sizes) };
    (void)cuda_arch;
    if (index >= NUM_SIZES * TSRI_NUM_CUDA_DTYPES) return false;
    const struct tsri_plan plan = {.block_m = sizes[index % NUM_SIZES]};
    const tsr_dtype dtype = tsri_cuda_dtypes[index / NUM_SIZES];
    *program = tsri_cuda_rows_program(forward_source, forward_name, dtype, &plan);
    program->is_rare = dtype == TSR_F16 && plan.block_m < WIDE; // narrower than a vocabulary
    return true;
}

// ---- Backward ---------------------------------------------------------------------------------

// The first kernel computes the values that the elements of a row share (most rows' blocks read almost nothing for
// that), the second the elements.
void cross_entropy_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    (void)limits;
    plan->block_m = p->logits.cols <= NARROW_COLS ? WARP : WIDE;
    plan->grain = tsri_cuda_block_threads(plan) / plan->block_m;
    plan->num_tasks = tsri_min(tsri_ceil_div(p->logits.rows, plan->grain), INT32_MAX);
    plan->workspace_bytes = (size_t)p->logits.rows * sizeof(struct cross_entropy_row);
}

static struct tsri_cuda_program elements_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program(backward_source, backward_name, dtype);
}

static struct tsri_cuda_program rows_program(tsr_dtype dtype, const struct tsri_plan *plan) {
    return tsri_cuda_rows_program("ops/cross_entropy/cross_entropy_rows.cu", "cross_entropy_rows",
                                  dtype, plan);
}

tsr_status cross_entropy_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                               const struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program of_rows = rows_program(p->logits.dtype, plan),
                                   of_elements = elements_program(p->logits.dtype);
    TSRI_TRY(tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &of_rows));
    return tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &of_elements);
}

static tsr_status run_rows(tsr_context *ctx, const struct cross_entropy_problem *p,
                           const struct tsri_plan *plan, struct cross_entropy_row *rows) {
    const struct tsri_cuda_program program = rows_program(p->logits.dtype, plan);
    const struct cross_entropy_rows_params params = {
        .logits = p->logits.data,
        .targets = p->targets.data,
        .lse = p->lse,
        .dloss = p->dloss,
        .rows_out = rows,
        .logits_stride = p->logits.stride,
        .targets_stride = p->targets.stride,
        .rows = p->logits.rows,
        .cols = (int)p->logits.cols,
        .ignore_index = p->ignore_index,
        .label_smoothing = p->label_smoothing,
    };
    return tsri_cuda_rows_launch(ctx, backward_name, plan, &program, &params);
}

tsr_status cross_entropy_cuda_backward_run(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program program = elements_program(p->logits.dtype);
    const struct tsri_rows *const views[] = {&p->dlogits, &p->logits};
    double other = p->label_smoothing / (double)tsri_max(p->logits.cols, 1);
    struct cross_entropy_backward_params params = {
        .logits = tsri_elements_view(&p->logits),
        .dlogits = tsri_elements_view(&p->dlogits),
        .rows = workspace,
        .dloss = p->dloss,
        .q_other = (float)other,
    };
    if (p->logits.cols == 0) return TSR_OK;
    TSRI_TRY(run_rows(ctx, p, plan, workspace));
    tsri_cuda_elements_grid(&params.grid, views, TSRI_COUNT(views),
                            16 / (int)tsr_dtype_bytes(p->logits.dtype), CROSS_ENTROPY_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, backward_name, &program, &params.grid, &params);
}

bool cross_entropy_cuda_backward_kernel(int index, int cuda_arch,
                                        struct tsri_cuda_program *program) {
    static const int row_sizes[] = {WARP, WIDE};
    enum { NUM_SIZES = TSRI_COUNT(row_sizes), NUM_ROWS = NUM_SIZES * TSRI_NUM_CUDA_DTYPES };
    (void)cuda_arch;
    if (index >= NUM_ROWS)
        return tsri_cuda_dtype_kernel(backward_source, backward_name, index - NUM_ROWS, program);
    const struct tsri_plan plan = {.block_m = row_sizes[index % NUM_SIZES]};
    const tsr_dtype dtype = tsri_cuda_dtypes[index / NUM_SIZES];
    *program = rows_program(dtype, &plan);
    program->is_rare = dtype == TSR_F16 && plan.block_m < WIDE; // narrower than a vocabulary
    return true;
}
