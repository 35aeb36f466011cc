// SPDX-License-Identifier: Apache-2.0
// Products for small m with B in place and too large for the caches (part of gemm_simd.c). A tile would read 64 bytes
// of a row of B, then 64 of the next row, pages apart, and all of B again for every six rows of A. Here a pass streams
// a few rows of B in long runs: elements of A for some rows and steps are in registers, and the sums of all rows are in
// the first-level cache, where the pass adds that many products to each sum. The next rows of B are prefetched
// meanwhile. Products are added one by one in the order of k, as in a tile, so the bits are the same.
#ifndef TSRI_CPU_GEMM_STREAM_H
#define TSRI_CPU_GEMM_STREAM_H

#include "core/core_index.h"
#include "cpu/simd.h"

// Registers hold the elements of A, one sum per row, and one vector of B.
#if defined(TSRI_SIMD_AVX512)
enum { STREAM_ROWS = 6, STREAM_STEPS = 4 };
#else
enum { STREAM_ROWS = 3, STREAM_STEPS = 4 };
#endif
enum { FAR_ROWS = 10, LONG_RUN = 512 };

// Adds the products of `steps` columns of a and rows of b to `rows` rows of sums, `stride` apart, at the vector of
// columns that starts at j (a part of it at the end). x holds the elements of a.
SIMD_INLINE void add_vector(int rows, int steps, bool is_whole, int64_t n,
                            vf x[STREAM_ROWS][STREAM_STEPS], const float *b, int64_t b_row,
                            float *sums, int64_t stride, int64_t j) {
    vf sum[STREAM_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sum[i] = vf_load(sums + i * stride + j);
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        const float *from = b + s * b_row + j;
        vf y = is_whole ? vf_load(from) : vf_load_n(from, n - j);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) sum[i] = vf_fma(x[i][s], y, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) vf_store(sums + i * stride + j, sum[i]);
}

// add_vector at all columns. It also prefetches `fetched` rows of b from `next` on, which may lie beyond b.
SIMD_INLINE void pass(int rows, int steps, int64_t n, const float *a, int64_t a_stride,
                      const float *b, int64_t b_row, int fetched, bool is_far, uintptr_t next,
                      float *sums, int64_t stride) {
    enum { LINE = 16 };
    vf x[STREAM_ROWS][STREAM_STEPS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int s = 0; s < steps; s++) x[i][s] = vf_set1(a[i * a_stride + s]);
    int64_t j = 0;
    for (; j + LINE <= n; j += LINE) {
        for (int f = 0; f < fetched; f++) {
            const void *line = (const void *)(next + (uintptr_t)(f * b_row + j) * sizeof *b);
            if (is_far)
                __builtin_prefetch(line, 0, 2);
            else
                __builtin_prefetch(line, 0, 3);
        }
#pragma GCC unroll 16
        for (int h = 0; h < LINE; h += VL)
            add_vector(rows, steps, true, n, x, b, b_row, sums, stride, j + h);
    }
    for (; j + VL <= n; j += VL) add_vector(rows, steps, true, n, x, b, b_row, sums, stride, j);
    if (j < n) add_vector(rows, steps, false, n, x, b, b_row, sums, stride, j);
}

// Steps after the last full pass run one by one.
#define STREAM_PASS(rows)                                                                          \
    static void pass_##rows(int64_t steps, int64_t n, const float *a, int64_t a_stride,            \
                            const float *b, int64_t b_row, int fetched, bool is_far,               \
                            uintptr_t next, float *sums, int64_t stride) {                         \
        if (steps == STREAM_STEPS)                                                                 \
            pass(rows, STREAM_STEPS, n, a, a_stride, b, b_row, fetched, is_far, next, sums,        \
                 stride);                                                                          \
        else                                                                                       \
            for (; steps > 0; steps--, a++, b += b_row)                                            \
                pass(rows, 1, n, a, a_stride, b, b_row, 0, false, 0, sums, stride);                \
    }
// clang-format off
STREAM_PASS(1) STREAM_PASS(2) STREAM_PASS(3)
#if defined(TSRI_SIMD_AVX512)
STREAM_PASS(4) STREAM_PASS(5) STREAM_PASS(6)
#endif
static void (*const stream_passes[STREAM_ROWS])(int64_t steps, int64_t n, const float *a,
                                                int64_t a_stride, const float *b, int64_t b_row,
                                                int fetched, bool is_far, uintptr_t next, float *sums, int64_t stride) = {
    pass_1, pass_2, pass_3,
#if defined(TSRI_SIMD_AVX512)
    pass_4, pass_5, pass_6,
#endif
};
// clang-format on

