// SPDX-License-Identifier: Apache-2.0
// Checks shared by matmul's forward and backward entries: they turn tensors into matrices.
#ifndef TSRI_MATMUL_CHECK_H
#define TSRI_MATMUL_CHECK_H

#include "ops/matmul/matmul_problem.h"

// Checks that b may be multiplied by a: both of one dtype, both fp8, or 16 bits beside f32.
tsr_status matmul_check_dtype_of_b(const char *op, const char *field, const tsr_tensor *b,
                                   const tsr_tensor *a);

// Checks a and b, also their dtypes, and sets m, n, k, the batch shape (a's) and both matrices.
tsr_status matmul_check_product(const char *op, tsr_tensor *a, tsr_tensor *b, int32_t transpose_a,
                                int32_t transpose_b, struct matmul_problem *p);

// Checks a tensor of shape (batch..., rows, cols), or (batch..., cols, rows) if transposed, as a matrix of rows x cols.
// Inputs may lack the batch dimensions; then all batches share them. The elements of an output must not overlap.
tsr_status matmul_check_matrix(const char *op, const char *field, tsr_tensor *t,
                               enum tsri_role role, const struct matmul_problem *p, int64_t rows,
                               int64_t cols, bool is_transposed, struct matmul_matrix *matrix);

// Checks that element (i, j + 1) follows (i, j); absent matrices pass.
tsr_status matmul_check_rows_contiguous(const char *op, const char *field,
                                        struct matmul_matrix *matrix, int64_t cols);

// Checks that the dtype is that of `like` or f32.
tsr_status matmul_check_side_dtype(const char *op, const char *field, const tsr_tensor *t,
                                   const char *like_field, const tsr_tensor *like);

// Checks c, a bias or residual: the dtype of a, or f32; with fp8, f32 or the one 16-bit dtype of c and both biases.
tsr_status matmul_check_side(const char *op, const char *field, const tsr_tensor *t,
                             const tsr_tensor *a, const tsr_tensor *c, const tsr_tensor *bias,
                             const tsr_tensor *bias_up);

// b_up: NULL in a call that has none.
tsr_status matmul_check_activation(const char *op, tsr_activation activation,
                                   const tsr_tensor *b_up);

// Checks that bias_up has a product to be added to.
tsr_status matmul_check_bias_up(const char *op, const tsr_tensor *bias_up, const tsr_tensor *b_up);

// Checks the dtype of an output that the call adds to, if it does.
tsr_status matmul_check_accumulate(const char *op, const char *field, const tsr_tensor *c,
                                   int32_t accumulate);

// Checks a scale of the fp8 operand `of`: one element, or one for each block of rows x cols, by its rank. Absent scales
// pass.
tsr_status matmul_check_scale(const char *op, const char *field, tsr_tensor *t,
                              const char *of_field, const tsr_tensor *of,
                              const struct matmul_problem *p, int64_t rows, int64_t cols,
                              bool is_transposed, struct matmul_matrix *scale);
static inline bool matmul_is_of_blocks(const tsr_tensor *scale) {
    return tsri_is_present(scale) && scale->ndim > 1;
}

#endif
