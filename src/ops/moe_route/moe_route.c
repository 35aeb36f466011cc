// SPDX-License-Identifier: Apache-2.0
// Routing of a mixture of experts: entries, checks, variants. The contract is in tessera/moe_route.h.
#include "ops/moe_route/moe_route_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct moe_route_problem, logits.dtype)

static const struct tsri_variant forward_variants[] = {
    {"fused", "one read of the logits: scores, choice, weights, sums over tokens", TSR_VARIANT_ISA,
     is_float32_or_less, moe_route_plan, moe_route_run},
    {"cuda-rows", "the same with a warp for each token, its logits in registers", TSR_VARIANT_CUDA,
     is_float32_or_less, moe_route_cuda_plan, moe_route_cuda_run, moe_route_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, moe_route_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"fused", "one read of the logits, one write of their gradient", TSR_VARIANT_ISA,
     is_float32_or_less, moe_route_plan_backward, moe_route_backward_run},
    {"cuda-rows", "the same with a warp for each token, its logits in shared memory",
     TSR_VARIANT_CUDA, is_float32_or_less, moe_route_cuda_plan_backward,
     moe_route_cuda_backward_run, moe_route_cuda_backward_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, moe_route_reference_backward_run},
};

const struct tsri_op tsri_moe_route_forward_op = {"moe_route_forward", forward_variants,
                                                  TSRI_COUNT(forward_variants), NULL,
                                                  moe_route_cuda_forward_kernel};
const struct tsri_op tsri_moe_route_backward_op = {"moe_route_backward", backward_variants,
                                                   TSRI_COUNT(backward_variants), NULL,
                                                   moe_route_cuda_backward_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_dtype real_dtype(const struct moe_route_problem *p) {
    return p->logits.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}

// topk_ids and the like, (..., top_k).
static tsr_status check_chosen(const char *op, const char *field, tsr_tensor *t,
                               enum tsri_role role, const tsr_tensor *logits, tsr_dtype dtype,
                               struct tsri_rows *rows) {
    TSRI_TRY(tsri_check_rows(op, field, t, role, rows));
    TSRI_TRY(tsri_check_dtype(op, field, t, dtype));
    const int64_t most = tsri_min(logits->shape[logits->ndim - 1], MOE_MAX_TOP_K);
    if (rows->cols < 1 || rows->cols > most)
        return tsri_fail(
            TSR_INVALID_ARGUMENT,
            "%s: %s chooses %lld experts (top_k), expected 1 to %lld of num_experts %lld", op,
            field, (long long)rows->cols, (long long)most,
            (long long)logits->shape[logits->ndim - 1]);
    tsr_tensor like = *logits;
    like.shape[like.ndim - 1] = rows->cols;
    return tsri_check_same_shape(op, field, t, "logits with top_k in its last dimension", &like);
}

static tsr_status check_common(const char *op, tsr_tensor *logits, tsr_moe_scoring scoring,
                               int32_t no_renormalize, float routed_scaling,
                               int32_t has_routed_scaling, struct moe_route_problem *p) {
    TSRI_TRY(tsri_check_rows(op, "logits", logits, TSRI_IN, &p->logits));
    TSRI_TRY(tsri_check_float(op, "logits", logits));
    if (p->logits.cols < 1 || p->logits.cols > MOE_MAX_EXPERTS)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: logits have %lld columns (num_experts), expected 1 to %d", op,
                         (long long)p->logits.cols, MOE_MAX_EXPERTS);
    if ((unsigned)scoring >= TSR_MOE_SCORING_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: scoring is %d, expected a tsr_moe_scoring", op,
                         (int)scoring);
    TSRI_TRY(
        tsri_check_flag(op, "routed_scaling", has_routed_scaling, (double)routed_scaling, true));
    p->scoring = scoring;
    p->is_renormalised = no_renormalize == 0;
    p->scaling = has_routed_scaling ? routed_scaling : 1;
    return TSR_OK;
}

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_groups(const char *op, const tsr_moe_route_forward_args *args,
                               struct moe_route_problem *p) {
    const int num_experts = moe_num_experts(p), top_k = moe_top_k(p);
    if (args->num_groups < 0 || args->num_groups > num_experts ||
        (args->num_groups > 0 && num_experts % args->num_groups != 0))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: num_groups is %d, expected a divisor of num_experts %d, or 0", op,
                         (int)args->num_groups, num_experts);
    p->num_groups = (int)tsri_max(args->num_groups, 1);
    if (args->topk_groups < 0 || args->topk_groups > p->num_groups)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: topk_groups is %d, expected 0 to num_groups %d",
                         op, (int)args->topk_groups, p->num_groups);
    p->topk_groups = args->topk_groups > 0 ? args->topk_groups : p->num_groups;
    if (p->topk_groups * (num_experts / p->num_groups) < top_k)
        return tsri_fail(
            TSR_INVALID_ARGUMENT,
            "%s: topk_groups is %d, which leaves %d experts, expected at least top_k %d", op,
            (int)args->topk_groups, p->topk_groups * (num_experts / p->num_groups), top_k);
    if (p->num_groups == num_experts)
        p->num_groups = p->topk_groups = 1; // the best are in the best
    if ((unsigned)args->group_score >= TSR_MOE_GROUP_SCORE_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: group_score is %d, expected a tsr_moe_group_score", op,
                         (int)args->group_score);
    p->group_score = args->group_score;
    if ((unsigned)args->round_weights > TSR_F16)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: round_weights is %s, expected none, f64, f32, bf16 or f16", op,
                         tsr_dtype_name(args->round_weights));
    p->round_weights = args->round_weights;
    return TSR_OK;
}

