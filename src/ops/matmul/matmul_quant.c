// SPDX-License-Identifier: Apache-2.0
// Matmul by quantised weights: entry, checks, variants. The contract is in tessera/matmul_quant.h. Most kernels are matmul's, whose
// panels of b are made of quantised columns.
#include <tessera/matmul_quant.h>

#include "ops/matmul/matmul_check.h"
#include "ops/matmul/matmul_quantised.h"

static const char op[] = "matmul_quant";

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

static const struct tsri_variant variants[] = {
    {"packed", "B packed once to panels that all threads share", TSR_VARIANT_ISA,
     matmul_has_kernels, matmul_plan_packed, matmul_packed_run},
    {"blocked", "A packed to panels, beyond 512 columns once for all threads; B by the task",
     TSR_VARIANT_ISA, matmul_has_kernels, matmul_plan_blocked, matmul_blocked_run},
    {"local", "every task packs the part of B that it needs", TSR_VARIANT_ISA, matmul_has_kernels,
     matmul_plan_local, matmul_local_run},
    {"skinny", "up to 16 rows: B read once, numbers made in registers", TSR_VARIANT_ISA,
     matmul_quant_is_skinny, matmul_quant_plan_skinny, matmul_quant_skinny_run},
    {"integers", "a in integers of 16 bits for each 32 columns, products of bytes (AVX512-VNNI)",
     TSR_VARIANT_ISA | TSR_VARIANT_BYTE_DOT, matmul_quant_has_integers, matmul_quant_plan_integers,
     matmul_quant_integers_run},
    {"cuda-widened", "the numbers of b in the workspace, then matmul", TSR_VARIANT_CUDA,
     matmul_quant_cuda_serves, matmul_quant_plan_cuda, matmul_quant_cuda_run,
     matmul_quant_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, matmul_reference_run},
};

const struct tsri_op tsri_matmul_quant_op = {"matmul_quant", variants, TSRI_COUNT(variants),
                                             matmul_quant_prefer};

// ---- Checks -----------------------------------------------------------------------------------

// The matrix that rows are.
static struct matmul_matrix matrix_of(const struct tsri_rows *rows) {
    return (struct matmul_matrix){rows->data, rows->dtype, rows->stride, 1, {0}};
}

// A tensor (..., n) with as many rows as a, whose leading dimensions it has.
static tsr_status check_beside_a(const char *field, tsr_tensor *t, enum tsri_role role,
                                 const tsr_matmul_quant_args *args, const struct matmul_problem *p,
                                 struct matmul_matrix *matrix) {
    struct tsri_rows rows;
    tsr_tensor expected = args->a;
    expected.shape[expected.ndim - 1] = p->n;
    TSRI_TRY(tsri_check_rows(op, field, t, role, &rows));
    TSRI_TRY(matmul_check_side_dtype(op, field, t, "a", &args->a));
    TSRI_TRY(tsri_check_same_shape(op, field, t, "a with b's rows as columns", &expected));
    *matrix = matrix_of(&rows);
    return TSR_OK;
}

static tsr_status check_bias(const char *field, tsr_tensor *bias, const tsr_matmul_quant_args *args,
                             int64_t n, const void **data, tsr_dtype *dtype) {
    if (!tsri_is_present(bias)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, field, bias, TSRI_IN, n));
    TSRI_TRY(matmul_check_side_dtype(op, field, bias, "a", &args->a));
    *data = bias->data;
    *dtype = bias->dtype;
    return TSR_OK;
}

static tsr_status check_weights(const struct tsri_quant_fields *f,
                                const tsr_matmul_quant_args *args, int64_t k,
                                struct tsri_quant_rows *q, struct matmul_matrix *matrix) {
    TSRI_TRY(tsri_check_quant_rows(op, f, q));
    TSRI_TRY(tsri_check_quant_bytes(op, f, "a", args->a.ndim - 1, k, q));
    if (f->x->ndim != 2)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected 2", op, f->name,
                         (int)f->x->ndim);
    TSRI_TRY(tsri_check_quant_scales(op, f, k, q));
    // As columns of numbers would lie.
    *matrix = (struct matmul_matrix){q->x.data, TSR_U8, 1, tsri_max(k, 2), {0}};
    return TSR_OK;
}

