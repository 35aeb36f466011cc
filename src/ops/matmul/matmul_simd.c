// SPDX-License-Identifier: Apache-2.0
// What surrounds the micro-kernel of cpu/gemm_simd.c: the epilogue, products of few rows, the baseline.
#include "cpu/simd_activation.h"
#include "cpu/simd_fp8.h"
#include "ops/matmul/matmul_problem.h"

// ---- Epilogue ---------------------------------------------------------------------------------

// One row of n products, in the order that tessera/matmul.h gives.
SIMD_INLINE void finish_row(tsr_activation kind, const struct matmul_problem *p, int64_t row,
                            int64_t col, int64_t n, const float *acc, const float *up) {
    const char *residual = p->residual.data != NULL ? matmul_at(&p->residual, row, col) : NULL;
    char *c = matmul_at(&p->c, row, col);
    vf alpha = vf_set1(p->alpha);
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf v = vf_load_n(acc + j, lanes) * alpha;
        if (p->bias != NULL) v = v + vf_load_as_n(p->bias_dtype, p->bias, col + j, lanes);
        v = vf_activate(kind, v);
        if (up != NULL) v = v * (vf_load_n(up + j, lanes) * alpha);
        if (residual != NULL) v = v + vf_load_as_n(p->residual.dtype, residual, j, lanes);
        if (p->is_accumulating) v = v + vf_load_as_n(p->c.dtype, c, j, lanes);
        vf_store_as_n(p->c.dtype, c, j, v, lanes);
    }
}

static void finish(const struct matmul_problem *p, int64_t row, int64_t col, int64_t m, int64_t n,
                   const float *acc, const float *up, int64_t stride) {
    for (int64_t i = 0; i < m; i++) {
        const float *up_row = up != NULL ? up + i * stride : NULL;
#define FINISH(kind)                                                                               \
    case kind: finish_row(kind, p, row + i, col, n, acc + i * stride, up_row); break
        switch (p->activation) {
            FINISH(TSR_ACTIVATION_GELU);
            FINISH(TSR_ACTIVATION_GELU_TANH);
            FINISH(TSR_ACTIVATION_SILU);
            FINISH(TSR_ACTIVATION_RELU);
        default: finish_row(TSR_ACTIVATION_NONE, p, row + i, col, n, acc + i * stride, up_row);
        }
#undef FINISH
    }
}

// ---- Few rows ---------------------------------------------------------------------------------

enum { MAX_COLS = 512, DOTS = 4, STEPS = 4, AHEAD = 8 };

// Columns of B are contiguous (a linear layer's weights): m x 4 dot products at a time, over k steps.
SIMD_INLINE void dots(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                      int64_t k_stride, const void *b, int64_t first, int64_t col, float *acc,
                      int64_t stride) {
    for (int64_t j = 0; j < n; j += DOTS) {
        int64_t at[DOTS];
        vf sum[MATMUL_ROWS_OF_PASS][DOTS];
        for (int d = 0; d < DOTS; d++) at[d] = (j + d < n ? j + d : n - 1) * col + first;
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < DOTS; d++) sum[i][d] = vf_set1(0.0f);
        int64_t p = 0;
        for (; p + VL <= k; p += VL)
            for (int d = 0; d < DOTS; d++) {
                vf x = vf_load_wide(dtype, b, at[d] + p);
                for (int i = 0; i < rows; i++)
                    sum[i][d] = vf_fma(vf_load(a + i * k_stride + p), x, sum[i][d]);
            }
        if (p < k)
            for (int d = 0; d < DOTS; d++) {
                vf x = vf_load_wide_n(dtype, b, at[d] + p, k - p);
                for (int i = 0; i < rows; i++)
                    sum[i][d] = vf_fma(vf_load_n(a + i * k_stride + p, k - p), x, sum[i][d]);
            }
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < DOTS && j + d < n; d++)
                acc[i * stride + j + d] += vf_hsum(sum[i][d]);
    }
}

// Rows of B are contiguous: four of them at a time are multiplied, and the four products added to the
// sums, which stay in the first-level cache.
SIMD_INLINE void axpys(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                       int64_t k_stride, const void *b, int64_t first, int64_t row, float *acc,
                       int64_t stride) {
    for (int64_t p = 0; p < k; p += STEPS)
        for (int64_t j = 0; j < n; j += VL) {
            int64_t lanes = n - j < VL ? n - j : VL;
            vf sum[MATMUL_ROWS_OF_PASS];
            for (int i = 0; i < rows; i++) sum[i] = vf_set1(0.0f);
            for (int64_t s = p; s < p + STEPS && s < k; s++) {
                vf x = vf_load_wide_n(dtype, b, (first + s) * row + j, lanes);
                simd_prefetch(b, (first + s + AHEAD) * row + j, (size_t)simd_bytes(dtype));
                for (int i = 0; i < rows; i++)
                    sum[i] = vf_fma(vf_set1(a[i * k_stride + s]), x, sum[i]);
            }
            for (int i = 0; i < rows; i++) {
                float *c = acc + i * stride + j;
                vf_store_n(c, vf_load_n(c, lanes) + sum[i], lanes);
            }
        }
}

