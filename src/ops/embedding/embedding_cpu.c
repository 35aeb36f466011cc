// SPDX-License-Identifier: Apache-2.0
// Embedding on CPU threads. Forward: a task is a group of tokens. Backward ("sorted"): one thread makes a counting sort
// of the tokens by id, in tokens + vocab steps. Then each task owns some rows and columns of dweight, sums their tokens
// in order and writes them once. So nothing is shared or atomic, and the result does not depend on the threads.
#include <string.h>

#include "ops/embedding/embedding_problem.h"

// ---- Forward ----------------------------------------------------------------------------------

struct gather {
    const struct embedding_problem *problem;
    const struct tsri_plan *plan;
    embedding_gather_kernel *kernel;
};

static void run_gather(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct gather *call = arg;
    int64_t first = index * call->plan->grain;
    int64_t last = tsri_min(first + call->plan->grain, call->problem->rows.rows);
    call->kernel(call->problem, first, last, call->plan->is_streaming);
}

tsr_status embedding_gather_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    (void)workspace;
    struct gather call = {problem, plan, embedding_kernels(tsr_context_isa(ctx))->gather};
    tsri_parallel(ctx, plan->num_tasks, run_gather, &call);
    return TSR_OK;
}

// ---- Backward, sorted -------------------------------------------------------------------------

// Fills start (vocab + 1) and token (tokens): each id's tokens in ascending order. Returns the largest number of tokens
// of an id.
static int64_t sort_tokens(const struct embedding_problem *p, int64_t *start, int64_t *token) {
    int64_t vocab = p->table.rows, sum = 0, most = 0;
    memset(start, 0, (size_t)(vocab + 1) * sizeof *start);
    for (int64_t t = 0; t < p->ids.count; t++) start[tsri_index_at(&p->ids, t)]++;
    for (int64_t v = 0; v <= vocab; v++) { // counts become starts
        int64_t count = start[v];
        start[v] = sum;
        sum += count;
        most = tsri_max(most, count);
    }
    for (int64_t t = 0; t < p->ids.count; t++) token[start[tsri_index_at(&p->ids, t)]++] = t;
    memmove(start + 1, start, (size_t)vocab * sizeof *start); // each start had moved to its end
    start[0] = 0;
    return most;
}

// The same for few tokens and many ids: one pass over start instead of three. Takes a few comparisons per token, in
// total at most as many as there are ids.
enum { FEW_TOKENS = 64 };

static bool has_few_tokens(const struct embedding_problem *p) {
    return p->ids.count <= FEW_TOKENS && p->ids.count * p->ids.count <= p->table.rows;
}

static int64_t sort_few_tokens(const struct embedding_problem *p, int64_t *start, int64_t *token) {
    int64_t vocab = p->table.rows, count = p->ids.count, most = 0, same = 0, v = 0;
    for (int64_t t = 0; t < count; t++) {
        int64_t id = tsri_index_at(&p->ids, t), i = t;
        for (; i > 0 && tsri_index_at(&p->ids, token[i - 1]) > id; i--) token[i] = token[i - 1];
        token[i] = t;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t id = tsri_index_at(&p->ids, token[i]);
        same = v > id ? same + 1 : 1;
        most = tsri_max(most, same);
        while (v <= id) start[v++] = i;
    }
    while (v <= vocab) start[v++] = count;
    return most;
}

enum {
    TASKS_PER_THREAD = 4, // so that the last task takes little of the total time
    WORK_OF_ELEMENT = 8,  // per element summed or written in the caches, in tile multiplications
};

struct sorted {
    const struct embedding_problem *problem;
    const struct tsri_plan *plan;
    embedding_sum_kernel *kernel;
    int64_t *start, *token;
    int64_t block_n; // columns per task
};

static void run_sorted(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct sorted *call = arg;
    const struct embedding_problem *p = call->problem;
    int64_t num_blocks = tsri_ceil_div(p->table.cols, call->block_n);
    int64_t first = index / num_blocks * call->plan->grain;
    int64_t begin = index % num_blocks * call->block_n;
    call->kernel(p, call->start, call->token, first,
                 tsri_min(first + call->plan->grain, p->table.rows), begin,
                 tsri_min(begin + call->block_n, p->table.cols), call->plan->is_streaming);
}

tsr_status embedding_sorted_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    const struct embedding_problem *p = problem;
    if (plan->num_tasks == 0) return TSR_OK;
    int64_t *start = workspace, *token = start + p->table.rows + 1;
    int64_t most =
        has_few_tokens(p) ? sort_few_tokens(p, start, token) : sort_tokens(p, start, token);
    int64_t num_tasks = plan->num_tasks;
    struct sorted call = {p,     plan,  embedding_kernels(tsr_context_isa(ctx))->sum,
                          start, token, plan->block_n};
    // Whole rows, which are faster in memory than parts of rows, if there are enough tasks and no id has much of the
    // work.
    int64_t row_tasks = tsri_ceil_div(p->table.rows, plan->grain);
    if (row_tasks >= TASKS_PER_THREAD * tsr_context_num_threads(ctx) &&
        most <= (p->table.rows + p->ids.count) / row_tasks) {
        call.block_n = p->table.cols;
        num_tasks = row_tasks;
    }
    double numel = (double)(p->table.rows + p->ids.count) * (double)p->table.cols;
    int threads = tsri_worth_threads(tsri_context_limits(ctx), numel * WORK_OF_ELEMENT);
    tsri_parallel_on(ctx, threads, num_tasks, run_sorted, &call);
    return TSR_OK;
}

// ---- Backward, unfused ------------------------------------------------------------------------
// As frameworks do it with a deterministic index_add: one thread adds, and the table is swept three times.

struct unfused {
    const struct embedding_problem *problem;
    const struct tsri_plan *plan;
    embedding_convert_kernel *convert;
    float *sums;
};

static void run_zero(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct unfused *call = arg;
    int64_t first = index * call->plan->grain, cols = call->problem->table.cols;
    int64_t last = tsri_min(first + call->plan->grain, call->problem->table.rows);
    memset(call->sums + first * cols, 0, (size_t)((last - first) * cols) * sizeof *call->sums);
}

static void run_convert(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct unfused *call = arg;
    int64_t first = index * call->plan->grain;
    int64_t last = tsri_min(first + call->plan->grain, call->problem->table.rows);
    call->convert(call->problem, call->sums, first, last);
}

tsr_status embedding_unfused_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct embedding_kernels *kernels = embedding_kernels(tsr_context_isa(ctx));
    if (plan->num_tasks == 0) return TSR_OK;
    const struct embedding_problem *p = problem;
    struct unfused call = {p, plan, kernels->convert, workspace};
    // If the sums stay in the cache of the adding thread, another thread reads them more slowly.
    const struct tsri_limits *limits = tsri_context_limits(ctx);
    double numel = (double)p->table.rows * (double)p->table.cols;
    int threads =
        embedding_sums_stay(p, limits) ? 1 : tsri_worth_threads(limits, numel * WORK_OF_ELEMENT);
    tsri_parallel_on(ctx, threads, plan->num_tasks, run_zero, &call);
    kernels->scatter(p, call.sums);
    tsri_parallel_on(ctx, threads, plan->num_tasks, run_convert, &call);
    return TSR_OK;
}
