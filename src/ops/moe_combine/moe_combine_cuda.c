// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the weighted sum and its gradients on CUDA.
#include "context/cuda_elements.h"
#include "ops/moe_combine/moe_combine_params.h"
#include "ops/moe_combine/moe_combine_problem.h"

static const char forward_name[] = "moe_combine_forward", backward_name[] = "moe_combine_backward";
static const char forward_source[] = "ops/moe_combine/moe_combine_forward.cu",
                  backward_source[] = "ops/moe_combine/moe_combine_backward.cu";

// The kernels use 32-bit numbers of rows and columns.
bool moe_combine_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    enum { MOST = 1 << 30 };
    const struct moe_combine_problem *p = problem;
    (void)limits;
    return p->y.dtype != TSR_F64 && p->y.rows <= MOST && p->y.cols <= MOST && p->num_rows <= MOST;
}

static struct moe_combine_view view_of(const struct tsri_rows *t) {
    return (struct moe_combine_view){t->data, t->stride};
}

static struct moe_combine_assignments assignments_of(const struct moe_combine_problem *p) {
    return (struct moe_combine_assignments){
        .rows = (const int *)(const void *)p->token_rows.data,
        .weights = (const float *)(const void *)p->weights.data,
        .rows_stride = p->token_rows.stride,
        .weights_stride = p->weights.stride,
        .top_k = (int)p->top_k,
        .num_rows = (int)p->num_rows,
    };
}

// Whether each row of these tensors, where given, is whole groups of 16 bytes.
static bool are_aligned(const struct tsri_rows *const *all, int num) {
    enum { GROUP_BYTES = 16 };
    int64_t places = 0;
    for (int i = 0; i < num; i++) {
        const int64_t bytes = tsri_dtype_bytes(all[i]->dtype);
        if (moe_is_given(all[i]))
            places |=
                (int64_t)(uintptr_t)all[i]->data | all[i]->stride * bytes | all[i]->cols * bytes;
    }
    return places % GROUP_BYTES == 0;
}

// Columns that a warp has at once.
static int64_t tile_cols(const struct moe_combine_problem *p) {
    return 32 * 16 / tsri_dtype_bytes(p->y.dtype);
}

// ---- Forward ----------------------------------------------------------------------------------

static bool is_narrow(const struct moe_combine_problem *p) {
    return p->y.cols <= MOE_COMBINE_NARROW;
}

// Groups of columns that fit AT_ONCE loads.
static int tiles_at_once(const struct moe_combine_problem *p) {
    return p->top_k <= 2 ? 4 : p->top_k <= 4 ? 2 : 1;
}

// block_n: columns of a span, what a warp has at once or as much more as leaves enough spans for the card; num_tasks:
// blocks. Sums are per column: a token's bits do not depend on the span.
void moe_combine_cuda_plan(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    enum { SM_WARPS = 64, MOST_TILES = 4, ROUNDS = 4, LEAST_WARPS = 16 };
    const struct moe_combine_problem *p = problem;
    const int64_t tile = tile_cols(p), tiles = tsri_ceil_div(p->y.cols, tile);
    int64_t of_span = MOST_TILES;
    if (is_narrow(p)) {
        const int64_t threads = 32 * MOE_COMBINE_FORWARD_WARPS;
        plan->num_tasks = tsri_min(tsri_ceil_div(p->y.rows * p->y.cols, threads), INT32_MAX);
        return;
    }
    for (; of_span > 1; of_span /= 2) {
        bool is_at_once = of_span <= tiles_at_once(p);
        int64_t wanted = (int64_t)limits->num_sms * (is_at_once ? LEAST_WARPS : SM_WARPS * ROUNDS);
        if (p->y.rows * tsri_ceil_div(tiles, of_span) >= wanted) break;
    }
    plan->block_n = of_span * tile;
    const int64_t units = p->y.rows * tsri_ceil_div(p->y.cols, plan->block_n);
    plan->num_tasks = tsri_min(tsri_ceil_div(units, MOE_COMBINE_FORWARD_WARPS), INT32_MAX);
}

