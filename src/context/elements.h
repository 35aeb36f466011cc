// SPDX-License-Identifier: Apache-2.0
// How element-wise operations split their work. Rows that are contiguous in every tensor become one long row; long rows
// are cut into pieces and short rows are grouped, so that a task moves about 64 KiB for any shape.
#ifndef TSRI_ELEMENTS_H
#define TSRI_ELEMENTS_H

#include "context/op_table.h"

// All views have one shape. If each of them is contiguous, makes each one row of rows * cols elements. Absent views (no
// dtype) are skipped.
void tsri_merge_rows(struct tsri_rows *const *views, int num_views);

// Fills num_tasks, grain (rows per task) and block_n (columns per task). bytes_per_element: bytes that all tensors
// together move per element. With non-temporal stores (is_streaming), pieces have up to 2 MiB, so that a thread uses
// what it prefetches.
void tsri_plan_elements(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                        int64_t cols, int64_t bytes_per_element);

// The rows and columns of one task; the ends are exclusive.
struct tsri_piece {
    int64_t first_row, last_row, first_col, last_col;
};
struct tsri_piece tsri_piece_of(const struct tsri_plan *plan, int64_t rows, int64_t cols,
                                int64_t task);

#endif
