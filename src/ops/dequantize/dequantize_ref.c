// SPDX-License-Identifier: Apache-2.0
// The oracle: the formulas of tessera/dequantize.h, number by number, in fp32 as they are defined.
#include "ops/dequantize/dequantize_problem.h"

tsr_status dequantize_reference_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct dequantize_problem *p = problem;
    (void)ctx, (void)plan, (void)workspace;
    for (int64_t row = 0; row < p->y.rows; row++) {
        const int64_t source = dequantize_source(p, row);
        for (int64_t col = 0; col < p->y.cols; col++) {
            const float number = source >= 0 ? tsri_quant_at(&p->x, source, col) : 0;
            tsr_store(p->y.dtype, tsri_row(&p->y, row), col, (double)number);
        }
    }
    return TSR_OK;
}
