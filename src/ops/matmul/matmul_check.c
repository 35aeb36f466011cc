// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul/matmul_check.h"

#include <stdio.h>

tsr_status matmul_check_side_dtype(const char *op, const char *field, const tsr_tensor *t,
                                   const char *like_field, const tsr_tensor *like) {
    if (t->dtype == like->dtype || t->dtype == TSR_F32) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s as %s, or f32", op,
                     field, tsr_dtype_name(t->dtype), tsr_dtype_name(like->dtype), like_field);
}

static bool is_16_bits(const tsr_tensor *t) { return t->dtype == TSR_BF16 || t->dtype == TSR_F16; }

tsr_status matmul_check_side(const char *op, const char *field, const tsr_tensor *t,
                             const tsr_tensor *a, const tsr_tensor *c, const tsr_tensor *bias,
                             const tsr_tensor *bias_up) {
    const tsr_tensor *const others[] = {c, bias, bias_up};
    static const char *const fields[] = {"c", "bias", "bias_up"};
    if (!matmul_is_fp8(a->dtype)) return matmul_check_side_dtype(op, field, t, "a", a);
    for (int i = 0; i < TSRI_COUNT(others) && is_16_bits(t); i++)
        if (is_16_bits(others[i]))
            return matmul_check_side_dtype(op, field, t, fields[i], others[i]);
    if (is_16_bits(t) || t->dtype == TSR_F32) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s.dtype is %s beside a of fp8, expected f32, bf16 or f16", op, field,
                     tsr_dtype_name(t->dtype));
}

tsr_status matmul_check_scale(const char *op, const char *field, tsr_tensor *t,
                              const char *of_field, const tsr_tensor *of,
                              const struct matmul_problem *p, int64_t rows, int64_t cols,
                              bool is_transposed, struct matmul_matrix *scale) {
    *scale = (struct matmul_matrix){0};
    if (!tsri_is_present(t)) return TSR_OK;
    if (!matmul_is_fp8(of->dtype) && of->dtype != TSR_F64)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is given, expected none for %s of dtype %s",
                         op, field, of_field,
                         tsri_is_present(of) ? tsr_dtype_name(of->dtype) : "none");
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_IN));
    if (t->dtype != (of->dtype == TSR_F64 ? TSR_F64 : TSR_F32))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected f32", op, field,
                         tsr_dtype_name(t->dtype));
    if (matmul_is_of_blocks(t))
        return matmul_check_matrix(op, field, t, TSRI_IN, p, rows, cols, is_transposed, scale);
    *scale = (struct matmul_matrix){.data = t->data, .dtype = t->dtype};
    if (tsr_tensor_numel(t) == 1) return TSR_OK;
    char got[128];
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected one element", op, field,
                     tsri_shape_text(t, got, sizeof got));
}

// Checks that one of the two strides is 1; a stride that is never used counts as 1.
static tsr_status check_matrix_strides(const char *op, const char *field, int64_t rows,
                                       int64_t cols, struct matmul_matrix *matrix) {
    if (cols <= 1 && matrix->row != 1)
        matrix->col = 1;
    else if (rows <= 1 && matrix->col != 1)
        matrix->row = 1;
    if (matrix->row == 1 || matrix->col == 1) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s has strides %lld and %lld over its last two dimensions, expected 1 "
                     "for one of them",
                     op, field, (long long)matrix->row, (long long)matrix->col);
}

tsr_status matmul_check_rows_contiguous(const char *op, const char *field,
                                        struct matmul_matrix *matrix, int64_t cols) {
    if (matrix->data == NULL || matrix->col == 1) return TSR_OK;
    if (cols <= 1) {
        matrix->col = 1;
        return TSR_OK;
    }
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s has stride %lld over its last dimension, expected 1", op, field,
                     (long long)matrix->col);
}

// The last two dimensions, of any size. An empty tensor may have NULL data and is still present.
static struct matmul_matrix matrix_of(const tsr_tensor *t, bool is_transposed) {
    struct matmul_matrix matrix = {
        t->data, t->dtype, t->stride[t->ndim - 2], t->stride[t->ndim - 1], {0}};
    static char nothing;
    if (matrix.data == NULL) matrix.data = &nothing;
    return is_transposed ? matmul_transposed(matrix) : matrix;
}

static tsr_status check_rank(const char *op, const char *field, const tsr_tensor *t) {
    if (t->ndim >= 2 && t->ndim <= 2 + MATMUL_MAX_BATCH_DIMS) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected 2 to %d", op, field,
                     (int)t->ndim, 2 + MATMUL_MAX_BATCH_DIMS);
}

