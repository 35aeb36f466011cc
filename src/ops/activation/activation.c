// SPDX-License-Identifier: Apache-2.0
// Activation: entries, checks, variants. The contract is in tessera/activation.h.
#include "ops/activation/activation_problem.h"

const char *tsr_activation_name(tsr_activation kind) {
    static const char *const names[TSR_ACTIVATION_COUNT] = {
        "none", "gelu", "gelu_tanh", "silu", "relu", "relu2", "swiglu_clamped"};
    return (unsigned)kind < TSR_ACTIVATION_COUNT ? names[kind] : "unknown activation";
}

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct activation_problem, y.dtype)

// The baseline has no passes over rows.
static bool is_plain(const void *problem, const struct tsri_limits *limits) {
    const struct activation_problem *p = problem;
    return is_float32_or_less(problem, limits) && !p->is_weighted;
}

// An output that is also an input is in the cache already, so it does not bypass the cache.
static void plan_fused(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct activation_problem *p = problem;
    int64_t bytes = (int64_t)tsr_dtype_bytes(p->y.dtype);
    bool is_backward = p->dy.dtype != TSR_DTYPE_NONE;
    bool has_weighted_y = p->weighted_y.dtype != TSR_DTYPE_NONE;
    int64_t num_tensors = 2 + p->is_gated + is_backward * (1 + p->is_gated) + has_weighted_y;
    // Non-temporal stores if all tensors together exceed the caches. Later for 16 bits on one thread, whose stores
    // alone do not saturate Intel's memory. On AMD, two alternating outputs gain nothing.
    int64_t tensor = p->y.rows * p->y.cols * bytes, total = num_tensors * tensor;
    bool has_two_outputs = (is_backward && p->is_gated) || has_weighted_y;
    if (has_two_outputs) total = tsri_bytes_better_cached(limits, total);
    if (p->y.dtype == TSR_F32)
        plan->is_streaming = tsri_should_stream(limits, 2 * total);
    else if (tsri_is_slow_past_caches(limits))
        plan->is_streaming =
            tsri_should_stream_rows(limits, p->is_gated ? total / 2 : total, &p->y);
    else if (limits->num_threads == 1 && !has_two_outputs)
        plan->is_streaming = tsri_should_stream(limits, tensor);
    else
        plan->is_streaming = tsri_should_stream_beside(limits, tensor, total);
    plan->is_streaming &= !p->is_in_place;
    if (p->is_weighted)
        tsri_plan_rows(plan, limits, p->y.rows, p->y.cols * num_tensors * bytes);
    else
        tsri_plan_elements(plan, limits, p->y.rows, p->y.cols, num_tensors * bytes);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct activation_problem *p = problem;
    plan_fused(problem, limits, plan);
    int64_t copies = p->dy.dtype != TSR_DTYPE_NONE && p->is_gated ? 2 : 1;
    plan->workspace_bytes =
        tsri_round_up((size_t)(copies * p->y.rows * p->y.cols) * sizeof(float), 64);
}

static const struct tsri_variant forward_variants[] = {
    {"fused", "act(x) up in one pass", TSR_VARIANT_ISA, is_float32_or_less, plan_fused,
     activation_forward_run},
    {"unfused", "one pass for each operator: act into fp32 scratch, then multiply or round",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused,
     activation_unfused_run},
    {"cuda", "act(x) up in one pass, 16 bytes an access", TSR_VARIANT_CUDA, is_float32_or_less,
     tsri_plan_serial, activation_cuda_run, activation_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, activation_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"fused", "both gradients in one pass", TSR_VARIANT_ISA, is_float32_or_less, plan_fused,
     activation_backward_run},
    {"unfused", "one pass for each operator: derivatives into fp32 scratch, products, rounding",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_plain, plan_unfused,
     activation_unfused_backward_run},
    {"cuda", "both gradients in one pass, 16 bytes an access", TSR_VARIANT_CUDA, is_float32_or_less,
     tsri_plan_serial, activation_cuda_run, activation_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, activation_reference_backward_run},
};

const struct tsri_op tsri_activation_forward_op = {"activation_forward", forward_variants,
                                                   TSRI_COUNT(forward_variants), NULL,
                                                   activation_cuda_forward_kernel};
const struct tsri_op tsri_activation_backward_op = {"activation_backward", backward_variants,
                                                    TSRI_COUNT(backward_variants), NULL,
                                                    activation_cuda_backward_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_kind(const char *op, tsr_activation kind) {
    if ((unsigned)kind < TSR_ACTIVATION_COUNT) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: kind is %d, expected a tsr_activation", op,
                     (int)kind);
}

static tsr_status check_gate(const char *op, const struct activation_problem *p) {
    if (p->is_gated || p->kind != TSR_ACTIVATION_SWIGLU_CLAMPED) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: up is absent, expected a tensor with kind %s", op,
                     tsr_activation_name(p->kind));
}

// A tensor of x's dtype and shape.
static tsr_status check_like_x(const char *op, const char *field, tsr_tensor *t,
                               enum tsri_role role, const tsr_tensor *x, struct tsri_rows *view) {
    TSRI_TRY(tsri_check_rows(op, field, t, role, view));
    TSRI_TRY(tsri_check_same_dtype(op, field, t, "x", x));
    return tsri_check_same_shape(op, field, t, "x", x);
}

