// SPDX-License-Identifier: Apache-2.0
// The oracle: the definitions of tessera/activation.h in double, element by element.
#include "core/core_activation.h"
#include "core/core_dtype.h"
#include "ops/activation/activation_problem.h"

tsr_status activation_reference_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct activation_problem *p = problem;
    tsr_dtype dtype = p->y.dtype;
    for (int64_t r = 0; r < p->y.rows; r++) {
        const void *x = tsri_row(&p->x, r), *up = p->is_gated ? tsri_row(&p->up, r) : NULL;
        void *y = tsri_row(&p->y, r);
        for (int64_t c = 0; c < p->y.cols; c++) {
            double grad, value = tsri_activate(p->kind, tsri_load(dtype, x, c), &grad);
            if (up != NULL) value *= tsri_gate(p->kind, tsri_load(dtype, up, c), &grad);
            tsr_store(dtype, y, c, value);
        }
    }
    return TSR_OK;
}

tsr_status activation_reference_backward_run(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct activation_problem *p = problem;
    tsr_dtype dtype = p->y.dtype;
    const bool has_weights = p->row_weights.dtype != TSR_DTYPE_NONE,
               has_y = p->weighted_y.dtype != TSR_DTYPE_NONE;
    for (int64_t r = 0; r < p->y.rows; r++) {
        const void *x = tsri_row(&p->x, r), *dy = tsri_row(&p->dy, r);
        const void *up = p->is_gated ? tsri_row(&p->up, r) : NULL;
        void *dx = tsri_row(&p->y, r), *dup = p->is_gated ? tsri_row(&p->dup, r) : NULL;
        void *weighted_y = has_y ? tsri_row(&p->weighted_y, r) : NULL;
        double weight = 1, sum = 0;
        if (has_weights) weight = tsri_load(p->row_weights.dtype, tsri_row(&p->row_weights, r), 0);
        for (int64_t c = 0; c < p->y.cols; c++) {
            double grad, value = tsri_activate(p->kind, tsri_load(dtype, x, c), &grad);
            double dout = tsri_load(dtype, dy, c), factor = 1, of_up = 1;
            if (up != NULL) factor = tsri_gate(p->kind, tsri_load(dtype, up, c), &of_up);
            tsr_store(dtype, dx, c, weight * dout * grad * factor);
            if (dup != NULL) tsr_store(dtype, dup, c, weight * dout * value * of_up);
            if (has_y) tsr_store(dtype, weighted_y, c, weight * value * factor);
            sum += dout * value * factor;
        }
        if (p->drow_weights.dtype != TSR_DTYPE_NONE)
            tsr_store(p->drow_weights.dtype, tsri_row(&p->drow_weights, r), 0, sum);
    }
    return TSR_OK;
}
