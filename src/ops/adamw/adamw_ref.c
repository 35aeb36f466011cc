// SPDX-License-Identifier: Apache-2.0
// The oracle: the formula of tessera/adamw.h in double, element by element.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/adamw/adamw_problem.h"

tsr_status adamw_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct adamw_problem *p = problem;
    for (int64_t r = 0; r < p->m.rows; r++) {
        void *param = tsri_row(&p->param, r),
             *master = p->has_master ? tsri_row(&p->master, r) : NULL;
        void *m_row = tsri_row(&p->m, r), *v_row = tsri_row(&p->v, r);
        const void *grad = tsri_row(&p->grad, r);
        for (int64_t c = 0; c < p->m.cols; c++) {
            double g = tsri_load(p->grad.dtype, grad, c) * p->grad_scale;
            double m = p->beta1 * tsri_load(p->m.dtype, m_row, c) + p->rest1 * g;
            double v = p->beta2 * tsri_load(p->v.dtype, v_row, c) + p->rest2 * g * g;
            double x = master != NULL ? tsri_load(p->master.dtype, master, c)
                                      : tsri_load(p->param.dtype, param, c);
            x -= p->rate * m / (sqrt(v) * p->root_factor + p->eps) + p->decay * x;
            tsr_store(p->m.dtype, m_row, c, m);
            tsr_store(p->v.dtype, v_row, c, v);
            if (master != NULL) tsr_store(p->master.dtype, master, c, x);
            tsr_store(p->param.dtype, param, c, x);
        }
    }
    return TSR_OK;
}
