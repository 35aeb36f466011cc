// SPDX-License-Identifier: Apache-2.0
// The oracle: the definitions of tessera/activation.h in double, one element after the other.
#include <math.h>

#include "ops/activation/activation_problem.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_1_OVER_2PI 0.39894228040143267794

// F(x) of x F(x), and x F'(x), which is 0 in both limits.
static double distribution(tsr_activation kind, double x, double *slope) {
    if (kind == TSR_ACTIVATION_GELU) {
        *slope = isinf(x) ? 0 : x * SQRT_1_OVER_2PI * exp(-0.5 * x * x);
        return 0.5 * erfc(-x * 0.70710678118654752440);
    }
    double s = x, ds = 1; // F(x) = 1 / (1 + exp(-s(x)))
    if (kind == TSR_ACTIVATION_GELU_TANH) {
        s = 2 * SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
        ds = 2 * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
    }
    double tail = exp(-fabs(s)) / (1 + exp(-fabs(s)));
    *slope = tail == 0 ? 0 : x * tail * (1 - tail) * ds;
    return s < 0 ? tail : 1 - tail;
}

static double activate(tsr_activation kind, double x, double *grad) {
    double slope, f;
    *grad = 1;
    if (kind == TSR_ACTIVATION_NONE) return x;
    if (isnan(x)) return *grad = x;
    if (kind == TSR_ACTIVATION_RELU) {
        *grad = x > 0;
        return x > 0 ? x : 0;
    }
    f = distribution(kind, x, &slope);
    *grad = f + slope;
    return f == 0 ? 0 : x * f; // 0 at -inf
}

tsr_status activation_reference_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct activation_problem *p = problem;
    tsr_dtype dtype = p->y.dtype;
    for (int64_t r = 0; r < p->y.rows; r++) {
        const void *x = tsri_row(&p->x, r), *up = p->is_gated ? tsri_row(&p->up, r) : NULL;
        void *y = tsri_row(&p->y, r);
        for (int64_t c = 0; c < p->y.cols; c++) {
            double grad, value = activate(p->kind, tsr_load(dtype, x, c), &grad);
            tsr_store(dtype, y, c, up != NULL ? value * tsr_load(dtype, up, c) : value);
        }
    }
    return TSR_OK;
}

tsr_status activation_reference_backward_run(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct activation_problem *p = problem;
    tsr_dtype dtype = p->y.dtype;
    for (int64_t r = 0; r < p->y.rows; r++) {
        const void *x = tsri_row(&p->x, r), *dy = tsri_row(&p->dy, r);
        const void *up = p->is_gated ? tsri_row(&p->up, r) : NULL;
        void *dx = tsri_row(&p->y, r), *dup = p->is_gated ? tsri_row(&p->dup, r) : NULL;
        for (int64_t c = 0; c < p->y.cols; c++) {
            double grad, value = activate(p->kind, tsr_load(dtype, x, c), &grad);
            double dout = tsr_load(dtype, dy, c), factor = up ? tsr_load(dtype, up, c) : 1;
            tsr_store(dtype, dx, c, dout * grad * factor);
            if (dup != NULL) tsr_store(dtype, dup, c, dout * value);
        }
    }
    return TSR_OK;
}
