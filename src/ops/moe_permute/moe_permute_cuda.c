// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the permutation on CUDA: one block for few assignments, else blocks that count and blocks that place.
#include "ops/moe_permute/moe_permute_params.h"
#include "ops/moe_permute/moe_permute_problem.h"

static const char name[] = "moe_permute";

static const struct tsri_cuda_program count_program = {.source =
                                                           "ops/moe_permute/moe_permute_count.cu",
                                                       .entry = "moe_permute_count"},
                                      scatter_program = {
                                          .source = "ops/moe_permute/moe_permute_scatter.cu",
                                          .entry = "moe_permute_scatter"};

enum { ONE_BLOCK = 4096 }; // assignments that one block has

// More warps are faster; their counters must fit into the 48 KiB of shared memory that every card has. But warps without
// assignments or experts cost time, and a thread loads four assignments at once.
static int num_threads(const struct moe_permute_problem *p) {
    enum { LEAST = 128, AHEAD = 4 };
    const int64_t all = moe_num_assignments(p);
    const int most =
        p->num_experts <= MOE_PERMUTE_SHARED / 2 ? MOE_PERMUTE_THREADS : MOE_PERMUTE_THREADS / 2;
    if (all > ONE_BLOCK) return most;
    const int64_t useful = tsri_max(tsri_max(all / AHEAD, p->num_experts), LEAST);
    return (int)tsri_min((int64_t)tsri_round_up((size_t)useful, 32), most);
}

static bool is_shared(const struct moe_permute_problem *p) {
    return p->num_experts <= MOE_PERMUTE_SHARED;
}

// Counters of a block's table.
static int64_t table_numel(const struct moe_permute_problem *p) {
    return (num_threads(p) / 32 + 1) * p->num_experts;
}

// num_tasks: blocks, grain: assignments of a block. A block reads the counts of all, so they are at most MOST_BLOCKS; where
// its table is in global memory, all tables have 64 MiB together unless one has more.
void moe_permute_cuda_plan(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    enum { LEAST_CHUNK = 1024, MOST_BLOCKS = 128, TABLES = 1 << 24 };
    const struct moe_permute_problem *p = problem;
    const int64_t all = moe_num_assignments(p), most_chunk = (int64_t)1 << 30;
    int64_t most = tsri_min(limits->num_sms, MOST_BLOCKS);
    if (!is_shared(p)) most = tsri_min(most, TABLES / table_numel(p));
    most = tsri_max(most, tsri_ceil_div(all, most_chunk));
    const int64_t blocks = all <= ONE_BLOCK ? 1 : tsri_min(most, tsri_ceil_div(all, LEAST_CHUNK));
    plan->grain = (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(all, blocks), 1),
                                         (size_t)num_threads(p));
    plan->num_tasks = tsri_max(tsri_ceil_div(all, plan->grain), 1);
    const int64_t numel =
        (plan->num_tasks > 1 ? p->num_experts : 0) + (is_shared(p) ? 0 : table_numel(p));
    plan->workspace_bytes = (size_t)(plan->num_tasks * numel) * sizeof(int32_t);
}

tsr_status moe_permute_cuda_prepare(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan) {
    (void)problem;
    if (plan->num_tasks > 1)
        TSRI_TRY(tsri_cuda_prepare(name, tsri_context_queue(ctx), &count_program));
    return tsri_cuda_prepare(name, tsri_context_queue(ctx), &scatter_program);
}

tsr_status moe_permute_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    const struct moe_permute_problem *p = problem;
    const struct moe_permute_params params = {
        .ids = (const int *)(const void *)p->ids.data,
        .weights = (const float *)(const void *)p->weights.data,
        .counts = workspace,
        .tables = (int *)workspace + (plan->num_tasks > 1 ? plan->num_tasks * p->num_experts : 0),
        .offsets = p->offsets,
        .row_tokens = p->row_tokens,
        .token_rows = (int *)(void *)p->token_rows.data,
        .tokens_per_expert = p->tokens_per_expert,
        .num_dropped = p->num_dropped,
        .row_weights = p->row_weights,
        .ids_stride = p->ids.stride,
        .weights_stride = p->weights.stride,
        .token_rows_stride = p->token_rows.stride,
        .num_rows = p->num_rows,
        .num_assignments = (int)moe_num_assignments(p),
        .top_k = (int)p->ids.cols,
        .num_experts = (int)p->num_experts,
        .capacity = (int)p->capacity,
        .blocks = (int)plan->num_tasks,
        .chunk = (int)plan->grain,
    };
    struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = num_threads(p),
        .is_early = true,
        .params = &params,
    };
    if (plan->num_tasks > 1)
        TSRI_TRY(tsri_cuda_launch(name, tsri_context_queue(ctx), &count_program, &launch));
    if (is_shared(p)) launch.shared_bytes = (int)table_numel(p) * (int)sizeof(int32_t);
    return tsri_cuda_launch(name, tsri_context_queue(ctx), &scatter_program, &launch);
}

bool moe_permute_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    *program = index == 0 ? count_program : scatter_program;
    return index < 2;
}
