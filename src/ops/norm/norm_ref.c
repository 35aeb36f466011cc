// SPDX-License-Identifier: Apache-2.0
// The oracle: the definitions of tessera/norm.h in double, one row after the other.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/norm/norm_problem.h"

static double value_or(const struct norm_vector *v, int64_t i, double absent) {
    return v->data != NULL ? tsri_load(v->dtype, v->data, i) : absent;
}

static void store_if(const struct norm_vector *v, int64_t i, double value) {
    if (v->data != NULL) tsr_store(v->dtype, v->data, i, value);
}

tsr_status norm_reference_forward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct norm_problem *p = problem;
    double n = p->cols > 0 ? (double)p->cols : 1;
    for (int64_t r = 0; r < p->rows; r++) {
        const void *s = p->cols > 0 ? tsri_row(&p->x, r) : NULL;
        if (p->residual.data != NULL) {
            void *sum = tsri_row(&p->residual_out, r);
            const void *residual = tsri_row(&p->residual, r);
            for (int64_t c = 0; c < p->cols; c++)
                tsr_store(p->dtype, sum, c,
                          tsri_load(p->dtype, s, c) + tsri_load(p->dtype, residual, c));
            s = sum; // as rounded
        }
        double mean = 0, squares = 0;
        for (int64_t c = 0; c < p->cols && !p->is_rmsnorm; c++) mean += tsri_load(p->dtype, s, c);
        mean /= n;
        for (int64_t c = 0; c < p->cols; c++) {
            double centred = tsri_load(p->dtype, s, c) - mean;
            squares += centred * centred;
        }
        double rstd = 1 / sqrt(squares / n + p->eps);
        store_if(&p->mean, r, mean);
        store_if(&p->rstd, r, rstd);
        for (int64_t c = 0; c < p->cols; c++) {
            double h = (tsri_load(p->dtype, s, c) - mean) * rstd;
            tsr_store(p->dtype, tsri_row(&p->y, r), c,
                      h * value_or(&p->weight, c, 1) + value_or(&p->bias, c, 0));
        }
    }
    return TSR_OK;
}

// h of element c of row r.
static double normalised(const struct norm_problem *p, int64_t r, int64_t c) {
    return (tsri_load(p->dtype, tsri_row(&p->x, r), c) - value_or(&p->mean, r, 0)) *
           value_or(&p->rstd, r, 1);
}

tsr_status norm_reference_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct norm_problem *p = problem;
    // Before dx: it may overwrite x or dy.
    for (int64_t c = 0; c < p->cols; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t r = 0; r < p->rows; r++) {
            double dy = tsri_load(p->dtype, tsri_row(&p->dy, r), c);
            dweight += dy * normalised(p, r, c);
            dbias += dy;
        }
        store_if(&p->dweight, c, dweight);
        store_if(&p->dbias, c, dbias);
    }
    for (int64_t r = 0; r < p->rows && p->cols > 0; r++) {
        const void *dy = tsri_row(&p->dy, r);
        double mean_g = 0, mean_gh = 0;
        for (int64_t c = 0; c < p->cols; c++) {
            double g = tsri_load(p->dtype, dy, c) * value_or(&p->weight, c, 1);
            mean_g += p->is_rmsnorm ? 0 : g / (double)p->cols;
            mean_gh += g * normalised(p, r, c) / (double)p->cols;
        }
        for (int64_t c = 0; c < p->cols; c++) {
            double g = tsri_load(p->dtype, dy, c) * value_or(&p->weight, c, 1);
            double dx = value_or(&p->rstd, r, 1) * (g - mean_g - normalised(p, r, c) * mean_gh);
            if (p->dresidual_out.data != NULL)
                dx += tsri_load(p->dtype, tsri_row(&p->dresidual_out, r), c);
            tsr_store(p->dtype, tsri_row(&p->dx, r), c, dx);
        }
    }
    return TSR_OK;
}
