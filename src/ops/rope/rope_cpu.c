// SPDX-License-Identifier: Apache-2.0
// RoPE on CPU threads. Rotation: tokens are independent; a task is a group of tokens with all their heads. Tables: a
// task is a group of positions that starts at an anchor.
#include <math.h>

#include "ops/rope/rope_problem.h"

// ---- Rotation ---------------------------------------------------------------------------------

struct pass {
    const struct rope_problem *problem;
    const struct tsri_plan *plan;
    rope_kernel *kernel;
    float *rotated;
};

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    int64_t first = index * pass->plan->grain;
    int64_t last = tsri_min(first + pass->plan->grain, pass->problem->tokens);
    pass->kernel(pass->problem, first, last, pass->rotated, pass->plan->is_streaming);
}

static void run_pass(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                     rope_kernel *kernel, void *workspace) {
    struct pass pass = {problem, plan, kernel, workspace};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

tsr_status rope_fused_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                          void *workspace) {
    run_pass(ctx, problem, plan, rope_kernels(tsr_context_isa(ctx))->fused, workspace);
    return TSR_OK;
}

// The baseline works like a framework: x * cos + rotate_half(x) * sin, with rotate_half(x) in memory.
tsr_status rope_unfused_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                            void *workspace) {
    const struct rope_kernels *kernels = rope_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->rotate_half_pass, workspace);
    run_pass(ctx, problem, plan, kernels->multiply_add_pass, workspace);
    return TSR_OK;
}

// ---- Tables -----------------------------------------------------------------------------------

struct table_call {
    const struct rope_table_problem *problem;
    const struct tsri_plan *plan;
    rope_table_kernel *kernel;
    double *frequency, *step_c, *step_s; // (block_n) each, shared by all threads
    double *state;                       // two of (block_n) per thread
};

static void run_table_task(void *arg, int64_t index, int thread) {
    const struct table_call *call = arg;
    const struct rope_table_problem *p = call->problem;
    int64_t first = index * call->plan->grain;
    int64_t last = tsri_min(first + call->plan->grain, p->cos.rows);
    double *c = call->state + 2 * thread * call->plan->block_n, *s = c + call->plan->block_n;
    for (int64_t anchor = first; anchor < last; anchor += ROPE_ANCHOR) {
        for (int64_t i = 0; i < p->cos.cols; i++) {
            double angle = (double)anchor * call->frequency[i];
            c[i] = p->attention_factor * cos(angle);
            s[i] = p->attention_factor * sin(angle);
        }
        call->kernel(p, anchor, tsri_min(anchor + ROPE_ANCHOR, last), c, s, call->step_c,
                     call->step_s);
    }
}

tsr_status rope_table_anchored_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    const struct rope_table_problem *p = problem;
    if (plan->num_tasks == 0) return TSR_OK;
    int64_t n = plan->block_n;
    double *at = workspace;
    struct table_call call = {
        p, plan, rope_kernels(tsr_context_isa(ctx))->table, at, at + n, at + 2 * n, at + 3 * n};
    for (int64_t i = 0; i < p->cos.cols; i++) {
        call.frequency[i] = rope_frequency(p, i);
        call.step_c[i] = cos(call.frequency[i]);
        call.step_s[i] = sin(call.frequency[i]);
    }
    tsri_parallel(ctx, plan->num_tasks, run_table_task, &call);
    return TSR_OK;
}
