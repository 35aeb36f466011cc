// SPDX-License-Identifier: Apache-2.0
// RoPE's tables of cosines and sines: entry, checks, variants. The contract is in tessera/rope.h.
#include <math.h>

#include "ops/rope/rope_problem.h"

// ---- Variants ---------------------------------------------------------------------------------

static bool is_float32(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct rope_table_problem *)problem)->cos.dtype == TSR_F32;
}

// A task is a number of whole anchors. The workspace holds three shared vectors (frequencies and steps) and two vectors
// of state per thread, each of `half` doubles.
static void plan_anchored(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct rope_table_problem *p = problem;
    int64_t half = p->cos.cols;
    tsri_plan_rows(plan, limits, p->cos.rows, 8 * half);
    if (plan->num_tasks == 0) return;
    plan->grain = tsri_ceil_div(plan->grain, ROPE_ANCHOR) * ROPE_ANCHOR;
    plan->num_tasks = tsri_ceil_div(p->cos.rows, plan->grain);
    plan->block_n = (int64_t)tsri_round_up((size_t)half, 8);
    plan->workspace_bytes =
        (size_t)((3 + 2 * (int64_t)limits->num_threads) * plan->block_n) * sizeof(double);
}

static const struct tsri_variant variants[] = {
    {"anchored", "exact angles at every 64th position, rotations in double between them",
     TSR_VARIANT_ISA, is_float32, plan_anchored, rope_table_anchored_run},
    {"cuda", "exact angles at every 64th position, rotations in double between them",
     TSR_VARIANT_CUDA, rope_table_cuda_fits, tsri_plan_serial, rope_table_cuda_run,
     rope_table_cuda_prepare},
    {"reference", "every angle on its own, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, rope_table_reference_run},
};

const struct tsri_op tsri_rope_table_op = {"rope_table", variants, TSRI_COUNT(variants), NULL,
                                           rope_table_cuda_kernel};

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status check_positive(const char *field, double value) {
    if (value > 0 && isfinite(value)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "rope_table: %s is %g, expected a positive finite number", field, value);
}

static tsr_status check_scaling(const tsr_rope_scaling *scaling) {
    TSRI_TRY(check_positive("scaling.factor", scaling->factor));
    TSRI_TRY(check_positive("scaling.low_freq_factor", scaling->low_freq_factor));
    TSRI_TRY(check_positive("scaling.high_freq_factor", scaling->high_freq_factor));
    TSRI_TRY(check_positive("scaling.original_max_position", scaling->original_max_position));
    if (scaling->high_freq_factor > scaling->low_freq_factor) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "rope_table: scaling.high_freq_factor is %g, expected more than "
                     "low_freq_factor, %g",
                     scaling->high_freq_factor, scaling->low_freq_factor);
}

static tsr_status check(const tsr_context *ctx, const tsr_rope_table_args *given,
                        tsr_rope_table_args *args, struct rope_table_problem *p) {
    static const char op[] = "rope_table";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_rows(op, "cos", &args->cos, TSRI_OUT, &p->cos));
    TSRI_TRY(tsri_check_rows(op, "sin", &args->sin, TSRI_OUT, &p->sin));
    char text[128];
    if (args->cos.ndim != 2)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cos has shape %s, expected (num_positions, rotary_dim / 2)", op,
                         tsri_shape_text(&args->cos, text, sizeof text));
    if (args->cos.dtype != TSR_F32 && args->cos.dtype != TSR_F64)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: cos.dtype is %s, expected f32", op,
                         tsr_dtype_name(args->cos.dtype));
    TSRI_TRY(tsri_check_same_dtype(op, "sin", &args->sin, "cos", &args->cos));
    TSRI_TRY(tsri_check_same_shape(op, "sin", &args->sin, "cos", &args->cos));
    TSRI_TRY(tsri_check_disjoint(op, "cos", &args->cos, "sin", &args->sin, false));
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, base));
    p->base = args->has_base ? args->base : 10000;
    p->attention_factor = args->attention_factor != 0 ? args->attention_factor : 1;
    p->has_scaling = args->has_scaling != 0;
    p->scaling = args->scaling;
    TSRI_TRY(check_positive("base", p->base));
    if (!isfinite(p->attention_factor))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: attention_factor is %g, expected a finite number", op,
                         p->attention_factor);
    if (p->has_scaling) TSRI_TRY(check_scaling(&p->scaling));
    if (!tsri_is_present(&args->inv_freq)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, "inv_freq", &args->inv_freq, TSRI_IN, args->cos.shape[1]));
    TSRI_TRY(tsri_check_same_dtype(op, "inv_freq", &args->inv_freq, "cos", &args->cos));
    TSRI_TRY(tsri_check_disjoint(op, "cos", &args->cos, "inv_freq", &args->inv_freq, false));
    TSRI_TRY(tsri_check_disjoint(op, "sin", &args->sin, "inv_freq", &args->inv_freq, false));
    p->inv_freq = args->inv_freq.data;
    return TSR_OK;
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_rope_table_args args;
    struct rope_table_problem p = {0};
    TSRI_TRY(check(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_rope_table_op, &p, TSRI_CALL(args), goal);
}

tsr_status tsr_rope_table(tsr_context *ctx, const tsr_rope_table_args *given) {
    return tsri_entry_call(enter, ctx, given);
}

tsr_status tsr_rope_table_prepare(tsr_context *ctx, const tsr_rope_table_args *given,
                                  size_t *workspace_bytes) {
    return tsri_entry_prepare(enter, ctx, given, workspace_bytes);
}
