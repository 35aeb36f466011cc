// SPDX-License-Identifier: Apache-2.0
// The weighted sum and its gradients on CPU threads: a task is a group of tokens.
#include "ops/moe_combine/moe_combine_problem.h"

static int64_t row_bytes(const struct moe_combine_problem *p) {
    return p->y.cols * tsri_dtype_bytes(p->y.dtype);
}

void moe_combine_plan(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    const struct moe_combine_problem *p = problem;
    const int64_t num_rows = p->top_k + 1 + moe_is_given(&p->shared) + moe_is_given(&p->residual);
    tsri_plan_rows(plan, limits, p->y.rows, num_rows * row_bytes(p));
    plan->is_streaming = tsri_should_stream(limits, p->y.rows * row_bytes(p));
}

void moe_combine_plan_backward(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct moe_combine_problem *p = problem;
    const int64_t num_rows = 1 + p->top_k * (moe_is_given(&p->drows) + moe_is_given(&p->dweights)) +
                             moe_is_given(&p->dshared) + moe_is_given(&p->dshared_gate);
    tsri_plan_rows(plan, limits, p->y.rows, num_rows * row_bytes(p));
    plan->is_streaming = tsri_should_stream(limits, p->drows.rows * row_bytes(p));
    if (moe_is_given(&p->drows) && plan->num_tasks > 1)
        plan->workspace_bytes = tsri_round_up((size_t)p->num_rows * sizeof(int64_t), 64);
}

struct pass {
    const struct moe_combine_problem *problem;
    const struct tsri_plan *plan;
    const struct moe_combine_kernels *kernels;
    const int64_t *owners;
};

static void run_forward(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const int64_t first = index * pass->plan->grain;
    const int64_t last = tsri_min(first + pass->plan->grain, pass->problem->y.rows);
    (void)thread;
    pass->kernels->forward(pass->problem, first, last, pass->plan->is_streaming);
}

tsr_status moe_combine_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                           void *workspace) {
    struct pass pass = {problem, plan, moe_combine_kernels(tsr_context_isa(ctx)), NULL};
    (void)workspace;
    tsri_parallel(ctx, plan->num_tasks, run_forward, &pass);
    return TSR_OK;
}

static void run_backward(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const int64_t first = index * pass->plan->grain;
    const int64_t last = tsri_min(first + pass->plan->grain, pass->problem->y.rows);
    (void)thread;
    pass->kernels->backward(pass->problem, first, last, pass->owners, pass->plan->is_streaming);
}

// Only rows that a token has get an owner; no others are asked for.
static void find_owners(const struct moe_combine_problem *p, int64_t *owners) {
    for (int64_t t = 0; t < p->y.rows; t++) {
        const int32_t *rows = tsri_row(&p->token_rows, t);
        for (int64_t k = 0; k < p->top_k; k++)
            if (rows[k] >= 0) owners[rows[k]] = t * p->top_k + k;
    }
}

// A row that several tokens have is written by the last alone, so that tasks do not write the same row.
tsr_status moe_combine_backward_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct moe_combine_problem *p = problem;
    struct pass pass = {p, plan, moe_combine_kernels(tsr_context_isa(ctx)), NULL};
    if (moe_is_given(&p->drows) && plan->num_tasks > 1) {
        find_owners(p, workspace);
        pass.owners = workspace;
    }
    tsri_parallel(ctx, plan->num_tasks, run_backward, &pass);
    return TSR_OK;
}