static void finish(struct activation_problem *p) {
    struct tsri_rows *const views[] = {&p->x, &p->up, &p->dy, &p->y, &p->dup};
    p->is_in_place = false;
    for (int i = 0; i < 3; i++)
        p->is_in_place |= views[i]->dtype != TSR_DTYPE_NONE &&
                          (views[i]->data == p->y.data || views[i]->data == p->dup.data ||
                           views[i]->data == p->weighted_y.data);
    if (!p->is_weighted) tsri_merge_rows(views, TSRI_COUNT(views));
}

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_activation_forward_args *given,
                                tsr_activation_forward_args *args, struct activation_problem *p) {
    static const char op[] = "activation_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_kind(op, args->kind));
    TSRI_TRY(tsri_check_rows(op, "x", &args->x, TSRI_IN, &p->x));
    TSRI_TRY(tsri_check_float(op, "x", &args->x));
    p->kind = args->kind;
    p->is_gated = tsri_is_present(&args->up);
    TSRI_TRY(check_gate(op, p));
    if (p->is_gated) TSRI_TRY(check_like_x(op, "up", &args->up, TSRI_IN, &args->x, &p->up));
    TSRI_TRY(check_like_x(op, "y", &args->y, TSRI_OUT, &args->x, &p->y));
    TSRI_TRY(tsri_check_disjoint(op, "y", &args->y, "x", &args->x, true));
    TSRI_TRY(tsri_check_disjoint(op, "y", &args->y, "up", &args->up, true));
    finish(p);
    return TSR_OK;
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_activation_forward_args args;
    struct activation_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_activation_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_activation_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

// One number of each row of x: (...), of one stride.
static tsr_status check_numbers(const char *op, const char *field, tsr_tensor *t,
                                enum tsri_role role, const tsr_tensor *x, struct tsri_rows *view) {
    if (!tsri_is_present(t)) return TSR_OK;
    tsr_tensor like = *x;
    like.ndim--;
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(tsri_check_dtype(op, field, t, x->dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    TSRI_TRY(tsri_check_same_shape(op, field, t, "x without its last dimension", &like));
    tsr_tensor column = *t; // (..., 1)
    column.shape[t->ndim] = column.stride[t->ndim] = 1;
    column.ndim++;
    return tsri_check_rows(op, field, &column, role, view);
}

static tsr_status check_weights(const char *op, tsr_activation_backward_args *args,
                                struct activation_problem *p) {
    TSRI_TRY(
        check_numbers(op, "row_weights", &args->row_weights, TSRI_IN, &args->x, &p->row_weights));
    TSRI_TRY(check_numbers(op, "drow_weights", &args->drow_weights, TSRI_OUT, &args->x,
                           &p->drow_weights));
    if (tsri_is_present(&args->weighted_y))
        TSRI_TRY(
            check_like_x(op, "weighted_y", &args->weighted_y, TSRI_OUT, &args->x, &p->weighted_y));
    p->is_weighted = tsri_is_present(&args->row_weights) || tsri_is_present(&args->weighted_y) ||
                     tsri_is_present(&args->drow_weights);
    return TSR_OK;
}

static tsr_status check_backward(const tsr_context *ctx, const tsr_activation_backward_args *given,
                                 tsr_activation_backward_args *args, struct activation_problem *p) {
    static const char op[] = "activation_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_kind(op, args->kind));
    TSRI_TRY(tsri_check_rows(op, "x", &args->x, TSRI_IN, &p->x));
    TSRI_TRY(tsri_check_float(op, "x", &args->x));
    TSRI_TRY(check_like_x(op, "dy", &args->dy, TSRI_IN, &args->x, &p->dy));
    TSRI_TRY(check_like_x(op, "dx", &args->dx, TSRI_OUT, &args->x, &p->y));
    p->kind = args->kind;
    p->is_gated = tsri_is_present(&args->up);
    if (p->is_gated != tsri_is_present(&args->dup))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is given without %s, expected both or none",
                         op, p->is_gated ? "up" : "dup", p->is_gated ? "dup" : "up");
    TSRI_TRY(check_gate(op, p));
    if (p->is_gated) {
        TSRI_TRY(check_like_x(op, "up", &args->up, TSRI_IN, &args->x, &p->up));
        TSRI_TRY(check_like_x(op, "dup", &args->dup, TSRI_OUT, &args->x, &p->dup));
    }
    TSRI_TRY(check_weights(op, args, p));
    const tsr_tensor *outs[] = {&args->dx, &args->dup, &args->weighted_y, &args->drow_weights},
                     *ins[] = {&args->x, &args->up, &args->dy, &args->row_weights};
    static const char *const out_names[] = {"dx", "dup", "weighted_y", "drow_weights"},
                             *const in_names[] = {"x", "up", "dy", "row_weights"};
    for (int o = 0; o < 4; o++) {
        for (int i = 0; i < 4; i++)
            TSRI_TRY(tsri_check_disjoint(op, out_names[o], outs[o], in_names[i], ins[i],
                                         o < 3 && i < 3));
        for (int i = 0; i < o; i++)
            TSRI_TRY(tsri_check_disjoint(op, out_names[o], outs[o], out_names[i], outs[i], false));
    }
    finish(p);
    return TSR_OK;
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_activation_backward_args args;
    struct activation_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_activation_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_activation_backward, enter_backward)