static tsr_status check_forward(const tsr_context *ctx, const tsr_moe_route_forward_args *given,
                                tsr_moe_route_forward_args *args, struct moe_route_problem *p) {
    const char *op = "moe_route_forward";
    void *bias = NULL, *counts = NULL, *nan_rows = NULL;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_common(op, &args->logits, args->scoring, args->no_renormalize,
                          args->routed_scaling, args->has_routed_scaling, p));
    const int64_t num_experts = p->logits.cols;
    const tsr_dtype real = real_dtype(p);
    TSRI_TRY(tsri_check_optional_vector(op, "correction_bias", &args->correction_bias, TSRI_IN,
                                        num_experts, real, &bias));
    TSRI_TRY(
        check_chosen(op, "topk_ids", &args->topk_ids, TSRI_OUT, &args->logits, TSR_I32, &p->ids));
    TSRI_TRY(check_chosen(op, "topk_weights", &args->topk_weights, TSRI_OUT, &args->logits, real,
                          &p->weights));
    TSRI_TRY(tsri_check_same_shape(op, "topk_weights", &args->topk_weights, "topk_ids",
                                   &args->topk_ids));
    TSRI_TRY(tsri_check_optional_vector(op, "tokens_per_expert", &args->tokens_per_expert, TSRI_OUT,
                                        num_experts, TSR_I32, &counts));
    TSRI_TRY(tsri_check_optional_vector(op, "mean_probs", &args->mean_probs, TSRI_OUT, num_experts,
                                        real, &p->mean_probs));
    TSRI_TRY(tsri_check_optional_vector(op, "load_balance_loss", &args->load_balance_loss, TSRI_OUT,
                                        1, real, &p->balance_loss));
    TSRI_TRY(
        tsri_check_optional_vector(op, "z_loss", &args->z_loss, TSRI_OUT, 1, real, &p->z_loss));
    TSRI_TRY(tsri_check_optional_vector(op, "usage_variance", &args->usage_variance, TSRI_OUT, 1,
                                        real, &p->usage_variance));
    TSRI_TRY(tsri_check_optional_vector(op, "num_nan_rows", &args->num_nan_rows, TSRI_OUT, 1,
                                        TSR_I32, &nan_rows));
    if (tsri_is_present(&args->lse)) {
        TSRI_TRY(tsri_check_per_row(op, "lse", &args->lse, TSRI_OUT, "logits", &args->logits));
        p->lse = args->lse.data;
    }
    TSRI_TRY(check_groups(op, args, p));
    const struct tsri_named_tensor all[] = {
        {"logits", &args->logits},
        {"correction_bias", &args->correction_bias},
        {"topk_ids", &args->topk_ids},
        {"topk_weights", &args->topk_weights},
        {"tokens_per_expert", &args->tokens_per_expert},
        {"mean_probs", &args->mean_probs},
        {"load_balance_loss", &args->load_balance_loss},
        {"z_loss", &args->z_loss},
        {"usage_variance", &args->usage_variance},
        {"lse", &args->lse},
        {"num_nan_rows", &args->num_nan_rows},
    };
    TSRI_TRY(tsri_check_all_disjoint(op, all, 2, TSRI_COUNT(all)));
    p->bias = bias;
    p->tokens_per_expert = counts;
    p->num_nan_rows = nan_rows;
    return TSR_OK;
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_route_forward_args args;
    struct moe_route_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_moe_route_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_route_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static const char backward_name[] = "moe_route_backward";