tsr_status moe_combine_cuda_prepare(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan) {
    const struct moe_combine_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(forward_source, forward_name, p->y.dtype);
    (void)plan;
    return tsri_cuda_prepare(forward_name, tsri_context_queue(ctx), &program);
}

tsr_status moe_combine_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    const struct moe_combine_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(forward_source, forward_name, p->y.dtype);
    const struct tsri_rows *const all[] = {&p->rows, &p->shared, &p->residual, &p->y};
    const int64_t spans = is_narrow(p) ? 0 : tsri_ceil_div(p->y.cols, plan->block_n);
    const struct moe_combine_forward_params params = {
        .assignments = assignments_of(p),
        .rows = view_of(&p->rows),
        .shared = view_of(&p->shared),
        .residual = view_of(&p->residual),
        .y = view_of(&p->y),
        .shared_gate = (const float *)(const void *)p->shared_gate.data,
        .gate_stride = p->shared_gate.stride,
        .num_units = p->y.rows * (is_narrow(p) ? p->y.cols : spans),
        .hidden = (int)p->y.cols,
        .spans = (int)spans,
        .span = (int)plan->block_n,
        .tiles = (int)tsri_min(tiles_at_once(p), plan->block_n / tile_cols(p)),
        .is_aligned = are_aligned(all, TSRI_COUNT(all)),
        .is_residual_f32 = p->residual.dtype == TSR_F32,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = 32 * MOE_COMBINE_FORWARD_WARPS,
        .is_early = true,
        .params = &params,
    };
    (void)workspace;
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(forward_name, tsri_context_queue(ctx), &program, &launch);
}

bool moe_combine_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(forward_source, forward_name, index, program);
}

// ---- Backward ---------------------------------------------------------------------------------

// num_tasks: blocks, one a token; block_m: their warps, by hidden alone, each with two tiles if that gives enough.
void moe_combine_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    const struct moe_combine_problem *p = problem;
    const int64_t warps = tsri_ceil_div(p->y.cols, 2 * tile_cols(p));
    (void)limits;
    plan->block_m = tsri_max(tsri_min(warps, MOE_COMBINE_BACKWARD_WARPS), 1);
    plan->num_tasks = tsri_min(p->y.rows, INT32_MAX);
}

tsr_status moe_combine_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan) {
    const struct moe_combine_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(backward_source, backward_name, p->y.dtype);
    (void)plan;
    return tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &program);
}

tsr_status moe_combine_cuda_backward_run(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan, void *workspace) {
    const struct moe_combine_problem *p = problem;
    const struct tsri_cuda_program program =
        tsri_cuda_dtype_program(backward_source, backward_name, p->y.dtype);
    const struct tsri_rows *const all[] = {&p->y, &p->rows, &p->shared, &p->drows, &p->dshared};
    const int64_t written = p->drows.rows * p->drows.cols * tsri_dtype_bytes(p->drows.dtype);
    const struct moe_combine_backward_params params = {
        .assignments = assignments_of(p),
        .dy = view_of(&p->y),
        .rows = view_of(&p->rows),
        .shared = view_of(&p->shared),
        .drows = view_of(&p->drows),
        .dweights = view_of(&p->dweights),
        .dshared = view_of(&p->dshared),
        .dshared_gate = view_of(&p->dshared_gate),
        .shared_gate = (const float *)(const void *)p->shared_gate.data,
        .gate_stride = p->shared_gate.stride,
        .tokens = p->y.rows,
        .hidden = (int)p->y.cols,
        .is_aligned = are_aligned(all, TSRI_COUNT(all)),
        .is_past = written > tsri_context_limits(ctx)->l2_bytes,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = 32 * (int)plan->block_m,
        .is_early = true,
        .params = &params,
    };
    (void)workspace;
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(backward_name, tsri_context_queue(ctx), &program, &launch);
}

bool moe_combine_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(backward_source, backward_name, index, program);
}
