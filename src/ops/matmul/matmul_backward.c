// SPDX-License-Identifier: Apache-2.0
// Matmul backward: entry, checks, variants, and the run on the CPU, which executes the steps of matmul_backward_steps.c
// in order. The contract is in tessera/matmul.h.
#include "ops/matmul/matmul_backward.h"

#include <string.h>

#include "ops/matmul/matmul_check.h"

// ---- Running ----------------------------------------------------------------------------------

struct work {
    const struct matmul_backward_problem *p;
    const struct matmul_backward_steps *steps;
    const struct matmul_kernels *kernels;
    float *sums;
    int64_t rows_per_task;
};

static struct matmul_matrix row_of(const struct matmul_problem *p, const struct matmul_matrix *t,
                                   int64_t row) {
    struct matmul_matrix matrix = matmul_batch(p, t, row / p->m);
    matrix.data = matmul_at(&matrix, row % p->m, 0);
    return matrix;
}

static void gradient_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    const struct matmul_problem *product = &w->p->product;
    int64_t first = index * w->rows_per_task;
    int64_t last = tsri_min(first + w->rows_per_task, product->num_batches * product->m);
    for (int64_t row = first; row < last; row++)
        w->kernels->activation_grad(w->p->dc.dtype, product->activation,
                                    row_of(product, &w->p->dc, row).data,
                                    row_of(product, &w->p->preact, row).data,
                                    row_of(product, &w->steps->g, row).data, product->n);
}

static void bias_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    const struct matmul_problem *product = &w->p->product;
    int64_t first = index * w->steps->rows_per_group;
    int64_t last = tsri_min(first + w->steps->rows_per_group, product->num_batches * product->m);
    float *sum = w->sums + index * product->n;
    memset(sum, 0, (size_t)product->n * sizeof *sum);
    for (int64_t row = first; row < last; row++)
        w->kernels->add_row(w->p->dc.dtype, row_of(product, &w->steps->g, row).data, sum,
                            product->n);
}

static tsr_status run_product(tsr_context *ctx, const struct matmul_problem *p, uint32_t flags,
                              void *workspace) {
    struct tsri_plan plan;
    const struct tsri_call call = {.size = sizeof call, .flags = flags};
    TSRI_TRY(tsri_op_plan(&tsri_matmul_forward_op, p, tsri_context_limits(ctx), &call, &plan));
    return plan.variant->run(ctx, p, &plan, workspace);
}

// Adds batch after batch in fp32, then rounds once into db.
static tsr_status run_summed_db(tsr_context *ctx, const struct matmul_backward_problem *p,
                                const struct matmul_backward_steps *s,
                                const struct matmul_kernels *kernels, uint32_t flags,
                                void *workspace) {
    const struct matmul_problem *product = &p->product;
    for (int64_t batch = 0; batch < product->num_batches; batch++) {
        struct matmul_problem one = s->db;
        one.a = matmul_transposed(matmul_batch(product, &product->a, batch));
        one.b = matmul_batch(product, &s->g, batch);
        one.is_accumulating = batch > 0;
        TSRI_TRY(run_product(ctx, &one, flags, workspace));
    }
    const float *sum = (const float *)(const void *)s->db.c.data;
    if (p->db.col == 1) {
        struct matmul_problem copy = {.c = p->db, .alpha = 1.0f};
        kernels->finish(&copy, 0, 0, product->k, product->n, sum, NULL, product->n);
        return TSR_OK;
    }
    for (int64_t i = 0; i < product->k; i++)
        for (int64_t j = 0; j < product->n; j++)
            tsr_store(p->db.dtype, p->db.data, i * p->db.row + j * p->db.col,
                      (double)sum[i * product->n + j]);
    return TSR_OK;
}

static tsr_status composed_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct matmul_backward_problem *p = problem;
    const struct matmul_problem *product = &p->product;
    struct tsri_limits limits = *tsri_context_limits(ctx);
    limits.flags = plan->flags;
    struct matmul_backward_steps s = matmul_backward_steps(p, &limits, workspace);
    char *sums = (char *)workspace + s.g_bytes + s.sum_bytes, *rest = sums + s.dbias_bytes;
    struct work w = {p, &s, matmul_kernels(limits.isa), (float *)(void *)sums, plan->grain};
    if (s.g_bytes > 0)
        tsri_parallel(ctx, tsri_ceil_div(product->num_batches * product->m, w.rows_per_task),
                      gradient_task, &w);
    if (p->da.data != NULL) TSRI_TRY(run_product(ctx, &s.da, plan->flags, rest));
    if (p->db.data != NULL && product->k > 0 && product->n > 0) {
        if (s.is_db_summed)
            TSRI_TRY(run_summed_db(ctx, p, &s, w.kernels, plan->flags, rest));
        else
            TSRI_TRY(run_product(ctx, &s.db, plan->flags, rest));
    }
    if (p->dbias == NULL || product->n == 0) return TSR_OK;
    tsri_parallel(ctx, s.num_groups, bias_task, &w);
    for (int64_t group = 1; group < s.num_groups; group++)
        w.kernels->add_row(TSR_F32, w.sums + group * product->n, w.sums, product->n);
    struct matmul_problem copy = {.c = {p->dbias, p->dbias_dtype, product->n, 1, {0}},
                                  .alpha = 1.0f};
    w.kernels->finish(&copy, 0, 0, 1, product->n, w.sums, NULL, product->n);
    return TSR_OK;
}

TSRI_SUPPORTS_UP_TO_F32(has_kernels, struct matmul_backward_problem, dc.dtype)

