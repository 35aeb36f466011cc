// SPDX-License-Identifier: Apache-2.0
// The norms' plans on the CPU: how rows are split, and what the workspace contains.
#include "ops/norm/norm_problem.h"

static int64_t row_bytes(const struct norm_problem *p) {
    return p->cols * (int64_t)tsr_dtype_bytes(p->dtype);
}

// ---- Workspace --------------------------------------------------------------------------------

static size_t take(struct norm_layout *layout, size_t bytes) {
    size_t at = layout->total;
    layout->total += tsri_round_up(bytes, 64);
    return at;
}

int64_t norm_padded_cols(const struct norm_problem *p) {
    enum { LARGEST_PAIR = 32 };
    return tsri_ceil_div(p->cols, LARGEST_PAIR) * LARGEST_PAIR;
}

// Kernels read weight and bias as fp32; other dtypes are widened once per call. Fused bf16 kernels may also want them
// split.
static void take_vectors(struct norm_layout *layout, const struct norm_problem *p, bool is_fused) {
    size_t bytes = (size_t)norm_padded_cols(p) * sizeof(float);
    bool may_split = is_fused && p->dtype == TSR_BF16;
    if (may_split || p->weight.dtype != TSR_F32 || p->weight_offset != 0)
        layout->weight = take(layout, bytes);
    if (!p->is_rmsnorm && (may_split || p->bias.dtype != TSR_F32))
        layout->bias = take(layout, bytes);
}

struct norm_layout norm_forward_layout(const struct norm_problem *p, bool is_fused,
                                       bool is_streaming, int num_threads) {
    struct norm_layout layout = {0};
    take_vectors(&layout, p, is_fused);
    if (!is_fused) {
        layout.scratch = take(&layout, (size_t)p->rows * (size_t)p->cols * sizeof(float));
        layout.statistics = take(&layout, 3 * (size_t)p->rows * sizeof(float));
    } else if (is_streaming && p->residual.data != NULL) {
        // The sum is written with non-temporal stores, so the rows to normalise are kept here.
        layout.scratch_per_row = tsri_round_up((size_t)row_bytes(p), 64);
        layout.scratch_per_thread = layout.scratch_per_row * (size_t)norm_block_rows(p);
        layout.scratch = take(&layout, layout.scratch_per_thread * (size_t)num_threads);
    }
    return layout;
}

struct norm_layout norm_backward_layout(const struct norm_problem *p, bool is_fused) {
    struct norm_layout layout = {0};
    take_vectors(&layout, p, is_fused);
    if (!is_fused) {
        layout.scratch = take(&layout, 2 * (size_t)p->rows * (size_t)p->cols * sizeof(float));
        layout.statistics = take(&layout, 3 * (size_t)p->rows * sizeof(float));
    }
    if (norm_wants_sums(p)) {
        int64_t groups = tsri_ceil_div(p->rows, norm_group_rows(p));
        layout.partial =
            take(&layout, 2 * (size_t)groups * (size_t)norm_padded_cols(p) * sizeof(float));
    }
    return layout;
}

int64_t norm_block_rows(const struct norm_problem *p) {
    enum { BYTES = 64 << 10 };
    int64_t rows = BYTES / tsri_max(row_bytes(p), 1);
    return tsri_min(tsri_max(rows, 1), NORM_MAX_BLOCK_ROWS);
}

// ---- Splitting --------------------------------------------------------------------------------

// At most 128 groups: for 16,384 rows, their sums are 1 % of the traffic and keep 64 threads busy. Short rows are
// grouped by 16.
int64_t norm_least_group_rows(const struct norm_problem *p) {
    enum { SHORT = 128 }; // on every instruction set, because the sums must not depend on it
    return p->cols <= SHORT ? 16 : 8;
}
int64_t norm_group_rows(const struct norm_problem *p) {
    return tsri_max(norm_least_group_rows(p), tsri_ceil_div(p->rows, 128));
}

// Large tensors are split into tasks of 2 MiB, so that most rows can prefetch the next row of their task.
static void plan_rows(const struct norm_problem *p, const struct tsri_limits *limits,
                      int64_t bytes_per_row, struct tsri_plan *plan) {
    enum { TASK_BYTES = 2 << 20, TASKS_PER_THREAD = 8 };
    tsri_plan_rows(plan, limits, p->rows, bytes_per_row);
    if (p->rows <= 0) return;
    int64_t fair = p->rows / ((int64_t)limits->num_threads * TASKS_PER_THREAD);
    int64_t grain = tsri_min(tsri_ceil_div(TASK_BYTES, tsri_max(bytes_per_row, 1)), fair);
    plan->grain = tsri_max(plan->grain, grain);
    plan->num_tasks = tsri_ceil_div(p->rows, plan->grain);
}

static void plan_forward(const struct norm_problem *p, const struct tsri_limits *limits,
                         bool is_fused, struct tsri_plan *plan) {
    int64_t tensors = p->residual.data != NULL ? 4 : 2;
    plan_rows(p, limits, tensors * row_bytes(p), plan);
    // In place, a row is in the cache already, and non-temporal stores would be a detour.
    plan->is_streaming =
        !p->is_in_place && tsri_should_stream_rows(limits, tensors * p->rows * row_bytes(p), &p->y);
    plan->workspace_bytes =
        norm_forward_layout(p, is_fused, plan->is_streaming, limits->num_threads).total;
}

static void plan_backward(const struct norm_problem *p, const struct tsri_limits *limits,
                          bool is_fused, struct tsri_plan *plan) {
    int64_t tensors = p->dresidual_out.data != NULL ? 4 : 3;
    plan_rows(p, limits, tensors * row_bytes(p), plan);
    if (norm_wants_sums(p) && p->rows > 0) {
        plan->grain = norm_group_rows(p);
        plan->num_tasks = tsri_ceil_div(p->rows, plan->grain);
    }
    // With two input tensors, fp32 dx gains from non-temporal stores as soon as all tensors exceed the share of one
    // thread.
    int num_threads = p->dtype == TSR_F32 ? 1 : limits->num_threads;
    plan->is_streaming =
        !p->is_in_place &&
        tsri_should_stream_rows_of(limits, num_threads, tensors * p->rows * row_bytes(p), &p->dx);
    plan->workspace_bytes = norm_backward_layout(p, is_fused).total;
}

void norm_plan_fused_forward(const void *p, const struct tsri_limits *l, struct tsri_plan *plan) {
    plan_forward(p, l, true, plan);
}
void norm_plan_unfused_forward(const void *p, const struct tsri_limits *l, struct tsri_plan *plan) {
    plan_forward(p, l, false, plan);
}
void norm_plan_fused_backward(const void *p, const struct tsri_limits *l, struct tsri_plan *plan) {
    plan_backward(p, l, true, plan);
}
void norm_plan_unfused_backward(const void *p, const struct tsri_limits *l,
                                struct tsri_plan *plan) {
    plan_backward(p, l, false, plan);
}
