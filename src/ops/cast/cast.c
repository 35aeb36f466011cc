// SPDX-License-Identifier: Apache-2.0
// Cast: entry, checks, variants, threads. The contract is in tessera/cast.h.
#include "ops/cast/cast_problem.h"

// ---- Threads: a task is a piece of the element grid ---------------------------------------------

struct pass {
    const struct cast_problem *problem;
    const struct tsri_plan *plan;
    const struct cast_kernels *kernels;
};

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    const struct tsri_rows *y = &pass->problem->y;
    struct tsri_piece piece = tsri_piece_of(pass->plan, y->rows, y->cols, index);
    pass->kernels->cast(pass->problem, &piece, pass->plan->is_streaming);
}

static tsr_status cast_simd_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    (void)workspace;
    const struct cast_problem *p = problem;
    if (p->is_copy && p->is_in_place) return TSR_OK;
    struct pass pass = {p, plan, cast_kernels(tsr_context_isa(ctx))};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
    return TSR_OK;
}

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

static void plan_simd(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    const struct cast_problem *p = problem;
    int64_t x_bytes = (int64_t)tsr_dtype_bytes(p->x.dtype);
    int64_t y_bytes = (int64_t)tsr_dtype_bytes(p->y.dtype);
    int64_t elements = p->y.rows * p->y.cols;
    int64_t written = elements * y_bytes, total = elements * (x_bytes + y_bytes);
    if (!tsri_is_slow_past_caches(limits))
        plan->is_streaming = tsri_should_stream_beside(limits, written, total);
    else // several threads write faster through the caches; a y wider than x streams later
        plan->is_streaming =
            tsri_should_stream_rows(limits, y_bytes > x_bytes ? written / 2 : total, &p->y);
    plan->is_streaming &= !p->is_in_place;
    tsri_plan_elements(plan, limits, p->y.rows, p->y.cols, x_bytes + y_bytes);
}

static const struct tsri_variant variants[] = {
    {"simd", "vector conversions, one pass", TSR_VARIANT_ISA, tsri_supports_all, plan_simd,
     cast_simd_run},
    {"cuda", "one pass, 16 bytes an access", TSR_VARIANT_CUDA, tsri_supports_all, tsri_plan_serial,
     cast_cuda_run, cast_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, cast_reference_run},
};

const struct tsri_op tsri_cast_op = {"cast", variants, TSRI_COUNT(variants), NULL,
                                     cast_cuda_kernel};

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status check_dtype(const char *op, const char *field, const tsr_tensor *t) {
    if (t->dtype != TSR_I32 && t->dtype != TSR_U8) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s.dtype is %s, expected f64, f32, bf16, f16, e4m3 or e5m2", op, field,
                     tsr_dtype_name(t->dtype));
}

static tsr_status check(const tsr_context *ctx, const tsr_cast_args *given, tsr_cast_args *args,
                        struct cast_problem *p) {
    static const char op[] = "cast";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_row_groups(op, "x", &args->x, TSRI_IN, &p->x));
    TSRI_TRY(check_dtype(op, "x", &args->x));
    TSRI_TRY(tsri_check_row_groups(op, "y", &args->y, TSRI_OUT, &p->y));
    TSRI_TRY(check_dtype(op, "y", &args->y));
    TSRI_TRY(tsri_check_same_shape(op, "y", &args->y, "x", &args->x));
    TSRI_TRY(tsri_check_disjoint(op, "y", &args->y, "x", &args->x, true));
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, scale));
    p->has_scale = args->has_scale != 0;
    p->scale = p->has_scale ? args->scale : 1.0f;
    p->is_copy = p->x.dtype == p->y.dtype && !p->has_scale;
    p->is_in_place = p->x.data == p->y.data;
    tsri_merge_rows((struct tsri_rows *const[]){&p->x, &p->y}, 2);
    return TSR_OK;
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_cast_args args;
    struct cast_problem p = {0};
    TSRI_TRY(check(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_cast_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_cast, enter)
