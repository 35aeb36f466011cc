// SPDX-License-Identifier: Apache-2.0
// Grouped matmul: entries, checks, variants. The contract is in tessera/matmul_grouped.h. A grouped product is a
// batched one whose matrices have their group's number of rows (in backward, their group's k); matmul's kernels treat
// it so.
#include <tessera/matmul_grouped.h>

#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_check.h"
#include "ops/matmul/matmul_groups.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it. Both passes have the
// same variants, but for the first two.

static const struct tsri_variant variants[] = {
    {"cuda-fp8", "tiles of e4m3 by the copy engine and wgmma, on Hopper", TSR_VARIANT_CUDA,
     matmul_grouped_fp8_serves, matmul_grouped_plan_fp8, matmul_grouped_fp8_run,
     matmul_grouped_fp8_prepare},
    {"cuda-skinny", "few rows a group in 16 bits, b read once from memory to registers",
     TSR_VARIANT_CUDA, matmul_grouped_skinny_serves, matmul_grouped_plan_skinny,
     matmul_grouped_skinny_run, matmul_grouped_skinny_prepare},
    {"tiled",
     "blocks of all groups side by side, each packs the part of b that it needs, but for few rows",
     TSR_VARIANT_ISA, matmul_has_kernels, matmul_grouped_plan_tiled, matmul_grouped_tiled_run},
    {"amx_bf16", "the same, bf16 on AMX tiles", TSR_VARIANT_ISA | TSR_VARIANT_BF16_TILES,
     matmul_has_amx_bf16, matmul_grouped_plan_mixed, matmul_grouped_amx_bf16_run},
    {"avx512_bf16", "the same, bf16 by vdpbf16ps", TSR_VARIANT_ISA | TSR_VARIANT_BF16_DOT,
     matmul_has_avx512_bf16, matmul_grouped_plan_mixed, matmul_grouped_avx512_bf16_run},
    {"naive", "row after row, all of b for each", TSR_VARIANT_ISA | TSR_VARIANT_BASELINE,
     matmul_has_kernels, matmul_grouped_plan_naive, matmul_grouped_naive_run},
    {"cuda-mma", "16-bit tiles on tensor cores by mma.sync", TSR_VARIANT_CUDA,
     matmul_grouped_mma_serves, matmul_cuda_plan_mma, matmul_cuda_mma_run, matmul_cuda_mma_prepare},
    {"cuda-wgmma", "16-bit tiles by the copy engine and wgmma, on Hopper", TSR_VARIANT_CUDA,
     matmul_grouped_wgmma_serves, matmul_grouped_plan_wgmma, matmul_grouped_wgmma_run,
     matmul_grouped_wgmma_prepare},
    {"cuda-fma", "tiles by fp32 multiply-adds, any dtype and layout", TSR_VARIANT_CUDA,
     matmul_grouped_fma_serves, matmul_cuda_plan_fma, matmul_cuda_fma_run, matmul_cuda_fma_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, matmul_grouped_reference_run},
};
enum { OF_FORWARD = TSRI_COUNT(variants), FORWARD_ALONE = 2 };

// matmul lists the kernels that serve this operation too.
const struct tsri_op tsri_matmul_grouped_forward_op = {
    "matmul_grouped_forward",      variants, OF_FORWARD, matmul_grouped_prefer,
    matmul_grouped_forward_kernel, NULL};
const struct tsri_op tsri_matmul_grouped_backward_op = {
    "matmul_grouped_backward", variants + FORWARD_ALONE,       OF_FORWARD - FORWARD_ALONE,
    matmul_grouped_prefer,     matmul_grouped_backward_kernel, NULL};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_rank(const char *op, const char *field, const tsr_tensor *t, int rank) {
    if (t->ndim == rank) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected %d", op, field,
                     (int)t->ndim, rank);
}

