// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the routing on CUDA: a warp takes tokens one after the other.
#include "context/cuda_elements.h"
#include "ops/moe_route/moe_route_params.h"
#include "ops/moe_route/moe_route_problem.h"

static const char forward_name[] = "moe_route_forward", backward_name[] = "moe_route_backward";

// Kernels of forward, by the experts that a lane holds: the warps of a block with sums over tokens, which is alone on its
// multiprocessor, and the blocks of FEW_WARPS without.
enum { FEW_WARPS = 8 };
static const struct size {
    int per_lane, warps, sm_blocks;
} sizes[] = {{1, 32, 6}, {4, 32, 6}, {8, 32, 4}, {MOE_MAX_EXPERTS / 32, 8, 1}};

static const struct size *size_of(const struct moe_route_problem *p) {
    const struct size *size = sizes;
    while (32 * size->per_lane < moe_num_experts(p)) size++;
    return size;
}

static int warps_of(const struct moe_route_problem *p) {
    return moe_has_sums(p) ? size_of(p)->warps : FEW_WARPS;
}

static struct tsri_cuda_program forward_program(const struct size *size, bool has_sums) {
    return (struct tsri_cuda_program){
        .source = "ops/moe_route/moe_route_forward.cu",
        .entry = "moe_route_forward",
        .defines = {{"DTYPE", TSR_F32}, {"PER_LANE", size->per_lane}, {"HAS_SUMS", has_sums}},
        .num_defines = 3};
}

static const struct tsri_cuda_program losses_program = {.source =
                                                            "ops/moe_route/moe_route_losses.cu",
                                                        .entry = "moe_route_losses",
                                                        .defines = {{"DTYPE", TSR_F32}},
                                                        .num_defines = 1},
                                      backward_program = {.source =
                                                              "ops/moe_route/moe_route_backward.cu",
                                                          .entry = "moe_route_backward",
                                                          .defines = {{"DTYPE", TSR_F32}},
                                                          .num_defines = 1};

// ---- Forward ----------------------------------------------------------------------------------

void moe_route_cuda_plan(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct moe_route_problem *p = problem;
    const int warps = warps_of(p);
    const int64_t most = limits->num_sms * (moe_has_sums(p) ? 1 : size_of(p)->sm_blocks);
    plan->num_tasks = tsri_min(tsri_ceil_div(p->logits.rows, warps), most);
    if (!moe_has_sums(p)) return;
    plan->num_tasks = tsri_max(plan->num_tasks, 1); // zeros without tokens
    const size_t of_expert = sizeof(int) + (moe_has_probs(p) ? sizeof(double) : 0);
    plan->workspace_bytes = (size_t)plan->num_tasks *
                            (of_expert * (size_t)moe_num_experts(p) + sizeof(double) + sizeof(int));
}

// Doubles first, so that all are aligned.
static struct moe_route_parts parts_of(const struct moe_route_problem *p,
                                       const struct tsri_plan *plan, void *workspace) {
    struct moe_route_parts parts = {0};
    const int64_t blocks = plan->num_tasks, all = blocks * moe_num_experts(p);
    if (!moe_has_sums(p)) return parts;
    parts.z = workspace;
    double *probs = parts.z + blocks;
    if (moe_has_probs(p)) parts.probs = probs;
    parts.counts = (int *)(void *)(probs + (moe_has_probs(p) ? all : 0));
    parts.nans = parts.counts + all;
    return parts;
}

tsr_status moe_route_cuda_prepare(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan) {
    const struct moe_route_problem *p = problem;
    const struct tsri_cuda_program forward = forward_program(size_of(p), moe_has_sums(p));
    (void)plan;
    TSRI_TRY(tsri_cuda_prepare(forward_name, tsri_context_queue(ctx), &forward));
    if (!moe_has_sums(p)) return TSR_OK;
    return tsri_cuda_prepare(forward_name, tsri_context_queue(ctx), &losses_program);
}

