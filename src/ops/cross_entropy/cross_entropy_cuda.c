// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on CUDA: plans and launches. Forward has a warp, or a block of one of three sizes, for each row.
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
    // Wide rows: four blocks of 256 fit on a multiprocessor, and fewer threads of a row wait for its last groups; where
    // there are too few rows for that, more threads for each.
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

tsr_status cross_entropy_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                               const struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(backward_source, backward_name, p->logits.dtype);
    (void)plan;
    return tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &program);
}

tsr_status cross_entropy_cuda_backward_run(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(backward_source, backward_name, p->logits.dtype);
    const struct tsri_rows *const views[] = {&p->dlogits, &p->logits};
    double other = p->label_smoothing / (double)tsri_max(p->logits.cols, 1);
    struct cross_entropy_backward_params params = {
        .logits = tsri_elements_view(&p->logits),
        .dlogits = tsri_elements_view(&p->dlogits),
        .targets = p->targets.data,
        .lse = p->lse,
        .dloss = p->dloss,
        .targets_stride = p->targets.stride,
        .ignore_index = p->ignore_index,
        .q_target = (float)(1 - p->label_smoothing),
        .q_other = (float)other,
    };
    (void)plan, (void)workspace;
    tsri_cuda_elements_grid(&params.grid, views, TSRI_COUNT(views),
                            16 / (int)tsr_dtype_bytes(p->logits.dtype), CROSS_ENTROPY_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, backward_name, &program, &params.grid, &params);
}

bool cross_entropy_cuda_backward_kernel(int index, int cuda_arch,
                                        struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(backward_source, backward_name, index, program);
}
