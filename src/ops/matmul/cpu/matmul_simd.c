// SPDX-License-Identifier: Apache-2.0
// What surrounds the micro-kernel of cpu/gemm_simd.c in c (m x n) = a (m x k) b (k x n): the epilogue, products for
// small m (skinny, which the baseline uses row by row), and the gradient of the epilogue.
// Floor: few rows read b once, beside 2 m n k FLOPs; the epilogue writes c once.
// Limit: with few rows, reading b.
// Figures: docs/kernels/matmul_cpu_rows.md.
#include "cpu/simd_activation.h"
#include "cpu/simd_elements.h"
#include "cpu/simd_fp8.h"
#include "cpu/simd_nan.h"
#include "ops/matmul/matmul_problem.h"

// ---- Epilogue ---------------------------------------------------------------------------------

// Finishes one row of n products, in the order of tessera/matmul.h.
SIMD_INLINE void finish_row(tsr_activation kind, const struct matmul_problem *p, int64_t row,
                            int64_t col, int64_t n, const float *acc, const float *up) {
    const char *residual = p->residual.data != NULL ? matmul_at(&p->residual, row, col) : NULL;
    char *c = matmul_at(&p->c, row, col);
    vf alpha = vf_set1(p->alpha);
#define FINISH(access, j, lanes)                                                                   \
    do {                                                                                           \
        vf v = vf_get(access, TSR_F32, acc, j, lanes) * alpha;                                     \
        if (p->bias != NULL) v = v + vf_get(access, p->bias_dtype, p->bias, col + (j), lanes);     \
        v = vf_activate(kind, v);                                                                  \
        if (up != NULL) {                                                                          \
            vf u = vf_get(access, TSR_F32, up, j, lanes) * alpha;                                  \
            if (p->bias_up != NULL)                                                                \
                u = u + vf_get(access, p->bias_up_dtype, p->bias_up, col + (j), lanes);            \
            v = v * vf_gate(kind, u);                                                              \
        }                                                                                          \
        if (residual != NULL) v = v + vf_get(access, p->residual.dtype, residual, j, lanes);       \
        if (p->is_accumulating) v = v + vf_get(access, p->c.dtype, c, j, lanes);                   \
        vf_put(access, p->c.dtype, c, j, vf_one_nan(v), lanes);                                    \
    } while (0)
    SIMD_FOR_SPAN(n, 0, false, FINISH);
#undef FINISH
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
            FINISH(TSR_ACTIVATION_RELU2);
            FINISH(TSR_ACTIVATION_SWIGLU_CLAMPED);
        default: finish_row(TSR_ACTIVATION_NONE, p, row + i, col, n, acc + i * stride, up_row);
        }
#undef FINISH
    }
}

// ---- Few rows ---------------------------------------------------------------------------------

enum { MAX_COLS = 512, DOTS = 4, STEPS = 4, AHEAD = 8 };

// Contiguous columns of B (a linear layer's weights): rows x 4 dot products at a time, 2 if registers are few, over k
// steps. is_far: prefetches the next columns, because the hardware prefetcher restarts at each column.
SIMD_INLINE void dots(int rows, tsr_dtype dtype, bool is_far, int64_t n, int64_t k, const float *a,
                      int64_t k_stride, const void *b, int64_t first, int64_t col, float *acc,
                      int64_t stride) {
    enum { ROUND = 4 }; // columns per call of vf_hsum4
    const int cols = VL <= 8 && rows > 3 ? DOTS / 2 : DOTS;
    const int products = (rows * cols + ROUND - 1) / ROUND * ROUND;
    for (int64_t j = 0; j < n; j += cols) {
        int64_t at[DOTS], p = 0;
        vf sum[MATMUL_ROWS_OF_PASS * DOTS];
        float sums[MATMUL_ROWS_OF_PASS * DOTS];
#pragma GCC unroll 4
        for (int d = 0; d < cols; d++) at[d] = (j + d < n ? j + d : n - 1) * col + first;
#pragma GCC unroll 24
        for (int i = 0; i < products; i++) sum[i] = vf_set1(0.0f);
        for (; p + VL <= k; p += VL)
#pragma GCC unroll 4
            for (int d = 0; d < cols; d++) {
                vf x = vf_load_wide(dtype, b, at[d] + p);
                if (is_far) simd_prefetch(b, at[d] + p + cols * col, (size_t)simd_bytes(dtype));
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++)
                    sum[i * cols + d] = vf_fma(vf_load(a + i * k_stride + p), x, sum[i * cols + d]);
            }
        if (p < k)
#pragma GCC unroll 4
            for (int d = 0; d < cols; d++) {
                vf x = vf_load_wide_n(dtype, b, at[d] + p, k - p);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++)
                    sum[i * cols + d] =
                        vf_fma(vf_load_n(a + i * k_stride + p, k - p), x, sum[i * cols + d]);
            }
