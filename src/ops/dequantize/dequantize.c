// SPDX-License-Identifier: Apache-2.0
// Dequantize: entry, checks, variants, threads. The contract is in tessera/dequantize.h.
#include "ops/dequantize/dequantize_problem.h"

static const char op[] = "dequantize";

// ---- Threads: a task is a piece of the grid of elements -----------------------------------------

struct pass {
    const struct dequantize_problem *problem;
    const struct tsri_plan *plan;
    const struct dequantize_kernels *kernels;
};

static void run_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct tsri_rows *y = &pass->problem->y;
    const struct tsri_piece piece = tsri_piece_of(pass->plan, y->rows, y->cols, index);
    (void)thread;
    pass->kernels->dequantize(pass->problem, &piece);
}

static tsr_status run_blocks(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    struct pass pass = {problem, plan, dequantize_kernels(tsr_context_isa(ctx))};
    (void)workspace;
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
    return TSR_OK;
}

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

static bool is_float32_or_less(const void *problem, const struct tsri_limits *limits) {
    const struct dequantize_problem *p = problem;
    (void)limits;
    return p->y.dtype != TSR_F64 && p->x.scale.dtype != TSR_F64;
}

// Pieces of a row begin at multiples of 256 columns.
static void plan_blocks(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    const struct dequantize_problem *p = problem;
    tsri_plan_elements(plan, limits, p->y.rows, p->y.cols, 1 + tsri_dtype_bytes(p->y.dtype));
}

static const struct tsri_variant variants[] = {
    {"fused", "32 codes at a time, from bytes to numbers in registers", TSR_VARIANT_ISA,
     is_float32_or_less, plan_blocks, run_blocks},
    {"cuda", "eight numbers of a row for each thread", TSR_VARIANT_CUDA, is_float32_or_less,
     tsri_plan_serial, dequantize_cuda_run, dequantize_cuda_prepare},
    {"reference", "one number after the other, one thread", TSR_VARIANT_REFERENCE,
     tsri_supports_all, tsri_plan_serial, dequantize_reference_run},
};

const struct tsri_op tsri_dequantize_op = {"dequantize", variants, TSRI_COUNT(variants), NULL,
                                           dequantize_cuda_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_list(tsr_dequantize_args *args, struct dequantize_problem *p) {
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

static tsr_status check_y(tsr_dequantize_args *args, struct dequantize_problem *p) {
    TSRI_TRY(tsri_check_rows(op, "y", &args->y, TSRI_OUT, &p->y));
    TSRI_TRY(tsri_check_float(op, "y", &args->y));
    tsr_tensor expected = args->x;
    if (p->has_list) expected.shape[0] = p->x_rows.count;
    expected.shape[expected.ndim - 1] = args->y.shape[args->y.ndim - 1]; // of any number of columns
    return tsri_check_same_shape(op, "y", &args->y, p->has_list ? "x with the rows of x_rows" : "x",
                                 &expected);
}

static tsr_status check(const tsr_context *ctx, const tsr_dequantize_args *given,
                        tsr_dequantize_args *args, struct dequantize_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    const struct tsri_quant_fields fields = {.name = "x",
                                             .scale_name = "scale",
                                             .zero_name = "zero",
                                             .minimum_name = "minimum",
                                             .like_name = "y",
                                             .x = &args->x,
                                             .scale = &args->scale,
                                             .zero = &args->zero,
                                             .minimum = &args->minimum,
                                             .like = &args->y,
                                             .format = args->quant,
                                             .group = args->group};
    TSRI_TRY(tsri_check_quant_format(op, args->quant));
    TSRI_TRY(tsri_check_quant_rows(op, &fields, &p->x));
    TSRI_TRY(check_list(args, p));
    TSRI_TRY(check_y(args, p));
    TSRI_TRY(tsri_check_quant_bytes(op, &fields, "y", args->y.ndim - 1, p->y.cols, &p->x));
    TSRI_TRY(tsri_check_quant_scales(op, &fields, p->y.cols, &p->x));
    const struct tsri_named_tensor all[] = {
        {"x", &args->x},       {"x_rows", &args->x_rows},   {"scale", &args->scale},
        {"zero", &args->zero}, {"minimum", &args->minimum}, {"y", &args->y},
    };
    return tsri_check_all_disjoint(op, all, TSRI_COUNT(all) - 1, TSRI_COUNT(all));
}

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    static const int32_t none = -1;
    tsr_dequantize_args args;
    struct dequantize_problem p = {.has_list = false};
    TSRI_TRY(check(ctx, given, &args, &p));
    if (!goal.is_prepare && p.has_list && tsri_host_reads(ctx))
        TSRI_TRY(tsri_check_index_values(op, "x_rows", &p.x_rows, p.x.x.rows, &none, 0));
    return tsri_op_serve(ctx, &tsri_dequantize_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_dequantize, enter)
