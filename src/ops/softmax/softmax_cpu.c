// SPDX-License-Identifier: Apache-2.0
// Softmax on CPU threads: rows are independent, a task is a group of rows, a pass is a parallel loop.
#include "ops/softmax/softmax_problem.h"

struct pass {
    const struct softmax_problem *problem;
    const struct tsri_plan *plan;
    softmax_kernel *kernel;
    float *scratch;
    int64_t scratch_per_thread; // floats; 0: all threads share the scratch
    enum softmax_memory memory;
};

static void run_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    int64_t first = index * pass->plan->grain;
    int64_t last = tsri_min(first + pass->plan->grain, pass->problem->out.rows);
    float *scratch = pass->scratch; // NULL if the pass has none; adding even 0 to NULL is undefined
    if (pass->scratch_per_thread > 0) scratch += thread * pass->scratch_per_thread;
    pass->kernel(pass->problem, first, last, scratch, pass->memory);
}

static void run_pass(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                     softmax_kernel *kernel, void *workspace) {
    enum softmax_memory memory = !plan->is_streaming           ? SOFTMAX_CACHED
                                 : tsri_gains_from_far_lines() ? SOFTMAX_FETCHED
                                                               : SOFTMAX_STREAMED;
    struct pass pass = {problem, plan, kernel, workspace, plan->block_n, memory};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

tsr_status softmax_fused_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    run_pass(ctx, problem, plan, softmax_kernels(tsr_context_isa(ctx))->fused, workspace);
    return TSR_OK;
}

tsr_status softmax_online_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    run_pass(ctx, problem, plan, softmax_kernels(tsr_context_isa(ctx))->online, workspace);
    return TSR_OK;
}

tsr_status softmax_fused_backward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    run_pass(ctx, problem, plan, softmax_kernels(tsr_context_isa(ctx))->fused_backward, workspace);
    return TSR_OK;
}

// The baselines work like a chain of element-wise operators: each sweeps over the whole tensor.

tsr_status softmax_unfused_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct softmax_unfused_kernels *kernels = softmax_unfused_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->max_pass, workspace);
    run_pass(ctx, problem, plan, kernels->exp_sum_pass, workspace);
    run_pass(ctx, problem, plan, kernels->divide_pass, workspace);
    return TSR_OK;
}

tsr_status softmax_unfused_backward_run(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan, void *workspace) {
    const struct softmax_unfused_kernels *kernels = softmax_unfused_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->product_pass, workspace);
    run_pass(ctx, problem, plan, kernels->sum_pass, workspace);
    run_pass(ctx, problem, plan, kernels->combine_pass, workspace);
    return TSR_OK;
}
