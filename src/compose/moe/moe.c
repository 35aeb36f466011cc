// SPDX-License-Identifier: Apache-2.0
// The mixture-of-experts layer: entries and variants. The contract is in tessera/moe.h.
#include "compose/moe/moe_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// All variants are the same composition.

static bool is_float32_or_less(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct moe_problem *)problem)->x.dtype != TSR_F64;
}

// After the checks no part refuses its arguments. On CUDA, where the parts prepare themselves, the driver and the
// compiler may still fail.
static void plan_parts(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    plan->num_tasks = 1;
    plan->status =
        moe_workspace(problem, plan->variant->name, limits->flags, &plan->workspace_bytes);
}

// CUDA: the parts have prepared themselves during planning.
static tsr_status prepare_parts(tsr_context *ctx, const void *problem,
                                const struct tsri_plan *plan) {
    (void)ctx, (void)problem;
    return plan->status;
}

static const struct tsri_variant variants[] = {
    {"default", "the variants that the library chooses for each part", TSR_VARIANT_ISA,
     is_float32_or_less, plan_parts, moe_run},
    {"cuda", "the kernels that the library chooses for each part", TSR_VARIANT_CUDA,
     is_float32_or_less, plan_parts, moe_run, prepare_parts},
    {"reference", "the oracle of each part", TSR_VARIANT_REFERENCE, tsri_supports_all, plan_parts,
     moe_run},
};

const struct tsri_op tsri_moe_forward_op = {"moe_forward", variants, TSRI_COUNT(variants), NULL};
const struct tsri_op tsri_moe_backward_op = {"moe_backward", variants, TSRI_COUNT(variants), NULL};

// ---- Entries ----------------------------------------------------------------------------------

#define OPTIONS_OF(a)                                                                              \
    {                                                                                              \
        .top_k = (a)->top_k, .scoring = (a)->scoring, .no_renormalize = (a)->no_renormalize,       \
        .routed_scaling = (a)->routed_scaling, .has_routed_scaling = (a)->has_routed_scaling,      \
        .num_groups = (a)->num_groups, .topk_groups = (a)->topk_groups,                            \
        .group_score = (a)->group_score, .round_weights = (a)->round_weights,                      \
        .activation = (a)->activation, .weights_on_input = (a)->weights_on_input,                  \
        .capacity = (a)->capacity, .has_capacity = (a)->has_capacity                               \
    }
#define TAKE(a, name) .name = (a)->name

static tsr_status check_forward(tsr_context *ctx, const tsr_moe_forward_args *given,
                                tsr_moe_forward_args *args, struct moe_problem *p) {
    static const char op[] = "moe_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const tsr_moe_forward_args *a = args;
    *p = (struct moe_problem){
        .ctx = ctx,
        .op = op,
        TAKE(a, x),
        TAKE(a, router),
        TAKE(a, logits_bias),
        TAKE(a, logits),
        TAKE(a, correction_bias),
        TAKE(a, w_gate),
        TAKE(a, w_up),
        TAKE(a, w_down),
        TAKE(a, w_gate_scale),
        TAKE(a, w_up_scale),
        TAKE(a, w_down_scale),
        TAKE(a, shared_w_gate_scale),
        TAKE(a, shared_w_up_scale),
        TAKE(a, shared_w_down_scale),
        TAKE(a, b_gate),
        TAKE(a, b_up),
        TAKE(a, b_down),
        TAKE(a, shared_w_gate),
        TAKE(a, shared_w_up),
        TAKE(a, shared_w_down),
        TAKE(a, shared_gate),
        TAKE(a, residual),
        TAKE(a, y),
        TAKE(a, preact),
        TAKE(a, shared_preact),
        TAKE(a, topk_ids),
        TAKE(a, topk_weights),
        TAKE(a, offsets),
        TAKE(a, tokens_per_expert),
        TAKE(a, mean_probs),
        TAKE(a, load_balance_loss),
        TAKE(a, z_loss),
        TAKE(a, usage_variance),
        TAKE(a, num_nan_rows),
        TAKE(a, num_dropped),
        .options = OPTIONS_OF(a),
    };
    return moe_check(p);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_forward_args args;
    struct moe_problem p;
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_moe_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_forward, enter_forward)

static tsr_status check_backward(tsr_context *ctx, const tsr_moe_backward_args *given,
                                 tsr_moe_backward_args *args, struct moe_problem *p) {
    static const char op[] = "moe_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const tsr_moe_backward_args *a = args;
    *p = (struct moe_problem){
        .ctx = ctx,
        .op = op,
        .is_backward = true,
        .accumulate = a->accumulate != 0,
        TAKE(a, x),
        TAKE(a, router),
        TAKE(a, logits_bias),
        TAKE(a, logits),
        TAKE(a, w_gate),
        TAKE(a, w_up),
        TAKE(a, w_down),
        TAKE(a, b_down),
        TAKE(a, shared_w_gate),
        TAKE(a, shared_w_up),
        TAKE(a, shared_w_down),
        TAKE(a, shared_gate),
        TAKE(a, preact),
        TAKE(a, shared_preact),
        TAKE(a, topk_ids),
        TAKE(a, topk_weights),
        TAKE(a, dy),
        TAKE(a, dload_balance_loss),
        TAKE(a, dz_loss),
        TAKE(a, dx),
        TAKE(a, drouter),
        TAKE(a, dlogits_bias),
        TAKE(a, dlogits),
        TAKE(a, dtopk_weights),
        TAKE(a, dw_gate),
        TAKE(a, dw_up),
        TAKE(a, dw_down),
        TAKE(a, db_gate),
        TAKE(a, db_up),
        TAKE(a, db_down),
        TAKE(a, dshared_w_gate),
        TAKE(a, dshared_w_up),
        TAKE(a, dshared_w_down),
        TAKE(a, dshared_gate),
        .options = OPTIONS_OF(a),
    };
    return moe_check(p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_backward_args args;
    struct moe_problem p;
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_moe_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_backward, enter_backward)
