// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/moe_permute.h in double, token by token.
#include "core/core_dtype.h"
#include "ops/moe_combine/moe_combine_problem.h"

static double at(const struct tsri_rows *t, int64_t row, int64_t col) {
    return tsri_load(t->dtype, tsri_row(t, row), col);
}

static void put(const struct tsri_rows *t, int64_t row, int64_t col, double value) {
    tsr_store(t->dtype, tsri_row(t, row), col, value);
}

// The row of an assignment, -1 without one.
static int64_t row_of(const struct moe_combine_problem *p, int64_t t, int64_t k) {
    return ((const int32_t *)tsri_row(&p->token_rows, t))[k];
}

static double weight_of(const struct moe_combine_problem *p, int64_t t, int64_t k) {
    return moe_is_given(&p->weights) ? at(&p->weights, t, k) : 1;
}

// The factor of shared; its derivative in *slope.
static double gate_of(const struct moe_combine_problem *p, int64_t t, double *slope) {
    *slope = 0;
    return moe_is_given(&p->shared_gate) ? moe_sigmoid_of(at(&p->shared_gate, t, 0), slope) : 1;
}

tsr_status moe_combine_reference_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct moe_combine_problem *p = problem;
    (void)ctx, (void)plan, (void)workspace;
    for (int64_t t = 0; t < p->y.rows; t++) {
        double slope;
        const double gate = gate_of(p, t, &slope);
        for (int64_t i = 0; i < p->y.cols; i++) {
            double sum = 0;
            for (int64_t k = 0; k < p->top_k; k++)
                if (row_of(p, t, k) >= 0)
                    sum += weight_of(p, t, k) * at(&p->rows, row_of(p, t, k), i);
            if (moe_is_given(&p->shared)) sum += gate * at(&p->shared, t, i);
            if (moe_is_given(&p->residual)) sum += at(&p->residual, t, i);
            put(&p->y, t, i, sum);
        }
    }
    return TSR_OK;
}

static double dot(const struct tsri_rows *a, int64_t row_a, const struct tsri_rows *b,
                  int64_t row_b) {
    double sum = 0;
    for (int64_t i = 0; i < a->cols; i++) sum += at(a, row_a, i) * at(b, row_b, i);
    return sum;
}

tsr_status moe_combine_reference_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct moe_combine_problem *p = problem;
    const int64_t top_k = moe_has_row_gradients(p) ? p->top_k : 0;
    (void)ctx, (void)plan, (void)workspace;
    for (int64_t t = 0; t < p->y.rows; t++) {
        double slope;
        const double gate = gate_of(p, t, &slope);
        for (int64_t k = 0; k < top_k; k++) {
            const int64_t row = row_of(p, t, k);
            for (int64_t i = 0; moe_is_given(&p->drows) && row >= 0 && i < p->y.cols; i++)
                put(&p->drows, row, i, weight_of(p, t, k) * at(&p->y, t, i));
            if (moe_is_given(&p->dweights))
                put(&p->dweights, t, k, row >= 0 ? dot(&p->y, t, &p->rows, row) : 0);
        }
        if (moe_is_given(&p->dshared_gate))
            put(&p->dshared_gate, t, 0, dot(&p->y, t, &p->shared, t) * slope);
        for (int64_t i = 0; moe_is_given(&p->dshared) && i < p->y.cols; i++)
            put(&p->dshared, t, i, gate * at(&p->y, t, i)); // last, as it may be dy
    }
    return TSR_OK;
}
