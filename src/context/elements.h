// SPDX-License-Identifier: Apache-2.0
// How element-wise operations split their work: rows that lie back to back in every tensor become
// one long row; long rows are cut into pieces, short ones grouped, so that a task moves about 64
// KiB whatever the shape.
#ifndef TSRI_ELEMENTS_H
#define TSRI_ELEMENTS_H

#include "context/op_table.h"

// Views of one shape. Where each of them is contiguous, makes them one row of rows * cols elements.
// Absent views (no dtype) are passed over.
void tsri_merge_rows(struct tsri_rows *const *views, int num_views);

// Fills num_tasks, grain (rows per task) and block_n (columns per task). bytes_per_element: what
// all tensors together move for one element. Where the plan says that it goes past the caches, pieces are of up to 2 MiB, so
// that what a thread fetches ahead is its own.
void tsri_plan_elements(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                        int64_t cols, int64_t bytes_per_element);

// The rows and columns of one task, ends excluded.
struct tsri_piece {
    int64_t first_row, last_row, first_col, last_col;
};
struct tsri_piece tsri_piece_of(const struct tsri_plan *plan, int64_t rows, int64_t cols,
                                int64_t task);

#endif
