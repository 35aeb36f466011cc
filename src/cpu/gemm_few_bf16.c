// SPDX-License-Identifier: Apache-2.0
// c (m x n, fp32) = a (m x k) b (k x n) in bf16 by vdpbf16ps for small m, with operands in place: up to six rows at a
// time, whose sums stay in registers.
// B by columns (a linear layer's weights): dot products, 32 elements of k per step, six rows by four columns. B by
// rows: two rows of B are interleaved into pairs of k on the fly, 32 columns per vector. With more than six rows, each
// part of B is used again while it is in the caches.
// Floor: B read once, 2 bytes an element, and 2 m n k FLOPs at the rate of vdpbf16ps.
// Limit: in the caches that rate (92 to 94 % are reached); one or two rows past the caches: reading B.
// Figures: docs/kernels/matmul_cpu_amd.md.
#include "cpu/gemm_bf16.h"

#include "cpu/simd.h"
#include "cpu/simd_nan.h"

enum {
    ROWS = 6,
    WIDTH = 2 * VL, // bf16 elements per vector
};

// How b is read. AS_IT_IS: from the caches. ASKED: with prefetches. IN_ORDER: in memory order, without prefetches,
// because AMD's cores then prefetch by themselves.
enum reading { AS_IT_IS, ASKED, IN_ORDER };

// The first n of WIDTH elements, then zeros.
SIMD_INLINE __m512i load_first(const uint16_t *x, int64_t n) {
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1u), x);
}

// ---- Columns ----------------------------------------------------------------------------------

enum {
    COLS = 4,              // columns of a tile, as in vf_hsum4
    DEPTH = 8 << 10,       // elements per sum; a longer serial sum drifts
    NEAR_BYTES = 16 << 10, // bytes of columns that further rows use again
};

SIMD_INLINE void multiply_step(int rows, vf *sum, const __m512i *a, const __m512i *b) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int d = 0; d < COLS; d++)
            sum[i * COLS + d] = _mm512_dpbf16_ps(sum[i * COLS + d], (__m512bh)a[i], (__m512bh)b[d]);
}

// Computes n columns from `first` on, over k elements from `at` on. ASKED: columns are short and the next ones are
// prefetched, because the hardware prefetcher restarts at each column. IN_ORDER: one column after the other.
SIMD_INLINE void dots(int rows, enum reading reading, const struct gemm_bf16_few *t,
                      const uint16_t *a, int64_t first, int64_t n, int64_t at, int64_t k,
                      float *c) {
    for (int64_t j = first; j < first + n; j += COLS) {
        const uint16_t *col[COLS];
        vf sum[ROWS * COLS];
        __m512i x[ROWS], y[COLS];
        int64_t p = 0, left = first + n - j;
#pragma GCC unroll 4
        for (int d = 0; d < COLS; d++) col[d] = t->b + (d < left ? j + d : j) * t->b_stride + at;
#pragma GCC unroll 24
        for (int i = 0; i < rows * COLS; i++) sum[i] = vf_set1(0.0f);
        for (int d = 0; d < COLS && reading == IN_ORDER; d++) {
            vf one[ROWS];
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) one[i] = vf_set1(0.0f);
            for (p = 0; p + WIDTH <= k; p += WIDTH) {
                y[0] = _mm512_loadu_si512(col[d] + p);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++)
                    one[i] = _mm512_dpbf16_ps(one[i],
                                              (__m512bh)_mm512_loadu_si512(a + i * t->a_stride + p),
                                              (__m512bh)y[0]);
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) sum[i * COLS + d] = one[i];
        }
        for (; p + WIDTH <= k; p += WIDTH) {
#pragma GCC unroll 4
            for (int d = 0; d < COLS; d++) {
                y[d] = _mm512_loadu_si512(col[d] + p);
                if (reading == ASKED) simd_prefetch(col[d] + p, COLS * t->b_stride, sizeof *t->b);
            }
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) x[i] = _mm512_loadu_si512(a + i * t->a_stride + p);
            multiply_step(rows, sum, x, y);
        }
        if (p < k) {
#pragma GCC unroll 4
            for (int d = 0; d < COLS; d++) y[d] = load_first(col[d] + p, k - p);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) x[i] = load_first(a + i * t->a_stride + p, k - p);
            multiply_step(rows, sum, x, y);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows && at == 0; i++) vf_hsum4(sum + i * COLS, c + i * t->c_stride + j);
#pragma GCC unroll 8
        for (int i = 0; i < rows && at > 0; i++) {
            float sums[COLS], *to = c + i * t->c_stride + j;
            vf_hsum4(sum + i * COLS, sums);
            for (int d = 0; d < COLS; d++) to[d] += sums[d];
        }
    }
}

// ---- Rows -------------------------------------------------------------------------------------

