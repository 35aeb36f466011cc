// SPDX-License-Identifier: Apache-2.0
// Rare rows whose squares overflow fp32, or underflow it with a tiny eps. The square of any float is a normal number in
// double, so double needs no scaling.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/norm/norm_problem.h"

void norm_forward_wide_row(const struct norm_call *call, int64_t row, const void *s) {
    const struct norm_problem *p = call->problem;
    double sum = 0, squares = 0, n = p->cols > 0 ? (double)p->cols : 1;
    for (int64_t c = 0; c < p->cols && !p->is_rmsnorm; c++) sum += tsri_load(p->dtype, s, c);
    double mean = sum / n;
    for (int64_t c = 0; c < p->cols; c++) {
        double centred = tsri_load(p->dtype, s, c) - mean;
        squares += centred * centred;
    }
    double rstd = 1 / sqrt(squares / n + p->eps);
    if (p->mean.data != NULL) ((float *)p->mean.data)[row] = (float)mean;
    if (p->rstd.data != NULL) ((float *)p->rstd.data)[row] = (float)rstd;
    if (p->cols == 0) return;
    void *y = tsri_row(&p->y, row);
    const struct norm_vector *w = &p->weight, *b = &p->bias; // not the call's: they may be split
    for (int64_t c = 0; c < p->cols; c++) {
        double h = (tsri_load(p->dtype, s, c) - mean) * rstd;
        double weight = 1;
        if (w->data != NULL) weight = tsri_load(w->dtype, w->data, c) + (double)p->weight_offset;
        double bias = b->data != NULL ? tsri_load(b->dtype, b->data, c) : 0;
        tsr_store(p->dtype, y, c, h * weight + bias);
    }
}
