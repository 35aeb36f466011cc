// SPDX-License-Identifier: Apache-2.0
// RoPE: entries, checks, variants of the rotation. The contract is in tessera/rope.h; rope_table.c has the entry of the
// tables.
#include "core/core_index.h"
#include "ops/rope/rope_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct rope_problem, dtype)

// Interleaved bf16 pairs whose run is not a whole number of lines: non-temporal stores help only several threads, and
// only with wide heads.
static bool is_better_cached(const struct rope_problem *p, const struct tsri_limits *limits) {
    enum { LINE = 32, NARROW = 64 }; // bf16 elements; dims of a head
    return p->is_interleaved && p->dtype == TSR_BF16 && p->rotary_dim % LINE != 0 &&
           (limits->num_threads == 1 || p->head_dim <= NARROW);
}

// If a head's tokens are contiguous in memory (num_heads outside seqlen), a task takes 32 of them. So each head is a
// run worth prefetching, and the task's tables stay in the cache for all heads.
static void plan_tokens(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    enum { RUN = 32 };
    const struct rope_problem *p = problem;
    int64_t token_bytes = p->num_heads * p->head_dim * (int64_t)tsr_dtype_bytes(p->dtype);
    tsri_plan_rows(plan, limits, p->tokens, 2 * token_bytes);
    if (rope_is_heads_first(p) && plan->grain < RUN && plan->num_tasks > 0) {
        int64_t fair = tsri_ceil_div(p->tokens, 4 * (int64_t)limits->num_threads);
        plan->grain = tsri_max(plan->grain, tsri_min(fair, RUN));
        plan->num_tasks = tsri_ceil_div(p->tokens, plan->grain);
    }
    // In place, the lines are in the cache already; non-temporal stores would only evict them.
    int64_t bytes = p->tokens * token_bytes;
    plan->is_streaming = p->x.data != p->y.data && !is_better_cached(p, limits) &&
                         tsri_should_stream_beside(limits, bytes, bytes);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct rope_problem *p = problem;
    plan_tokens(problem, limits, plan);
    plan->workspace_bytes =
        tsri_round_up((size_t)(p->tokens * p->num_heads * p->rotary_dim) * sizeof(float), 64);
}

static const struct tsri_variant variants[] = {
    {"fused", "one read and one write, pairs rotated in registers", TSR_VARIANT_ISA,
     is_float32_or_less, plan_tokens, rope_fused_run},
    {"unfused", "two passes over the whole tensor: rotate half, multiply and add",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused, rope_unfused_run},
    {"cuda", "one read and one write, several heads a thread", TSR_VARIANT_CUDA, rope_cuda_fits,
     tsri_plan_serial, rope_cuda_run, rope_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, rope_reference_run},
};

const struct tsri_op tsri_rope_forward_op = {"rope_forward", variants, TSRI_COUNT(variants), NULL,
                                             rope_cuda_kernel};
const struct tsri_op tsri_rope_backward_op = {"rope_backward", variants, TSRI_COUNT(variants),
                                              NULL};

// ---- Checks -----------------------------------------------------------------------------------

// The tensors of either direction, with the names for its messages.
struct fields {
    const char *op, *x_name, *y_name;
    tsr_tensor *x, *y, *cos, *sin, *positions;
    int64_t rotary_dim;
    bool is_interleaved, is_backward;
};

static tsr_status check_heads(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                              struct rope_heads *heads) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(tsri_check_float(op, field, t));
    char text[128];
    if (t->ndim != 3 && t->ndim != 4)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has shape %s, expected (batch, seqlen, num_heads, head_dim) or "
                         "(total, num_heads, head_dim)",
                         op, field, tsri_shape_text(t, text, sizeof text));
    int last = t->ndim - 1;
    if (t->stride[last] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.stride[%d] is %lld, expected 1 (a contiguous last dimension)", op,
                         field, last, (long long)t->stride[last]);
    heads->data = t->data;
    for (int i = 0; i < 3; i++) heads->stride[i] = last - 3 + i >= 0 ? t->stride[last - 3 + i] : 0;
    return TSR_OK;
}

static tsr_status check_table(const char *op, const char *field, tsr_tensor *t, tsr_dtype dtype,
                              int64_t half, struct tsri_rows *rows) {
    TSRI_TRY(tsri_check_rows(op, field, t, TSRI_IN, rows));
    char text[128];
    if (t->ndim != 2 || t->shape[1] != half)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has shape %s, expected (num_positions, %lld), half of rotary_dim",
                         op, field, tsri_shape_text(t, text, sizeof text), (long long)half);
    TSRI_TRY(tsri_check_dtype(op, field, t, dtype));
    rows->rows = t->shape[0]; // even if half is 0
    return TSR_OK;
}

