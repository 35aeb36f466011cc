// SPDX-License-Identifier: Apache-2.0
// Cross-entropy: entries, checks, variants. The contract is in tessera/cross_entropy.h.
#include <tessera/cross_entropy.h>

#include "ops/cross_entropy/cross_entropy_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct cross_entropy_problem, logits.dtype)

static int64_t row_bytes(const struct cross_entropy_problem *p) {
    return p->logits.cols * (int64_t)tsr_dtype_bytes(p->logits.dtype);
}

static void plan_forward(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    tsri_plan_rows(plan, limits, p->logits.rows, row_bytes(p));
}

// If the logits are larger than the caches, lines are prefetched far ahead.
static void plan_fused_forward(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    plan_forward(problem, limits, plan);
    plan->is_streaming = tsri_should_stream(limits, 2 * p->logits.rows * row_bytes(p));
}

// In place, the lines are in the cache already; non-temporal stores would only evict them.
static void plan_backward(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct cross_entropy_problem *p = problem;
    tsri_plan_rows(plan, limits, p->logits.rows, 2 * row_bytes(p));
    int64_t bytes = p->logits.rows * row_bytes(p);
    if (tsri_is_slow_past_caches(limits)) {
        // The target's element is stored separately, through the caches. In f32 with several threads, the gain of
        // streaming pays for that in long rows.
        enum { LONG_ROW = 32 << 10 };
        bool is_gaining =
            p->logits.dtype == TSR_F32 && limits->num_threads > 1 && row_bytes(p) >= LONG_ROW;
        int64_t total = is_gaining ? 2 * bytes : tsri_bytes_better_cached(limits, 2 * bytes);
        plan->is_streaming = tsri_should_stream_rows(limits, total, &p->dlogits);
    } else {
        plan->is_streaming = tsri_should_stream_beside(limits, bytes, 2 * bytes);
    }
    plan->is_streaming &= p->logits.data != p->dlogits.data;
}

static size_t scratch_bytes(const struct cross_entropy_problem *p) {
    return tsri_round_up((size_t)(p->logits.rows * p->logits.cols) * sizeof(float), 64);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    plan_forward(problem, limits, plan);
    plan->workspace_bytes = scratch_bytes(problem);
}

static void plan_unfused_backward(const void *problem, const struct tsri_limits *limits,
                                  struct tsri_plan *plan) {
    plan_backward(problem, limits, plan);
    plan->workspace_bytes = scratch_bytes(problem);
}

static const struct tsri_variant forward_variants[] = {
    {"fused", "one read of the logits: max and sum block by block", TSR_VARIANT_ISA,
     is_float32_or_less, plan_fused_forward, cross_entropy_fused_run},
    {"unfused", "three passes over the whole tensor: exponentials, log-probabilities, pick",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused,
     cross_entropy_unfused_run},
    {"cuda", "one read of the logits: max and sum online", TSR_VARIANT_CUDA,
     cross_entropy_cuda_fits, cross_entropy_cuda_plan, cross_entropy_cuda_run,
     cross_entropy_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, cross_entropy_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"fused", "one read of the logits, one write of their gradient", TSR_VARIANT_ISA,
     is_float32_or_less, plan_backward, cross_entropy_fused_backward_run},
    {"unfused", "two passes over the whole tensor: target distribution, softmax minus it",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused_backward,
     cross_entropy_unfused_backward_run},
    {"cuda", "one read of the logits, one write of their gradient", TSR_VARIANT_CUDA,
     cross_entropy_cuda_fits, cross_entropy_cuda_plan_backward, cross_entropy_cuda_backward_run,
     cross_entropy_cuda_backward_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, cross_entropy_reference_backward_run},
};

const struct tsri_op tsri_cross_entropy_forward_op = {"cross_entropy_forward", forward_variants,
                                                      TSRI_COUNT(forward_variants), NULL,
                                                      cross_entropy_cuda_forward_kernel};
