// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/cast.h in double, element by element. A product of two floats is exact in
// double, so rounding it to float gives the fp32 product.
#include <string.h>

#include "core/core_dtype.h"
#include "ops/cast/cast_problem.h"

tsr_status cast_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct cast_problem *p = problem;
    bool is_wide = p->x.dtype == TSR_F64 || p->y.dtype == TSR_F64;
    for (int64_t r = 0; r < p->y.rows; r++) {
        const void *x = tsri_row(&p->x, r);
        void *y = tsri_row(&p->y, r);
        if (p->is_copy) {
            if (p->y.cols > 0) memmove(y, x, (size_t)p->y.cols * tsr_dtype_bytes(p->y.dtype));
            continue;
        }
        for (int64_t c = 0; c < p->y.cols; c++) {
            double value = tsri_load(p->x.dtype, x, c) * (double)p->scale;
            tsr_store(p->y.dtype, y, c, is_wide ? value : (double)(float)value);
        }
    }
    return TSR_OK;
}
