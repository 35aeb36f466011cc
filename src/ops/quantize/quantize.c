// SPDX-License-Identifier: Apache-2.0
// Quantize: entry, checks, variants, threads. The contract is in tessera/quantize.h.
#include "ops/quantize/quantize_problem.h"

static const char op[] = "quantize";

// ---- Threads: a task is a piece of the grid of elements -----------------------------------------

struct pass {
    const struct quantize_problem *problem;
    const struct tsri_plan *plan;
    const struct quantize_kernels *kernels;
};

static void run_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct tsri_rows *y = &pass->problem->y;
    const struct tsri_piece piece = tsri_piece_of(pass->plan, y->rows, y->cols, index);
    (void)thread;
    pass->kernels->quantize(pass->problem, &piece);
}

static tsr_status run_blocks(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    struct pass pass = {problem, plan, quantize_kernels(tsr_context_isa(ctx))};
    (void)workspace;
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
    return TSR_OK;
}

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct quantize_problem, x.dtype)

// Pieces of a row begin at multiples of 256 columns.
static void plan_blocks(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    const struct quantize_problem *p = problem;
    const int64_t read = (1 + p->is_gated) * tsri_dtype_bytes(p->x.dtype);
    tsri_plan_elements(plan, limits, p->y.rows, p->y.cols, read + 1);
}

static const struct tsri_variant variants[] = {
    {"fused", "a block's values in the first-level cache: their largest, then fp8", TSR_VARIANT_ISA,
     is_float32_or_less, plan_blocks, run_blocks},
    {"cuda", "a group of lanes for each block, 16 bytes an access", TSR_VARIANT_CUDA,
     is_float32_or_less, tsri_plan_serial, quantize_cuda_run, quantize_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, quantize_reference_run},
};

const struct tsri_op tsri_quantize_op = {"quantize", variants, TSRI_COUNT(variants), NULL,
                                         quantize_cuda_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_kind(const tsr_quantize_args *args) {
    if ((unsigned)args->kind >= TSR_ACTIVATION_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: kind is %d, expected a tsr_activation", op,
                         (int)args->kind);
    if (args->kind != TSR_ACTIVATION_SWIGLU_CLAMPED || tsri_is_present(&args->up)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: up is absent, expected a tensor with kind %s", op,
                     tsr_activation_name(args->kind));
}

static tsr_status check_list(tsr_quantize_args *args, struct quantize_problem *p) {
    p->has_list = tsri_is_present(&args->x_rows);
    if (!p->has_list) return TSR_OK;
    TSRI_TRY(tsri_check_index_tensor(op, "x_rows", &args->x_rows, &p->x_rows));
    if (args->x_rows.ndim != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: x_rows.ndim is %d, expected 1", op,
                         (int)args->x_rows.ndim);
    if (args->x.ndim == 2) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: x.ndim is %d, expected 2 with x_rows", op,
                     (int)args->x.ndim);
}

static tsr_status check_y(tsr_quantize_args *args, struct quantize_problem *p) {
    const tsr_dtype dtype = args->y.dtype;
    const bool is_wide = p->x.dtype == TSR_F64;
    tsr_tensor expected = args->x;
    TSRI_TRY(tsri_check_rows(op, "y", &args->y, TSRI_OUT, &p->y));
    if (dtype != TSR_E4M3 && dtype != TSR_E5M2 && !(is_wide && dtype == TSR_F64))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: y.dtype is %s, expected e4m3 or e5m2%s", op,
                         tsr_dtype_name(dtype), is_wide ? ", or f64 as x" : "");
    if (p->has_list) expected.shape[0] = p->x_rows.count;
    return tsri_check_same_shape(op, "y", &args->y, p->has_list ? "x with the rows of x_rows" : "x",
                                 &expected);
}

static tsr_status check_scale(tsr_quantize_args *args, struct quantize_problem *p) {
    tsr_tensor expected = args->y;
    TSRI_TRY(tsri_check_rows(op, "y_scale", &args->y_scale, TSRI_OUT, &p->y_scale));
    TSRI_TRY(
        tsri_check_dtype(op, "y_scale", &args->y_scale, p->x.dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    expected.shape[expected.ndim - 1] = tsri_ceil_div(p->y.cols, QUANTIZE_BLOCK);
    return tsri_check_same_shape(op, "y_scale", &args->y_scale,
                                 "y with a scale for each 128 columns", &expected);
}

static tsr_status check(const tsr_context *ctx, const tsr_quantize_args *given,
                        tsr_quantize_args *args, struct quantize_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_kind(args));
    TSRI_TRY(tsri_check_rows(op, "x", &args->x, TSRI_IN, &p->x));
    TSRI_TRY(tsri_check_float(op, "x", &args->x));
    p->kind = args->kind;
    p->is_gated = tsri_is_present(&args->up);
    if (p->is_gated) {
        TSRI_TRY(tsri_check_rows(op, "up", &args->up, TSRI_IN, &p->up));
        TSRI_TRY(tsri_check_same_dtype(op, "up", &args->up, "x", &args->x));
        TSRI_TRY(tsri_check_same_shape(op, "up", &args->up, "x", &args->x));
    }
    TSRI_TRY(check_list(args, p));
    TSRI_TRY(check_y(args, p));
    TSRI_TRY(check_scale(args, p));
    const struct tsri_named_tensor all[] = {
        {"x", &args->x}, {"up", &args->up},           {"x_rows", &args->x_rows},
        {"y", &args->y}, {"y_scale", &args->y_scale},
    };
    return tsri_check_all_disjoint(op, all, 3, TSRI_COUNT(all));
}

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    static const int32_t none = -1;
    tsr_quantize_args args;
    struct quantize_problem p = {.is_gated = false};
    TSRI_TRY(check(ctx, given, &args, &p));
    if (!goal.is_prepare && p.has_list && tsri_host_reads(ctx))
        TSRI_TRY(tsri_check_index_values(op, "x_rows", &p.x_rows, p.x.rows, &none, 0));
    return tsri_op_serve(ctx, &tsri_quantize_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_quantize, enter)