#pragma GCC unroll 8
        for (int i = 0; i < products; i += ROUND) vf_hsum4(sum + i, sums + i);
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < cols && j + d < n; d++) {
                float one = acc[i * stride + j + d] + sums[i * cols + d];
                acc[i * stride + j + d] = one == one ? one : -__builtin_nanf("");
            }
    }
}

// `steps` rows of B from p on, at the columns from j on: a whole vector, or `lanes` of one.
SIMD_INLINE void axpy(int rows, tsr_dtype dtype, bool is_whole, int64_t steps, const float *a,
                      int64_t k_stride, const void *b, int64_t at, int64_t row, float *acc,
                      int64_t stride, int64_t lanes) {
    vf sum[MATMUL_ROWS_OF_PASS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sum[i] = vf_set1(0.0f);
#pragma GCC unroll 4
    for (int64_t s = 0; s < steps; s++, at += row) {
        vf x = is_whole ? vf_load_wide(dtype, b, at) : vf_load_wide_n(dtype, b, at, lanes);
        simd_prefetch(b, at + AHEAD * row, (size_t)simd_bytes(dtype));
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = vf_fma(vf_set1(a[i * k_stride + s]), x, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        float *c = acc + i * stride;
        if (is_whole)
            vf_store(c, vf_one_nan(vf_load(c) + sum[i]));
        else
            vf_store_n(c, vf_one_nan(vf_load_n(c, lanes) + sum[i]), lanes);
    }
}

// Contiguous rows of B: four at a time are multiplied, and the four products are added to the sums, which stay in the
// first-level cache.
SIMD_INLINE void axpys(int rows, tsr_dtype dtype, int64_t n, int64_t k, const float *a,
                       int64_t k_stride, const void *b, int64_t first, int64_t row, float *acc,
                       int64_t stride) {
    int64_t p = 0;
#define AXPYS(steps)                                                                               \
    do {                                                                                           \
        int64_t j = 0, at = (first + p) * row;                                                     \
        for (; j + VL <= n; j += VL)                                                               \
            axpy(rows, dtype, true, steps, a + p, k_stride, b, at + j, row, acc + j, stride, VL);  \
        if (j < n)                                                                                 \
            axpy(rows, dtype, false, steps, a + p, k_stride, b, at + j, row, acc + j, stride,      \
                 n - j);                                                                           \
    } while (0)
    for (; p + STEPS <= k; p += STEPS) AXPYS(STEPS);
    if (p < k) AXPYS(k - p);
#undef AXPYS
}

// k is cut into blocks whose sums are added, because a serial fp32 sum of many terms of one sign drifts.
SIMD_INLINE void skinny_as(int rows, tsr_dtype dtype, bool is_far, int64_t n, int64_t k,
                           const float *a, int64_t k_stride, const void *b, int64_t row,
                           int64_t col, float *acc, int64_t stride) {
    enum { BLOCK = MATMUL_SKINNY_DEPTH };
    for (int i = 0; i < rows; i++) memset(acc + i * stride, 0, (size_t)n * sizeof *acc);
    if (col != 1) {
        for (int64_t p = 0; p < k; p += BLOCK * VL) {
            int64_t depth = k - p < BLOCK * VL ? k - p : BLOCK * VL;
            if (is_far)
                dots(rows, dtype, true, n, depth, a + p, k_stride, b, p, col, acc, stride);
            else
                dots(rows, dtype, false, n, depth, a + p, k_stride, b, p, col, acc, stride);
        }
        return;
    }
    for (int64_t p = 0; p < k; p += BLOCK)
        for (int64_t j = 0; j < n; j += MAX_COLS) {
            int64_t cols = n - j < MAX_COLS ? n - j : MAX_COLS;
            const char *of_b = (const char *)b + j * simd_bytes(dtype);
            if (p == 0) { // the first sums are stored directly
                axpys(rows, dtype, cols, k < BLOCK ? k : BLOCK, a, k_stride, of_b, 0, row, acc + j,
                      stride);
                continue;
            }
            float sum[MATMUL_ROWS_OF_PASS * MAX_COLS];
            for (int i = 0; i < rows; i++)
                memset(sum + i * MAX_COLS, 0, (size_t)cols * sizeof *sum);
            axpys(rows, dtype, cols, k - p < BLOCK ? k - p : BLOCK, a + p, k_stride, of_b, p, row,
                  sum, MAX_COLS);
            for (int i = 0; i < rows; i++)
                for (int64_t c = 0; c < cols; c++) acc[i * stride + j + c] += sum[i * MAX_COLS + c];
        }
}

#define SKINNY(rows)                                                                               \
    case rows:                                                                                     \
        if (dtype == TSR_BF16)                                                                     \
            skinny_as(rows, TSR_BF16, is_far, n, k, a, k_stride, b, row, col, acc, stride);        \
        else if (dtype == TSR_F16)                                                                 \
            skinny_as(rows, TSR_F16, is_far, n, k, a, k_stride, b, row, col, acc, stride);         \
        else                                                                                       \
            skinny_as(rows, TSR_F32, is_far, n, k, a, k_stride, b, row, col, acc, stride);         \
        break

static void few_rows(tsr_dtype dtype, bool is_far, int64_t m, int64_t n, int64_t k, const float *a,
                     int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                     int64_t stride) {
    if (dtype == TSR_E4M3) {
        skinny_as(1, TSR_E4M3, is_far, n, k, a, k_stride, b, row, col, acc, stride);
        return;
    }
    if (dtype == TSR_E5M2) {
        skinny_as(1, TSR_E5M2, is_far, n, k, a, k_stride, b, row, col, acc, stride);
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

// Rows beyond those with sums in registers go through a few columns again while these are in the caches.
static void skinny(tsr_dtype dtype, bool is_far, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                   int64_t stride) {
    int64_t parts = (m + MATMUL_ROWS_OF_PASS - 1) / MATMUL_ROWS_OF_PASS;
    int64_t rows = (m + parts - 1) / parts;
    int64_t cols = parts > 1 && col != 1 ? DOTS : n;
    for (int64_t j = 0; j < n; j += cols)
        for (int64_t i = 0; i < m; i += rows)
            few_rows(dtype, is_far && i == 0, m - i < rows ? m - i : rows,
                     n - j < cols ? n - j : cols, k, a + i * k_stride, k_stride,
                     (const char *)b + j * col * simd_bytes(dtype), row, col, acc + i * stride + j,
                     stride);
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

enum { OUTER_ROWS = 64, OUTER_COLS = 512 };

// Columns of b and rows of a, as floats; behind the last column zeros.
struct outer {
    float b[MATMUL_FEW_STEPS][OUTER_COLS + VL], a[MATMUL_FEW_STEPS][OUTER_ROWS];
};

SIMD_INLINE vf outer_sum(const struct outer *o, int64_t k, int64_t i, int64_t j) {
    vf sum = vf_set1(o->a[0][i]) * vf_load(o->b[0] + j);
    for (int64_t s = 1; s < k; s++) sum = vf_fma(vf_set1(o->a[s][i]), vf_load(o->b[s] + j), sum);
    return sum;
}

SIMD_INLINE void outer_row(tsr_dtype dtype, const struct outer *o, int64_t k, int64_t i, char *c,
                           int64_t n, bool is_accumulating, bool is_streaming) {
    int64_t j = 0, head = is_streaming ? simd_line_head(dtype, c) : 0;
    if (head > n) head = n;
    while (j < n) {
        const bool is_whole = j >= head && j + 2 * VL <= n;
        const int64_t end = j < head ? head : n;
        vf x = outer_sum(o, k, i, j);
        if (!is_whole) {
            const int64_t lanes = end - j < VL ? end - j : VL;
            if (is_accumulating) x = x + vf_load_as_n(dtype, c, j, lanes);
            vf_store_as_n(dtype, c, j, x, lanes);
            j += lanes;
            continue;
        }
        vf y = outer_sum(o, k, i, j + VL);
        if (is_accumulating) x = x + vf_load_as(dtype, c, j), y = y + vf_load_as(dtype, c, j + VL);
        if (is_streaming) {
            vf_stream_two_as(dtype, c, j, x, y);
        } else {
            vf_store_as(dtype, c, j, x);
            vf_store_as(dtype, c, j + VL, y);
        }
        j += 2 * VL;
    }
}

static void outer_rows(tsr_dtype dtype, const struct outer *o, int64_t m, int64_t n, int64_t k,
                       char *c, int64_t stride, bool is_accumulating, bool is_streaming) {
#define OUTER(dtype, k)                                                                            \
    for (int64_t i = 0; i < m; i++)                                                                \
    outer_row(dtype, o, k, i, c + i * stride, n, is_accumulating, is_streaming)
#define OUTER_AS(dtype)                                                                            \
    switch (k) {                                                                                   \
    case 1: OUTER(dtype, 1); break;                                                                \
    case 2: OUTER(dtype, 2); break;                                                                \
    default: OUTER(dtype, k);                                                                      \
    }
    if (dtype == TSR_F32)
        OUTER_AS(TSR_F32)
    else if (dtype == TSR_BF16)
        OUTER_AS(TSR_BF16)
    else
        OUTER_AS(TSR_F16)
}

static void outer(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, const void *const a[],
                  const void *const b[], tsr_dtype c_dtype, char *c, int64_t stride,
                  bool is_accumulating, bool is_streaming) {
    struct outer o;
    const int64_t size = simd_bytes(c_dtype);
    for (int64_t j = 0; j < n; j += OUTER_COLS) {
        const int64_t cols = n - j < OUTER_COLS ? n - j : OUTER_COLS;
        for (int64_t s = 0; s < k; s++) {
            for (int64_t at = 0; at < cols; at += VL)
                vf_store(o.b[s] + at,
                         vf_load_as_n(dtype, b[s], j + at, cols - at < VL ? cols - at : VL));
            vf_store(o.b[s] + cols, vf_set1(0));
        }
        for (int64_t i = 0; i < m; i += OUTER_ROWS) {
            const int64_t rows = m - i < OUTER_ROWS ? m - i : OUTER_ROWS;
            for (int64_t s = 0; s < k; s++)
                for (int64_t at = 0; at < rows; at += VL)
                    vf_store(o.a[s] + at,
                             vf_load_as_n(dtype, a[s], i + at, rows - at < VL ? rows - at : VL));
            outer_rows(c_dtype, &o, rows, cols, k, c + i * stride + j * size, stride,
                       is_accumulating, is_streaming);
        }
    }
    if (is_streaming) vf_stream_fence();
}

static void clear_row(char *to, int64_t bytes) {
    enum { VECTOR = VL * sizeof(float) };
    const int64_t past = (int64_t)((uintptr_t)to % VECTOR);
    int64_t done = past == 0 ? 0 : VECTOR - past;
    if (done > bytes) done = bytes;
    memset(to, 0, (size_t)done);
    for (; done + VECTOR <= bytes; done += VECTOR)
        vf_stream((float *)(void *)(to + done), vf_set1(0));
    memset(to + done, 0, (size_t)(bytes - done));
}

static void clear(char *to, int64_t rows, int64_t stride, int64_t bytes) {
    for (int64_t i = 0; i < rows; i++) clear_row(to + i * stride, bytes);
    vf_stream_fence();
}

const struct matmul_kernels TSRI_KERNEL_TABLE(matmul) = {
    .finish = finish,
    .skinny = skinny,
    .activation_grad = activation_grad,
    .add_row = add_row,
    .outer = outer,
    .clear = clear,
};