// Checks the shape of positions; with reads_values, also that the positions are within the tables.
static tsr_status check_positions(const struct fields *f, struct rope_problem *p,
                                  bool reads_values) {
    tsr_tensor *t = f->positions;
    int64_t batch = f->x->ndim == 4 ? f->x->shape[0] : 1, num_positions = p->cos.rows;
    if (!tsri_is_present(t)) {
        if (p->tokens > 0 && p->seqlen > num_positions)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: cos has %lld positions, expected at least the %lld of %s", f->op,
                             (long long)num_positions, (long long)p->seqlen, f->x_name);
        return TSR_OK;
    }
    TSRI_TRY(tsri_check_tensor(f->op, "positions", t, TSRI_IN));
    if (t->dtype != TSR_I32)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: positions.dtype is %s, expected i32", f->op,
                         tsr_dtype_name(t->dtype));
    bool is_2d = t->ndim == 2 && f->x->ndim == 4;
    char text[128];
    if ((!is_2d && t->ndim != 1) || t->shape[t->ndim - 1] != p->seqlen ||
        (is_2d && t->shape[0] != batch))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: positions has shape %s, expected (%lld,)%s of %s", f->op,
                         tsri_shape_text(t, text, sizeof text), (long long)p->seqlen,
                         f->x->ndim == 4 ? " or (batch, seqlen)" : "", f->x_name);
    p->positions = t->data;
    p->positions_stride[0] = is_2d ? t->stride[0] : 0;
    p->positions_stride[1] = t->stride[t->ndim - 1];
    for (int64_t b = 0; reads_values && b < (is_2d ? batch : 1) && p->tokens > 0; b++) {
        struct tsri_indices run = {p->positions + b * p->positions_stride[0], p->seqlen,
                                   p->positions_stride[1]};
        TSRI_TRY(
            tsri_check_index_values(f->op, "positions", &run, num_positions, NULL, b * p->seqlen));
    }
    return TSR_OK;
}

static tsr_status check_rotary_dim(const struct fields *f, const struct rope_problem *p) {
    long long head_dim = p->head_dim, most = head_dim / 2 * 2;
    if (head_dim == 1)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has a head_dim of 1, expected at least 2: pairs are rotated",
                         f->op, f->x_name);
    if (f->rotary_dim == 0 && head_dim % 2 != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has a head_dim of %lld, which is odd: expected a rotary_dim, even "
                         "and at most %lld",
                         f->op, f->x_name, head_dim, most);
    if (p->rotary_dim >= 0 && p->rotary_dim <= head_dim && p->rotary_dim % 2 == 0) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: rotary_dim is %lld, expected an even number of at most %lld, for the "
                     "head_dim %lld of %s",
                     f->op, (long long)p->rotary_dim, most, head_dim, f->x_name);
}

static tsr_status check(const struct fields *f, struct rope_problem *p, bool reads_values) {
    TSRI_TRY(check_heads(f->op, f->x_name, f->x, TSRI_IN, &p->x));
    TSRI_TRY(check_heads(f->op, f->y_name, f->y, TSRI_OUT, &p->y));
    TSRI_TRY(tsri_check_same_dtype(f->op, f->y_name, f->y, f->x_name, f->x));
    TSRI_TRY(tsri_check_same_shape(f->op, f->y_name, f->y, f->x_name, f->x));
    TSRI_TRY(tsri_check_apart(f->op, f->y_name, f->y));
    int last = f->x->ndim - 1;
    p->dtype = f->x->dtype;
    p->head_dim = f->x->shape[last];
    p->num_heads = f->x->shape[last - 1];
    p->seqlen = f->x->shape[last - 2];
    p->tokens = tsr_tensor_numel(f->x) == 0 ? 0 : p->seqlen * (last == 3 ? f->x->shape[0] : 1);
    p->rotary_dim = f->rotary_dim != 0 ? f->rotary_dim : p->head_dim;
    p->is_interleaved = f->is_interleaved;
    p->is_backward = f->is_backward;
    TSRI_TRY(check_rotary_dim(f, p));
    tsr_dtype table_dtype = p->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    TSRI_TRY(check_table(f->op, "cos", f->cos, table_dtype, p->rotary_dim / 2, &p->cos));
    TSRI_TRY(check_table(f->op, "sin", f->sin, table_dtype, p->rotary_dim / 2, &p->sin));
    TSRI_TRY(tsri_check_same_shape(f->op, "sin", f->sin, "cos", f->cos));
    TSRI_TRY(tsri_check_disjoint(f->op, f->y_name, f->y, f->x_name, f->x, true));
    TSRI_TRY(tsri_check_disjoint(f->op, f->y_name, f->y, "cos", f->cos, false));
    TSRI_TRY(tsri_check_disjoint(f->op, f->y_name, f->y, "sin", f->sin, false));
    TSRI_TRY(check_positions(f, p, reads_values));
    return tsri_check_disjoint(f->op, f->y_name, f->y, "positions", f->positions, false);
}

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_rope_forward_args *given,
                                tsr_rope_forward_args *args, struct rope_problem *p,
                                bool reads_values) {
    static const char op[] = "rope_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    return check(&(struct fields){op, "x", "y", &args->x, &args->y, &args->cos, &args->sin,
                                  &args->positions, args->rotary_dim, args->interleaved != 0,
                                  false},
                 p, reads_values && tsri_host_reads(ctx));
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_rope_forward_args args;
    struct rope_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p, !goal.is_prepare));
    return tsri_op_serve(ctx, &tsri_rope_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_rope_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_rope_backward_args *given,
                                 tsr_rope_backward_args *args, struct rope_problem *p,
                                 bool reads_values) {
    static const char op[] = "rope_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    return check(&(struct fields){op, "dy", "dx", &args->dy, &args->dx, &args->cos, &args->sin,
                                  &args->positions, args->rotary_dim, args->interleaved != 0, true},
                 p, reads_values && tsri_host_reads(ctx));
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_rope_backward_args args;
    struct rope_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p, !goal.is_prepare));
    return tsri_op_serve(ctx, &tsri_rope_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_rope_backward, enter_backward)
