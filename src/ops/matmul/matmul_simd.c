// SPDX-License-Identifier: Apache-2.0
// What surrounds the micro-kernel of cpu/gemm_simd.c: the epilogue, products of few rows, the baseline.
#include "cpu/simd.h"
#include "cpu/simd_activation.h"
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

enum { MAX_ROWS = 6, DOTS = 4, STEPS = 4 };

// Columns of B are contiguous (a linear layer's weights): m x 4 dot products at a time.
SIMD_INLINE void dots(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                      int64_t k_stride, const void *b, int64_t col, float *acc, int64_t stride) {
    for (int64_t j = 0; j < n; j += DOTS) {
        int64_t at[DOTS];
        vf sum[MAX_ROWS][DOTS];
        for (int d = 0; d < DOTS; d++) at[d] = (j + d < n ? j + d : n - 1) * col;
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < DOTS; d++) sum[i][d] = vf_set1(0.0f);
        int64_t p = 0;
        for (; p + VL <= k; p += VL)
            for (int d = 0; d < DOTS; d++) {
                vf x = vf_load_as(dtype, b, at[d] + p);
                for (int i = 0; i < rows; i++)
                    sum[i][d] = vf_fma(vf_load(a + i * k_stride + p), x, sum[i][d]);
            }
        if (p < k)
            for (int d = 0; d < DOTS; d++) {
                vf x = vf_load_as_n(dtype, b, at[d] + p, k - p);
                for (int i = 0; i < rows; i++)
                    sum[i][d] = vf_fma(vf_load_n(a + i * k_stride + p, k - p), x, sum[i][d]);
            }
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < DOTS && j + d < n; d++)
                acc[i * stride + j + d] = vf_hsum(sum[i][d]);
    }
}

// Rows of B are contiguous: four of them at a time are added to the sums, which stay in the first-level
// cache.
SIMD_INLINE void axpys(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                       int64_t k_stride, const void *b, int64_t row, float *acc, int64_t stride) {
    for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) acc[i * stride + j] = 0.0f;
    for (int64_t p = 0; p < k; p += STEPS)
        for (int64_t j = 0; j < n; j += VL) {
            int64_t lanes = n - j < VL ? n - j : VL;
            vf sum[MAX_ROWS];
            for (int i = 0; i < rows; i++) sum[i] = vf_load_n(acc + i * stride + j, lanes);
            for (int64_t s = p; s < p + STEPS && s < k; s++) {
                vf x = vf_load_as_n(dtype, b, s * row + j, lanes);
                for (int i = 0; i < rows; i++)
                    sum[i] = vf_fma(vf_set1(a[i * k_stride + s]), x, sum[i]);
            }
            for (int i = 0; i < rows; i++) vf_store_n(acc + i * stride + j, sum[i], lanes);
        }
}

#define SKINNY(rows, dtype)                                                                        \
    do {                                                                                           \
        if (col == 1)                                                                              \
            axpys(rows, dtype, n, k, a, k_stride, b, row, acc, stride);                            \
        else                                                                                       \
            dots(rows, dtype, n, k, a, k_stride, b, col, acc, stride);                             \
    } while (0)
#define SKINNY_DTYPES(rows)                                                                        \
    case rows:                                                                                     \
        if (dtype == TSR_BF16)                                                                     \
            SKINNY(rows, TSR_BF16);                                                                \
        else if (dtype == TSR_F16)                                                                 \
            SKINNY(rows, TSR_F16);                                                                 \
        else                                                                                       \
            SKINNY(rows, TSR_F32);                                                                 \
        break

static void skinny(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                   int64_t stride) {
    switch (m) {
        SKINNY_DTYPES(1);
        SKINNY_DTYPES(2);
        SKINNY_DTYPES(3);
        SKINNY_DTYPES(4);
        SKINNY_DTYPES(5);
        SKINNY_DTYPES(6);
    default: break;
    }
}

// ---- Baseline ---------------------------------------------------------------------------------

SIMD_INLINE float load_scalar(const struct matmul_matrix *t, int64_t i, int64_t j) {
    const char *at = matmul_at(t, i, j);
    uint16_t half;
    float x;
    if (t->dtype == TSR_F32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&half, at, sizeof half);
    return t->dtype == TSR_BF16 ? tsri_bf16_to_float(half) : tsri_f16_to_float(half);
}

static void naive(const struct matmul_problem *p, const struct matmul_matrix *a,
                  const struct matmul_matrix *b, int64_t row, int64_t n, float *acc) {
    enum { BLOCK = 256 }; // sums of sums: a serial fp32 sum drifts by k roundings
    for (int64_t j = 0; j < n; j++) {
        acc[j] = 0;
        for (int64_t first = 0; first < p->k; first += BLOCK) {
            float sum = 0;
            for (int64_t step = first; step < first + BLOCK && step < p->k; step++)
                sum += load_scalar(a, row, step) * load_scalar(b, step, j);
            acc[j] += sum;
        }
    }
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
    .naive = naive,
    .activation_grad = activation_grad,
    .add_row = add_row,
};