// Checks the shape of a tensor of valid rank.
static tsr_status check_shape(const char *op, const char *field, const tsr_tensor *t,
                              enum tsri_role role, const struct matmul_problem *p, int64_t rows,
                              int64_t cols, bool is_transposed, struct matmul_matrix *matrix) {
    if (role == TSRI_OUT) TSRI_TRY(tsri_check_apart(op, field, t));
    int first = t->ndim - 2;
    bool is_shared = t->ndim == 2 && role == TSRI_IN;
    bool fits = t->shape[first + is_transposed] == rows && t->shape[first + !is_transposed] == cols;
    *matrix = matrix_of(t, is_transposed);
    // Batch dimensions are counted from the innermost: batch[2] is next to the matrix.
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS && fits && !is_shared; i++) {
        int dim = first - MATMUL_MAX_BATCH_DIMS + i;
        int64_t size = dim >= 0 ? t->shape[dim] : 1;
        fits = size == p->batch[i];
        matrix->batch[i] = dim >= 0 ? t->stride[dim] : 0;
    }
    if (!fits) {
        char got[128], batch[64] = "";
        long long count = p->num_batches;
        if (p->groups.starts.data != NULL)
            snprintf(batch, sizeof batch, " for each of %lld group%s", count,
                     count == 1 ? "" : "s");
        else if (count != 1)
            snprintf(batch, sizeof batch, " for each of a's %lld batches", count);
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%lld, %lld)%s", op,
                         field, tsri_shape_text(t, got, sizeof got),
                         (long long)(is_transposed ? cols : rows),
                         (long long)(is_transposed ? rows : cols), batch);
    }
    return check_matrix_strides(op, field, rows, cols, matrix);
}

tsr_status matmul_check_matrix(const char *op, const char *field, tsr_tensor *t,
                               enum tsri_role role, const struct matmul_problem *p, int64_t rows,
                               int64_t cols, bool is_transposed, struct matmul_matrix *matrix) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(check_rank(op, field, t));
    return check_shape(op, field, t, role, p, rows, cols, is_transposed, matrix);
}

tsr_status matmul_check_dtype_of_b(const char *op, const char *field, const tsr_tensor *b,
                                   const tsr_tensor *a) {
    if (matmul_is_fp8(a->dtype) && matmul_is_fp8(b->dtype)) return TSR_OK;
    if (a->dtype != TSR_F32) return tsri_check_same_dtype(op, field, b, "a", a);
    if (b->dtype == TSR_F32 || b->dtype == TSR_BF16 || b->dtype == TSR_F16) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s.dtype is %s, expected f32, bf16 or f16 beside a of f32", op, field,
                     tsr_dtype_name(b->dtype));
}

tsr_status matmul_check_product(const char *op, tsr_tensor *a, tsr_tensor *b, int32_t transpose_a,
                                int32_t transpose_b, struct matmul_problem *p) {
    TSRI_TRY(tsri_check_tensor(op, "a", a, TSRI_IN));
    if (!matmul_is_fp8(a->dtype)) TSRI_TRY(tsri_check_float(op, "a", a));
    TSRI_TRY(check_rank(op, "a", a));
    TSRI_TRY(tsri_check_tensor(op, "b", b, TSRI_IN));
    TSRI_TRY(matmul_check_dtype_of_b(op, "b", b, a));
    TSRI_TRY(check_rank(op, "b", b));
    p->m = a->shape[a->ndim - (transpose_a ? 1 : 2)];
    p->k = a->shape[a->ndim - (transpose_a ? 2 : 1)];
    p->n = b->shape[b->ndim - (transpose_b ? 2 : 1)];
    p->num_batches = 1;
    p->alpha = 1.0f;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) {
        int dim = a->ndim - 2 - MATMUL_MAX_BATCH_DIMS + i;
        p->batch[i] = dim >= 0 ? a->shape[dim] : 1;
        if (__builtin_mul_overflow(p->num_batches, p->batch[i], &p->num_batches))
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: a has more batches than 64-bit offsets can address", op);
    }
    TSRI_TRY(check_shape(op, "a", a, TSRI_IN, p, p->m, p->k, transpose_a != 0, &p->a));
    return check_shape(op, "b", b, TSRI_IN, p, p->k, p->n, transpose_b != 0, &p->b);
}

struct matmul_matrix matmul_batch(const struct matmul_problem *p, const struct matmul_matrix *t,
                                  int64_t index) {
    struct matmul_matrix matrix = *t;
    if (t->data == NULL) return matrix;
    int64_t offset = 0;
    for (int i = MATMUL_MAX_BATCH_DIMS - 1; i >= 0; i--) {
        offset += index % p->batch[i] * t->batch[i];
        index /= p->batch[i];
    }
    matrix.data += offset * (int64_t)tsr_dtype_bytes(t->dtype);
    return matrix;
}

tsr_status matmul_check_activation(const char *op, tsr_activation activation,
                                   const tsr_tensor *b_up) {
    if ((unsigned)activation >= TSR_ACTIVATION_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: activation is %d, expected a tsr_activation below %d", op,
                         (int)activation, (int)TSR_ACTIVATION_COUNT);
    if (activation != TSR_ACTIVATION_SWIGLU_CLAMPED) return TSR_OK;
    if (b_up == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: activation is %s, expected one without a gate",
                         op, tsr_activation_name(activation));
    if (tsri_is_present(b_up)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: b_up is absent, expected a tensor with activation %s", op,
                     tsr_activation_name(activation));
}

tsr_status matmul_check_bias_up(const char *op, const tsr_tensor *bias_up, const tsr_tensor *b_up) {
    if (!tsri_is_present(bias_up) || tsri_is_present(b_up)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: bias_up is given without b_up, expected both", op);
}

tsr_status matmul_check_accumulate(const char *op, const char *field, const tsr_tensor *c,
                                   int32_t accumulate) {
    if (!accumulate || c->dtype == TSR_F32 || c->dtype == TSR_F64) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s under accumulate, expected f32", op,
                     field, tsr_dtype_name(c->dtype));
}
