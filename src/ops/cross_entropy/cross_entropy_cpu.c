// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on CPU threads: rows are independent, a task is a group of rows, a pass is a parallel loop.
#include "ops/cross_entropy/cross_entropy_problem.h"

struct pass {
    const struct cross_entropy_problem *problem;
    const struct tsri_plan *plan;
    cross_entropy_kernel *kernel;
    float *scratch;
};

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    int64_t first = index * pass->plan->grain;
    int64_t last = tsri_min(first + pass->plan->grain, pass->problem->logits.rows);
    pass->kernel(pass->problem, first, last, pass->scratch, pass->plan->is_streaming);
}

static void run_pass(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                     cross_entropy_kernel *kernel, void *workspace) {
    struct pass pass = {problem, plan, kernel, workspace};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

tsr_status cross_entropy_fused_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    run_pass(ctx, problem, plan, cross_entropy_kernels(tsr_context_isa(ctx))->fused, workspace);
    return TSR_OK;
}

tsr_status cross_entropy_fused_backward_run(tsr_context *ctx, const void *problem,
                                            const struct tsri_plan *plan, void *workspace) {
    run_pass(ctx, problem, plan, cross_entropy_kernels(tsr_context_isa(ctx))->fused_backward,
             workspace);
    return TSR_OK;
}

// The baselines work like a chain of operators (log-softmax, then the target's entry; and the reverse): each sweeps
// over the whole tensor.

tsr_status cross_entropy_unfused_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_unfused_kernels *kernels =
        cross_entropy_unfused_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->exp_pass, workspace);
    run_pass(ctx, problem, plan, kernels->log_pass, workspace);
    run_pass(ctx, problem, plan, kernels->pick_pass, workspace);
    return TSR_OK;
}

tsr_status cross_entropy_unfused_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct cross_entropy_unfused_kernels *kernels =
        cross_entropy_unfused_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->target_pass, workspace);
    run_pass(ctx, problem, plan, kernels->subtract_pass, workspace);
    return TSR_OK;
}
