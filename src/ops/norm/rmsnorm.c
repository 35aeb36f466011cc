// SPDX-License-Identifier: Apache-2.0
// Root mean square normalisation: entries and checks. The contract is in tessera/norm.h, the variants are in
// norm_variants.c.
#include <tessera/norm.h>

#include "ops/norm/norm_problem.h"

const struct tsri_op tsri_rmsnorm_forward_op = {"rmsnorm_forward", norm_forward_variants,
                                                NORM_NUM_FORWARD, NULL, NULL};
const struct tsri_op tsri_rmsnorm_backward_op = {"rmsnorm_backward", norm_backward_variants,
                                                 NORM_NUM_BACKWARD, NULL, NULL};

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_rmsnorm_forward_args *given,
                                tsr_rmsnorm_forward_args *args, struct norm_problem *p) {
    static const char op[] = "rmsnorm_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const struct norm_field fields[] = {
        {"x", &args->x, TSRI_IN, true},
        {"residual", &args->residual, TSRI_IN, true},
        {"weight", &args->weight, TSRI_IN},
        {"y", &args->y, TSRI_OUT, true},
        {"residual_out", &args->residual_out, TSRI_OUT, true},
        {"rstd", &args->rstd, TSRI_OUT},
    };
    TSRI_TRY(norm_check_x(op, &args->x, p));
    p->weight_offset = args->zero_centered_weight != 0;
    TSRI_TRY(norm_check_like_x(op, &fields[3], &args->x, false, p, &p->y));
    TSRI_TRY(norm_check_residual(op, &fields[1], &fields[4], &args->x, p));
    TSRI_TRY(norm_check_vector(op, &fields[2], p, &p->weight));
    TSRI_TRY(norm_check_statistic(op, &fields[5], &args->x, true, &p->rstd));
    TSRI_TRY(norm_check_eps(op, args->eps, args->has_eps, p));
    return norm_check_overlaps(op, fields, TSRI_COUNT(fields), p);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_rmsnorm_forward_args args;
    struct norm_problem p = {.is_rmsnorm = true};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_rmsnorm_forward_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_rmsnorm_forward(tsr_context *ctx, const tsr_rmsnorm_forward_args *given) {
    return tsri_entry_call(enter_forward, ctx, given);
}

tsr_status tsr_rmsnorm_forward_prepare(tsr_context *ctx, const tsr_rmsnorm_forward_args *given,
                                       size_t *workspace_bytes) {
    return tsri_entry_prepare(enter_forward, ctx, given, workspace_bytes);
}

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_rmsnorm_backward_args *given,
                                 tsr_rmsnorm_backward_args *args, struct norm_problem *p) {
    static const char op[] = "rmsnorm_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const struct norm_field fields[] = {
        {"x", &args->x, TSRI_IN, true},
        {"weight", &args->weight, TSRI_IN},
        {"rstd", &args->rstd, TSRI_IN},
        {"dy", &args->dy, TSRI_IN, true},
        {"dresidual_out", &args->dresidual_out, TSRI_IN, true},
        {"dx", &args->dx, TSRI_OUT, true},
        {"dweight", &args->dweight, TSRI_OUT},
    };
    TSRI_TRY(norm_check_x(op, &args->x, p));
    p->weight_offset = args->zero_centered_weight != 0;
    TSRI_TRY(norm_check_vector(op, &fields[1], p, &p->weight));
    TSRI_TRY(norm_check_statistic(op, &fields[2], &args->x, false, &p->rstd));
    TSRI_TRY(norm_check_like_x(op, &fields[3], &args->x, false, p, &p->dy));
    TSRI_TRY(norm_check_like_x(op, &fields[4], &args->x, true, p, &p->dresidual_out));
    TSRI_TRY(norm_check_like_x(op, &fields[5], &args->x, false, p, &p->dx));
    TSRI_TRY(norm_check_gradient(op, &fields[6], p, &args->weight, &p->dweight));
    return norm_check_overlaps(op, fields, TSRI_COUNT(fields), p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_rmsnorm_backward_args args;
    struct norm_problem p = {.is_rmsnorm = true};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_rmsnorm_backward_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_rmsnorm_backward(tsr_context *ctx, const tsr_rmsnorm_backward_args *given) {
    return tsri_entry_call(enter_backward, ctx, given);
}

tsr_status tsr_rmsnorm_backward_prepare(tsr_context *ctx, const tsr_rmsnorm_backward_args *given,
                                        size_t *workspace_bytes) {
    return tsri_entry_prepare(enter_backward, ctx, given, workspace_bytes);
}
