// SPDX-License-Identifier: Apache-2.0
// The biases' gradients on CPU threads: a task sums some columns of a part of an expert's rows. A second pass adds the sums of
// experts with several parts, in order.
#include "ops/moe_bias/moe_bias_problem.h"

// block_n: columns of a task, of no influence on a column's sum. Where rows are few, narrower tasks occupy all threads, but a task
// of an average expert has LEAST_BYTES.
void moe_bias_plan(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan) {
    enum { LEAST_BYTES = 4 << 10, TASKS_PER_THREAD = 4, LINE = 64 };
    const struct moe_bias_problem *p = problem;
    const int64_t cols = p->dbias.cols, bytes = tsri_dtype_bytes(p->rows.dtype);
    if (cols == 0 || p->dbias.rows == 0) return;
    const int64_t busy = tsri_max(tsri_ceil_div(p->num_rows, MOE_BIAS_PART), 1);
    const int64_t wanted = tsri_ceil_div((int64_t)limits->num_threads * TASKS_PER_THREAD, busy);
    const int64_t average = tsri_max(tsri_min(p->num_rows / p->dbias.rows, MOE_BIAS_PART), 1);
    const int64_t least = tsri_ceil_div(LEAST_BYTES, average * bytes);
    const int64_t width = tsri_max(tsri_ceil_div(cols, wanted), least);
    plan->block_n =
        tsri_min((int64_t)tsri_round_up((size_t)tsri_min(width, cols), LINE), MOE_BIAS_COLS);
    plan->num_tasks = moe_bias_num_parts(p) * tsri_ceil_div(cols, plan->block_n);
    plan->workspace_bytes = (size_t)(moe_bias_num_places(p) * cols) * sizeof(float);
}

struct pass {
    const struct moe_bias_problem *problem;
    const struct tsri_plan *plan;
    const struct moe_bias_kernels *kernels;
    int64_t num_blocks; // of columns
    float *sums;        // (num_places, cols)
};

static int64_t start_of(const struct moe_bias_problem *p, int64_t expert) {
    return tsri_index_at(&p->offsets, expert);
}
static int64_t first_part(const struct moe_bias_problem *p, int64_t expert) {
    return start_of(p, expert) / MOE_BIAS_PART + expert;
}

// The last expert whose parts begin at or before `part`.
static int64_t expert_of(const struct moe_bias_problem *p, int64_t part) {
    int64_t low = 0, high = p->dbias.rows - 1;
    while (low < high) {
        const int64_t middle = high - (high - low) / 2;
        if (first_part(p, middle) <= part)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static float *place_of(const struct pass *pass, int64_t expert, int64_t part) {
    const struct moe_bias_problem *p = pass->problem;
    return pass->sums + (2 * start_of(p, expert) / MOE_BIAS_PART + part) * p->dbias.cols;
}

// The columns of block `index`; all rows of the expert.
static struct moe_bias_piece piece_of(const struct pass *pass, int64_t expert, int64_t index) {
    const struct moe_bias_problem *p = pass->problem;
    const int64_t col = index % pass->num_blocks * pass->plan->block_n;
    return (struct moe_bias_piece){
        .expert = expert,
        .first = start_of(p, expert),
        .last = start_of(p, expert + 1),
        .col = col,
        .num_cols = tsri_min(pass->plan->block_n, p->dbias.cols - col),
    };
}

static void sum_part(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct moe_bias_problem *p = pass->problem;
    const int64_t number = index / pass->num_blocks, expert = expert_of(p, number);
    const int64_t part = number - first_part(p, expert);
    struct moe_bias_piece piece = piece_of(pass, expert, index);
    const int64_t first = piece.first + part * MOE_BIAS_PART, end = piece.last;
    (void)thread;
    if (part < 0 || (part > 0 && first >= end)) return; // a number of no part
    if (end - piece.first > MOE_BIAS_PART) piece.sums = place_of(pass, expert, part) + piece.col;
    piece.first = first;
    piece.last = tsri_min(first + MOE_BIAS_PART, end);
    pass->kernels->sum(p, &piece);
}

static void merge_parts(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const int64_t expert = index / pass->num_blocks;
    struct moe_bias_piece piece = piece_of(pass, expert, index);
    const int64_t num_parts = tsri_ceil_div(piece.last - piece.first, MOE_BIAS_PART);
    (void)thread;
    if (num_parts <= 1) return;
    piece.sums = place_of(pass, expert, 0) + piece.col;
    pass->kernels->merge(pass->problem, &piece, num_parts);
}

tsr_status moe_bias_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                        void *workspace) {
    const struct moe_bias_problem *p = problem;
    if (plan->num_tasks == 0) return TSR_OK;
    struct pass pass = {p, plan, moe_bias_kernels(tsr_context_isa(ctx)),
                        tsri_ceil_div(p->dbias.cols, plan->block_n), workspace};
    tsri_parallel(ctx, plan->num_tasks, sum_part, &pass);
    if (moe_bias_num_places(p) > 0)
        tsri_parallel(ctx, p->dbias.rows * pass.num_blocks, merge_parts, &pass);
    return TSR_OK;
}