// Reads offsets or counts, and the number of groups from whichever is given.
static tsr_status check_groups(const char *op, tsr_tensor *offsets, tsr_tensor *counts,
                               struct matmul_problem *p) {
    bool has_counts = tsri_is_present(counts);
    tsr_tensor *starts = has_counts ? counts : offsets;
    const char *field = has_counts ? "counts" : "offsets";
    if (has_counts == tsri_is_present(offsets))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: offsets and counts are %s, expected one of them", op,
                         has_counts ? "both present" : "both absent");
    TSRI_TRY(tsri_check_index_tensor(op, field, starts, &p->groups.starts));
    TSRI_TRY(check_rank(op, field, starts, 1));
    static const int32_t nothing;
    if (p->groups.starts.data == NULL) p->groups.starts.data = &nothing;
    p->groups.are_counts = has_counts;
    p->batch[0] = p->batch[1] = 1;
    p->batch[2] = p->num_batches = starts->shape[0] - (has_counts ? 0 : 1);
    if (p->num_batches >= 0) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: offsets has no elements, expected num_groups + 1",
                     op);
}

// Checks a tensor with the rows of all groups, (rows, cols) or (num_groups, rows, cols), as one matrix per group. The
// first tensor of a call sets *rows and *cols.
static tsr_status check_rows(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             const struct matmul_problem *p, int64_t *rows, int64_t *cols,
                             bool is_first, struct matmul_matrix *matrix) {
    bool has_counts = p->groups.are_counts;
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(check_rank(op, field, t, has_counts ? 3 : 2));
    if (is_first) {
        *rows = t->shape[t->ndim - 2];
        *cols = t->shape[t->ndim - 1];
    }
    // Without counts, all groups have their rows in one matrix.
    struct matmul_problem shape = {.num_batches = 1, .batch = {1, 1, 1}, .groups = p->groups};
    if (has_counts) shape.num_batches = shape.batch[2] = p->batch[2];
    TSRI_TRY(matmul_check_matrix(op, field, t, role, &shape, *rows, *cols, false, matrix));
    return matmul_check_rows_contiguous(op, field, matrix, *cols);
}

// Reads a list of an operand's rows, if it is given.
static tsr_status check_list(const char *op, const char *field, tsr_tensor *t,
                             const struct matmul_problem *p, struct matmul_list *list) {
    static const int32_t nothing;
    if (!tsri_is_present(t)) return TSR_OK;
    if (p->groups.are_counts)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is given with counts, expected offsets", op,
                         field);
    TSRI_TRY(tsri_check_index_tensor(op, field, t, &list->lines));
    TSRI_TRY(check_rank(op, field, t, 1));
    if (list->lines.data == NULL) list->lines.data = &nothing;
    return TSR_OK;
}

// Checks a tensor with the rows of all groups, or with those that its list names. The first one sets *rows and *cols; all
// others agree with *rows.
static tsr_status check_listed(const char *op, const char *field, tsr_tensor *t,
                               const char *list_field, tsr_tensor *list_tensor,
                               const struct matmul_problem *p, int64_t *rows, int64_t *cols,
                               bool is_first, struct matmul_matrix *matrix,
                               struct matmul_list *list) {
    TSRI_TRY(check_list(op, list_field, list_tensor, p, list));
    if (!matmul_is_listed(list))
        return check_rows(op, field, t, TSRI_IN, p, rows, cols, is_first, matrix);
    if (!is_first && list->lines.count != *rows)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has %lld elements, expected %lld", op,
                         list_field, (long long)list->lines.count, (long long)*rows);
    *rows = list->lines.count;
    return check_rows(op, field, t, TSRI_IN, p, &list->num_lines, cols, true, matrix);
}

// Checks (num_groups, rows, cols), or (num_groups, cols, rows) if transposed.
static tsr_status check_matrices(const char *op, const char *field, tsr_tensor *t,
                                 enum tsri_role role, const struct matmul_problem *p, int64_t rows,
                                 int64_t cols, bool is_transposed, struct matmul_matrix *matrix) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(check_rank(op, field, t, 3));
    return matmul_check_matrix(op, field, t, role, p, rows, cols, is_transposed, matrix);
}

// On the CPU: checks that offsets are within [0, rows] and do not decrease.
static tsr_status check_starts(const tsr_context *ctx, const char *op,
                               const struct matmul_problem *p) {
    if (!tsri_host_reads(ctx)) return TSR_OK;
    const struct matmul_groups *groups = &p->groups;
    int64_t rows = groups->are_depths ? p->k : p->m, least = 0;
    for (int64_t i = 0; i < p->num_batches + (groups->are_counts ? 0 : 1); i++) {
        int64_t value = tsri_index_at(&groups->starts, i);
        if (value < least || value > rows)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: element %lld of %s is %lld, expected %lld to %lld", op,
                             (long long)i, groups->are_counts ? "counts" : "offsets",
                             (long long)value, (long long)least, (long long)rows);
        if (!groups->are_counts) least = value;
    }
    return TSR_OK;
}

