// SPDX-License-Identifier: Apache-2.0
// The weighted sum of each token's rows: entries, checks, variants. The contract is in tessera/moe_permute.h.
#include <stdio.h>

#include "ops/moe_combine/moe_combine_problem.h"

enum { MOST_TOP_K = 1 << 16 };

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct moe_combine_problem, y.dtype)

static const struct tsri_variant forward_variants[] = {
    {"fused", "one read of each row, sums in registers, one write of each token", TSR_VARIANT_ISA,
     is_float32_or_less, moe_combine_plan, moe_combine_run},
    {"cuda", "the same with a warp for columns of a token, eight rows in flight", TSR_VARIANT_CUDA,
     moe_combine_cuda_fits, moe_combine_cuda_plan, moe_combine_cuda_run, moe_combine_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, moe_combine_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"fused", "a token's gradient read once from memory, each row read and written once",
     TSR_VARIANT_ISA, is_float32_or_less, moe_combine_plan_backward, moe_combine_backward_run},
    {"cuda", "the same with a block for each token", TSR_VARIANT_CUDA, moe_combine_cuda_fits,
     moe_combine_cuda_plan_backward, moe_combine_cuda_backward_run,
     moe_combine_cuda_backward_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, moe_combine_reference_backward_run},
};

const struct tsri_op tsri_moe_combine_forward_op = {"moe_combine_forward", forward_variants,
                                                    TSRI_COUNT(forward_variants), NULL,
                                                    moe_combine_cuda_forward_kernel};
const struct tsri_op tsri_moe_combine_backward_op = {"moe_combine_backward", backward_variants,
                                                     TSRI_COUNT(backward_variants), NULL,
                                                     moe_combine_cuda_backward_kernel};

// ---- Checks -----------------------------------------------------------------------------------

// y or dy, whose shape and dtype the others follow.
struct like {
    const char *op, *name;
    const tsr_tensor *tensor;
};

static tsr_dtype real_dtype(const struct like *like) {
    return like->tensor->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}

static tsr_status check_y(struct like *like, tsr_tensor *t, enum tsri_role role,
                          struct tsri_rows *rows) {
    like->tensor = t;
    TSRI_TRY(tsri_check_rows(like->op, like->name, t, role, rows));
    return tsri_check_float(like->op, like->name, t);
}

// rows and drows.
static tsr_status check_rows(const struct like *like, const char *field, tsr_tensor *t,
                             enum tsri_role role, struct tsri_rows *rows) {
    char text[128];
    const int64_t hidden = like->tensor->shape[like->tensor->ndim - 1];
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_rows(like->op, field, t, role, rows));
    TSRI_TRY(tsri_check_same_dtype(like->op, field, t, like->name, like->tensor));
    if (t->ndim == 2 && t->shape[1] == hidden) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (num_rows, %lld)",
                     like->op, field, tsri_shape_text(t, text, sizeof text), (long long)hidden);
}

// token_rows and what is shaped as they are. The first of them says top_k.
static tsr_status check_assignments(const struct like *like, const char *field, tsr_tensor *t,
                                    enum tsri_role role, tsr_dtype dtype,
                                    struct moe_combine_problem *p, struct tsri_rows *rows) {
    char name[64];
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_rows(like->op, field, t, role, rows));
    TSRI_TRY(tsri_check_dtype(like->op, field, t, dtype));
    if (rows->cols < 1 || rows->cols > MOST_TOP_K)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has %lld columns (top_k), expected 1 to %d",
                         like->op, field, (long long)rows->cols, MOST_TOP_K);
    if (p->top_k == 0) p->top_k = rows->cols;
    tsr_tensor expected = *like->tensor;
    expected.shape[expected.ndim - 1] = p->top_k;
    snprintf(name, sizeof name, "%s with top_k in its last dimension", like->name);
    return tsri_check_same_shape(like->op, field, t, name, &expected);
}

