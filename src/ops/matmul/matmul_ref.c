// SPDX-License-Identifier: Apache-2.0
// The oracle: tessera/matmul.h in double; every element of c is a sum over k in order.
#include "core/core_activation.h"
#include "core/core_dtype.h"
#include "ops/matmul/matmul_backward.h"

static double load(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return tsri_load(t->dtype, t->data, i * t->row + j * t->col);
}

static double scale(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return t->data != NULL ? load(t, i, j) : 1;
}

enum { COLUMNS = MATMUL_SCALE_BLOCK }; // columns of a row computed at once: they share a scale of b

// Up to COLUMNS elements of row i, from column j on. p holds one batch.
static void products(const struct matmul_problem *p, const struct matmul_matrix *b,
                     const struct matmul_matrix *b_scale, const struct tsri_quant_rows *quant,
                     int64_t i, int64_t j, int64_t count, double *sum) {
    double row[COLUMNS];
    const struct matmul_groups *groups = &p->groups;
    for (int64_t c = 0; c < count; c++) sum[c] = 0;
    for (int64_t step = 0; step < p->k; step++) {
        int64_t block = step / MATMUL_SCALE_BLOCK, row_of_b = matmul_line(&groups->of_b, step);
        int64_t row_of_a = groups->are_depths ? i : matmul_line(&groups->of_a, i);
        int64_t col_of_a = groups->are_depths ? matmul_line(&groups->of_a, step) : step;
        double a = load(&p->a, row_of_a, col_of_a) * scale(&p->a_scale, i, block);
        double scale_b = scale(b_scale, block, j / MATMUL_SCALE_BLOCK);
        if (quant->format != TSR_QUANT_NONE)
            for (int64_t c = 0; c < count; c++) row[c] = (double)tsri_quant_at(quant, j + c, step);
        else
            tsri_load_run(b->dtype, b->data, row_of_b * b->row + j * b->col, b->col, count, row);
        for (int64_t c = 0; c < count; c++) sum[c] += a * row[c] * scale_b;
    }
    for (int64_t c = 0; c < count; c++) sum[c] *= p->alpha;
}

// The same elements of c, with the epilogue.
static void reference_elements(const struct matmul_problem *p, int64_t i, int64_t j,
                               int64_t count) {
    double sum[COLUMNS], up[COLUMNS], grad;
    products(p, &p->b, &p->b_scale, &p->quant, i, j, count, sum);
    if (p->b_up.data != NULL) products(p, &p->b_up, &p->b_up_scale, &p->quant_up, i, j, count, up);
    for (int64_t c = 0; c < count; c++) {
        double v = sum[c];
        if (p->bias != NULL) v += tsri_load(p->bias_dtype, p->bias, j + c);
        v = tsri_activate(p->activation, v, &grad);
        if (p->bias_up != NULL) up[c] += tsri_load(p->bias_up_dtype, p->bias_up, j + c);
        if (p->b_up.data != NULL) v *= tsri_gate(p->activation, up[c], &grad);
        if (p->residual.data != NULL) v += load(&p->residual, i, j + c);
        if (p->is_accumulating) v += load(&p->c, i, j + c);
        tsr_store(p->c.dtype, p->c.data, i * p->c.row + j + c, v);
    }
}

tsr_status matmul_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct matmul_problem *p = problem;
    for (int64_t batch = 0; batch < p->num_batches; batch++) {
        const struct matmul_problem one = matmul_of_batch(p, batch);
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j += COLUMNS)
                reference_elements(&one, i, j, tsri_min(COLUMNS, p->n - j));
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

// The complete sum over m (and over the batches, if b is shared) of column j times a[., i], or times 1.
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