const struct tsri_op tsri_cross_entropy_backward_op = {"cross_entropy_backward", backward_variants,
                                                       TSRI_COUNT(backward_variants), NULL,
                                                       cross_entropy_cuda_backward_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_common(const char *op, tsr_tensor *logits, tsr_tensor *targets,
                               int32_t ignore_index, int32_t has_ignore_index,
                               float label_smoothing, struct cross_entropy_problem *p) {
    TSRI_TRY(tsri_check_rows(op, "logits", logits, TSRI_IN, &p->logits));
    TSRI_TRY(tsri_check_float(op, "logits", logits));
    TSRI_TRY(tsri_check_index_tensor(op, "targets", targets, &p->targets));
    tsr_tensor like = *logits;
    like.ndim--;
    TSRI_TRY(
        tsri_check_same_shape(op, "targets", targets, "logits without its last dimension", &like));
    if (!(label_smoothing >= 0 && label_smoothing < 1))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: label_smoothing is %g, expected 0 or more and less than 1", op,
                         (double)label_smoothing);
    TSRI_TRY(tsri_check_flag(op, "ignore_index", has_ignore_index, (double)ignore_index, false));
    p->ignore_index = has_ignore_index ? ignore_index : -100;
    p->label_smoothing = (double)label_smoothing;
    return TSR_OK;
}

static tsr_status check_targets(const tsr_context *ctx, const char *op,
                                const struct cross_entropy_problem *p) {
    if (!tsri_host_reads(ctx)) return TSR_OK;
    return tsri_check_index_values(op, "targets", &p->targets, p->logits.cols, &p->ignore_index, 0);
}

// ---- Forward ----------------------------------------------------------------------------------

static const char forward_name[] = "cross_entropy_forward";

static tsr_status check_forward(const tsr_context *ctx, const tsr_cross_entropy_forward_args *given,
                                tsr_cross_entropy_forward_args *args,
                                struct cross_entropy_problem *p) {
    const char *op = forward_name;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_common(op, &args->logits, &args->targets, args->ignore_index,
                          args->has_ignore_index, args->label_smoothing, p));
    TSRI_TRY(tsri_check_per_row(op, "loss", &args->loss, TSRI_OUT, "logits", &args->logits));
    TSRI_TRY(tsri_check_disjoint(op, "loss", &args->loss, "logits", &args->logits, false));
    TSRI_TRY(tsri_check_disjoint(op, "loss", &args->loss, "targets", &args->targets, false));
    p->loss = args->loss.data;
    if (!tsri_is_present(&args->lse)) return TSR_OK;
    TSRI_TRY(tsri_check_per_row(op, "lse", &args->lse, TSRI_OUT, "logits", &args->logits));
    TSRI_TRY(tsri_check_disjoint(op, "lse", &args->lse, "logits", &args->logits, false));
    TSRI_TRY(tsri_check_disjoint(op, "lse", &args->lse, "targets", &args->targets, false));
    TSRI_TRY(tsri_check_disjoint(op, "lse", &args->lse, "loss", &args->loss, false));
    p->lse = args->lse.data;
    return TSR_OK;
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_cross_entropy_forward_args args;
    struct cross_entropy_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_targets(ctx, forward_name, &p));
    return tsri_op_serve(ctx, &tsri_cross_entropy_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_cross_entropy_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static const char backward_name[] = "cross_entropy_backward";

static tsr_status check_backward(const tsr_context *ctx,
                                 const tsr_cross_entropy_backward_args *given,
                                 tsr_cross_entropy_backward_args *args,
                                 struct cross_entropy_problem *p) {
    const char *op = backward_name;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_common(op, &args->logits, &args->targets, args->ignore_index,
                          args->has_ignore_index, args->label_smoothing, p));
    TSRI_TRY(tsri_check_per_row(op, "lse", &args->lse, TSRI_IN, "logits", &args->logits));
    TSRI_TRY(tsri_check_per_row(op, "dloss", &args->dloss, TSRI_IN, "logits", &args->logits));
    TSRI_TRY(tsri_check_rows(op, "dlogits", &args->dlogits, TSRI_OUT, &p->dlogits));
    TSRI_TRY(tsri_check_same_dtype(op, "dlogits", &args->dlogits, "logits", &args->logits));
    TSRI_TRY(tsri_check_same_shape(op, "dlogits", &args->dlogits, "logits", &args->logits));
    TSRI_TRY(tsri_check_disjoint(op, "dlogits", &args->dlogits, "logits", &args->logits, true));
    TSRI_TRY(tsri_check_disjoint(op, "dlogits", &args->dlogits, "targets", &args->targets, false));
    TSRI_TRY(tsri_check_disjoint(op, "dlogits", &args->dlogits, "lse", &args->lse, false));
    TSRI_TRY(tsri_check_disjoint(op, "dlogits", &args->dlogits, "dloss", &args->dloss, false));
    p->lse = args->lse.data;
    p->dloss = args->dloss.data;
    return TSR_OK;
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_cross_entropy_backward_args args;
    struct cross_entropy_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_targets(ctx, backward_name, &p));
    return tsri_op_serve(ctx, &tsri_cross_entropy_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_cross_entropy_backward, enter_backward)
