// SPDX-License-Identifier: Apache-2.0
// Layer normalisation: entries and checks. The contract is in tessera/norm.h, the variants are in norm_variants.c.
#include <tessera/norm.h>

#include "ops/norm/norm_problem.h"

// Forward and dx are batch-invariant, and no two variants have the same bits, so tuning files have nothing to choose.
const struct tsri_op tsri_layernorm_forward_op = {"layernorm_forward", norm_forward_variants,
                                                  NORM_NUM_FORWARD, NULL, norm_cuda_forward_kernel};
const struct tsri_op tsri_layernorm_backward_op = {"layernorm_backward", norm_backward_variants,
                                                   NORM_NUM_BACKWARD, NULL,
                                                   norm_cuda_backward_kernel};

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_layernorm_forward_args *given,
                                tsr_layernorm_forward_args *args, struct norm_problem *p) {
    static const char op[] = "layernorm_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const struct norm_field fields[] = {
        {"x", &args->x, TSRI_IN, true},     {"residual", &args->residual, TSRI_IN, true},
        {"weight", &args->weight, TSRI_IN}, {"bias", &args->bias, TSRI_IN},
        {"y", &args->y, TSRI_OUT, true},    {"residual_out", &args->residual_out, TSRI_OUT, true},
        {"mean", &args->mean, TSRI_OUT},    {"rstd", &args->rstd, TSRI_OUT},
    };
    TSRI_TRY(norm_check_x(op, &args->x, p));
    p->weight_offset = args->zero_centered_weight != 0;
    TSRI_TRY(norm_check_like_x(op, &fields[4], &args->x, false, p, &p->y));
    TSRI_TRY(norm_check_residual(op, &fields[1], &fields[5], &args->x, p));
    TSRI_TRY(norm_check_vector(op, &fields[2], p, &p->weight));
    TSRI_TRY(norm_check_vector(op, &fields[3], p, &p->bias));
    if (tsri_is_present(&args->bias)) {
        if (!tsri_is_present(&args->weight))
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: bias is present and weight absent, expected weight too", op);
        TSRI_TRY(tsri_check_same_dtype(op, "bias", &args->bias, "weight", &args->weight));
    }
    TSRI_TRY(norm_check_statistic(op, &fields[6], &args->x, true, &p->mean));
    TSRI_TRY(norm_check_statistic(op, &fields[7], &args->x, true, &p->rstd));
    TSRI_TRY(norm_check_eps(op, args->eps, args->has_eps, p));
    return norm_check_overlaps(op, fields, TSRI_COUNT(fields), p);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_layernorm_forward_args args;
    struct norm_problem p = {.is_rmsnorm = false};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_layernorm_forward_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_layernorm_forward(tsr_context *ctx, const tsr_layernorm_forward_args *given) {
    return tsri_entry_call(enter_forward, ctx, given);
}

tsr_status tsr_layernorm_forward_prepare(tsr_context *ctx, const tsr_layernorm_forward_args *given,
                                         size_t *workspace_bytes) {
    return tsri_entry_prepare(enter_forward, ctx, given, workspace_bytes);
}

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_layernorm_backward_args *given,
                                 tsr_layernorm_backward_args *args, struct norm_problem *p) {
    static const char op[] = "layernorm_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const struct norm_field fields[] = {
        {"x", &args->x, TSRI_IN, true},    {"weight", &args->weight, TSRI_IN},
        {"mean", &args->mean, TSRI_IN},    {"rstd", &args->rstd, TSRI_IN},
        {"dy", &args->dy, TSRI_IN, true},  {"dresidual_out", &args->dresidual_out, TSRI_IN, true},
        {"dx", &args->dx, TSRI_OUT, true}, {"dweight", &args->dweight, TSRI_OUT},
        {"dbias", &args->dbias, TSRI_OUT},
    };
    TSRI_TRY(norm_check_x(op, &args->x, p));
    p->weight_offset = args->zero_centered_weight != 0;
    TSRI_TRY(norm_check_vector(op, &fields[1], p, &p->weight));
    TSRI_TRY(norm_check_statistic(op, &fields[2], &args->x, false, &p->mean));
    TSRI_TRY(norm_check_statistic(op, &fields[3], &args->x, false, &p->rstd));
    TSRI_TRY(norm_check_like_x(op, &fields[4], &args->x, false, p, &p->dy));
    TSRI_TRY(norm_check_like_x(op, &fields[5], &args->x, true, p, &p->dresidual_out));
    TSRI_TRY(norm_check_like_x(op, &fields[6], &args->x, false, p, &p->dx));
    TSRI_TRY(norm_check_gradient(op, &fields[7], p, &args->weight, &p->dweight));
    TSRI_TRY(norm_check_gradient(op, &fields[8], p, &args->weight, &p->dbias));
    return norm_check_overlaps(op, fields, TSRI_COUNT(fields), p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_layernorm_backward_args args;
    struct norm_problem p = {.is_rmsnorm = false};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_layernorm_backward_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_layernorm_backward(tsr_context *ctx, const tsr_layernorm_backward_args *given) {
    return tsri_entry_call(enter_backward, ctx, given);
}

tsr_status tsr_layernorm_backward_prepare(tsr_context *ctx,
                                          const tsr_layernorm_backward_args *given,
                                          size_t *workspace_bytes) {
    return tsri_entry_prepare(enter_backward, ctx, given, workspace_bytes);
}
