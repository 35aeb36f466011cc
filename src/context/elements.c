// SPDX-License-Identifier: Apache-2.0
#include "context/elements.h"

void tsri_merge_rows(struct tsri_rows *const *views, int num_views) {
    for (int i = 0; i < num_views; i++)
        if (views[i]->dtype != TSR_DTYPE_NONE && views[i]->rows > 1 &&
            (views[i]->stride != views[i]->cols || views[i]->group > 0))
            return;
    for (int i = 0; i < num_views; i++) {
        views[i]->cols *= views[i]->rows;
        views[i]->stride = views[i]->cols;
        views[i]->rows = 1;
    }
}

void tsri_plan_elements(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                        int64_t cols, int64_t bytes_per_element) {
    enum { MIN_BYTES = 16 << 10, GOOD_BYTES = 64 << 10, TASKS_PER_THREAD = 4, COLUMN_STEP = 256 };
    enum { LARGE_BYTES = 2 << 20, LARGE_TASKS_PER_THREAD = 8 };
    if (rows <= 0 || cols <= 0) return; // nothing to do: no tasks
    // rows * cols does not overflow, because the checks bound a tensor's extent. With few tasks, the split is even.
    int64_t even = rows * cols / ((int64_t)limits->num_threads * LARGE_TASKS_PER_THREAD);
    int64_t large = plan->is_streaming ? tsri_min(LARGE_BYTES / bytes_per_element, even) : 0;
    int64_t most = tsri_max(GOOD_BYTES / bytes_per_element, large),
            least = MIN_BYTES / bytes_per_element;
    int64_t fair = tsri_ceil_div(rows * cols, (int64_t)limits->num_threads * TASKS_PER_THREAD);
    int64_t elements = tsri_max(tsri_min(most, fair), least);
    if (cols > elements) { // so all but the last piece of an aligned row have whole cache lines
        plan->grain = 1;
        plan->block_n = tsri_ceil_div(elements, COLUMN_STEP) * COLUMN_STEP;
    } else {
        plan->grain = elements / cols;
        plan->block_n = cols;
    }
    plan->num_tasks = tsri_ceil_div(rows, plan->grain) * tsri_ceil_div(cols, plan->block_n);
}

struct tsri_piece tsri_piece_of(const struct tsri_plan *plan, int64_t rows, int64_t cols,
                                int64_t task) {
    int64_t pieces = tsri_ceil_div(cols, plan->block_n);
    int64_t row = task / pieces * plan->grain, col = task % pieces * plan->block_n;
    return (struct tsri_piece){row, tsri_min(row + plan->grain, rows), col,
                               tsri_min(col + plan->block_n, cols)};
}
