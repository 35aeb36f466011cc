// SPDX-License-Identifier: Apache-2.0
// Merging of partial results: entries, checks, variants, runs. The contract is in tessera/attention_decode.h.
#include <math.h>
#include <string.h>

#include "core/core_dtype.h"
#include "ops/attention/attention_merge_problem.h"
#include "ops/attention/cpu/attention_kernels.h"
#include "ops/attention/cpu/decode/attention_decode_kernels.h"

static const char op[] = "attention_merge";

// ---- Variants ---------------------------------------------------------------------------------

static bool is_float32_or_less(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct attention_merge_problem *)problem)->out.dtype != TSR_F64;
}

static void plan_rows(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    const struct attention_merge_problem *p = problem;
    int64_t row = p->num_parts * (p->dims * (int64_t)tsr_dtype_bytes(p->outs.dtype) + 4);
    tsri_plan_rows(plan, limits, p->num_rows,
                   row + p->dims * (int64_t)tsr_dtype_bytes(p->out.dtype));
}

static const struct tsri_variant variants[] = {
    {"ordered", "one pass, parts in order", TSR_VARIANT_ISA, is_float32_or_less, plan_rows,
     attention_merge_ordered_run},
    {"cuda", "a warp for each row, parts in order", TSR_VARIANT_CUDA, attention_merge_cuda_serves,
     attention_merge_cuda_plan, attention_merge_cuda_run, attention_merge_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, attention_merge_reference_run},
};

const struct tsri_op tsri_attention_merge_op = {op, variants, TSRI_COUNT(variants), NULL,
                                                attention_merge_cuda_kernel};

// ---- Runs -------------------------------------------------------------------------------------

static void *row_of(const struct attention_merge_problem *p, const struct attention_merge_view *t,
                    int64_t part, int64_t row) {
    return t->data + attention_merge_offset(p, t, part, row) * (int64_t)tsr_dtype_bytes(t->dtype);
}

struct work {
    const struct attention_merge_problem *p;
    const struct tsri_plan *plan;
    const struct attention_kernels *rows;
    const struct attention_decode_kernels *kernels;
};

static void merge_row(const struct work *w, int64_t row) {
    enum { COLUMNS = 256 }; // of the output at a time
    const struct attention_merge_problem *p = w->p;
    float max = -INFINITY, sum = 0, o[COLUMNS];
    for (int64_t s = 0; s < p->num_parts; s++) {
        float lse = *(const float *)row_of(p, &p->lses, s, row);
        if (isnan(lse) || lse == INFINITY) max = NAN; // NaN stays: fmaxf ignores NaN
        if (!isnan(max)) max = fmaxf(max, lse);
    }
    if (max != -INFINITY)
        for (int64_t s = 0; s < p->num_parts; s++)
            sum += expf(*(const float *)row_of(p, &p->lses, s, row) - max);
    for (int64_t c = 0; c < p->dims; c += COLUMNS) {
        int64_t n = tsri_min(COLUMNS, p->dims - c);
        memset(o, 0, sizeof o);
        for (int64_t s = 0; s < p->num_parts && max != -INFINITY; s++) {
            float lse = *(const float *)row_of(p, &p->lses, s, row);
            const char *x = row_of(p, &p->outs, s, row);
            if (lse != -INFINITY)
                w->kernels->add_scaled(p->outs.dtype,
                                       x + c * (int64_t)tsr_dtype_bytes(p->outs.dtype), n,
                                       expf(lse - max), o);
        }
        char *y = row_of(p, &p->out, 0, row);
        w->rows->store(p->out.dtype, o, n, sum == 0 ? 0.0f : 1 / sum,
                       y + c * (int64_t)tsr_dtype_bytes(p->out.dtype));
    }
    float lse = sum == 0 ? -INFINITY : max + logf(sum);
    if (p->lse.data != NULL) *(float *)row_of(p, &p->lse, 0, row) = isnan(lse) ? NAN : lse;
}

static void task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t first = index * w->plan->grain;
    (void)thread;
    for (int64_t row = first; row < tsri_min(first + w->plan->grain, w->p->num_rows); row++)
        merge_row(w, row);
}

tsr_status attention_merge_ordered_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    tsr_isa isa = tsr_context_isa(ctx);
    struct work w = {problem, plan, attention_kernels(isa), attention_decode_kernels(isa)};
    tsri_parallel(ctx, plan->num_tasks, task, &w);
    return TSR_OK;
}