#if defined(TSRI_SIMD_AVX2)
// For more rows than a pass holds, with registers of 8 floats. Six steps of two vectors of B stay in registers; the
// rows of A are broadcast one after the other, and their sums stream, if need be from the second-level cache. So B is
// read once at an even pace, and a vector of sums gets six products for one load and one store.
enum { TURN_STEPS = 6, TURN_ROWS = 48, TURN_COLS = 2 * VL, TURN_AHEAD = 256 };

// x: `steps` elements of one row of A.
SIMD_INLINE void add_products(int steps, const float *x, vf y[TURN_STEPS][2], float *sums) {
    vf first = vf_load(sums), second = vf_load(sums + VL);
#pragma GCC unroll 8
    for (int s = 0; s < steps; s++) {
        vf a = vf_set1(x[s]);
        first = vf_fma(a, y[s][0], first);
        second = vf_fma(a, y[s][1], second);
    }
    vf_store(sums, first);
    vf_store(sums + VL, second);
}

// b is f32, bf16 or f16. x: the steps of each row, row by row. sums: TURN_COLS columns of each row, then the next
// columns. With each row, one line of b is prefetched, TURN_AHEAD columns ahead and fetched[row] elements further. Many
// prefetches at a time would be dropped by the processor.
SIMD_INLINE void turn(int steps, tsr_dtype dtype, int64_t m, int64_t n, const float *x,
                      const void *b, int64_t b_row, const int64_t *fetched, float *sums) {
    int64_t lead = tsri_min(TURN_AHEAD, n);
    for (int64_t j = 0; j < n; j += TURN_COLS) {
        vf y[TURN_STEPS][2];
        if (n - j >= TURN_COLS) {
#pragma GCC unroll 8
            for (int s = 0; s < steps; s++) {
                y[s][0] = vf_load_wide(dtype, b, s * b_row + j);
                y[s][1] = vf_load_wide(dtype, b, s * b_row + j + VL);
            }
        } else {
            int64_t lanes = tsri_min(VL, n - j), more = n - j - lanes;
#pragma GCC unroll 8
            for (int s = 0; s < steps; s++) {
                y[s][0] = vf_load_wide_n(dtype, b, s * b_row + j, lanes);
                y[s][1] =
                    more == 0 ? vf_set1(0.0f) : vf_load_wide_n(dtype, b, s * b_row + j + VL, more);
            }
        }
        // At the end of a run, prefetch the start of the next run.
        int64_t ahead = j + lead < n ? j + lead : steps * b_row + j + lead - n;
        int64_t i = 0;
        const float *of_a = x;
        size_t size = (size_t)simd_bytes(dtype);
        for (; i + 2 <= m; i += 2, of_a += 2 * steps, sums += 2 * TURN_COLS) {
            simd_prefetch(b, ahead + fetched[i], size);
            add_products(steps, of_a, y, sums);
            simd_prefetch(b, ahead + fetched[i + 1], size);
            add_products(steps, of_a + steps, y, sums + TURN_COLS);
        }
        if (i < m) {
            simd_prefetch(b, ahead + fetched[i], size);
            add_products(steps, of_a, y, sums);
            sums += TURN_COLS;
        }
    }
}

typedef void turn_kernel(int64_t m, int64_t n, const float *x, const void *b, int64_t b_row,
                         const int64_t *fetched, float *sums);
#define TURN(steps, dtype)                                                                         \
    static void turn_##steps##_##dtype(int64_t m, int64_t n, const float *x, const void *b,        \
                                       int64_t b_row, const int64_t *fetched, float *sums) {       \
        turn(steps, dtype, m, n, x, b, b_row, fetched, sums);                                      \
    }
// clang-format off
#define TURNS(dtype)                                                                               \
    TURN(1, dtype) TURN(2, dtype) TURN(3, dtype) TURN(4, dtype) TURN(5, dtype) TURN(6, dtype)      \
    static turn_kernel *const turns_##dtype[TURN_STEPS] = {                                        \
        turn_1_##dtype, turn_2_##dtype, turn_3_##dtype,                                            \
        turn_4_##dtype, turn_5_##dtype, turn_6_##dtype,                                            \
    };
