// SPDX-License-Identifier: Apache-2.0
// The oracle: the definitions of tessera/norm.h in double, row by row.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/norm/norm_problem.h"

enum { COLUMNS_AT_ONCE = 2048 };

static double value_or(const struct norm_vector *v, int64_t i, double absent) {
    return v->data != NULL ? tsri_load(v->dtype, v->data, i) : absent;
}

static double weight_of(const struct norm_problem *p, int64_t c) {
    return p->weight.data != NULL ? value_or(&p->weight, c, 0) + (double)p->weight_offset : 1;
}

static void store_if(const struct norm_vector *v, int64_t i, double value) {
    if (v->data != NULL) tsr_store(v->dtype, v->data, i, value);
}

tsr_status norm_reference_forward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct norm_problem *p = problem;
    const tsr_dtype dtype = p->residual.data != NULL ? p->residual_out.dtype : p->x.dtype;
    double n = p->cols > 0 ? (double)p->cols : 1;
    for (int64_t r = 0; r < p->rows; r++) {
        const void *s = p->cols > 0 ? tsri_row(&p->x, r) : NULL;
        if (p->residual.data != NULL) {
            void *sum = tsri_row(&p->residual_out, r);
            const void *residual = tsri_row(&p->residual, r);
            for (int64_t c = 0; c < p->cols; c++)
                tsr_store(p->residual_out.dtype, sum, c,
                          tsri_load(p->x.dtype, s, c) + tsri_load(p->residual.dtype, residual, c));
            s = sum; // rounded to the dtype
        }
        double mean = 0, squares = 0;
        for (int64_t c = 0; c < p->cols && !p->is_rmsnorm; c++) mean += tsri_load(dtype, s, c);
        mean /= n;
        for (int64_t c = 0; c < p->cols; c++) {
            double centred = tsri_load(dtype, s, c) - mean;
            squares += centred * centred;
        }
        double rstd = 1 / sqrt(squares / n + p->eps);
        store_if(&p->mean, r, mean);
        store_if(&p->rstd, r, rstd);
        for (int64_t c = 0; c < p->cols; c++) {
            double h = (tsri_load(dtype, s, c) - mean) * rstd;
            tsr_store(p->y.dtype, tsri_row(&p->y, r), c,
                      h * weight_of(p, c) + value_or(&p->bias, c, 0));
        }
    }
    return TSR_OK;
}

// h of element c of row r. rest: the rounding error of mean.
static double normalised(const struct norm_problem *p, int64_t r, int64_t c, double rest) {
    return (tsri_load(p->x.dtype, tsri_row(&p->x, r), c) - value_or(&p->mean, r, 0) - rest) *
           value_or(&p->rstd, r, 1);
}

// The mean of x - mean, which would be 0 without the rounding of mean; 0 for rows that are not finite.
static double rest_of_mean(const struct norm_problem *p, int64_t r) {
    double sum = 0;
    if (p->is_rmsnorm || p->mean.data == NULL || p->cols == 0) return 0;
    for (int64_t c = 0; c < p->cols; c++)
        sum += tsri_load(p->x.dtype, tsri_row(&p->x, r), c) - value_or(&p->mean, r, 0);
    return isfinite(sum) ? sum / (double)p->cols : 0;
}

// dweight and dbias for some columns.
static void sum_columns(const struct norm_problem *p, int64_t first, int64_t num) {
    double dweight[COLUMNS_AT_ONCE], dbias[COLUMNS_AT_ONCE];
    for (int64_t i = 0; i < num; i++) dweight[i] = dbias[i] = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        double rest = rest_of_mean(p, r);
        for (int64_t i = 0; i < num; i++) {
            double dy = tsri_load(p->dy.dtype, tsri_row(&p->dy, r), first + i);
            dweight[i] += dy * normalised(p, r, first + i, rest);
            dbias[i] += dy;
        }
    }
    for (int64_t i = 0; i < num; i++) {
        store_if(&p->dweight, first + i, dweight[i]);
        store_if(&p->dbias, first + i, dbias[i]);
    }
}

tsr_status norm_reference_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct norm_problem *p = problem;
    // Before dx, which may overwrite x or dy.
    for (int64_t c = 0; c < p->cols; c += COLUMNS_AT_ONCE)
        sum_columns(p, c, tsri_min(p->cols - c, COLUMNS_AT_ONCE));
    for (int64_t r = 0; r < p->rows && p->cols > 0; r++) {
        const void *dy = tsri_row(&p->dy, r);
        double mean_g = 0, mean_gh = 0, rest = rest_of_mean(p, r);
        for (int64_t c = 0; c < p->cols; c++) {
            double g = tsri_load(p->dy.dtype, dy, c) * weight_of(p, c);
            mean_g += p->is_rmsnorm ? 0 : g / (double)p->cols;
            mean_gh += g * normalised(p, r, c, rest) / (double)p->cols;
        }
        for (int64_t c = 0; c < p->cols; c++) {
            double g = tsri_load(p->dy.dtype, dy, c) * weight_of(p, c);
            double h = normalised(p, r, c, rest);
            double dx = value_or(&p->rstd, r, 1) * (g - mean_g - h * mean_gh);
            if (p->dresidual_out.data != NULL)
                dx += tsri_load(p->dresidual_out.dtype, tsri_row(&p->dresidual_out, r), c);
            tsr_store(p->dx.dtype, tsri_row(&p->dx, r), c, dx);
        }
    }
    return TSR_OK;
}