// On the CPU, after the offsets: checks the groups' elements of a list.
static tsr_status check_lines(const tsr_context *ctx, const char *op, const char *field,
                              const struct matmul_problem *p, const struct matmul_list *list) {
    if (!tsri_host_reads(ctx) || !matmul_is_listed(list)) return TSR_OK;
    int64_t first = tsri_index_at(&p->groups.starts, 0), stride = list->lines.stride;
    const struct tsri_indices of_groups = {list->lines.data + first * stride,
                                           tsri_index_at(&p->groups.starts, p->num_batches) - first,
                                           stride};
    return tsri_check_index_values(op, field, &of_groups, list->num_lines, NULL, first);
}

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_bias(const char *op, const char *field, tsr_tensor *bias,
                             const tsr_matmul_grouped_forward_args *args,
                             const struct matmul_problem *p, const void **data, tsr_dtype *dtype,
                             int64_t *step) {
    if (!tsri_is_present(bias)) return TSR_OK;
    struct matmul_matrix rows;
    TSRI_TRY(tsri_check_tensor(op, field, bias, TSRI_IN));
    TSRI_TRY(check_rank(op, field, bias, 2));
    struct matmul_problem shape = {.num_batches = 1, .batch = {1, 1, 1}};
    TSRI_TRY(
        matmul_check_matrix(op, field, bias, TSRI_IN, &shape, p->num_batches, p->n, false, &rows));
    TSRI_TRY(matmul_check_rows_contiguous(op, field, &rows, p->n));
    TSRI_TRY(matmul_check_side(op, field, bias, &args->a, &args->c, &args->bias, &args->bias_up));
    *data = rows.data;
    *dtype = rows.dtype;
    *step = rows.row;
    return TSR_OK;
}

// A scale of b: of the tensor, of each group, or of blocks of each group's matrix.
static tsr_status check_scale_of_b(const char *op, const char *field, tsr_tensor *t,
                                   const char *of_field, const tsr_tensor *of, bool is_transposed,
                                   const struct matmul_problem *p, struct matmul_matrix *scale) {
    const int64_t of_k = tsri_ceil_div(p->k, MATMUL_SCALE_BLOCK),
                  of_n = tsri_ceil_div(p->n, MATMUL_SCALE_BLOCK);
    tsr_tensor first = *t; // one element of each group
    const bool is_of_groups = tsri_is_present(t) && t->ndim == 1 && t->shape[0] != 1;
    static const double of_no_group;
    if (is_of_groups) {
        TSRI_TRY(tsri_check_vector(op, field, t, TSRI_IN, p->num_batches));
        if (p->num_batches == 0) first.data = (void *)&of_no_group;
        first.shape[0] = 1;
    } else if (matmul_is_of_blocks(t)) {
        TSRI_TRY(check_rank(op, field, t, 3));
    }
    TSRI_TRY(
        matmul_check_scale(op, field, &first, of_field, of, p, of_k, of_n, is_transposed, scale));
    if (is_of_groups) scale->batch[2] = t->stride[0];
    return TSR_OK;
}