static tsr_status check_b(tsr_matmul_quant_args *args, struct matmul_problem *p) {
    struct tsri_quant_fields f = {.name = "b",
                                  .scale_name = "b_scale",
                                  .zero_name = "b_zero",
                                  .minimum_name = "b_minimum",
                                  .like_name = "a",
                                  .x = &args->b,
                                  .scale = &args->b_scale,
                                  .zero = &args->b_zero,
                                  .minimum = &args->b_minimum,
                                  .like = &args->a,
                                  .format = args->quant,
                                  .group = args->group};
    tsr_tensor *const of_up[] = {&args->b_up_scale, &args->b_up_zero, &args->b_up_minimum};
    static const char *const names[] = {"b_up_scale", "b_up_zero", "b_up_minimum"};
    TSRI_TRY(check_weights(&f, args, p->k, &p->quant, &p->b));
    p->n = p->quant.x.rows;
    for (int i = 0; i < TSRI_COUNT(of_up) && !tsri_is_present(&args->b_up); i++)
        if (tsri_is_present(of_up[i]))
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is given without b_up, expected both",
                             op, names[i]);
    if (!tsri_is_present(&args->b_up)) return TSR_OK;
    f.name = "b_up";
    f.scale_name = names[0], f.zero_name = names[1], f.minimum_name = names[2];
    f.x = &args->b_up;
    f.scale = of_up[0], f.zero = of_up[1], f.minimum = of_up[2];
    TSRI_TRY(check_weights(&f, args, p->k, &p->quant_up, &p->b_up));
    return tsri_check_same_shape(op, "b_up", &args->b_up, "b", &args->b);
}

static tsr_status check_epilogue(tsr_matmul_quant_args *args, struct matmul_problem *p) {
    TSRI_TRY(matmul_check_activation(op, args->activation, &args->b_up));
    TSRI_TRY(matmul_check_bias_up(op, &args->bias_up, &args->b_up));
    TSRI_TRY(check_bias("bias", &args->bias, args, p->n, &p->bias, &p->bias_dtype));
    TSRI_TRY(check_bias("bias_up", &args->bias_up, args, p->n, &p->bias_up, &p->bias_up_dtype));
    TSRI_TRY(matmul_check_accumulate(op, "c", &args->c, args->accumulate));
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, alpha));
    p->activation = args->activation;
    p->is_accumulating = args->accumulate != 0;
    p->alpha = args->has_alpha ? args->alpha : 1.0f;
    return TSR_OK;
}

static tsr_status check(const tsr_context *ctx, const tsr_matmul_quant_args *given,
                        tsr_matmul_quant_args *args, struct matmul_problem *p) {
    struct tsri_rows a;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_quant_format(op, args->quant));
    TSRI_TRY(tsri_check_rows(op, "a", &args->a, TSRI_IN, &a));
    TSRI_TRY(tsri_check_float(op, "a", &args->a));
    p->a = matrix_of(&a);
    p->m = a.rows;
    p->k = a.cols;
    TSRI_TRY(check_b(args, p));
    TSRI_TRY(check_beside_a("c", &args->c, TSRI_OUT, args, p, &p->c));
    if (tsri_is_present(&args->residual))
        TSRI_TRY(check_beside_a("residual", &args->residual, TSRI_IN, args, p, &p->residual));
    TSRI_TRY(check_epilogue(args, p));
    const struct tsri_named_tensor inputs[] = {
        {"a", &args->a},
        {"b", &args->b},
        {"b_scale", &args->b_scale},
        {"b_zero", &args->b_zero},
        {"b_minimum", &args->b_minimum},
        {"b_up", &args->b_up},
        {"b_up_scale", &args->b_up_scale},
        {"b_up_zero", &args->b_up_zero},
        {"b_up_minimum", &args->b_up_minimum},
        {"bias", &args->bias},
        {"bias_up", &args->bias_up},
    };
    for (int i = 0; i < TSRI_COUNT(inputs); i++)
        TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, inputs[i].name, inputs[i].tensor, false));
    return tsri_check_disjoint(op, "c", &args->c, "residual", &args->residual, true);
}

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_matmul_quant_args args;
    struct matmul_problem p = {.num_batches = 1, .batch = {1, 1, 1}};
    TSRI_TRY(check(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_matmul_quant_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_matmul_quant, enter)
