// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention_ahead.h"

void attention_prefetch_row(const struct attention_view *view, int64_t batch, int64_t row,
                            int64_t head, int64_t dims) {
    enum { LINE = 64 };
    const char *at = attention_at(view, batch, row, head);
    int64_t bytes = dims * (int64_t)tsr_dtype_bytes(view->dtype);
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(at + i);
}

void attention_ahead_add(struct attention_ahead *a, const struct attention_view *view,
                         int64_t batch, int64_t head, int64_t row, int64_t num_rows, int64_t dims) {
    if (view->data == NULL || num_rows <= 0 || a->last == ATTENTION_AHEAD_RUNS) return;
    a->run[a->last++] = (struct attention_ahead_run){view, batch, head, row, row + num_rows, dims};
}

void attention_ahead_add_group(struct attention_ahead *a, const struct attention_problem *p,
                               const struct attention_view *view, int64_t batch, int64_t kv_head,
                               int64_t first, int64_t num_rows, int64_t dims) {
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t group = p->num_heads_q / p->num_heads_kv;
    for (int64_t r = first; r < first + num_rows;) {
        int64_t i = r % seq.len_q, rows = tsri_min(seq.len_q - i, first + num_rows - r);
        attention_ahead_add(a, view, batch, kv_head * group + r / seq.len_q, seq.q_first + i, rows,
                            dims);
        r += rows;
    }
}

void attention_ahead_step(struct attention_ahead *a) {
    for (int64_t i = 0; i < a->step && a->first < a->last; i++) {
        struct attention_ahead_run *run = &a->run[a->first];
        attention_prefetch_row(run->view, run->batch, run->row, run->head, run->dims);
        if (++run->row == run->end) a->first++;
    }
}