// clang-format on
TURNS(TSR_F32)
TURNS(TSR_BF16)
TURNS(TSR_F16)

static void stream_rows(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                        tsr_dtype dtype, const void *b, int64_t b_row, float *sums, float *c,
                        int64_t c_stride, bool is_accumulating) {
    turn_kernel *const *turns = dtype == TSR_F32    ? turns_TSR_F32
                                : dtype == TSR_BF16 ? turns_TSR_BF16
                                                    : turns_TSR_F16;
    float x[TURN_ROWS * TURN_STEPS];
    int64_t fetched[TURN_ROWS];
    for (int64_t i = 0; i < m; i++) fetched[i] = i * TURN_STEPS / m * b_row;
    memset(sums, 0, (size_t)m * tsri_round_up((size_t)n, TURN_COLS) * sizeof *sums);
    for (int64_t p = 0; p < k; p += TURN_STEPS) {
        int64_t steps = tsri_min(TURN_STEPS, k - p);
        float *to = x;
        for (int64_t i = 0; i < m; i++)
            for (int64_t s = 0; s < steps; s++) *to++ = a[i * a_stride + p + s];
        const char *from = (const char *)b + p * b_row * simd_bytes(dtype);
        turns[steps - 1](m, n, x, from, b_row, fetched, sums);
    }
    for (int64_t j = 0; j < n; j += TURN_COLS)
        for (int64_t i = 0; i < m; i++, sums += TURN_COLS)
            for (int64_t h = 0; h < tsri_min(TURN_COLS, n - j); h += VL) {
                int64_t lanes = tsri_min(VL, n - j - h);
                float *to = c + i * c_stride + j + h;
                vf v = vf_load(sums + h);
                if (is_accumulating) v = v + vf_load_n(to, lanes);
                vf_store_n(to, vf_one_nan(v), lanes);
            }
}
#endif

static void stream(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                   tsr_dtype dtype, const void *of_b, int64_t b_row, float *sums, int64_t stride,
                   float *c, int64_t c_stride, bool is_accumulating) {
#if defined(TSRI_SIMD_AVX2)
    if (m > STREAM_ROWS || dtype != TSR_F32) {
        for (int64_t i = 0; i < m; i += TURN_ROWS)
            stream_rows(tsri_min(TURN_ROWS, m - i), n, k, a + i * a_stride, a_stride, dtype, of_b,
                        b_row, sums, c + i * c_stride, c_stride, is_accumulating);
        return;
    }
#endif
    const float *b = of_b;
    (void)dtype;
    int64_t groups = tsri_ceil_div(m, STREAM_ROWS);
    // Prefetch the rows of b for the next turn. Many rows: into the second-level cache, because the sums fill the
    // first. Few rows: the hardware prefetcher is enough, except on AVX-512 with short runs or with more rows than one
    // pass.
    bool is_far = m >= FAR_ROWS;
    bool is_fetching = is_far || (VL > 8 && (groups > 1 || n < LONG_RUN));
    for (int64_t i = 0; i < m; i++)
        memset(sums + i * stride, 0, tsri_round_up((size_t)n, 16) * sizeof *sums);
    for (int64_t p = 0; p < k; p += STREAM_STEPS, b += STREAM_STEPS * b_row) {
        int64_t steps = tsri_min(STREAM_STEPS, k - p);
        for (int64_t g = 0; g < groups; g++) {
            // Rows and prefetches are spread evenly over the groups.
            int64_t first = m * g / groups, rows = m * (g + 1) / groups - first;
            int64_t fetch = STREAM_STEPS * g / groups, last = STREAM_STEPS * (g + 1) / groups;
            uintptr_t next = (uintptr_t)b + (uintptr_t)((STREAM_STEPS + fetch) * b_row) * sizeof *b;
            stream_passes[rows - 1](steps, n, a + first * a_stride + p, a_stride, b, b_row,
                                    is_fetching ? (int)(last - fetch) : 0, is_far, next,
                                    sums + first * stride, stride);
        }
    }
    // c and sums may be the same memory.
    for (int64_t i = 0; i < m; i++, c += c_stride, sums += stride) {
        for (int64_t j = 0; j < n; j += VL) {
            int64_t lanes = tsri_min(VL, n - j);
            vf x = vf_load(sums + j);
            if (is_accumulating && c != sums) x = x + vf_load_n(c + j, lanes);
            vf_store_n(c + j, vf_one_nan(x), lanes);
        }
    }
}

#endif
