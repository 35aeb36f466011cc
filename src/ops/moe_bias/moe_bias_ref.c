// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/moe_permute.h in double, expert by expert.
#include "core/core_dtype.h"
#include "ops/moe_bias/moe_bias_problem.h"

static double weight_of(const struct moe_bias_problem *p, int64_t row) {
    if (p->row_weights.dtype == TSR_DTYPE_NONE) return 1;
    return tsri_load(p->row_weights.dtype, tsri_row(&p->row_weights, row), 0);
}

tsr_status moe_bias_reference_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct moe_bias_problem *p = problem;
    (void)ctx, (void)plan, (void)workspace;
    for (int64_t e = 0; e < p->dbias.rows; e++)
        for (int64_t i = 0; i < p->dbias.cols; i++) {
            double sum = 0;
            for (int64_t r = tsri_index_at(&p->offsets, e); r < tsri_index_at(&p->offsets, e + 1);
                 r++)
                sum += weight_of(p, r) *
                       tsri_load(p->rows.dtype, tsri_row(&p->rows, moe_bias_source(p, r)), i);
            tsr_store(p->dbias.dtype, tsri_row(&p->dbias, e), i, sum);
        }
    return TSR_OK;
}
