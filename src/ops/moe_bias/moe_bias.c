// SPDX-License-Identifier: Apache-2.0
// The gradients of the experts' biases: entry, checks, variants. The contract is in tessera/moe_permute.h.
#include "ops/moe_bias/moe_bias_problem.h"

static const char op[] = "moe_bias_backward";

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct moe_bias_problem, rows.dtype)

static const struct tsri_variant variants[] = {
    {"fused", "parts of each expert's rows, 16 rows at a time, then the sums of parts",
     TSR_VARIANT_ISA, is_float32_or_less, moe_bias_plan, moe_bias_run},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, moe_bias_reference_run},
};

const struct tsri_op tsri_moe_bias_backward_op = {"moe_bias_backward", variants,
                                                  TSRI_COUNT(variants), NULL, NULL};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_rank(const char *field, const tsr_tensor *t, int rank) {
    if (t->ndim == rank) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected %d", op, field,
                     (int)t->ndim, rank);
}

static tsr_status check_offsets(tsr_tensor *offsets, struct moe_bias_problem *p) {
    TSRI_TRY(tsri_check_index_tensor(op, "offsets", offsets, &p->offsets));
    TSRI_TRY(check_rank("offsets", offsets, 1));
    if (p->offsets.count > 0) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: offsets has no elements, expected num_experts + 1", op);
}

// Sets num_rows: that of the list or, without it, of rows.
static tsr_status check_tokens(tsr_tensor *tokens, struct moe_bias_problem *p) {
    p->num_rows = p->rows.rows;
    p->has_tokens = tsri_is_present(tokens);
    if (!p->has_tokens) return TSR_OK;
    TSRI_TRY(tsri_check_index_tensor(op, "row_tokens", tokens, &p->row_tokens));
    TSRI_TRY(check_rank("row_tokens", tokens, 1));
    p->num_rows = p->row_tokens.count;
    return TSR_OK;
}

// One number a row, at any stride.
static tsr_status check_weights(tsr_tensor *weights, struct moe_bias_problem *p) {
    if (!tsri_is_present(weights)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, "row_weights", weights, TSRI_IN));
    TSRI_TRY(tsri_check_dtype(op, "row_weights", weights,
                              p->rows.dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    TSRI_TRY(check_rank("row_weights", weights, 1));
    if (weights->shape[0] != p->num_rows)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: row_weights has %lld elements, expected %lld",
                         op, (long long)weights->shape[0], (long long)p->num_rows);
    p->row_weights =
        (struct tsri_rows){weights->data, weights->dtype, p->num_rows, 1, weights->stride[0]};
    return TSR_OK;
}

static tsr_status check_dbias(tsr_tensor *dbias, const tsr_tensor *rows,
                              struct moe_bias_problem *p) {
    char text[128];
    const int64_t num_experts = p->offsets.count - 1;
    TSRI_TRY(tsri_check_rows(op, "dbias", dbias, TSRI_OUT, &p->dbias));
    if (dbias->dtype != TSR_F32 || rows->dtype == TSR_F64)
        TSRI_TRY(tsri_check_same_dtype(op, "dbias", dbias, "rows", rows));
    if (dbias->ndim == 2 && dbias->shape[0] == num_experts && dbias->shape[1] == p->rows.cols)
        return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: dbias has shape %s, expected (%lld, %lld)", op,
                     tsri_shape_text(dbias, text, sizeof text), (long long)num_experts,
                     (long long)p->rows.cols);
}

static tsr_status check(const tsr_context *ctx, const tsr_moe_bias_backward_args *given,
                        tsr_moe_bias_backward_args *args, struct moe_bias_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(tsri_check_rows(op, "rows", &args->rows, TSRI_IN, &p->rows));
    TSRI_TRY(check_rank("rows", &args->rows, 2));
    TSRI_TRY(tsri_check_float(op, "rows", &args->rows));
    TSRI_TRY(check_tokens(&args->row_tokens, p));
    TSRI_TRY(check_weights(&args->row_weights, p));
    TSRI_TRY(check_offsets(&args->offsets, p));
    TSRI_TRY(check_dbias(&args->dbias, &args->rows, p));
    const struct tsri_named_tensor all[] = {
        {"rows", &args->rows},
        {"row_tokens", &args->row_tokens},
        {"row_weights", &args->row_weights},
        {"offsets", &args->offsets},
        {"dbias", &args->dbias},
    };
    return tsri_check_all_disjoint(op, all, 4, TSRI_COUNT(all));
}

// On the CPU: offsets rise within [0, num_rows], and the experts' rows exist.
static tsr_status check_values(const struct moe_bias_problem *p) {
    const int64_t first = tsri_index_at(&p->offsets, 0), stride = p->row_tokens.stride;
    int64_t least = 0;
    for (int64_t e = 0; e < p->offsets.count; e++) {
        const int64_t value = tsri_index_at(&p->offsets, e);
        if (value < least || value > p->num_rows)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: element %lld of offsets is %lld, expected %lld to %lld", op,
                             (long long)e, (long long)value, (long long)least,
                             (long long)p->num_rows);
        least = value;
    }
    if (!p->has_tokens || least == first) return TSR_OK;
    const struct tsri_indices of_experts = {p->row_tokens.data + first * stride, least - first,
                                            stride};
    return tsri_check_index_values(op, "row_tokens", &of_experts, p->rows.rows, NULL, first);
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_moe_bias_backward_args args;
    struct moe_bias_problem p = {.num_rows = 0};
    TSRI_TRY(check(ctx, given, &args, &p));
    if (!goal.is_prepare && tsri_host_reads(ctx)) TSRI_TRY(check_values(&p));
    return tsri_op_serve(ctx, &tsri_moe_bias_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_bias_backward, enter)