static tsr_status check_backward(const tsr_context *ctx, const tsr_moe_route_backward_args *given,
                                 tsr_moe_route_backward_args *args, struct moe_route_problem *p) {
    const char *op = backward_name;
    void *counts = NULL;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_common(op, &args->logits, args->scoring, args->no_renormalize,
                          args->routed_scaling, args->has_routed_scaling, p));
    const tsr_dtype real = real_dtype(p);
    TSRI_TRY(
        check_chosen(op, "topk_ids", &args->topk_ids, TSRI_IN, &args->logits, TSR_I32, &p->ids));
    TSRI_TRY(check_chosen(op, "dtopk_weights", &args->dtopk_weights, TSRI_IN, &args->logits, real,
                          &p->weights));
    TSRI_TRY(tsri_check_same_shape(op, "dtopk_weights", &args->dtopk_weights, "topk_ids",
                                   &args->topk_ids));
    TSRI_TRY(tsri_check_optional_vector(op, "tokens_per_expert", &args->tokens_per_expert, TSRI_IN,
                                        p->logits.cols, TSR_I32, &counts));
    TSRI_TRY(tsri_check_optional_vector(op, "dload_balance_loss", &args->dload_balance_loss,
                                        TSRI_IN, 1, real, &p->balance_loss));
    TSRI_TRY(
        tsri_check_optional_vector(op, "dz_loss", &args->dz_loss, TSRI_IN, 1, real, &p->z_loss));
    if (p->balance_loss != NULL && counts == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: tokens_per_expert is absent, expected it beside dload_balance_loss",
                         op);
    TSRI_TRY(tsri_check_rows(op, "dlogits", &args->dlogits, TSRI_OUT, &p->dlogits));
    TSRI_TRY(tsri_check_same_dtype(op, "dlogits", &args->dlogits, "logits", &args->logits));
    TSRI_TRY(tsri_check_same_shape(op, "dlogits", &args->dlogits, "logits", &args->logits));
    TSRI_TRY(tsri_check_disjoint(op, "dlogits", &args->dlogits, "logits", &args->logits, true));
    const struct tsri_named_tensor all[] = {
        {"topk_ids", &args->topk_ids},
        {"dtopk_weights", &args->dtopk_weights},
        {"tokens_per_expert", &args->tokens_per_expert},
        {"dload_balance_loss", &args->dload_balance_loss},
        {"dz_loss", &args->dz_loss},
        {"dlogits", &args->dlogits},
    };
    TSRI_TRY(tsri_check_all_disjoint(op, all, 5, TSRI_COUNT(all)));
    p->tokens_per_expert = counts;
    return TSR_OK;
}

static tsr_status check_ids(const tsr_context *ctx, const struct moe_route_problem *p) {
    static const int32_t none = -1;
    if (!tsri_host_reads(ctx)) return TSR_OK;
    return tsri_check_index_rows(backward_name, "topk_ids", &p->ids, p->logits.cols, &none);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_route_backward_args args;
    struct moe_route_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_ids(ctx, &p));
    return tsri_op_serve(ctx, &tsri_moe_route_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_route_backward, enter_backward)
