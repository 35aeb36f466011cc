// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/embedding.h in double, element by element.
#include <string.h>

#include "core/core_dtype.h"
#include "ops/embedding/embedding_problem.h"

tsr_status embedding_reference_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct embedding_problem *p = problem;
    size_t row_bytes = (size_t)p->rows.cols * tsr_dtype_bytes(p->rows.dtype);
    for (int64_t t = 0; t < p->rows.rows; t++) { // copies bits, not values: a NaN keeps its payload
        const void *row = tsri_row(&p->table, tsri_index_at(&p->ids, t));
        if (row_bytes > 0) memcpy(tsri_row(&p->rows, t), row, row_bytes);
    }
    return TSR_OK;
}

// head (vocab), next (tokens): each id's tokens as an ascending list; -1 ends it.
static void link_tokens(const struct embedding_problem *p, int64_t *head, int64_t *next) {
    for (int64_t v = 0; v < p->table.rows; v++) head[v] = -1;
    for (int64_t t = p->ids.count - 1; t >= 0; t--) {
        int64_t v = tsri_index_at(&p->ids, t);
        if (v == p->padding_id) continue;
        next[t] = head[v];
        head[v] = t;
    }
}

tsr_status embedding_reference_backward_run(tsr_context *ctx, const void *problem,
                                            const struct tsri_plan *plan, void *workspace) {
    (void)ctx;
    const struct embedding_problem *p = problem;
    if (plan->num_tasks == 0) return TSR_OK;
    int64_t *head = workspace, *next = head + p->table.rows;
    link_tokens(p, head, next);
    for (int64_t v = 0; v < p->table.rows; v++) {
        void *row = tsri_row(&p->table, v);
        if (p->is_accumulating && head[v] < 0) continue;
        for (int64_t c = 0; c < p->table.cols; c++) {
            double sum = 0;
            for (int64_t t = head[v]; t >= 0; t = next[t])
                sum += tsri_load(p->rows.dtype, tsri_row(&p->rows, t), c);
            if (p->is_accumulating) sum += tsri_load(p->table.dtype, row, c);
            tsr_store(p->table.dtype, row, c, sum);
        }
    }
    return TSR_OK;
}
