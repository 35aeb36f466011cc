// SPDX-License-Identifier: Apache-2.0
// The norms on CPU threads: rows are independent, a task is a group of rows, a pass is a parallel loop. dweight and
// dbias are sums over rows: each group stores its own fp32 sums, and a last pass over columns adds them in order.
#include "ops/norm/norm_problem.h"

struct pass {
    const struct norm_call *call;
    norm_kernel *kernel;
    int64_t grain, end;
};

static void run_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    int64_t first = index * pass->grain;
    pass->kernel(pass->call, first, tsri_min(first + pass->grain, pass->end), thread);
}

static void run_pass(tsr_context *ctx, const struct norm_call *call, const struct tsri_plan *plan,
                     norm_kernel *kernel) {
    struct pass pass = {call, kernel, plan->grain, call->problem->rows};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

void norm_reduce_columns(tsr_context *ctx, const struct norm_call *call) {
    enum { COLUMNS = 256 };
    const struct norm_problem *p = call->problem;
    if (!norm_wants_sums(p)) return;
    struct pass pass = {call, norm_kernels(tsr_context_isa(ctx))->reduce, COLUMNS, p->cols};
    tsri_parallel(ctx, tsri_ceil_div(p->cols, COLUMNS), run_task, &pass);
}

// A vector as the kernels read it, in fp32: the tensor itself, a widened copy plus an offset, or `absent` in every element; in
// split order if the kernels want that.
static const float *widened(const struct norm_vector *v, const struct norm_problem *p, float absent,
                            float offset, char *workspace, size_t at, bool is_split,
                            const struct norm_kernels *kernels) {
    if (v->data != NULL && v->dtype == TSR_F32 && !is_split && offset == 0) return v->data;
    float *to = (float *)(void *)(workspace + at);
    int64_t padded = norm_padded_cols(p);
    if (v->data == NULL)
        for (int64_t i = 0; i < padded; i++) to[i] = absent;
    else if (is_split)
        kernels->split(v->dtype, v->data, to, p->cols);
    else
        kernels->widen(v->dtype, v->data, to, p->cols);
    if (v->data != NULL && offset != 0) // a split copy consists of whole pairs
        for (int64_t i = 0; i < (is_split ? padded : p->cols); i++) to[i] += offset;
    return to;
}

// With few rows, kernels split weight and bias on the fly: a split copy for the whole call would cost more, especially
// if the copies leave the caches.
static bool is_worth_a_split(const struct norm_problem *p) {
    enum { LONG_COLS = 16 << 10, FEW_ROWS = 4, FEW_LONG_ROWS = 16 };
    return p->rows > (p->cols > LONG_COLS ? FEW_LONG_ROWS : FEW_ROWS);
}

struct norm_call norm_make_call(tsr_context *ctx, const struct norm_problem *p, bool is_fused,
                                bool is_streaming, const struct norm_layout *layout,
                                char *workspace) {
    const struct norm_kernels *kernels = norm_kernels(tsr_context_isa(ctx));
    struct norm_call call = {.problem = p, .is_streaming = is_streaming};
    if (workspace != NULL) {
        call.scratch = workspace + layout->scratch;
        call.scratch_per_thread = layout->scratch_per_thread;
        call.scratch_per_row = layout->scratch_per_row;
        call.statistics = (float *)(void *)(workspace + layout->statistics);
        call.partial = (float *)(void *)(workspace + layout->partial);
    }
    if (p->cols == 0) return call; // then no kernel reads a vector
    call.is_partial_split = is_fused && p->dtype == TSR_BF16 && kernels->split != NULL;
    call.is_split = call.is_partial_split && is_worth_a_split(p);
    call.weight = widened(&p->weight, p, 1, p->weight_offset, workspace, layout->weight,
                          call.is_split, kernels);
    if (!p->is_rmsnorm)
        call.bias = widened(&p->bias, p, 0, 0, workspace, layout->bias, call.is_split, kernels);
    return call;
}

tsr_status norm_fused_forward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    int num_threads = tsri_context_limits(ctx)->num_threads;
    struct norm_layout layout = norm_forward_layout(p, true, plan->is_streaming, num_threads);
    struct norm_call call = norm_make_call(ctx, p, true, plan->is_streaming, &layout, workspace);
    run_pass(ctx, &call, plan, norm_forward_kernels(tsr_context_isa(ctx))->run);
    return TSR_OK;
}

tsr_status norm_fused_backward_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    struct norm_layout layout = norm_backward_layout(p, true);
    struct norm_call call = norm_make_call(ctx, p, true, plan->is_streaming, &layout, workspace);
    run_pass(ctx, &call, plan, norm_backward_kernels(tsr_context_isa(ctx))->run);
    norm_reduce_columns(ctx, &call);
    return TSR_OK;
}

// The baselines work like a chain of element-wise operators and reductions: each sweeps over the whole tensor.

tsr_status norm_unfused_forward_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    const struct norm_unfused_kernels *kernels = norm_unfused_kernels(tsr_context_isa(ctx));
    int num_threads = tsri_context_limits(ctx)->num_threads;
    struct norm_layout layout = norm_forward_layout(p, false, plan->is_streaming, num_threads);
    struct norm_call call = norm_make_call(ctx, p, false, plan->is_streaming, &layout, workspace);
    if (p->residual.data != NULL) run_pass(ctx, &call, plan, kernels->add);
    if (!p->is_rmsnorm) run_pass(ctx, &call, plan, kernels->mean);
    run_pass(ctx, &call, plan, kernels->variance);
    run_pass(ctx, &call, plan, kernels->normalise);
    run_pass(ctx, &call, plan, kernels->scale);
    return TSR_OK;
}

tsr_status norm_unfused_backward_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    const struct norm_unfused_kernels *kernels = norm_unfused_kernels(tsr_context_isa(ctx));
    struct norm_layout layout = norm_backward_layout(p, false);
    struct norm_call call = norm_make_call(ctx, p, false, plan->is_streaming, &layout, workspace);
    run_pass(ctx, &call, plan, kernels->centre);
    run_pass(ctx, &call, plan, kernels->product);
    run_pass(ctx, &call, plan, kernels->sums);
    if (norm_wants_sums(p)) {
        run_pass(ctx, &call, plan, kernels->columns);
        norm_reduce_columns(ctx, &call);
    }
    run_pass(ctx, &call, plan, kernels->combine);
    return TSR_OK;
}