// k goes in blocks whose sums are added up: a serial fp32 sum of many terms of one sign drifts.
SIMD_INLINE void skinny_as(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                           int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                           int64_t stride) {
    enum { BLOCK = 512 };
    for (int i = 0; i < rows; i++) memset(acc + i * stride, 0, (size_t)n * sizeof *acc);
    if (col != 1) {
        for (int64_t p = 0; p < k; p += BLOCK * VL)
            dots(rows, dtype, n, k - p < BLOCK * VL ? k - p : BLOCK * VL, a + p, k_stride, b, p,
                 col, acc, stride);
        return;
    }
    for (int64_t p = 0; p < k; p += BLOCK)
        for (int64_t j = 0; j < n; j += MAX_COLS) {
            int64_t cols = n - j < MAX_COLS ? n - j : MAX_COLS;
            float sum[MATMUL_ROWS_OF_PASS * MAX_COLS] = {0};
            axpys(rows, dtype, cols, k - p < BLOCK ? k - p : BLOCK, a + p, k_stride,
                  (const char *)b + j * simd_bytes(dtype), p, row, sum, MAX_COLS);
            for (int i = 0; i < rows; i++)
                for (int64_t c = 0; c < cols; c++) acc[i * stride + j + c] += sum[i * MAX_COLS + c];
        }
}

#define SKINNY(rows)                                                                               \
    case rows:                                                                                     \
        if (dtype == TSR_BF16)                                                                     \
            skinny_as(rows, TSR_BF16, n, k, a, k_stride, b, row, col, acc, stride);                \
        else if (dtype == TSR_F16)                                                                 \
            skinny_as(rows, TSR_F16, n, k, a, k_stride, b, row, col, acc, stride);                 \
        else                                                                                       \
            skinny_as(rows, TSR_F32, n, k, a, k_stride, b, row, col, acc, stride);                 \
        break

static void few_rows(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, const float *a,
                     int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                     int64_t stride) {
    if (dtype == TSR_E4M3) {
        skinny_as(1, TSR_E4M3, n, k, a, k_stride, b, row, col, acc, stride);
        return;
    }
    if (dtype == TSR_E5M2) {
        skinny_as(1, TSR_E5M2, n, k, a, k_stride, b, row, col, acc, stride);
        return;
    }
    switch (m) {
        SKINNY(1);
        SKINNY(2);
        SKINNY(3);
        SKINNY(4);
        SKINNY(5);
        SKINNY(6);
    default: break;
    }
}

// Rows beyond those whose sums fit the registers meet a few columns again while these are in the caches.
static void skinny(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                   int64_t stride) {
    int64_t parts = (m + MATMUL_ROWS_OF_PASS - 1) / MATMUL_ROWS_OF_PASS;
    int64_t rows = (m + parts - 1) / parts;
    int64_t cols = parts > 1 && col != 1 ? DOTS : n;
    for (int64_t j = 0; j < n; j += cols)
        for (int64_t i = 0; i < m; i += rows)
            few_rows(dtype, m - i < rows ? m - i : rows, n - j < cols ? n - j : cols, k,
                     a + i * k_stride, k_stride, (const char *)b + j * col * simd_bytes(dtype), row,
                     col, acc + i * stride + j, stride);
}

// ---- Backward ---------------------------------------------------------------------------------

static void activation_grad(tsr_dtype dtype, tsr_activation kind, const void *dc,
                            const void *preact, void *g, int64_t n) {
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf slope = vf_activate_grad(kind, vf_load_as_n(dtype, preact, j, lanes));
        vf_store_as_n(dtype, g, j, vf_load_as_n(dtype, dc, j, lanes) * slope, lanes);
    }
}

static void add_row(tsr_dtype dtype, const void *g, float *sum, int64_t n) {
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf_store_n(sum + j, vf_load_n(sum + j, lanes) + vf_load_as_n(dtype, g, j, lanes), lanes);
    }
}

const struct matmul_kernels TSRI_KERNEL_TABLE(matmul) = {
    .finish = finish,
    .skinny = skinny,
    .activation_grad = activation_grad,
    .add_row = add_row,
};
