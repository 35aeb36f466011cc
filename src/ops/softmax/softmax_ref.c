// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/softmax.h in double, row by row.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/softmax/softmax_problem.h"

tsr_status softmax_reference_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct softmax_problem *p = problem;
    const struct tsri_rows *x = &p->in[0], *y = &p->out;
    for (int64_t r = 0; r < y->rows; r++) {
        const void *xr = tsri_row(x, r);
        void *yr = tsri_row(y, r);
        double max = -INFINITY, sum = 0;
        for (int64_t c = 0; c < y->cols; c++) {
            double value = tsri_load(x->dtype, xr, c);
            if (value > max || isnan(value)) max = value;
            if (isnan(max)) break;
        }
        if (max == -INFINITY) max = 0; // a row of -inf: zeros
        for (int64_t c = 0; c < y->cols; c++) sum += exp(tsri_load(x->dtype, xr, c) - max);
        for (int64_t c = 0; c < y->cols; c++) {
            double e = exp(tsri_load(x->dtype, xr, c) - max);
            tsr_store(y->dtype, yr, c, sum == 0 ? 0 : e / sum);
        }
    }
    return TSR_OK;
}

tsr_status softmax_reference_backward_run(tsr_context *ctx, const void *problem,
                                          const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct softmax_problem *p = problem;
    tsr_dtype dtype = p->out.dtype;
    for (int64_t r = 0; r < p->out.rows; r++) {
        const void *y = tsri_row(&p->in[0], r), *dy = tsri_row(&p->in[1], r);
        void *dx = tsri_row(&p->out, r);
        double sum = 0;
        for (int64_t c = 0; c < p->out.cols; c++)
            sum += tsri_load(dtype, y, c) * tsri_load(dtype, dy, c);
        for (int64_t c = 0; c < p->out.cols; c++)
            tsr_store(dtype, dx, c, tsri_load(dtype, y, c) * (tsri_load(dtype, dy, c) - sum));
    }
    return TSR_OK;
}