// Tensors of y's shape.
static tsr_status check_tokens(const struct like *like, const char *field, tsr_tensor *t,
                               enum tsri_role role, bool may_be_f32, struct tsri_rows *rows) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_rows(like->op, field, t, role, rows));
    const bool is_f32 = may_be_f32 && t->dtype == TSR_F32 && like->tensor->dtype != TSR_F64;
    if (!is_f32) TSRI_TRY(tsri_check_same_dtype(like->op, field, t, like->name, like->tensor));
    return tsri_check_same_shape(like->op, field, t, like->name, like->tensor);
}

// shared_gate and its gradient: one number a token, at any stride.
static tsr_status check_gate(const struct like *like, const char *field, tsr_tensor *t,
                             enum tsri_role role, struct tsri_rows *rows) {
    char name[64];
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(like->op, field, t, role));
    TSRI_TRY(tsri_check_dtype(like->op, field, t, real_dtype(like)));
    tsr_tensor expected = *like->tensor, column = *t;
    expected.ndim--;
    snprintf(name, sizeof name, "%s without its last dimension", like->name);
    TSRI_TRY(tsri_check_same_shape(like->op, field, t, name, &expected));
    column.shape[column.ndim] = 1; // y has one dimension more
    column.stride[column.ndim++] = 1;
    return tsri_check_rows(like->op, field, &column, role, rows);
}

static tsr_status fail_absent(const char *op, const char *field, const char *needed_by) {
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected it beside %s", op, field,
                     needed_by);
}

static tsr_status check_values(const tsr_context *ctx, const char *op,
                               const struct moe_combine_problem *p) {
    static const int32_t none = -1;
    if (!tsri_host_reads(ctx)) return TSR_OK;
    return tsri_check_index_rows(op, "token_rows", &p->token_rows, p->num_rows, &none);
}

// ---- Forward ----------------------------------------------------------------------------------

static const char forward_name[] = "moe_combine_forward";

