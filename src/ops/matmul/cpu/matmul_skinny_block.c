// SPDX-License-Identifier: Apache-2.0
// A block of a product by the kernel of "skinny", which reads B once in its own dtype: in fp32, or by vdpbf16ps. Used
// by skinny's tasks and for groups of few rows; parts of k and "naive" prepare their rows of A in the same way.
#include "cpu/gemm.h"
#include "cpu/gemm_bf16.h"
#include "ops/matmul/matmul_groups.h"

const float *matmul_rows_of_a(const struct gemm_kernels *gemm, const struct matmul_matrix *a,
                              const void *from, int64_t m, int64_t k, float *own,
                              int64_t own_stride, int64_t *stride) {
    *stride = a->row;
    if (matmul_is_rows_of_floats(a)) return from;
    *stride = own_stride;
    if (a->col == 1)
        gemm->widen_rows(a->dtype, from, a->row, m, k, own, own_stride);
    else
        gemm->widen_cols(a->dtype, from, a->col, m, k, own, own_stride);
    return own;
}

// Floats per row of a in fp32, or copied in the order of its list; 0 if a is used in place.
static int64_t own_stride_of(const struct matmul_problem *p) {
    bool is_in_place = matmul_is_rows_of_floats(&p->a) && !matmul_is_listed(&p->groups.of_a);
    return is_in_place ? 0 : (int64_t)tsri_round_up((size_t)p->k, 16);
}

// Rows of a in fp32, for skinny.
static const float *rows_of_block(const struct gemm_kernels *gemm, const struct matmul_problem *p,
                                  int64_t row, int64_t m, float *own, int64_t *stride) {
    const struct matmul_list *list = &p->groups.of_a;
    int64_t own_stride = own_stride_of(p);
    if (!matmul_is_listed(list))
        return matmul_rows_of_a(gemm, &p->a, matmul_at(&p->a, row, 0), m, p->k, own, own_stride,
                                stride);
    for (int64_t i = 0; i < m; i++)
        gemm->widen_rows(p->a.dtype, matmul_at(&p->a, matmul_line(list, row + i), 0), 0, 1, p->k,
                         own + i * own_stride, own_stride);
    *stride = own_stride;
    return own;
}

int64_t matmul_skinny_floats(const struct matmul_problem *p, int64_t m, int64_t n) {
    return m * (own_stride_of(p) + 2 * (int64_t)tsri_round_up((size_t)n, 16));
}

bool matmul_is_far(const struct matmul_problem *p, const struct tsri_limits *limits) {
    enum { MOST_BYTES = 4 << 10, MOST_BYTES_OF_F32 = 3 << 10 }; // bytes of a column, as measured
    int64_t bytes = p->k * (int64_t)tsr_dtype_bytes(p->b.dtype);
    return matmul_has_columns(p) &&
           bytes <= (p->b.dtype == TSR_F32 ? MOST_BYTES_OF_F32 : MOST_BYTES) &&
           p->num_batches * p->n * bytes > limits->l2_bytes / 2;
}

// Computes a block in fp32.
static void multiply_block(const struct tsri_limits *limits, const struct matmul_problem *p,
                           bool is_far, int64_t row, int64_t col, int64_t m, int64_t n, float *own,
                           float *acc, float *up, int64_t acc_stride) {
    const struct matmul_kernels *kernels = matmul_kernels(limits->isa);
    int64_t stride;
    const float *a = rows_of_block(gemm_kernels(limits->isa), p, row, m, own, &stride);
    kernels->skinny(p->b.dtype, is_far, m, n, p->k, a, stride, matmul_at(&p->b, 0, col), p->b.row,
                    matmul_column_step(p, &p->b), acc, acc_stride);
    if (up != NULL)
        kernels->skinny(p->b_up.dtype, is_far, m, n, p->k, a, stride, matmul_at(&p->b_up, 0, col),
                        p->b_up.row, matmul_column_step(p, &p->b_up), up, acc_stride);
}

// Computes a block of rows of bf16, a_stride apart, by vdpbf16ps.
static void multiply_block_bf16(const struct tsri_limits *limits, const struct matmul_problem *p,
                                const struct matmul_matrix *b, bool is_far, const void *a,
                                int64_t a_stride, int64_t col, int64_t m, int64_t n, float *c,
                                int64_t c_stride) {
#if defined(TSRI_HAS_BF16_KERNELS)
    enum { FAR_ELEMENTS = 4 << 20, FARTHER_ELEMENTS = 8 << 20 }; // elements of b
    bool by_columns = matmul_has_columns(p);
    const struct gemm_bf16_few product = {
        .m = m,
        .n = n,
        .k = p->k,
        .a = a,
        .b = (const void *)matmul_at(b, 0, col),
        .c = c,
        .a_stride = a_stride,
        .b_stride = by_columns ? matmul_column_step(p, b) : b->row,
        .c_stride = c_stride,
        .by_columns = by_columns,
        .is_far = by_columns ? is_far : p->n * p->k > FAR_ELEMENTS,
        .is_in_order = p->n * p->k > FARTHER_ELEMENTS && limits->bf16.is_dot_fast};
    tsri_gemm_bf16_few(&product);
#else
    (void)limits, (void)p, (void)b, (void)is_far, (void)a, (void)col, (void)m, (void)n, (void)c;
    (void)a_stride, (void)c_stride; // unreachable in such a build: matmul_has_skinny_bf16
#endif
}

void matmul_skinny_block(const struct tsri_limits *limits, const struct matmul_problem *p,
                         bool by_units, bool is_far, int64_t row, int64_t col, int64_t m, int64_t n,
                         float *own) {
    int64_t acc_stride = (int64_t)tsri_round_up((size_t)n, 16), a_stride = p->a.row;
    bool is_listed = matmul_is_listed(&p->groups.of_a);
    float *acc = own + (by_units && !is_listed ? 0 : m * own_stride_of(p));
    float *up = p->b_up.data != NULL ? acc + m * acc_stride : NULL;
    if (by_units) {
        const void *a = own;
        if (is_listed)
            matmul_gather(&p->a, p->a.row, &p->groups.of_a, row, m, 0, p->k, own,
                          a_stride = own_stride_of(p));
        else
            a = matmul_at(&p->a, row, 0);
        multiply_block_bf16(limits, p, &p->b, is_far, a, a_stride, col, m, n, acc, acc_stride);
        if (up != NULL)
            multiply_block_bf16(limits, p, &p->b_up, is_far, a, a_stride, col, m, n, up,
                                acc_stride);
    } else {
        multiply_block(limits, p, is_far, row, col, m, n, own, acc, up, acc_stride);
    }
    matmul_kernels(limits->isa)->finish(p, row, col, m, n, acc, up, acc_stride);
}