static const struct tsri_variant backward_variants[] = {
    {"composed", "the gradient of the epilogue, then two products on views", TSR_VARIANT_ISA,
     has_kernels, matmul_backward_plan, composed_run},
    {"cuda", "the gradient of the epilogue, then two products on views", TSR_VARIANT_CUDA,
     matmul_backward_cuda_serves, matmul_backward_plan, matmul_backward_cuda_run,
     matmul_backward_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, matmul_reference_backward_run},
};

const struct tsri_op tsri_matmul_backward_op = {"matmul_backward", backward_variants,
                                                TSRI_COUNT(backward_variants), NULL,
                                                matmul_backward_cuda_kernel};

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status check_gradients(const char *op, tsr_matmul_backward_args *args,
                                  struct matmul_backward_problem *p) {
    struct matmul_problem *product = &p->product;
    int64_t m = product->m, n = product->n, k = product->k;
    p->is_b_shared = args->b.ndim == 2 && product->num_batches != 1;
    if (tsri_is_present(&args->da)) {
        TSRI_TRY(matmul_check_matrix(op, "da", &args->da, TSRI_OUT, product, m, k,
                                     args->transpose_a != 0, &p->da));
        TSRI_TRY(tsri_check_same_shape(op, "da", &args->da, "a", &args->a));
        TSRI_TRY(tsri_check_same_dtype(op, "da", &args->da, "a", &args->a));
    }
    if (tsri_is_present(&args->db)) {
        struct matmul_problem shape_of_b = *product;
        TSRI_TRY(tsri_check_tensor(op, "db", &args->db, TSRI_OUT));
        TSRI_TRY(tsri_check_same_shape(op, "db", &args->db, "b", &args->b));
        if (p->is_b_shared) {
            for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) shape_of_b.batch[i] = 1;
            shape_of_b.num_batches = 1;
        }
        TSRI_TRY(matmul_check_matrix(op, "db", &args->db, TSRI_OUT, &shape_of_b, k, n,
                                     args->transpose_b != 0, &p->db));
        TSRI_TRY(tsri_check_same_dtype(op, "db", &args->db, "a", &args->a));
    }
    if (tsri_is_present(&args->dbias)) {
        TSRI_TRY(tsri_check_vector(op, "dbias", &args->dbias, TSRI_OUT, n));
        TSRI_TRY(matmul_check_side_dtype(op, "dbias", &args->dbias, "a", &args->a));
        p->dbias = args->dbias.data;
        p->dbias_dtype = args->dbias.dtype;
    }
    const struct {
        const char *name;
        const tsr_tensor *t;
    } outputs[] = {{"da", &args->da}, {"db", &args->db}, {"dbias", &args->dbias}},
      inputs[] = {{"a", &args->a}, {"b", &args->b}, {"dc", &args->dc}, {"preact", &args->preact}};
    for (int i = 0; i < TSRI_COUNT(outputs); i++) {
        for (int j = 0; j < TSRI_COUNT(inputs); j++)
            TSRI_TRY(tsri_check_disjoint(op, outputs[i].name, outputs[i].t, inputs[j].name,
                                         inputs[j].t, false));
        for (int j = 0; j < i; j++)
            TSRI_TRY(tsri_check_disjoint(op, outputs[i].name, outputs[i].t, outputs[j].name,
                                         outputs[j].t, false));
    }
    return TSR_OK;
}

static tsr_status check_backward(const tsr_context *ctx, const tsr_matmul_backward_args *given,
                                 tsr_matmul_backward_args *args,
                                 struct matmul_backward_problem *p) {
    static const char op[] = "matmul_backward";
    struct matmul_problem *product = &p->product;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(matmul_check_activation(op, args->activation, NULL));
    TSRI_TRY(tsri_check_tensor(op, "a", &args->a, TSRI_IN));
    TSRI_TRY(tsri_check_float(op, "a", &args->a));
    TSRI_TRY(matmul_check_product(op, &args->a, &args->b, args->transpose_a, args->transpose_b,
                                  product));
    TSRI_TRY(tsri_check_same_dtype(op, "b", &args->b, "a", &args->a));
    product->activation = args->activation;
    TSRI_TRY(matmul_check_matrix(op, "dc", &args->dc, TSRI_IN, product, product->m, product->n,
                                 false, &p->dc));
    TSRI_TRY(tsri_check_same_dtype(op, "dc", &args->dc, "a", &args->a));
    TSRI_TRY(matmul_check_rows_contiguous(op, "dc", &p->dc, product->n));
    if (args->activation != TSR_ACTIVATION_NONE) {
        TSRI_TRY(matmul_check_matrix(op, "preact", &args->preact, TSRI_IN, product, product->m,
                                     product->n, false, &p->preact));
        TSRI_TRY(tsri_check_same_dtype(op, "preact", &args->preact, "a", &args->a));
        TSRI_TRY(matmul_check_rows_contiguous(op, "preact", &p->preact, product->n));
    }
    return check_gradients(op, args, p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_matmul_backward_args args;
    struct matmul_backward_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_matmul_backward_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_matmul_backward(tsr_context *ctx, const tsr_matmul_backward_args *given) {
    return tsri_entry_call(enter_backward, ctx, given);
}

tsr_status tsr_matmul_backward_prepare(tsr_context *ctx, const tsr_matmul_backward_args *given,
                                       size_t *workspace_bytes) {
    return tsri_entry_prepare(enter_backward, ctx, given, workspace_bytes);
}
