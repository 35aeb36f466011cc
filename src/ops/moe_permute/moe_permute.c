// SPDX-License-Identifier: Apache-2.0
// The rows of each expert: entry, checks, variants. The contract is in tessera/moe_permute.h.
#include "ops/moe_permute/moe_permute_problem.h"

enum { MOST_EXPERTS = 1 << 20, MOST_TOP_K = 1 << 16 };

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct moe_permute_problem, weights_dtype)

static const struct tsri_variant variants[] = {
    {"sorted", "a counting sort: chunks of tokens counted, then placed", 0, is_float32_or_less,
     moe_permute_plan, moe_permute_run},
    {"cuda", "a counting sort: chunks of assignments counted, then placed by rank",
     TSR_VARIANT_CUDA, is_float32_or_less, moe_permute_cuda_plan, moe_permute_cuda_run,
     moe_permute_cuda_prepare},
    {"reference", "one thread, a counter for each expert", TSR_VARIANT_REFERENCE, tsri_supports_all,
     moe_permute_reference_plan, moe_permute_reference_run},
};

const struct tsri_op tsri_moe_permute_op = {"moe_permute", variants, TSRI_COUNT(variants), NULL,
                                            moe_permute_cuda_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static const char op[] = "moe_permute";

static tsr_status check_ids(tsr_tensor *ids, struct moe_permute_problem *p) {
    TSRI_TRY(tsri_check_rows(op, "topk_ids", ids, TSRI_IN, &p->ids));
    TSRI_TRY(tsri_check_dtype(op, "topk_ids", ids, TSR_I32));
    if (p->ids.cols < 1 || p->ids.cols > MOST_TOP_K)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: topk_ids have %lld columns (top_k), expected 1 to %d", op,
                         (long long)p->ids.cols, MOST_TOP_K);
    if (p->ids.rows > INT32_MAX / p->ids.cols)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: topk_ids have %lld elements, expected at most 2^31 - 1", op,
                         (long long)(p->ids.rows * p->ids.cols));
    return TSR_OK;
}

static tsr_status check_offsets(tsr_tensor *offsets, struct moe_permute_problem *p) {
    char text[128];
    TSRI_TRY(tsri_check_tensor(op, "offsets", offsets, TSRI_OUT));
    p->num_experts = offsets->ndim == 1 ? offsets->shape[0] - 1 : 0;
    if (p->num_experts < 1 || p->num_experts > MOST_EXPERTS)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: offsets have shape %s, expected (num_experts + 1,) with 1 to %d "
                         "experts",
                         op, tsri_shape_text(offsets, text, sizeof text), MOST_EXPERTS);
    TSRI_TRY(tsri_check_vector(op, "offsets", offsets, TSRI_OUT, p->num_experts + 1));
    TSRI_TRY(tsri_check_dtype(op, "offsets", offsets, TSR_I32));
    p->offsets = offsets->data;
    return TSR_OK;
}

// row_tokens and row_weights, of one length.
static tsr_status check_row_vector(const char *field, tsr_tensor *t, tsr_dtype dtype,
                                   struct moe_permute_problem *p, void **data) {
    const int64_t all = moe_num_assignments(p);
    const int64_t least = tsri_min(all, p->num_experts * tsri_min(p->capacity, all));
    char text[128];
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_OUT));
    if (t->ndim != 1 || t->shape[0] < least)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has shape %s, expected (num_rows,) with at least %lld rows", op,
                         field, tsri_shape_text(t, text, sizeof text), (long long)least);
    if (p->num_rows >= 0 && t->shape[0] != p->num_rows)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has %lld rows, expected %lld as row_tokens",
                         op, field, (long long)t->shape[0], (long long)p->num_rows);
    p->num_rows = t->shape[0];
    return tsri_check_optional_vector(op, field, t, TSRI_OUT, p->num_rows, dtype, data);
}

