// SPDX-License-Identifier: Apache-2.0
// Activation on CPU threads: a task is a piece of the element grid, or some rows that have weights; a pass is a parallel
// loop.
#include "ops/activation/activation_problem.h"

struct pass {
    const struct activation_problem *problem;
    const struct tsri_plan *plan;
    activation_kernel *kernel;
    float *scratch;
};

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    const struct tsri_rows *y = &pass->problem->y;
    const int64_t first = index * pass->plan->grain;
    struct tsri_piece piece = {first, tsri_min(first + pass->plan->grain, y->rows), 0, y->cols};
    if (!pass->problem->is_weighted) piece = tsri_piece_of(pass->plan, y->rows, y->cols, index);
    pass->kernel(pass->problem, &piece, pass->scratch, pass->plan->is_streaming);
}

static void run_pass(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                     activation_kernel *kernel, void *scratch) {
    struct pass pass = {problem, plan, kernel, scratch};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

tsr_status activation_forward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    run_pass(ctx, problem, plan, activation_kernels(tsr_context_isa(ctx))->forward, workspace);
    return TSR_OK;
}

tsr_status activation_backward_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    const struct activation_kernels *kernels = activation_kernels(tsr_context_isa(ctx));
    const struct activation_problem *p = problem;
    run_pass(ctx, problem, plan, p->is_weighted ? kernels->weighted : kernels->backward, workspace);
    return TSR_OK;
}

// The baselines work like a chain of element-wise operators: each sweeps over the whole tensor.

tsr_status activation_unfused_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct activation_kernels *kernels = activation_kernels(tsr_context_isa(ctx));
    const struct activation_problem *p = problem;
    run_pass(ctx, problem, plan, kernels->act_pass, workspace);
    run_pass(ctx, problem, plan, p->is_gated ? kernels->multiply_pass : kernels->round_pass,
             workspace);
    return TSR_OK;
}

// Both outputs are written last, because an output may be an input.
tsr_status activation_unfused_backward_run(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    const struct activation_kernels *kernels = activation_kernels(tsr_context_isa(ctx));
    const struct activation_problem *p = problem;
    run_pass(ctx, problem, plan, kernels->grad_pass, workspace);
    run_pass(ctx, problem, plan, kernels->chain_pass, workspace);
    if (p->is_gated) {
        run_pass(ctx, problem, plan, kernels->act_second_pass, workspace);
        run_pass(ctx, problem, plan, kernels->chain_up_pass, workspace);
    }
    run_pass(ctx, problem, plan, kernels->round_dx_pass, workspace);
    if (p->is_gated) run_pass(ctx, problem, plan, kernels->round_dup_pass, workspace);
    return TSR_OK;
}
