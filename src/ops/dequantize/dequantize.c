// SPDX-License-Identifier: Apache-2.0
// Dequantize: entry, checks, variants, threads. The contract is in tessera/dequantize.h.
#include "ops/dequantize/dequantize_problem.h"

static const char op[] = "dequantize";

// ---- Formats ------------------------------------------------------------------------------------

static bool is_format(tsr_quant_format format) {
    return format > TSR_QUANT_NONE && (unsigned)format < TSR_QUANT_COUNT;
}

const char *tsr_quant_format_name(tsr_quant_format format) {
    static const char *const names[TSR_QUANT_COUNT] = {
        "none", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "mxfp4_gguf", "int8", "int4", "mxfp4"};
    return (unsigned)format < TSR_QUANT_COUNT ? names[format] : "unknown format";
}

int64_t tsr_quant_row_bytes(tsr_quant_format format, int64_t cols) {
    if (!is_format(format) || cols < 0 || cols > TSRI_MAX_ELEMENTS) return -1;
    if (format == TSR_QUANT_INT8) return cols;
    if (format == TSR_QUANT_INT4) return tsri_ceil_div(cols, 2);
    const struct tsri_quant_block block = tsri_quant_block(format);
    return cols % block.cols == 0 ? cols / block.cols * block.bytes : -1;
}

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
    const int last = args->y.ndim - 1;
    if (p->has_list) expected.shape[0] = p->x_rows.count;
    expected.shape[expected.ndim - 1] = args->y.shape[last]; // of any number of columns
    TSRI_TRY(tsri_check_same_shape(op, "y", &args->y,
                                   p->has_list ? "x with the rows of x_rows" : "x", &expected));
    const int64_t bytes = tsr_quant_row_bytes(p->x.format, p->y.cols);
    if (bytes < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: y.shape[%d] is %lld, expected a multiple of %d "
                         "for %s",
                         op, last, (long long)p->y.cols, tsri_quant_block(p->x.format).cols,
                         tsr_quant_format_name(p->x.format));
    if (p->x.x.cols == bytes) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: x.shape[%d] is %lld, expected the %lld bytes of %lld "
                     "columns of %s",
                     op, (int)args->x.ndim - 1, (long long)p->x.x.cols, (long long)bytes,
                     (long long)p->y.cols, tsr_quant_format_name(p->x.format));
}

static tsr_status check_group(const tsr_dequantize_args *args, struct dequantize_problem *p) {
    enum { UNIT = 32 };
    const bool has_groups = p->x.format == TSR_QUANT_INT8 || p->x.format == TSR_QUANT_INT4;
    p->x.group = p->x.format == TSR_QUANT_MXFP4 ? UNIT : tsri_max(p->y.cols, 1);
    if (has_groups && args->group > 0) p->x.group = args->group;
    if (args->group == 0 || (has_groups && args->group > 0 && args->group % UNIT == 0))
        return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: group is %d, expected 0%s for %s", op,
                     (int)args->group, has_groups ? " or a multiple of 32" : "",
                     tsr_quant_format_name(p->x.format));
}

// A tensor beside x, with an element for each group of a row.
static tsr_status check_beside(const char *field, tsr_tensor *t, const tsr_dequantize_args *args,
                               const struct dequantize_problem *p, bool may_be_there,
                               struct tsri_rows *rows) {
    if (!tsri_is_present(t)) return TSR_OK;
    if (!may_be_there)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is present, expected it absent with quant %s", op, field,
                         tsr_quant_format_name(p->x.format));
    TSRI_TRY(tsri_check_rows(op, field, t, TSRI_IN, rows));
    if (p->x.format == TSR_QUANT_MXFP4) {
        TSRI_TRY(tsri_check_dtype(op, field, t, TSR_U8));
    } else {
        TSRI_TRY(tsri_check_float(op, field, t));
        if (t->dtype == TSR_F64) TSRI_TRY(tsri_check_dtype(op, "y", &args->y, TSR_F64));
        TSRI_TRY(tsri_check_same_dtype(op, field, t, "scale", &args->scale));
    }
    tsr_tensor expected = args->x;
    expected.shape[expected.ndim - 1] = tsri_ceil_div(p->y.cols, p->x.group);
    return tsri_check_same_shape(op, field, t, "x with an element for each group", &expected);
}

static tsr_status check_scales(tsr_dequantize_args *args, struct dequantize_problem *p) {
    const bool has_scales = tsri_quant_block(p->x.format).has_scales;
    const bool has_zeros = has_scales && p->x.format != TSR_QUANT_MXFP4;
    if (has_scales && !tsri_is_present(&args->scale))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: scale is absent, expected a tensor with quant %s", op,
                         tsr_quant_format_name(p->x.format));
    TSRI_TRY(check_beside("scale", &args->scale, args, p, has_scales, &p->x.scale));
    TSRI_TRY(check_beside("zero", &args->zero, args, p, has_zeros, &p->x.zero));
    return check_beside("minimum", &args->minimum, args, p, has_zeros, &p->x.minimum);
}

static tsr_status check(const tsr_context *ctx, const tsr_dequantize_args *given,
                        tsr_dequantize_args *args, struct dequantize_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    if (!is_format(args->quant))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: quant is %d, expected a tsr_quant_format but "
                         "none",
                         op, (int)args->quant);
    p->x.format = args->quant;
    TSRI_TRY(tsri_check_rows(op, "x", &args->x, TSRI_IN, &p->x.x));
    TSRI_TRY(tsri_check_dtype(op, "x", &args->x, TSR_U8));
    TSRI_TRY(check_list(args, p));
    TSRI_TRY(check_y(args, p));
    TSRI_TRY(check_group(args, p));
    TSRI_TRY(check_scales(args, p));
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