static tsr_status check_scales(const char *op, tsr_matmul_grouped_forward_args *args,
                               struct matmul_problem *p) {
    tsr_tensor *const scales[] = {&args->a_scale, &args->b_scale, &args->b_up_scale};
    static const char *const fields[] = {"a_scale", "b_scale", "b_up_scale"};
    const bool is_transposed = args->transpose_b != 0;
    const int num = tsri_is_present(&args->b_up) ? 3 : 2;
    bool has_all = true;
    struct matmul_problem rows = {.num_batches = 1, .batch = {1, 1, 1}};
    if (p->groups.are_counts) rows = *p;
    if (matmul_is_of_blocks(&args->a_scale))
        TSRI_TRY(check_rank(op, "a_scale", &args->a_scale, args->a.ndim));
    TSRI_TRY(matmul_check_scale(op, fields[0], scales[0], "a", &args->a, &rows, p->m,
                                tsri_ceil_div(p->k, MATMUL_SCALE_BLOCK), false, &p->a_scale));
    TSRI_TRY(
        check_scale_of_b(op, fields[1], scales[1], "b", &args->b, is_transposed, p, &p->b_scale));
    TSRI_TRY(check_scale_of_b(op, fields[2], scales[2], "b_up", &args->b_up, is_transposed, p,
                              &p->b_up_scale));
    // Sums have the same order for any number of rows and groups: a rank of 1 beside one group is that of many groups' scales.
    for (int i = 0; i < num; i++) {
        const bool has_more = matmul_is_of_blocks(scales[i]) ||
                              (tsri_is_present(scales[i]) && tsr_tensor_numel(scales[i]) != 1);
        has_all &= tsri_is_present(scales[i]);
        p->is_block_scaled |= has_more;
    }
    const bool is_of_groups = args->b_scale.ndim == 1 || (num > 2 && args->b_up_scale.ndim == 1);
    if (has_all && p->num_batches == 1 && is_of_groups) p->is_block_scaled = true;
    for (int i = 0; i < num; i++)
        if (p->is_block_scaled && !tsri_is_present(scales[i]) && args->a.dtype != TSR_F64)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s is absent beside scales of more than one element, expected a "
                             "scale too",
                             op, fields[i]);
    for (int i = 0; i < num; i++)
        TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, fields[i], scales[i], false));
    if (!matmul_is_fp8(args->a.dtype) || !tsri_is_present(&args->a_rows)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: a_rows is given beside a of fp8, expected none",
                     op);
}

static tsr_status check_forward(const tsr_context *ctx,
                                const tsr_matmul_grouped_forward_args *given,
                                tsr_matmul_grouped_forward_args *args, struct matmul_problem *p) {
    static const char op[] = "matmul_grouped_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_groups(op, &args->offsets, &args->counts, p));
    TSRI_TRY(check_listed(op, "a", &args->a, "a_rows", &args->a_rows, p, &p->m, &p->k, true, &p->a,
                          &p->groups.of_a));
    const bool is_fp8 = matmul_is_fp8(args->a.dtype);
    if (!is_fp8) TSRI_TRY(tsri_check_float(op, "a", &args->a));
    TSRI_TRY(tsri_check_tensor(op, "b", &args->b, TSRI_IN));
    TSRI_TRY(check_rank(op, "b", &args->b, 3));
    p->n = args->b.shape[args->transpose_b ? 1 : 2];
    TSRI_TRY(
        check_matrices(op, "b", &args->b, TSRI_IN, p, p->k, p->n, args->transpose_b != 0, &p->b));
    TSRI_TRY(matmul_check_dtype_of_b(op, "b", &args->b, &args->a));
    if (tsri_is_present(&args->b_up)) {
        TSRI_TRY(check_matrices(op, "b_up", &args->b_up, TSRI_IN, p, p->k, p->n,
                                args->transpose_b != 0, &p->b_up));
        TSRI_TRY(tsri_check_same_dtype(op, "b_up", &args->b_up, "b", &args->b));
    }
    TSRI_TRY(check_rows(op, "c", &args->c, TSRI_OUT, p, &p->m, &p->n, false, &p->c));
    TSRI_TRY(matmul_check_side(op, "c", &args->c, &args->a, &args->c, &args->bias, &args->bias_up));
    TSRI_TRY(matmul_check_accumulate(op, "c", &args->c, args->accumulate));
    TSRI_TRY(matmul_check_bias_up(op, &args->bias_up, &args->b_up));
    TSRI_TRY(
        check_bias(op, "bias", &args->bias, args, p, &p->bias, &p->bias_dtype, &p->groups.bias));
    TSRI_TRY(check_bias(op, "bias_up", &args->bias_up, args, p, &p->bias_up, &p->bias_up_dtype,
                        &p->groups.bias_up));
    TSRI_TRY(matmul_check_activation(op, args->activation, &args->b_up));
    p->activation = args->activation;
    p->is_accumulating = args->accumulate != 0;
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, alpha));
    p->alpha = args->has_alpha ? args->alpha : 1.0f;
    TSRI_TRY(check_scales(op, args, p));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "a", &args->a, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "b", &args->b, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "b_up", &args->b_up, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "bias", &args->bias, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "bias_up", &args->bias_up, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "offsets", &args->offsets, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "a_rows", &args->a_rows, false));
    return tsri_check_disjoint(op, "c", &args->c, "counts", &args->counts, false);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_matmul_grouped_forward_args args;
    struct matmul_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    if (!goal.is_prepare) {
        static const char op[] = "matmul_grouped_forward";
        TSRI_TRY(check_starts(ctx, op, &p));
        TSRI_TRY(check_lines(ctx, op, "a_rows", &p, &p.groups.of_a));
    }
    return tsri_op_serve(ctx, &tsri_matmul_grouped_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_matmul_grouped_forward, enter_forward)

