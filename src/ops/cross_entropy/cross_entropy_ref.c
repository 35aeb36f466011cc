// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/cross_entropy.h in double, row by row.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

// NaN if the row contains +inf or NaN; -inf if it contains only -inf.
static double logsumexp(const struct cross_entropy_problem *p, int64_t row) {
    const void *x = tsri_row(&p->logits, row);
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < p->logits.cols; c++) {
        double value = tsri_load(p->logits.dtype, x, c);
        if (isnan(value) || value == INFINITY) return NAN;
        max = fmax(max, value);
    }
    if (max == -INFINITY) return max;
    for (int64_t c = 0; c < p->logits.cols; c++) sum += exp(tsri_load(p->logits.dtype, x, c) - max);
    return max + log(sum);
}

static double row_loss(const struct cross_entropy_problem *p, int64_t row, double lse) {
    const void *x = tsri_row(&p->logits, row);
    double target = tsri_load(p->logits.dtype, x, tsri_index_at(&p->targets, row)), mean = 0;
    if (isnan(lse)) return NAN;
    if (lse == -INFINITY) return INFINITY;
    if (p->label_smoothing == 0) return lse - target;
    for (int64_t c = 0; c < p->logits.cols; c++)
        mean += (lse - tsri_load(p->logits.dtype, x, c)) / (double)p->logits.cols;
    return (1 - p->label_smoothing) * (lse - target) + p->label_smoothing * mean;
}

tsr_status cross_entropy_reference_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct cross_entropy_problem *p = problem;
    tsr_dtype dtype = p->logits.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    for (int64_t row = 0; row < p->logits.rows; row++) {
        double lse = logsumexp(p, row);
        if (p->lse != NULL) tsr_store(dtype, p->lse, row, lse);
        tsr_store(dtype, p->loss, row,
                  cross_entropy_is_ignored(p, row) ? 0 : row_loss(p, row, lse));
    }
    return TSR_OK;
}

// The row's maximum, and the sum of the exponentials relative to it over all classes except the target. If the target
// has nearly all probability, p - 1 is minus the share of the others.
static double sum_others(const struct cross_entropy_problem *p, int64_t row, double *max) {
    const void *x = tsri_row(&p->logits, row);
    double sum = 0;
    *max = -INFINITY;
    for (int64_t c = 0; c < p->logits.cols; c++)
        *max = fmax(*max, tsri_load(p->logits.dtype, x, c));
    for (int64_t c = 0; c < p->logits.cols; c++)
        if (c != tsri_index_at(&p->targets, row))
            sum += exp(tsri_load(p->logits.dtype, x, c) - *max);
    return sum;
}

// lse only tells whether a row has no gradient or is NaN; its value is recomputed from the row.
tsr_status cross_entropy_reference_backward_run(tsr_context *ctx, const void *problem,
                                                const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct cross_entropy_problem *p = problem;
    tsr_dtype dtype = p->logits.dtype, row_dtype = dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    for (int64_t row = 0; row < p->logits.rows; row++) {
        const void *x = tsri_row(&p->logits, row);
        void *dx = tsri_row(&p->dlogits, row);
        double lse = tsri_load(row_dtype, p->lse, row), dloss = tsri_load(row_dtype, p->dloss, row);
        int64_t target = tsri_index_at(&p->targets, row);
        bool is_zero = cross_entropy_is_ignored(p, row) || lse == -INFINITY;
        double other = p->label_smoothing / (double)p->logits.cols, max = 0, others = 0, sum = 1;
        if (!is_zero) {
            others = sum_others(p, row, &max);
            sum = isnan(lse) ? lse : others + exp(tsri_load(dtype, x, target) - max);
        }
        for (int64_t c = 0; c < p->logits.cols; c++) {
            double softmax = exp(tsri_load(dtype, x, c) - max) / sum;
            double difference =
                c == target ? p->label_smoothing - other - others / sum : softmax - other;
            tsr_store(dtype, dx, c, is_zero ? 0 : dloss * difference);
        }
    }
    return TSR_OK;
}