// The oracle.
tsr_status attention_merge_reference_run(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct attention_merge_problem *p = problem;
    for (int64_t row = 0; row < p->num_rows; row++) {
        double max = -INFINITY, sum = 0;
        for (int64_t s = 0; s < p->num_parts; s++) {
            double lse = tsri_load(p->lses.dtype, row_of(p, &p->lses, s, row), 0);
            max = isnan(max) || isnan(lse) || lse == INFINITY ? NAN : fmax(max, lse);
        }
        for (int64_t s = 0; s < p->num_parts && max != -INFINITY; s++)
            sum += exp(tsri_load(p->lses.dtype, row_of(p, &p->lses, s, row), 0) - max);
        for (int64_t c = 0; c < p->dims; c++) {
            double o = 0;
            for (int64_t s = 0; s < p->num_parts && max != -INFINITY; s++) {
                double lse = tsri_load(p->lses.dtype, row_of(p, &p->lses, s, row), 0);
                if (lse != -INFINITY)
                    o += exp(lse - max) / sum *
                         tsri_load(p->outs.dtype, row_of(p, &p->outs, s, row), c);
            }
            tsr_store(p->out.dtype, row_of(p, &p->out, 0, row), c, o);
        }
        if (p->lse.data != NULL)
            tsr_store(p->lse.dtype, row_of(p, &p->lse, 0, row), 0,
                      max == -INFINITY ? -INFINITY : max + log(sum));
    }
    return TSR_OK;
}

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_view(const char *field, tsr_tensor *t, enum tsri_role role, bool has_parts,
                             bool has_columns, struct attention_merge_problem *p,
                             struct attention_merge_view *view) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    int first = has_parts ? 1 : 0, num_dims = t->ndim - first - (has_columns ? 1 : 0);
    char text[128];
    bool fits = num_dims >= 0 && num_dims <= MERGE_DIMS;
    if (fits && p->num_rows < 0) { // outs comes first; the others follow its shape
        p->num_rows = 1;
        p->num_parts = t->shape[0];
        p->dims = t->shape[t->ndim - 1];
        for (int i = 0; i < MERGE_DIMS; i++) {
            int from = i - (MERGE_DIMS - num_dims);
            p->shape[i] = from < 0 ? 1 : t->shape[first + from];
            p->num_rows *= p->shape[i];
        }
    }
    for (int i = 0; fits && i < MERGE_DIMS; i++) {
        int from = i - (MERGE_DIMS - num_dims);
        fits = (from < 0 ? 1 : t->shape[first + from]) == p->shape[i];
        view->stride[i] = from < 0 ? 0 : t->stride[first + from];
    }
    if (fits && has_parts) fits = t->shape[0] == p->num_parts;
    if (fits && has_columns) fits = t->shape[t->ndim - 1] == p->dims;
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%s...%s)%s", op,
                         field, tsri_shape_text(t, text, sizeof text),
                         has_parts ? "num_parts, " : "", has_columns ? ", head_dim_v" : "",
                         " with the rows of outs, in at most three dimensions");
    if (has_columns && t->stride[t->ndim - 1] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.stride[%d] is %lld, expected 1 (a contiguous last dimension)", op,
                         field, t->ndim - 1, (long long)t->stride[t->ndim - 1]);
    if (role == TSRI_OUT) TSRI_TRY(tsri_check_apart(op, field, t));
    view->data = t->data;
    view->dtype = t->dtype;
    view->part = has_parts ? t->stride[0] : 0;
    return TSR_OK;
}

static tsr_status check(const tsr_context *ctx, const tsr_attention_merge_args *given,
                        tsr_attention_merge_args *args, struct attention_merge_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    p->num_rows = -1;
    TSRI_TRY(check_view("outs", &args->outs, TSRI_IN, true, true, p, &p->outs));
    TSRI_TRY(check_view("lses", &args->lses, TSRI_IN, true, false, p, &p->lses));
    TSRI_TRY(check_view("out", &args->out, TSRI_OUT, false, true, p, &p->out));
    TSRI_TRY(tsri_check_float(op, "outs", &args->outs));
    TSRI_TRY(tsri_check_float(op, "out", &args->out));
    tsr_dtype small = args->outs.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    if (args->out.dtype != args->outs.dtype &&
        (args->outs.dtype != TSR_F32 || args->out.dtype == TSR_F64))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: out.dtype is %s, expected %s%s", op,
                         tsr_dtype_name(args->out.dtype), tsr_dtype_name(args->outs.dtype),
                         small == TSR_F32 ? ", or any beside outs of f32" : "");
    const tsr_tensor *lses[2] = {&args->lses, &args->lse};
    for (int i = 0; i < 2; i++)
        if (tsri_is_present(lses[i]))
            TSRI_TRY(tsri_check_dtype(op, i == 0 ? "lses" : "lse", lses[i], small));
    TSRI_TRY(tsri_check_disjoint(op, "out", &args->out, "outs", &args->outs, false));
    TSRI_TRY(tsri_check_disjoint(op, "out", &args->out, "lses", &args->lses, false));
    if (!tsri_is_present(&args->lse)) return TSR_OK;
    TSRI_TRY(check_view("lse", &args->lse, TSRI_OUT, false, false, p, &p->lse));
    TSRI_TRY(tsri_check_disjoint(op, "lse", &args->lse, "outs", &args->outs, false));
    TSRI_TRY(tsri_check_disjoint(op, "lse", &args->lse, "lses", &args->lses, false));
    return tsri_check_disjoint(op, "lse", &args->lse, "out", &args->out, false);
}

// ---- Entries ----------------------------------------------------------------------------------

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_attention_merge_args args;
    struct attention_merge_problem p = {0};
    TSRI_TRY(check(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_attention_merge_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_attention_merge, enter)