static tsr_status check_weights(tsr_moe_permute_args *args, struct moe_permute_problem *p) {
    tsr_tensor *weights = &args->topk_weights;
    struct tsri_rows rows;
    p->weights_dtype = TSR_F32;
    if (!tsri_is_present(weights) && tsri_is_present(&args->row_weights))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: topk_weights are absent, expected them beside row_weights", op);
    if (!tsri_is_present(weights)) return TSR_OK;
    TSRI_TRY(tsri_check_rows(op, "topk_weights", weights, TSRI_IN, &rows));
    if (weights->dtype != TSR_F64) TSRI_TRY(tsri_check_dtype(op, "topk_weights", weights, TSR_F32));
    TSRI_TRY(tsri_check_same_shape(op, "topk_weights", weights, "topk_ids", &args->topk_ids));
    p->weights_dtype = weights->dtype;
    if (tsri_is_present(&args->row_weights)) p->weights = rows;
    return TSR_OK;
}

static tsr_status check(const tsr_context *ctx, const tsr_moe_permute_args *given,
                        tsr_moe_permute_args *args, struct moe_permute_problem *p) {
    void *row_tokens = NULL, *counts = NULL, *num_dropped = NULL;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_ids(&args->topk_ids, p));
    TSRI_TRY(check_offsets(&args->offsets, p));
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, capacity));
    if (args->has_capacity && args->capacity < 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: capacity is %lld, expected at least 1", op,
                         (long long)args->capacity);
    p->capacity = args->has_capacity ? tsri_min(args->capacity, INT32_MAX) : INT32_MAX;
    TSRI_TRY(check_weights(args, p));
    p->num_rows = -1;
    TSRI_TRY(check_row_vector("row_tokens", &args->row_tokens, TSR_I32, p, &row_tokens));
    TSRI_TRY(
        check_row_vector("row_weights", &args->row_weights, p->weights_dtype, p, &p->row_weights));
    if (tsri_is_present(&args->token_rows)) {
        TSRI_TRY(tsri_check_rows(op, "token_rows", &args->token_rows, TSRI_OUT, &p->token_rows));
        TSRI_TRY(tsri_check_dtype(op, "token_rows", &args->token_rows, TSR_I32));
        TSRI_TRY(tsri_check_same_shape(op, "token_rows", &args->token_rows, "topk_ids",
                                       &args->topk_ids));
    }
    TSRI_TRY(tsri_check_optional_vector(op, "tokens_per_expert", &args->tokens_per_expert, TSRI_OUT,
                                        p->num_experts, TSR_I32, &counts));
    TSRI_TRY(tsri_check_optional_vector(op, "num_dropped", &args->num_dropped, TSRI_OUT, 1, TSR_I32,
                                        &num_dropped));
    const struct tsri_named_tensor all[] = {
        {"topk_ids", &args->topk_ids},
        {"topk_weights", &args->topk_weights},
        {"offsets", &args->offsets},
        {"row_tokens", &args->row_tokens},
        {"row_weights", &args->row_weights},
        {"token_rows", &args->token_rows},
        {"tokens_per_expert", &args->tokens_per_expert},
        {"num_dropped", &args->num_dropped},
    };
    TSRI_TRY(tsri_check_all_disjoint(op, all, 2, TSRI_COUNT(all)));
    p->row_tokens = row_tokens;
    p->tokens_per_expert = counts;
    p->num_dropped = num_dropped;
    return TSR_OK;
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    static const int32_t none = MOE_NO_ROW;
    tsr_moe_permute_args args;
    struct moe_permute_problem p = {.num_rows = 0};
    TSRI_TRY(check(ctx, given, &args, &p));
    if (!goal.is_prepare && tsri_host_reads(ctx))
        TSRI_TRY(tsri_check_index_rows(op, "topk_ids", &p.ids, p.num_experts, &none));
    return tsri_op_serve(ctx, &tsri_moe_permute_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_moe_permute, enter)
