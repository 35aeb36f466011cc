// SPDX-License-Identifier: Apache-2.0
// The parts that every matrix product on the CPU is made of: a micro-kernel on register tiles, and
// packing. Shared by matmul and attention.
#ifndef TSRI_CPU_GEMM_H
#define TSRI_CPU_GEMM_H

#include <stdbool.h>
#include <tessera/types.h>

#include "cpu/cpu_isa.h"

// Where A's rows are. GEMM_ROWS: element (i, p) at a[i * a_stride + p], used in place. GEMM_PANELS: in
// panels of mr rows, element (i, p) at a[(i / mr * k_panel + p) * mr + i % mr], a_stride = k_panel.
// GEMM_COLS: a transposed matrix in place, element (i, p) at a[p * a_stride + i].
enum gemm_a_form { GEMM_ROWS, GEMM_PANELS, GEMM_COLS };

struct gemm_kernels {
    int mr, nr; // rows and columns of the register tile

    // c (m x n, fp32) = or += a (m x k) b (k x n), whole register tiles and their remainders.
    // b comes in panels of nr columns, element (p, j) at b[j / nr * b_stride + p * nr + j % nr], or
    // in place (is_b_in_place), element (p, j) at b[p * b_stride + j]. Columns beyond n are not read.
    void (*block)(int64_t m, int64_t n, int64_t k, enum gemm_a_form a_form, const float *a,
                  int64_t a_stride, const float *b, int64_t b_stride, bool is_b_in_place, float *c,
                  int64_t c_stride, bool is_accumulating);

    // The same where m is small, rows of A and B are in place, and B is past the caches. sums holds m rows of `stride` floats,
    // n at least and a multiple of 16; it may be c, where that is not accumulated to and rows are up to 3. b is of f32, on AVX2
    // of bf16 and f16 too.
    void (*stream)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                   tsr_dtype dtype, const void *b, int64_t b_row, float *sums, int64_t stride,
                   float *c, int64_t c_stride, bool is_accumulating);

    // k rows of n <= nr columns of b, widened to fp32, into one panel [k][nr], zero beyond n in the last vector that has some;
    // further vectors are left as they are. Element (p, j) at b[p * row + j * col]; row or col is 1.
    void (*pack_b)(tsr_dtype dtype, const void *b, int64_t row, int64_t col, int64_t k, int64_t n,
                   float *panel);

    // As block, of rows of a and b in place, both f32; leaves b in panels as pack_b has them, k * nr floats apart, which the rows
    // that follow take. NULL: there is none.
    void (*pack_block)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                       const float *b, int64_t b_row, float *panels, float *c, int64_t c_stride,
                       bool is_accumulating);

    // m rows of a (element (i, p) at a[i * stride + p]) widened to fp32 rows of k_stride floats.
    void (*widen_rows)(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride);
    // The same of a transposed matrix, element (i, p) at a[p * stride + i]. rows are written up to a multiple of 16 of k.
    void (*widen_cols)(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride);

    // m rows and k columns of a, widened to fp32, into panels of mr rows (GEMM_PANELS), zero beyond m. Element
    // (i, p) at a[i * row + p * col]; row or col is 1.
    void (*pack_a)(tsr_dtype dtype, const void *a, int64_t row, int64_t col, int64_t m, int64_t k,
                   float *panels);
};
TSRI_DECLARE_KERNELS(gemm)

#endif
