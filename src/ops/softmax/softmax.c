// SPDX-License-Identifier: Apache-2.0
// Softmax: entries, checks, variants. The contract is in tessera/softmax.h.
#include <tessera/softmax.h>

#include "ops/softmax/softmax_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct softmax_problem, out.dtype)

// Non-temporal stores if all tensors together exceed the caches, but not if the output is also an input, which
// is in the cache already.
static void plan_rows(const struct softmax_problem *p, const struct tsri_limits *limits,
                      int tensors, struct tsri_plan *plan) {
    int64_t row_bytes = p->out.cols * (int64_t)tsr_dtype_bytes(p->out.dtype);
    tsri_plan_rows(plan, limits, p->out.rows, tensors * row_bytes);
    bool is_in_place = p->out.data == p->in[0].data || p->out.data == p->in[1].data;
    plan->is_streaming =
        !is_in_place && tsri_should_stream_rows(limits, tensors * p->out.rows * row_bytes, &p->out);
}

static void plan_forward_rows(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *plan) {
    plan_rows(problem, limits, 2, plan);
}

static void plan_backward_rows(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    plan_rows(problem, limits, 3, plan);
}

// The exponentials of a row wait in fp32, a row of scratch for each thread. Between two of them lies a gap, so that what
// a core fetches beyond its own is not another's.
enum { GAP = 1024 };
static void plan_fused(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    plan_rows(p, limits, 2, plan);
    plan->block_n = (int64_t)tsri_round_up((size_t)p->out.cols, 32) + GAP;
    plan->workspace_bytes = (size_t)(limits->num_threads * plan->block_n) * sizeof(float);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    plan_rows(p, limits, p->in[1].data != NULL ? 3 : 2, plan);
    plan->workspace_bytes =
        tsri_round_up((size_t)(p->out.rows * (p->out.cols + 1)) * sizeof(float), 64);
}

static const struct tsri_variant forward_variants[] = {
    {"fused", "one read and one write of each row, kept in cache between sweeps", TSR_VARIANT_ISA,
     is_float32_or_less, plan_fused, softmax_fused_run},
    {"online", "for rows beyond the cache: max and sum in one sweep", TSR_VARIANT_ISA,
     is_float32_or_less, plan_forward_rows, softmax_online_run},
    {"unfused", "three passes over the whole tensor: max, exp and sum, divide",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused, softmax_unfused_run},
    {"cuda-rows", "rows in registers: one read, one write", TSR_VARIANT_CUDA, softmax_cuda_fits,
     softmax_cuda_plan, softmax_cuda_run, softmax_cuda_prepare},
    {"cuda-staged", "rows of any width through shared memory: one read where they fit, else two",
     TSR_VARIANT_CUDA, softmax_cuda_serves, softmax_cuda_plan_stages, softmax_cuda_run,
     softmax_cuda_prepare},
    {"cuda-unfused", "three kernels over the whole tensor: max, exp and sum, divide",
     TSR_VARIANT_CUDA | TSR_VARIANT_BASELINE, softmax_cuda_serves, softmax_cuda_plan_unfused,
     softmax_cuda_run_unfused, softmax_cuda_prepare_unfused},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, softmax_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"fused", "one read of y and dy, one write of dx", TSR_VARIANT_ISA, is_float32_or_less,
     plan_backward_rows, softmax_fused_backward_run},
    {"unfused", "three passes over the whole tensor: product, sum, combine",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused,
     softmax_unfused_backward_run},
    {"cuda-rows", "rows in registers: one read, one write", TSR_VARIANT_CUDA, softmax_cuda_fits,
     softmax_cuda_plan, softmax_cuda_run, softmax_cuda_prepare},
    {"cuda-staged", "rows of any width through shared memory: one read where they fit, else two",
     TSR_VARIANT_CUDA, softmax_cuda_serves, softmax_cuda_plan_stages, softmax_cuda_run,
     softmax_cuda_prepare},
    {"cuda-unfused", "three kernels over the whole tensor: product, sum, combine",
     TSR_VARIANT_CUDA | TSR_VARIANT_BASELINE, softmax_cuda_serves, softmax_cuda_plan_unfused,
     softmax_cuda_run_unfused, softmax_cuda_prepare_unfused},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, softmax_reference_backward_run},
};

// Between two sweeps, a row and its exponentials should stay in the second-level cache.
static const char *prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return softmax_cuda_prefer(p, limits);
    int64_t row_bytes = p->out.cols * (int64_t)tsr_dtype_bytes(p->out.dtype);
    return row_bytes + 4 * p->out.cols > limits->l2_bytes / 2 ? "online" : "fused";
}

static const char *prefer_backward(const void *problem, const struct tsri_limits *limits) {
    return limits->device.type == TSR_CUDA ? softmax_cuda_prefer(problem, limits) : "fused";
}

// Calls are batch-invariant and no two variants have the same bits, so tuning files have nothing to choose.
const struct tsri_op tsri_softmax_forward_op = {"softmax_forward", forward_variants,
                                                TSRI_COUNT(forward_variants), prefer_forward,
                                                softmax_cuda_forward_kernel};
const struct tsri_op tsri_softmax_backward_op = {"softmax_backward", backward_variants,
                                                 TSRI_COUNT(backward_variants), prefer_backward,
                                                 softmax_cuda_backward_kernel};

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_softmax_forward_args *given,
                                tsr_softmax_forward_args *args, struct softmax_problem *p) {
    static const char op[] = "softmax_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_rows(op, "x", &args->x, TSRI_IN, &p->in[0]));
    TSRI_TRY(tsri_check_float(op, "x", &args->x));
    TSRI_TRY(tsri_check_rows(op, "y", &args->y, TSRI_OUT, &p->out));
    TSRI_TRY(tsri_check_same_dtype(op, "y", &args->y, "x", &args->x));
    TSRI_TRY(tsri_check_same_shape(op, "y", &args->y, "x", &args->x));
    if (p->out.cols == 0) p->out.rows = 0; // empty rows are no work
    return tsri_check_disjoint(op, "y", &args->y, "x", &args->x, true);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_softmax_forward_args args;
    struct softmax_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_softmax_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_softmax_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_softmax_backward_args *given,
                                 tsr_softmax_backward_args *args, struct softmax_problem *p) {
    static const char op[] = "softmax_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_rows(op, "y", &args->y, TSRI_IN, &p->in[0]));
    TSRI_TRY(tsri_check_float(op, "y", &args->y));
    TSRI_TRY(tsri_check_rows(op, "dy", &args->dy, TSRI_IN, &p->in[1]));
    TSRI_TRY(tsri_check_same_dtype(op, "dy", &args->dy, "y", &args->y));
    TSRI_TRY(tsri_check_same_shape(op, "dy", &args->dy, "y", &args->y));
    TSRI_TRY(tsri_check_rows(op, "dx", &args->dx, TSRI_OUT, &p->out));
    TSRI_TRY(tsri_check_same_dtype(op, "dx", &args->dx, "y", &args->y));
    TSRI_TRY(tsri_check_same_shape(op, "dx", &args->dx, "y", &args->y));
    if (p->out.cols == 0) p->out.rows = 0; // empty rows are no work
    TSRI_TRY(tsri_check_disjoint(op, "dx", &args->dx, "y", &args->y, true));
    return tsri_check_disjoint(op, "dx", &args->dx, "dy", &args->dy, true);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_softmax_backward_args args;
    struct softmax_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_softmax_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_softmax_backward, enter_backward)