enum {
    AHEAD = 8, // rows of B to prefetch
    // Rows of B per sum in registers. BLOCK keeps a strip of them in the caches for the next rows of A. FAR_BLOCK, for
    // a streamed B at full width, is smaller and used up to FAR_MOST_K: more short sums would exceed the error bound.
    BLOCK = 128,
    FAR_BLOCK = 8,
    FAR_MOST_K = 4096,
    MOST_VECTORS = 8, // vectors of a strip
    IN_ORDER_NUMEL = 4096,
    IN_ORDER_ROWS = 4,
};

// A strip of columns in vectors of b. WHOLE: full vectors; PART: n columns of one vector; HALF: n of its first 16
// columns.
enum strip_kind { WHOLE, PART, HALF };

// Adds the products of pairs of a with two rows of b (the last row may be paired with zeros). sum: two vectors for each
// row and vector of b. Each 128-bit lane holds columns 0 to 3 (first vector) or 4 to 7 (second) of eight; a HALF strip
// is in order.
SIMD_INLINE void multiply_rows(int rows, int vectors, enum strip_kind kind, bool has_odd,
                               enum reading reading, const uint16_t *a, int64_t a_stride,
                               const uint16_t *b, int64_t b_stride, int64_t n, vf *sum) {
    __m512bh pair[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        int32_t both = a[i * a_stride];
        if (has_odd) memcpy(&both, a + i * a_stride, sizeof both);
        pair[i] = (__m512bh)_mm512_set1_epi32(both);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++, b += WIDTH) {
        __m512i even = kind == WHOLE ? _mm512_loadu_si512(b) : load_first(b, n);
        __m512i odd = !has_odd        ? _mm512_setzero_si512()
                      : kind == WHOLE ? _mm512_loadu_si512(b + b_stride)
                                      : load_first(b + b_stride, n);
        if (reading != IN_ORDER) {
            simd_prefetch(b, AHEAD * b_stride, sizeof *b);
            simd_prefetch(b, (AHEAD + 1) * b_stride, sizeof *b);
        }
        __m512bh low =
            (__m512bh)(kind == HALF ? _mm512_permutex2var_epi16(even, simd_first_pairs(), odd)
                                    : _mm512_unpacklo_epi16(even, odd));
        __m512bh high = (__m512bh)_mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf *s = sum + 2 * (i * vectors + v);
            s[0] = _mm512_dpbf16_ps(s[0], pair[i], low);
            if (kind != HALF) s[1] = _mm512_dpbf16_ps(s[1], pair[i], high);
        }
    }
}

// Stores the columns of a vector in their order.
SIMD_INLINE void store_columns(const vf *sum, enum strip_kind kind, int64_t n, bool is_accumulating,
                               float *c) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    vf x[2] = {_mm512_permutex2var_ps(sum[0], low, sum[1]),
               _mm512_permutex2var_ps(sum[0], high, sum[1])};
    if (kind == HALF) x[0] = sum[0];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++, c += VL, n -= VL) {
        int64_t lanes = kind == WHOLE || n > VL ? VL : n;
        if (lanes <= 0) return;
        if (is_accumulating) x[h] = x[h] + vf_load_n(c, lanes);
        vf_store_n(c, vf_one_nan(x[h]), lanes);
    }
}

SIMD_INLINE void strip(int rows, int vectors, enum strip_kind kind, enum reading reading,
                       const struct gemm_bf16_few *t, const uint16_t *a, const uint16_t *b,
                       int64_t n, int64_t k, bool is_accumulating, float *c) {
    vf sum[ROWS * MOST_VECTORS * 2];
#pragma GCC unroll 96
    for (int i = 0; i < rows * vectors * 2; i++) sum[i] = vf_set1(0.0f);
    int64_t p = 0;
    for (; p + 2 <= k; p += 2)
        multiply_rows(rows, vectors, kind, true, reading, a + p, t->a_stride, b + p * t->b_stride,
                      t->b_stride, n, sum);
    if (p < k)
        multiply_rows(rows, vectors, kind, false, reading, a + p, t->a_stride, b + p * t->b_stride,
                      t->b_stride, n, sum);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            store_columns(sum + 2 * (i * vectors + v), kind, n, is_accumulating,
                          c + i * t->c_stride + v * WIDTH);
}

// Computes n columns from `first` on, over k rows of b from `at` on.
SIMD_INLINE void strips(int rows, int vectors, enum reading reading, const struct gemm_bf16_few *t,
                        const uint16_t *a, int64_t first, int64_t n, int64_t at, int64_t k,
                        float *c) {
    const uint16_t *b = t->b + at * t->b_stride;
    int64_t j = first, end = first + n, width = vectors * WIDTH;
    for (; j + width <= end; j += width)
        strip(rows, vectors, WHOLE, reading, t, a, b + j, width, k, at > 0, c + j);
    for (; j + WIDTH <= end; j += WIDTH)
        strip(rows, 1, WHOLE, reading, t, a, b + j, WIDTH, k, at > 0, c + j);
    if (end - j > VL)
        strip(rows, 1, PART, reading, t, a, b + j, end - j, k, at > 0, c + j);
    else if (end > j)
        strip(rows, 1, HALF, reading, t, a, b + j, end - j, k, at > 0, c + j);
}

