// SPDX-License-Identifier: Apache-2.0
// Embedding: entries, checks, variants. The contract is in tessera/embedding.h.
#include <tessera/embedding.h>

#include "ops/embedding/embedding_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct embedding_problem, rows.dtype)

static void plan_gather(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    const struct embedding_problem *p = problem;
    int64_t row_bytes = p->rows.cols * (int64_t)tsr_dtype_bytes(p->rows.dtype);
    if (row_bytes == 0) return;
    tsri_plan_rows(plan, limits, p->rows.rows, 2 * row_bytes);
    plan->is_streaming = tsri_should_stream(limits, p->rows.rows * row_bytes);
}

static int64_t table_row_bytes(const struct embedding_problem *p) {
    return p->table.cols * (int64_t)tsr_dtype_bytes(p->table.dtype);
}

// A task is a group of vocabulary rows times a block of columns. So if one id has most of the tokens, several threads
// sum it, each in its own columns.
static void plan_sorted(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    enum { MIN_BLOCK = 256 };
    const struct embedding_problem *p = problem;
    if (p->table.rows == 0 || p->table.cols == 0) return;
    tsri_plan_rows(plan, limits, p->table.rows, 2 * table_row_bytes(p));
    int64_t share = tsri_ceil_div(p->table.cols, limits->num_threads);
    plan->block_n = tsri_max((int64_t)tsri_round_up((size_t)share, 64), MIN_BLOCK);
    plan->num_tasks *= tsri_ceil_div(p->table.cols, plan->block_n);
    plan->workspace_bytes =
        tsri_round_up((size_t)(p->table.rows + 1 + p->ids.count) * sizeof(int64_t), 64);
    int64_t row_bytes = p->rows.cols * (int64_t)tsr_dtype_bytes(p->rows.dtype);
    int64_t bytes = p->table.rows * table_row_bytes(p);
    plan->is_streaming = tsri_should_stream_beside(limits, bytes, bytes + p->rows.rows * row_bytes);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct embedding_problem *p = problem;
    if (p->table.rows == 0 || p->table.cols == 0) return;
    tsri_plan_rows(plan, limits, p->table.rows, 4 * p->table.cols + table_row_bytes(p));
    plan->workspace_bytes =
        tsri_round_up((size_t)(p->table.rows * p->table.cols) * sizeof(float), 64);
}

// Space for the oracle's lists of tokens.
static void plan_reference(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct embedding_problem *p = problem;
    (void)limits;
    if (p->table.rows == 0 || p->table.cols == 0) return;
    plan->num_tasks = 1;
    plan->workspace_bytes =
        tsri_round_up((size_t)(p->table.rows + p->ids.count) * sizeof(int64_t), 64);
}

// Prefers "unfused" for short rows of a table that stays in the cache, if many rows have tokens: sorting the tokens, on
// one thread, costs more than adding them in place. Two exceptions: rows with few columns and many tokens, or a few
// rows of part of a vector with all the tokens, because "sorted" keeps their sums in registers. When accumulating,
// "unfused" needs many tokens, because "sorted" skips rows without tokens.
static const char *prefer_backward(const void *problem, const struct tsri_limits *limits) {
    const struct embedding_problem *p = problem;
    int64_t rows = p->table.rows, cols = p->table.cols, count = p->ids.count;
    bool is_short = cols <= (limits->isa == TSR_ISA_AVX512 ? 32 : 24);
    bool is_dense = (rows > 128  ? 2 * count + 16
                     : cols > 16 ? 4 * count + 4
                                 : 5 * count + 15) >= rows;
    if (p->is_accumulating) is_dense = count >= 2 * rows;
    bool is_lone = cols % 16 != 0 && rows <= (cols < 16 ? 8 : 2);
    bool is_crowded = (cols < 8 || is_lone) && count >= 8 * rows;
    return is_short && is_dense && !is_crowded && embedding_sums_stay(p, limits) ? "unfused"
                                                                                 : "sorted";
}

static const struct tsri_variant forward_variants[] = {
    {"gather", "rows copied whole, the next one fetched ahead", TSR_VARIANT_ISA, is_float32_or_less,
     plan_gather, embedding_gather_run},
    {"cuda", "rows copied in accesses as wide as they allow", TSR_VARIANT_CUDA, embedding_cuda_fits,
     tsri_plan_serial, embedding_cuda_gather_run, embedding_cuda_gather_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, embedding_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"sorted", "tokens sorted by id (counting sort), every row of dweight summed and written once",
     TSR_VARIANT_ISA, is_float32_or_less, plan_sorted, embedding_sorted_run},
    {"unfused", "three passes: zero, add every token into its fp32 row on one thread, convert",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused,
     embedding_unfused_run},
    {"cuda", "tokens sorted by id, every row of dweight summed and written once", TSR_VARIANT_CUDA,
     embedding_cuda_fits, embedding_cuda_plan, embedding_cuda_run, embedding_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     plan_reference, embedding_reference_backward_run},
};

