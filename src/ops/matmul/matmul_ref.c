// SPDX-License-Identifier: Apache-2.0
// The oracle: tessera/matmul.h in double, one element of c after the other.
#include "core/core_activation.h"
#include "core/core_dtype.h"
#include "ops/matmul/matmul_backward.h"

static double load(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return tsri_load(t->dtype, t->data, i * t->row + j * t->col);
}

static double scale(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return t->data != NULL ? load(t, i, j) : 1;
}

// p: of one batch.
static double product(const struct matmul_problem *p, const struct matmul_matrix *b,
                      const struct matmul_matrix *b_scale, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t step = 0; step < p->k; step++) {
        int64_t block = step / MATMUL_SCALE_BLOCK;
        sum += load(&p->a, i, step) * scale(&p->a_scale, i, block) * load(b, step, j) *
               scale(b_scale, block, j / MATMUL_SCALE_BLOCK);
    }
    return p->alpha * sum;
}

tsr_status matmul_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct matmul_problem *p = problem;
    for (int64_t batch = 0; batch < p->num_batches; batch++) {
        const struct matmul_problem one = matmul_of_batch(p, batch);
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                double grad, v = product(&one, &one.b, &one.b_scale, i, j);
                if (p->bias != NULL) v += tsri_load(p->bias_dtype, p->bias, j);
                v = tsri_activate(p->activation, v, &grad);
                if (p->b_up.data != NULL) v *= product(&one, &one.b_up, &one.b_up_scale, i, j);
                if (p->residual.data != NULL) v += load(&one.residual, i, j);
                if (p->is_accumulating) v += load(&one.c, i, j);
                tsr_store(p->c.dtype, one.c.data, i * p->c.row + j, v);
            }
    }
    return TSR_OK;
}

// ---- Backward ---------------------------------------------------------------------------------

static double gradient(const struct matmul_backward_problem *p, const struct matmul_matrix *dc,
                       const struct matmul_matrix *preact, int64_t i, int64_t j) {
    double grad = 1;
    if (p->product.activation != TSR_ACTIVATION_NONE)
        tsri_activate(p->product.activation, load(preact, i, j), &grad);
    return load(dc, i, j) * grad;
}

// The whole sum over m (and, for a shared b, over the batches) of column j times a[., i], or times 1.
static double column_sum(const struct matmul_backward_problem *p, int64_t first_batch,
                         int64_t num_batches, bool is_bias, int64_t i, int64_t j) {
    const struct matmul_problem *product = &p->product;
    double sum = 0;
    for (int64_t batch = first_batch; batch < first_batch + num_batches; batch++) {
        struct matmul_matrix a = matmul_batch(product, &product->a, batch);
        struct matmul_matrix dc = matmul_batch(product, &p->dc, batch);
        struct matmul_matrix preact = matmul_batch(product, &p->preact, batch);
        for (int64_t r = 0; r < product->m; r++)
            sum += gradient(p, &dc, &preact, r, j) * (is_bias ? 1 : load(&a, r, i));
    }
    return sum;
}

static void store(const struct matmul_matrix *t, int64_t i, int64_t j, double value) {
    tsr_store(t->dtype, t->data, i * t->row + j * t->col, value);
}

tsr_status matmul_reference_backward_run(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct matmul_backward_problem *p = problem;
    const struct matmul_problem *product = &p->product;
    for (int64_t batch = 0; batch < product->num_batches && p->da.data != NULL; batch++) {
        struct matmul_matrix b = matmul_batch(product, &product->b, batch);
        struct matmul_matrix da = matmul_batch(product, &p->da, batch);
        struct matmul_matrix dc = matmul_batch(product, &p->dc, batch);
        struct matmul_matrix preact = matmul_batch(product, &p->preact, batch);
        for (int64_t i = 0; i < product->m; i++)
            for (int64_t step = 0; step < product->k; step++) {
                double sum = 0;
                for (int64_t j = 0; j < product->n; j++)
                    sum += gradient(p, &dc, &preact, i, j) * load(&b, step, j);
                store(&da, i, step, sum);
            }
    }
    int64_t num_b = p->is_b_shared ? 1 : product->num_batches;
    int64_t batches_of_b = p->is_b_shared ? product->num_batches : 1;
    for (int64_t batch = 0; batch < num_b && p->db.data != NULL; batch++) {
        struct matmul_matrix db = p->is_b_shared ? p->db : matmul_batch(product, &p->db, batch);
        for (int64_t step = 0; step < product->k; step++)
            for (int64_t j = 0; j < product->n; j++)
                store(&db, step, j, column_sum(p, batch, batches_of_b, false, step, j));
    }
    for (int64_t j = 0; j < product->n && p->dbias != NULL; j++)
        tsr_store(p->dbias_dtype, p->dbias, j, column_sum(p, 0, product->num_batches, true, 0, j));
    return TSR_OK;
}