static tsr_status check_forward(const tsr_context *ctx, const tsr_moe_combine_forward_args *given,
                                tsr_moe_combine_forward_args *args, struct moe_combine_problem *p) {
    struct like y = {forward_name, "y", NULL};
    TSRI_TRY(tsri_check_context(ctx, y.op));
    TSRI_TRY(TSRI_ARGS_READ(y.op, *args, given));
    TSRI_TRY(check_y(&y, &args->y, TSRI_OUT, &p->y));
    if (!tsri_is_present(&args->rows)) return fail_absent(y.op, "rows", "y");
    TSRI_TRY(check_rows(&y, "rows", &args->rows, TSRI_IN, &p->rows));
    if (!tsri_is_present(&args->token_rows)) return fail_absent(y.op, "token_rows", "rows");
    TSRI_TRY(check_assignments(&y, "token_rows", &args->token_rows, TSRI_IN, TSR_I32, p,
                               &p->token_rows));
    TSRI_TRY(
        check_assignments(&y, "weights", &args->weights, TSRI_IN, real_dtype(&y), p, &p->weights));
    TSRI_TRY(check_tokens(&y, "shared", &args->shared, TSRI_IN, false, &p->shared));
    TSRI_TRY(check_gate(&y, "shared_gate", &args->shared_gate, TSRI_IN, &p->shared_gate));
    if (tsri_is_present(&args->shared_gate) && !tsri_is_present(&args->shared))
        return fail_absent(y.op, "shared", "shared_gate");
    TSRI_TRY(check_tokens(&y, "residual", &args->residual, TSRI_IN, true, &p->residual));
    p->num_rows = p->rows.rows;
    TSRI_TRY(tsri_check_disjoint(y.op, "y", &args->y, "shared", &args->shared, true));
    TSRI_TRY(tsri_check_disjoint(y.op, "y", &args->y, "residual", &args->residual, true));
    const struct tsri_named_tensor all[] = {
        {"rows", &args->rows},
        {"token_rows", &args->token_rows},
        {"weights", &args->weights},
        {"shared_gate", &args->shared_gate},
        {"y", &args->y},
    };
    return tsri_check_all_disjoint(y.op, all, 4, TSRI_COUNT(all));
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_combine_forward_args args;
    struct moe_combine_problem p = {.top_k = 0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_values(ctx, forward_name, &p));
    return tsri_op_serve(ctx, &tsri_moe_combine_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_combine_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static const char backward_name[] = "moe_combine_backward";

// What each gradient needs.
static tsr_status check_needs(const struct moe_combine_problem *p) {
    const char *op = backward_name;
    if (!moe_has_row_gradients(p) && !moe_is_given(&p->dshared) && !moe_is_given(&p->dshared_gate))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: no gradient is given, expected drows, dweights, dshared or "
                         "dshared_gate",
                         op);
    if (moe_has_row_gradients(p) && !moe_is_given(&p->token_rows))
        return fail_absent(op, "token_rows", moe_is_given(&p->drows) ? "drows" : "dweights");
    if (moe_is_given(&p->dweights) && !moe_is_given(&p->rows))
        return fail_absent(op, "rows", "dweights");
    if (moe_is_given(&p->dshared_gate) && !moe_is_given(&p->shared))
        return fail_absent(op, "shared", "dshared_gate");
    if (moe_is_given(&p->dshared_gate) && !moe_is_given(&p->shared_gate))
        return fail_absent(op, "shared_gate", "dshared_gate");
    return TSR_OK;
}

static tsr_status check_backward(const tsr_context *ctx, const tsr_moe_combine_backward_args *given,
                                 tsr_moe_combine_backward_args *args,
                                 struct moe_combine_problem *p) {
    struct like dy = {backward_name, "dy", NULL};
    const char *op = dy.op;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_y(&dy, &args->dy, TSRI_IN, &p->y));
    TSRI_TRY(check_rows(&dy, "rows", &args->rows, TSRI_IN, &p->rows));
    TSRI_TRY(check_assignments(&dy, "token_rows", &args->token_rows, TSRI_IN, TSR_I32, p,
                               &p->token_rows));
    TSRI_TRY(check_assignments(&dy, "weights", &args->weights, TSRI_IN, real_dtype(&dy), p,
                               &p->weights));
    TSRI_TRY(check_tokens(&dy, "shared", &args->shared, TSRI_IN, false, &p->shared));
    TSRI_TRY(check_gate(&dy, "shared_gate", &args->shared_gate, TSRI_IN, &p->shared_gate));
    TSRI_TRY(check_rows(&dy, "drows", &args->drows, TSRI_OUT, &p->drows));
    if (tsri_is_present(&args->rows) && tsri_is_present(&args->drows))
        TSRI_TRY(tsri_check_same_shape(op, "drows", &args->drows, "rows", &args->rows));
    TSRI_TRY(check_assignments(&dy, "dweights", &args->dweights, TSRI_OUT, real_dtype(&dy), p,
                               &p->dweights));
    TSRI_TRY(check_tokens(&dy, "dshared", &args->dshared, TSRI_OUT, false, &p->dshared));
    TSRI_TRY(check_gate(&dy, "dshared_gate", &args->dshared_gate, TSRI_OUT, &p->dshared_gate));
    TSRI_TRY(check_needs(p));
    p->num_rows = moe_is_given(&p->rows) ? p->rows.rows : p->drows.rows;
    TSRI_TRY(tsri_check_disjoint(op, "dshared", &args->dshared, "dy", &args->dy, true));
    const struct tsri_named_tensor all[] = {
        {"dy", &args->dy},
        {"rows", &args->rows},
        {"token_rows", &args->token_rows},
        {"weights", &args->weights},
        {"shared", &args->shared},
        {"shared_gate", &args->shared_gate},
        {"drows", &args->drows},
        {"dweights", &args->dweights},
        {"dshared_gate", &args->dshared_gate},
        {"dshared", &args->dshared},
    };
    TSRI_TRY(tsri_check_all_disjoint(op, all, 6, TSRI_COUNT(all) - 1));
    return tsri_check_all_disjoint(op, all + 1, TSRI_COUNT(all) - 2, TSRI_COUNT(all) - 1);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_combine_backward_args args;
    struct moe_combine_problem p = {.top_k = 0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    if (!goal.is_prepare && moe_has_row_gradients(&p))
        TSRI_TRY(check_values(ctx, backward_name, &p));
    return tsri_op_serve(ctx, &tsri_moe_combine_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_combine_backward, enter_backward)
