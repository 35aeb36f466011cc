// SPDX-License-Identifier: Apache-2.0
// The parts of every matrix product on the CPU, shared by matmul and attention: a micro-kernel on register tiles, and
// packing.
#ifndef TSRI_CPU_GEMM_H
#define TSRI_CPU_GEMM_H

#include <stdbool.h>
#include <tessera/types.h>

#include "cpu/cpu_isa.h"

// How A is stored. GEMM_ROWS: element (i, p) at a[i * a_stride + p], used in place. GEMM_PANELS: panels of mr rows,
// element (i, p) at a[(i / mr * k_panel + p) * mr + i % mr], a_stride = k_panel. GEMM_COLS: a transposed matrix in
// place, element (i, p) at a[p * a_stride + i].
enum gemm_a_form { GEMM_ROWS, GEMM_PANELS, GEMM_COLS };

struct gemm_kernels {
    int mr, nr; // rows and columns of the register tile

    // c (m x n, fp32) = or += a (m x k) b (k x n), in whole register tiles and remainders. b is in panels of nr
    // columns, element (p, j) at b[j / nr * b_stride + p * nr + j % nr], or in place (is_b_in_place), element (p, j) at
    // b[p * b_stride + j]. Columns from n on are not read.
    void (*block)(int64_t m, int64_t n, int64_t k, enum gemm_a_form a_form, const float *a,
                  int64_t a_stride, const float *b, int64_t b_stride, bool is_b_in_place, float *c,
                  int64_t c_stride, bool is_accumulating);

    // The same for small m, with rows of A and B in place and B too large for the caches. `sums` holds m rows of
    // `stride` floats, at least n and a multiple of 16; it may be c if c is not accumulated to and m <= 3. b is f32, on
    // AVX2 also bf16 or f16.
    void (*stream)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                   tsr_dtype dtype, const void *b, int64_t b_row, float *sums, int64_t stride,
                   float *c, int64_t c_stride, bool is_accumulating);

    // Widens k rows of n <= nr columns of b to fp32, into one panel [k][nr]. The last vector with columns is filled up
    // with zeros; further vectors keep their contents. Element (p, j) is at b[p * row + j * col]; row or col is 1.
    void (*pack_b)(tsr_dtype dtype, const void *b, int64_t row, int64_t col, int64_t k, int64_t n,
                   float *panel);

    // Like block, with rows of a and b in place, both f32. It also leaves b in panels for later rows, as pack_b packs
    // them, k * nr floats apart. NULL on instruction sets without it.
    void (*pack_block)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                       const float *b, int64_t b_row, float *panels, float *c, int64_t c_stride,
                       bool is_accumulating);

    // Widens m rows of a (element (i, p) at a[i * stride + p]) to fp32, k_stride floats apart.
    void (*widen_rows)(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride);
    // The same for a transposed matrix, element (i, p) at a[p * stride + i]. Rows are written up to k rounded up to a
    // multiple of 16.
    void (*widen_cols)(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride);

    // Packs m rows and k columns of a, widened to fp32, into panels of mr rows (GEMM_PANELS), zero from row m on.
    // Element (i, p) is at a[i * row + p * col]; row or col is 1.
    void (*pack_a)(tsr_dtype dtype, const void *a, int64_t row, int64_t col, int64_t m, int64_t k,
                   float *panels);
};
TSRI_DECLARE_KERNELS(gemm)

#endif