const struct tsri_op tsri_embedding_forward_op = {"embedding_forward", forward_variants,
                                                  TSRI_COUNT(forward_variants), NULL,
                                                  embedding_cuda_forward_kernel};
const struct tsri_op tsri_embedding_backward_op = {"embedding_backward", backward_variants,
                                                   TSRI_COUNT(backward_variants), prefer_backward,
                                                   embedding_cuda_backward_kernel};

// ---- Checks -----------------------------------------------------------------------------------

// ids (...), rows (..., hidden), table (vocab, hidden); the names appear in messages.
static tsr_status check_shapes(const char *op, tsr_tensor *ids, const char *table_name,
                               tsr_tensor *table, enum tsri_role table_role, const char *rows_name,
                               tsr_tensor *rows, enum tsri_role rows_role,
                               struct embedding_problem *p) {
    char got[128], expected[128];
    TSRI_TRY(tsri_check_index_tensor(op, "ids", ids, &p->ids));
    TSRI_TRY(tsri_check_rows(op, table_name, table, table_role, &p->table));
    TSRI_TRY(tsri_check_float(op, table_name, table));
    if (table->ndim != 2)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (vocab, hidden)", op,
                         table_name, tsri_shape_text(table, got, sizeof got));
    TSRI_TRY(tsri_check_rows(op, rows_name, rows, rows_role, &p->rows));
    TSRI_TRY(tsri_check_float(op, rows_name, rows));
    bool fits = rows->ndim == ids->ndim + 1 && rows->shape[ids->ndim] == table->shape[1];
    for (int i = 0; fits && i < ids->ndim; i++) fits = rows->shape[i] == ids->shape[i];
    if (!fits)
        return tsri_fail(
            TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected that of ids, %s, and then %lld",
            op, rows_name, tsri_shape_text(rows, got, sizeof got),
            tsri_shape_text(ids, expected, sizeof expected), (long long)table->shape[1]);
    p->padding_id = -1;
    return TSR_OK;
}

static tsr_status check_ids(const tsr_context *ctx, const char *op,
                            const struct embedding_problem *p) {
    if (!tsri_host_reads(ctx)) return TSR_OK;
    return tsri_check_index_values(op, "ids", &p->ids, p->table.rows, NULL, 0);
}

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_embedding_forward_args *given,
                                tsr_embedding_forward_args *args, struct embedding_problem *p) {
    static const char op[] = "embedding_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(
        check_shapes(op, &args->ids, "weight", &args->weight, TSRI_IN, "y", &args->y, TSRI_OUT, p));
    TSRI_TRY(tsri_check_same_dtype(op, "y", &args->y, "weight", &args->weight));
    TSRI_TRY(tsri_check_disjoint(op, "y", &args->y, "weight", &args->weight, false));
    return tsri_check_disjoint(op, "y", &args->y, "ids", &args->ids, false);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_embedding_forward_args args;
    struct embedding_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_ids(ctx, "embedding_forward", &p));
    return tsri_op_serve(ctx, &tsri_embedding_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_embedding_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_embedding_backward_args *given,
                                 tsr_embedding_backward_args *args, struct embedding_problem *p) {
    static const char op[] = "embedding_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_shapes(op, &args->ids, "dweight", &args->dweight, TSRI_OUT, "dy", &args->dy,
                          TSRI_IN, p));
    bool is_wide = args->dweight.dtype == TSR_F32 && args->dy.dtype != TSR_F64;
    if (!is_wide) TSRI_TRY(tsri_check_same_dtype(op, "dweight", &args->dweight, "dy", &args->dy));
    TSRI_TRY(tsri_check_disjoint(op, "dweight", &args->dweight, "dy", &args->dy, false));
    TSRI_TRY(tsri_check_disjoint(op, "dweight", &args->dweight, "ids", &args->ids, false));
    p->is_accumulating = args->accumulate != 0;
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, padding_id));
    if (!args->has_padding_id) return TSR_OK;
    p->padding_id = args->padding_id;
    if (p->padding_id < 0 || p->padding_id >= p->table.rows)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: padding_id is %d, expected 0 to %lld", op,
                         (int)args->padding_id, (long long)(p->table.rows - 1));
    return TSR_OK;
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_embedding_backward_args args;
    struct embedding_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    if (!goal.is_prepare) TSRI_TRY(check_ids(ctx, "embedding_backward", &p));
    return tsri_op_serve(ctx, &tsri_embedding_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_embedding_backward, enter_backward)