static tsr_status launch_losses(tsr_context *ctx, const struct moe_route_problem *p,
                                const struct tsri_plan *plan, struct moe_route_parts parts) {
    const struct moe_route_losses_params params = {
        .parts = parts,
        .tokens_per_expert = p->tokens_per_expert,
        .num_nan_rows = p->num_nan_rows,
        .mean_probs = p->mean_probs,
        .balance_loss = p->balance_loss,
        .z_loss = p->z_loss,
        .usage_variance = p->usage_variance,
        .tokens = p->logits.rows,
        .num_blocks = (int)plan->num_tasks,
        .num_experts = moe_num_experts(p),
        .top_k = moe_top_k(p),
    };
    const struct tsri_cuda_launch launch = {.num_blocks = 1,
                                            .num_threads = MOE_ROUTE_LOSSES_THREADS,
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(forward_name, tsri_context_queue(ctx), &losses_program, &launch);
}

tsr_status moe_route_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    const struct moe_route_problem *p = problem;
    const struct tsri_cuda_program program = forward_program(size_of(p), moe_has_sums(p));
    const int warps = warps_of(p);
    const struct moe_route_forward_params params = {
        .logits = p->logits.data,
        .bias = p->bias,
        .ids = (int *)(void *)p->ids.data,
        .weights = (float *)(void *)p->weights.data,
        .lse = p->lse,
        .parts = parts_of(p, plan, workspace),
        .logits_stride = p->logits.stride,
        .ids_stride = p->ids.stride,
        .weights_stride = p->weights.stride,
        .tokens = p->logits.rows,
        .num_experts = moe_num_experts(p),
        .top_k = moe_top_k(p),
        .dtype = (int)p->logits.dtype,
        .round_dtype = (int)p->round_weights,
        .num_groups = p->num_groups,
        .topk_groups = p->topk_groups,
        .is_group_max = p->group_score == TSR_MOE_GROUP_MAX,
        .is_sigmoid = p->scoring == TSR_MOE_SIGMOID,
        .is_renormalised = p->is_renormalised,
        .is_exact = moe_is_choice_exact(p),
        .has_lse = p->lse != NULL || p->z_loss != NULL,
        .scaling = p->scaling,
    };
    const int of_expert = (moe_has_probs(p) ? warps * (int)sizeof(double) : 0) +
                          (moe_has_sums(p) ? (int)sizeof(int) : 0);
    const int of_group = moe_has_limits(p) ? warps * (int)sizeof(int) : 0;
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = 32 * warps,
        .shared_bytes = of_expert * moe_num_experts(p) + of_group * p->num_groups,
        .is_early = true,
        .params = &params,
    };
    if (plan->num_tasks == 0) return TSR_OK;
    TSRI_TRY(tsri_cuda_launch(forward_name, tsri_context_queue(ctx), &program, &launch));
    return moe_has_sums(p) ? launch_losses(ctx, p, plan, params.parts) : TSR_OK;
}

bool moe_route_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    enum { NUM_PROGRAMS = 2 * TSRI_COUNT(sizes) };
    (void)cuda_arch;
    *program =
        index < NUM_PROGRAMS ? forward_program(&sizes[index / 2], index % 2) : losses_program;
    return index <= NUM_PROGRAMS;
}

// ---- Backward ---------------------------------------------------------------------------------

void moe_route_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                                  struct tsri_plan *plan) {
    (void)limits;
    plan->num_tasks =
        tsri_min(tsri_ceil_div(((const struct moe_route_problem *)problem)->logits.rows,
                               MOE_ROUTE_BACKWARD_WARPS),
                 INT32_MAX);
}

tsr_status moe_route_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan) {
    (void)problem, (void)plan;
    return tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), &backward_program);
}

tsr_status moe_route_cuda_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    const struct moe_route_problem *p = problem;
    const double tokens = (double)tsri_max(p->logits.rows, 1);
    const bool is_dense = p->balance_loss != NULL || p->z_loss != NULL ||
                          (p->scoring == TSR_MOE_SOFTMAX && !p->is_renormalised);
    const int rows = is_dense ? 2 * MOE_ROUTE_BACKWARD_WARPS : 0;
    const struct moe_route_backward_params params = {
        .logits = p->logits.data,
        .ids = (const int *)(const void *)p->ids.data,
        .tokens_per_expert = p->tokens_per_expert,
        .dweights = (const float *)(const void *)p->weights.data,
        .dbalance_loss = p->balance_loss,
        .dz_loss = p->z_loss,
        .dlogits = p->dlogits.data,
        .logits_stride = p->logits.stride,
        .ids_stride = p->ids.stride,
        .dweights_stride = p->weights.stride,
        .dlogits_stride = p->dlogits.stride,
        .tokens = p->logits.rows,
        .num_experts = moe_num_experts(p),
        .top_k = moe_top_k(p),
        .dtype = (int)p->logits.dtype,
        .is_sigmoid = p->scoring == TSR_MOE_SIGMOID,
        .is_renormalised = p->is_renormalised,
        .is_dense = is_dense,
        .scaling = p->scaling,
        .balance_factor = moe_num_experts(p) / (tokens * moe_top_k(p) * tokens),
        .z_factor = 2 / tokens,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = 32 * MOE_ROUTE_BACKWARD_WARPS,
        .shared_bytes = rows * moe_num_experts(p) * (int)sizeof(float),
        .is_early = true,
        .params = &params,
    };
    (void)workspace;
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(backward_name, tsri_context_queue(ctx), &backward_program, &launch);
}

bool moe_route_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    *program = backward_program;
    return index == 0;
}
