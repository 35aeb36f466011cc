// SPDX-License-Identifier: Apache-2.0
// Routing on CPU threads: a task is a chunk of tokens. The chunks depend on the call's sizes alone, and their sums over tokens
// are added in order, so that the bits do not depend on the number of threads.
#include <string.h>

#include "ops/moe_route/moe_route_problem.h"

// Parts of a task's workspace: probs, counts, then z and num_nan.
static size_t probs_bytes(const struct moe_route_problem *p) {
    return tsri_round_up((size_t)moe_num_experts(p) * sizeof(double), 64);
}
static size_t counts_bytes(const struct moe_route_problem *p) {
    return tsri_round_up((size_t)moe_num_experts(p) * sizeof(int32_t), 64);
}
static size_t task_bytes(const struct moe_route_problem *p) {
    return probs_bytes(p) + counts_bytes(p) + sizeof(struct moe_route_sums);
}

static void plan_chunks(const struct moe_route_problem *p, struct tsri_plan *plan) {
    enum { LEAST_LOGITS = 4096, MOST_TASKS = 128 };
    const int64_t least = tsri_ceil_div(LEAST_LOGITS, p->logits.cols);
    plan->grain = tsri_max(least, tsri_ceil_div(p->logits.rows, MOST_TASKS));
    plan->num_tasks = tsri_ceil_div(p->logits.rows, plan->grain);
}

void moe_route_plan(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan) {
    const struct moe_route_problem *p = problem;
    (void)limits;
    plan_chunks(p, plan);
    if (moe_has_sums(p)) // one more for the sums of all
        plan->workspace_bytes = tsri_round_up(task_bytes(p), 64) * (size_t)(plan->num_tasks + 1);
}

void moe_route_plan_backward(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    (void)limits;
    plan_chunks(problem, plan);
}

struct pass {
    const struct moe_route_problem *problem;
    const struct tsri_plan *plan;
    moe_route_kernel *kernel;
    char *sums; // NULL if no output sums over tokens
};

// The sums of a task, in its part of the workspace; at first 0.
static struct moe_route_sums *sums_of(const struct pass *pass, int64_t task, bool is_new) {
    const struct moe_route_problem *p = pass->problem;
    char *at = pass->sums + (size_t)task * tsri_round_up(task_bytes(p), 64);
    struct moe_route_sums *sums = (void *)(at + probs_bytes(p) + counts_bytes(p));
    if (is_new) {
        memset(at, 0, task_bytes(p));
        sums->probs = (void *)at;
        sums->counts = (void *)(at + probs_bytes(p));
    }
    return sums;
}

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    const int64_t first = index * pass->plan->grain;
    const int64_t last = tsri_min(first + pass->plan->grain, pass->problem->logits.rows);
    pass->kernel(pass->problem, first, last,
                 pass->sums != NULL ? sums_of(pass, index, true) : NULL);
}

tsr_status moe_route_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                         void *workspace) {
    const struct moe_route_problem *p = problem;
    struct pass pass = {p, plan, moe_route_kernels(tsr_context_isa(ctx))->forward,
                        moe_has_sums(p) ? workspace : NULL};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
    if (pass.sums == NULL) return TSR_OK;
    struct moe_route_sums *all = sums_of(&pass, plan->num_tasks, true);
    for (int64_t task = 0; task < plan->num_tasks; task++) {
        const struct moe_route_sums *part = sums_of(&pass, task, false);
        for (int e = 0; e < moe_num_experts(p); e++) {
            all->probs[e] += part->probs[e];
            all->counts[e] += part->counts[e];
        }
        all->z += part->z;
        all->num_nan += part->num_nan;
    }
    moe_route_finish(p, all);
    return TSR_OK;
}

tsr_status moe_route_backward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    struct pass pass = {problem, plan, moe_route_kernels(tsr_context_isa(ctx))->backward, NULL};
    (void)workspace;
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
    return TSR_OK;
}