// ---- Backward: c is db, or its transpose if that has the contiguous rows ------------------------------

static tsr_status check_backward(const tsr_context *ctx,
                                 const tsr_matmul_grouped_backward_args *given,
                                 tsr_matmul_grouped_backward_args *args, struct matmul_problem *p) {
    static const char op[] = "matmul_grouped_backward";
    struct matmul_matrix a, dc;
    struct matmul_list a_rows = {.num_lines = 0}, dc_rows = {.num_lines = 0};
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_groups(op, &args->offsets, &args->counts, p));
    p->groups.are_depths = true;
    int64_t rows_of_b, cols_of_b;
    TSRI_TRY(check_listed(op, "a", &args->a, "a_rows", &args->a_rows, p, &p->k, &rows_of_b, true,
                          &a, &a_rows));
    TSRI_TRY(tsri_check_float(op, "a", &args->a));
    cols_of_b =
        args->dc.ndim >= 1 && args->dc.ndim <= TSR_MAX_DIMS ? args->dc.shape[args->dc.ndim - 1] : 0;
    TSRI_TRY(check_listed(op, "dc", &args->dc, "dc_rows", &args->dc_rows, p, &p->k, &cols_of_b,
                          false, &dc, &dc_rows));
    TSRI_TRY(tsri_check_same_dtype(op, "dc", &args->dc, "a", &args->a));
    bool is_transposed = args->transpose_b != 0;
    p->m = is_transposed ? cols_of_b : rows_of_b;
    p->n = is_transposed ? rows_of_b : cols_of_b;
    p->a = matmul_transposed(is_transposed ? dc : a);
    p->b = is_transposed ? a : dc;
    p->groups.of_a = is_transposed ? dc_rows : a_rows;
    p->groups.of_b = is_transposed ? a_rows : dc_rows;
    TSRI_TRY(check_matrices(op, "db", &args->db, TSRI_OUT, p, p->m, p->n, false, &p->c));
    TSRI_TRY(matmul_check_rows_contiguous(op, "db", &p->c, p->n));
    TSRI_TRY(matmul_check_side_dtype(op, "db", &args->db, "a", &args->a));
    TSRI_TRY(matmul_check_accumulate(op, "db", &args->db, args->accumulate));
    p->is_accumulating = args->accumulate != 0;
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, alpha));
    p->alpha = args->has_alpha ? args->alpha : 1.0f;
    TSRI_TRY(tsri_check_disjoint(op, "db", &args->db, "a", &args->a, false));
    TSRI_TRY(tsri_check_disjoint(op, "db", &args->db, "dc", &args->dc, false));
    TSRI_TRY(tsri_check_disjoint(op, "db", &args->db, "offsets", &args->offsets, false));
    TSRI_TRY(tsri_check_disjoint(op, "db", &args->db, "a_rows", &args->a_rows, false));
    TSRI_TRY(tsri_check_disjoint(op, "db", &args->db, "dc_rows", &args->dc_rows, false));
    return tsri_check_disjoint(op, "db", &args->db, "counts", &args->counts, false);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_matmul_grouped_backward_args args;
    struct matmul_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    if (!goal.is_prepare) {
        static const char op[] = "matmul_grouped_backward";
        bool is_transposed = args.transpose_b != 0;
        const struct matmul_list *of_a = &p.groups.of_a, *of_b = &p.groups.of_b;
        TSRI_TRY(check_starts(ctx, op, &p));
        TSRI_TRY(check_lines(ctx, op, "a_rows", &p, is_transposed ? of_b : of_a));
        TSRI_TRY(check_lines(ctx, op, "dc_rows", &p, is_transposed ? of_a : of_b));
    }
    return tsri_op_serve(ctx, &tsri_matmul_grouped_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_matmul_grouped_backward, enter_backward)
