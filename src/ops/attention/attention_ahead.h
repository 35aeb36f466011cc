// SPDX-License-Identifier: Apache-2.0
// Rows that are needed soon, asked for little by little while there is work to hide the wait behind. The rows of
// one head are a stride apart, which no hardware prefetcher follows. Hints alone: what finds no place
// here is fetched when it is needed.
#ifndef TSRI_ATTENTION_AHEAD_H
#define TSRI_ATTENTION_AHEAD_H

#include "ops/attention/attention_problem.h"

enum { ATTENTION_AHEAD_RUNS = 8 };

struct attention_ahead {
    struct attention_ahead_run {
        const struct attention_view *view;
        int64_t batch, head, row, end, dims;
    } run[ATTENTION_AHEAD_RUNS];
    int first, last; // runs that are left
    int64_t step;    // rows at a time
};

static inline void attention_ahead_clear(struct attention_ahead *a, int64_t step) {
    a->first = a->last = 0;
    a->step = step;
}

// Rows [row, row + num_rows) of a head, where the tensor is given.
void attention_ahead_add(struct attention_ahead *a, const struct attention_view *view,
                         int64_t batch, int64_t head, int64_t row, int64_t num_rows, int64_t dims);
// Rows [first, first + num_rows) of a group of heads of q, out or their gradients.
void attention_ahead_add_group(struct attention_ahead *a, const struct attention_problem *p,
                               const struct attention_view *view, int64_t batch, int64_t kv_head,
                               int64_t first, int64_t num_rows, int64_t dims);
void attention_ahead_step(struct attention_ahead *a);

void attention_prefetch_row(const struct attention_view *view, int64_t batch, int64_t row,
                            int64_t head, int64_t dims);

#endif