// ---- By rows of a -----------------------------------------------------------------------------

typedef void few_kernel(const struct gemm_bf16_few *t, enum reading reading, const uint16_t *a,
                        int64_t first, int64_t n, int64_t at, int64_t k, float *c);
#define DOTS(rows)                                                                                 \
    static void dots_##rows(const struct gemm_bf16_few *t, enum reading reading,                   \
                            const uint16_t *a, int64_t first, int64_t n, int64_t at, int64_t k,    \
                            float *c) {                                                            \
        if (reading == IN_ORDER)                                                                   \
            dots(rows, IN_ORDER, t, a, first, n, at, k, c);                                        \
        else if (reading == ASKED)                                                                 \
            dots(rows, ASKED, t, a, first, n, at, k, c);                                           \
        else                                                                                       \
            dots(rows, AS_IT_IS, t, a, first, n, at, k, c);                                        \
    }
#define STRIPS(rows, vectors)                                                                      \
    static void strips_##rows##_##vectors(const struct gemm_bf16_few *t, enum reading reading,     \
                                          const uint16_t *a, int64_t first, int64_t n, int64_t at, \
                                          int64_t k, float *c) {                                   \
        if (reading == IN_ORDER)                                                                   \
            strips(rows, vectors, IN_ORDER, t, a, first, n, at, k, c);                             \
        else                                                                                       \
            strips(rows, vectors, ASKED, t, a, first, n, at, k, c);                                \
    }
// clang-format off
DOTS(1) DOTS(2) DOTS(3) DOTS(4) DOTS(5) DOTS(6)
STRIPS(1, 8) STRIPS(2, 4) STRIPS(3, 4) STRIPS(4, 3) STRIPS(5, 2) STRIPS(6, 2)
STRIPS(3, 2) STRIPS(4, 2)
static few_kernel *const by_columns[ROWS] = {dots_1, dots_2, dots_3, dots_4, dots_5, dots_6};
// As many vectors as the registers hold sums for; two vectors for rows that share strips with other rows.
static few_kernel *const by_rows[ROWS] = {strips_1_8, strips_2_4, strips_3_4,
                                          strips_4_3, strips_5_2, strips_6_2};
static few_kernel *const by_rows_again[ROWS] = {strips_1_8, strips_2_4, strips_3_2,
                                                strips_4_2, strips_5_2, strips_6_2};
// clang-format on

// Number of columns of k elements that all rows use before the next columns.
static int64_t near_columns(int64_t k) {
    int64_t near = NEAR_BYTES / (2 * (k > 0 ? k : 1)) / COLS * COLS;
    return near > COLS ? near : COLS;
}

// Parts after the first find b in the caches. IN_ORDER needs rows of A that stay in the first-level cache beside a
// column; with rows of B, it needs small m and k.
static enum reading reading_of(const struct gemm_bf16_few *t, int64_t part, int64_t rows,
                               int64_t k) {
    bool is_light =
        t->by_columns ? rows * k <= IN_ORDER_NUMEL : t->m <= IN_ORDER_ROWS && t->k <= FAR_MOST_K;
    if (part > 0) return AS_IT_IS;
    return t->is_in_order && is_light ? IN_ORDER : t->is_far ? ASKED : AS_IT_IS;
}

void tsri_gemm_bf16_few(const struct gemm_bf16_few *t) {
    int64_t parts = (t->m + ROWS - 1) / ROWS;
    bool is_whole = parts <= 1 || (t->is_far && !t->by_columns); // all columns before the next rows
    few_kernel *const *kernels = t->by_columns ? by_columns : is_whole ? by_rows : by_rows_again;
    // Independent of m: a row's bits must not depend on the number of rows in its task.
    int64_t depth = t->by_columns ? DEPTH : t->is_far && t->k <= FAR_MOST_K ? FAR_BLOCK : BLOCK;
    for (int64_t at = 0; at == 0 || at < t->k; at += depth) {
        int64_t k = t->k - at < depth ? t->k - at : depth;
        int64_t width = is_whole ? t->n : t->by_columns ? near_columns(k) : 2 * WIDTH;
        for (int64_t j = 0; j < t->n; j += width)
            for (int64_t part = 0; part < parts; part++) {
                int64_t i = t->m * part / parts, rows = t->m * (part + 1) / parts - i;
                enum reading reading = reading_of(t, part, rows, k);
                kernels[rows - 1](t, reading, t->a + i * t->a_stride + at, j,
                                  t->n - j < width ? t->n - j : width, at, k,
                                  t->c + i * t->c_stride);
            }
    }
}
