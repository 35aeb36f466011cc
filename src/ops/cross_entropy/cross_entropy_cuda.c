// SPDX-License-Identifier: Apache-2.0
// Plans and launches of cross-entropy on CUDA. Each row has a warp, or a block of one of three sizes.
#include "context/cuda_elements.h"
#include "context/cuda_rows.h"
#include "ops/cross_entropy/cross_entropy_params.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

enum { MAX_COLS = INT32_MAX - 65536 };
enum { WARP = 32, MEDIUM = 128, WIDE = 256, WIDEST = 512 };
enum {
    WARP_BYTES = 4096,
    MEDIUM_BYTES = 16384,
    WIDE_BYTES = 32768
}; // of rows that so many threads take
static const int sizes[] = {WARP, MEDIUM, WIDE, WIDEST};

static const char forward_source[] = "ops/cross_entropy/cross_entropy_forward.cu",
                  forward_name[] = "cross_entropy_forward",
                  gradient_source[] = "ops/cross_entropy/cross_entropy_gradient.cu",
                  gradient_name[] = "cross_entropy_gradient",
                  backward_source[] = "ops/cross_entropy/cross_entropy_backward.cu",
                  backward_name[] = "cross_entropy_backward";

bool cross_entropy_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct cross_entropy_problem *p = problem;
    (void)limits;
    return p->logits.dtype != TSR_F64 && p->logits.cols <= MAX_COLS;
}

// ---- Forward ----------------------------------------------------------------------------------

// The threads of a row, by its width alone: its sums, and so its bits, depend on no other row.
static int threads_of(const struct cross_entropy_problem *p) {
    const int64_t bytes = p->logits.cols * (int64_t)tsr_dtype_bytes(p->logits.dtype);
    return bytes <= WARP_BYTES     ? WARP
           : bytes <= MEDIUM_BYTES ? MEDIUM
           : bytes <= WIDE_BYTES   ? WIDE
                                   : WIDEST;
}

// grain: rows of a block; of a warp, as many as leave each warp that runs at once some.
void cross_entropy_cuda_plan(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    enum { SM_WARPS = 64, MOST_ROWS = 32 };
    const struct cross_entropy_problem *p = problem;
    plan->block_m = threads_of(p);
    plan->grain = tsri_cuda_block_threads(plan) / plan->block_m;
    if (plan->block_m == WARP)
        plan->grain *= tsri_max(
            tsri_min(p->logits.rows / ((int64_t)limits->num_sms * SM_WARPS), MOST_ROWS), 1);
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
        .rows_each = (int)(plan->grain * plan->block_m / tsri_cuda_block_threads(plan)),
        .label_smoothing = p->label_smoothing,
    };
    return tsri_cuda_rows_launch(ctx, forward_name, plan, &program, 0, &params);
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

// A warp or a block has a row: one launch. Wide rows that are fewer than three a multiprocessor are shared by blocks: a first
// launch finds what the elements of a row share (by the same threads, so that the bits are the same), a second one takes the
// elements.
// block_k: 1 with two launches.
void cross_entropy_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    plan->block_m = tsri_min(threads_of(p), WIDE);
    plan->block_k = (plan->block_m == WIDE && p->logits.rows < 3 * limits->num_sms) ||
                    p->logits.rows > INT32_MAX; // more than a launch has blocks
    if (plan->block_k > 0) plan->block_m = WIDE;
    plan->grain = tsri_cuda_block_threads(plan) / plan->block_m;
    plan->num_tasks = tsri_min(tsri_ceil_div(p->logits.rows, plan->grain), INT32_MAX);
    if (plan->block_k > 0)
        plan->workspace_bytes = (size_t)p->logits.rows * sizeof(struct cross_entropy_row);
}

static struct tsri_cuda_program elements_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program(backward_source, backward_name, dtype);
}

static struct tsri_cuda_program rows_program(tsr_dtype dtype, const struct tsri_plan *plan) {
    if (plan->block_k == 0)
        return tsri_cuda_rows_program(gradient_source, gradient_name, dtype, plan);
    return tsri_cuda_rows_program("ops/cross_entropy/cross_entropy_rows.cu", "cross_entropy_rows",
                                  dtype, plan);
}

tsr_status cross_entropy_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                               const struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program of_rows = rows_program(p->logits.dtype, plan),
                                   of_elements = elements_program(p->logits.dtype);
    TSRI_TRY(tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &of_rows));
    if (plan->block_k == 0) return TSR_OK;
    return tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &of_elements);
}

tsr_status cross_entropy_cuda_backward_run(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_problem *p = problem;
    const struct tsri_cuda_program of_rows = rows_program(p->logits.dtype, plan),
                                   of_elements = elements_program(p->logits.dtype);
    const struct tsri_rows *const views[] = {&p->dlogits, &p->logits};
    const double other = p->label_smoothing / (double)tsri_max(p->logits.cols, 1);
    const struct cross_entropy_gradient_params gradient = {
        .rows = {.logits = p->logits.data,
                 .targets = p->targets.data,
                 .lse = p->lse,
                 .dloss = p->dloss,
                 .rows_out = workspace,
                 .logits_stride = p->logits.stride,
                 .targets_stride = p->targets.stride,
                 .rows = p->logits.rows,
                 .cols = (int)p->logits.cols,
                 .ignore_index = p->ignore_index,
                 .label_smoothing = p->label_smoothing,
                 .other = other},
        .dlogits = p->dlogits.data,
        .dlogits_stride = p->dlogits.stride,
    };
    struct cross_entropy_backward_params elements = {
        .logits = tsri_elements_view(&p->logits),
        .dlogits = tsri_elements_view(&p->dlogits),
        .rows = workspace,
        .dloss = p->dloss,
        .q_other = (float)other,
    };
    if (p->logits.cols == 0) return TSR_OK;
    if (plan->block_k == 0)
        return tsri_cuda_rows_launch(ctx, backward_name, plan, &of_rows, 0, &gradient);
    TSRI_TRY(tsri_cuda_rows_launch(ctx, backward_name, plan, &of_rows, 0, &gradient.rows));
    tsri_cuda_elements_grid(&elements.grid, views, TSRI_COUNT(views),
                            16 / (int)tsr_dtype_bytes(p->logits.dtype), CROSS_ENTROPY_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, backward_name, &of_elements, &elements.grid, &elements);
}

// Of each dtype: rows by each number of threads, then what wide rows share.
bool cross_entropy_cuda_backward_kernel(int index, int cuda_arch,
                                        struct tsri_cuda_program *program) {
    enum { NUM_SIZES = 3, NUM_ROWS = (NUM_SIZES + 1) * TSRI_NUM_CUDA_DTYPES };
    (void)cuda_arch;
    if (index >= NUM_ROWS)
        return tsri_cuda_dtype_kernel(backward_source, backward_name, index - NUM_ROWS, program);
    const int size = index % (NUM_SIZES + 1);
    const struct tsri_plan plan = {.block_m = size < NUM_SIZES ? sizes[size] : WIDE,
                                   .block_k = size == NUM_SIZES};
    const tsr_dtype dtype = tsri_cuda_dtypes[index / (NUM_SIZES + 1)];
    *program = rows_program(dtype, &plan);
    program->is_rare = dtype == TSR_F16 && plan.block_m < WIDE; // narrower than a vocabulary
    return true;
}
