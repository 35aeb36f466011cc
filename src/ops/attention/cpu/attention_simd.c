// SPDX-License-Identifier: Apache-2.0
// Rows of attention between its products, in fp32: scores q k^T become weights, and backward the gradients of the scores. A row is
// a query's scores of a run of keys. attention_kernels.h says what each function does.
// Floor: an exponential and some operations a score; the products are cpu/gemm.h's.
// Limit: the products, 78 % of forward with heads of 64 and 1024 tokens; exponentials take 8 %, maxima 2 %.
// Figures: docs/kernels/attention_cpu.md.
#include <math.h>

#include "cpu/simd_fp8.h"
#include "cpu/simd_nan.h"
#include "cpu/simd_philox.h"
#include "ops/attention/cpu/attention_kernels.h"

#define FOR_DTYPE(dtype, X)                                                                        \
    do {                                                                                           \
        if ((dtype) == TSR_BF16)                                                                   \
            X(TSR_BF16);                                                                           \
        else if ((dtype) == TSR_F16)                                                               \
            X(TSR_F16);                                                                            \
        else                                                                                       \
            X(TSR_F32);                                                                            \
    } while (0)

enum { AHEAD = 8 }; // rows between the prefetch of a row and its use

// ---- Rows in and out --------------------------------------------------------------------------

SIMD_INLINE void load_as(tsr_dtype dtype, const void *x, int64_t n, float scale, float *y) {
    int64_t i = 0;
    vf factor = vf_set1(scale);
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_load_wide(dtype, x, i) * factor);
    if (i < n) vf_store_n(y + i, vf_load_wide_n(dtype, x, i, n - i) * factor, n - i);
}

static void load(tsr_dtype dtype, const void *x, int64_t n, float scale, float *y) {
    if (dtype == TSR_E4M3) {
        load_as(TSR_E4M3, x, n, scale, y);
        return;
    }
#define LOAD(T) load_as(T, x, n, scale, y)
    FOR_DTYPE(dtype, LOAD);
#undef LOAD
}

SIMD_INLINE void store_as(tsr_dtype dtype, const float *x, int64_t n, float scale, void *y) {
    int64_t i = 0;
    vf factor = vf_set1(scale);
    for (; i + VL <= n; i += VL) vf_store_as(dtype, y, i, vf_one_nan(vf_load(x + i) * factor));
    if (i < n) vf_store_as_n(dtype, y, i, vf_one_nan(vf_load_n(x + i, n - i) * factor), n - i);
}

static void store(tsr_dtype dtype, const float *x, int64_t n, float scale, void *y) {
#define STORE(T) store_as(T, x, n, scale, y)
    FOR_DTYPE(dtype, STORE);
#undef STORE
}

// Prefetches a row's lines into the second-level cache.
SIMD_INLINE void ask(const char *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
}

SIMD_INLINE void load_rows_as(tsr_dtype dtype, const char *x, int64_t stride, int64_t rows,
                              int64_t n, float scale, float *y, int64_t y_stride) {
    int64_t bytes = tsri_dtype_bytes(dtype), step = stride * bytes;
    for (int64_t r = 0; r < rows; r++, x += step, y += y_stride) {
        if (r + AHEAD < rows) ask(x + AHEAD * step, n * bytes);
        load_as(dtype, x, n, scale, y);
    }
}

static void load_rows(tsr_dtype dtype, const void *x, int64_t stride, int64_t rows, int64_t n,
                      float scale, float *y, int64_t y_stride) {
#define LOAD_ROWS(T) load_rows_as(T, x, stride, rows, n, scale, y, y_stride)
    FOR_DTYPE(dtype, LOAD_ROWS);
#undef LOAD_ROWS
}

SIMD_INLINE void store_rows_as(tsr_dtype dtype, const float *x, int64_t x_stride, int64_t rows,
                               int64_t n, const float *factor, char *y, int64_t stride) {
    int64_t bytes = tsri_dtype_bytes(dtype), step = stride * bytes;
    for (int64_t r = 0; r < rows; r++, x += x_stride, y += step) {
        if (r + AHEAD < rows) ask(y + AHEAD * step, n * bytes);
        store_as(dtype, x, n, factor[r], y);
    }
}

static void store_rows(tsr_dtype dtype, const float *x, int64_t x_stride, int64_t rows, int64_t n,
                       const float *factor, void *y, int64_t stride) {
#define STORE_ROWS(T) store_rows_as(T, x, x_stride, rows, n, factor, y, stride)
    FOR_DTYPE(dtype, STORE_ROWS);
#undef STORE_ROWS
}

// 0 x is 0 if x is finite, otherwise NaN.
SIMD_INLINE bool have_nonfinite_as(tsr_dtype dtype, const char *x, int64_t stride, int64_t rows,
                                   int64_t n) {
    vf a = vf_set1(0.0f), b = a;
    for (int64_t r = 0; r < rows; r++, x += stride * tsri_dtype_bytes(dtype)) {
        int64_t i = 0;
        for (; i + 2 * VL <= n; i += 2 * VL) {
            a = vf_fma(vf_load_as(dtype, x, i), vf_set1(0.0f), a);
            b = vf_fma(vf_load_as(dtype, x, i + VL), vf_set1(0.0f), b);
        }
        for (; i + VL <= n; i += VL) a = vf_fma(vf_load_as(dtype, x, i), vf_set1(0.0f), a);
        if (i < n) b = vf_fma(vf_load_as_n(dtype, x, i, n - i), vf_set1(0.0f), b);
    }
    return vf_hsum(a + b) != 0.0f;
}

static bool have_nonfinite(tsr_dtype dtype, const void *x, int64_t stride, int64_t rows,
                           int64_t n) {
    if (dtype == TSR_BF16) return have_nonfinite_as(TSR_BF16, x, stride, rows, n);
    if (dtype == TSR_F16) return have_nonfinite_as(TSR_F16, x, stride, rows, n);
    return have_nonfinite_as(TSR_F32, x, stride, rows, n);
}

// ---- Scores -----------------------------------------------------------------------------------

// s = cap tanh(s / cap); its slope is 1 - tanh^2.
static void cap(float softcap, int64_t n, float *s, float *slope) {
    vf up = vf_set1(softcap), down = vf_set1(1.0f / softcap), one = vf_set1(1.0f);
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf t = vf_tanh(vf_load_n(s + j, lanes) * down);
        vf_store_n(s + j, t * up, lanes);
        if (slope != NULL) vf_store_n(slope + j, vf_fnma(t, t, one), lanes);
    }
}

SIMD_INLINE void add_bias_as(tsr_dtype dtype, const void *bias, int64_t stride, int64_t first,
                             int64_t n, float *s) {
    if (stride != 1) { // a repeated element, or a stride along another dimension
        for (int64_t j = 0; j < n; j++) {
            int64_t at = (first + j) * stride;
            s[j] += dtype == TSR_BF16  ? tsri_bf16_to_float(((const uint16_t *)bias)[at])
                    : dtype == TSR_F16 ? tsri_f16_to_float(((const uint16_t *)bias)[at])
                                       : ((const float *)bias)[at];
        }
        return;
    }
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf_store_n(s + j, vf_load_n(s + j, lanes) + vf_load_as_n(dtype, bias, first + j, lanes),
                   lanes);
    }
}

// s -= slope |j - diagonal|; distance is that of the first key. Whole numbers up to 2^24 are exact in fp32. Larger ones are
// computed in 64 bits, then rounded.
static void add_alibi(float slope, int64_t distance, int64_t n, float *s) {
    enum { MOST_EXACT = 1 << 24 };
    if (distance < -MOST_EXACT || distance + n > MOST_EXACT) {
        for (int64_t j = 0; j < n; j++) {
            int64_t far = distance + j;
            s[j] = simd_fma(-slope, (float)(far < 0 ? -far : far), s[j]);
        }
        return;
    }
    float lane[VL];
    for (int i = 0; i < VL; i++) lane[i] = (float)(distance + i);
    vf far = vf_load(lane), next = vf_set1(VL), down = vf_set1(-slope);
    for (int64_t j = 0; j < n; j += VL, far = far + next) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf_store_n(s + j, vf_fma(vf_abs(far), down, vf_load_n(s + j, lanes)), lanes);
    }
}

static void modify(const struct attention_terms *terms, int64_t first, int64_t n, float *s,
                   float *slope) {
    if (terms->softcap != 0) cap(terms->softcap, n, s, slope);
    if (terms->bias != NULL) {
#define ADD_BIAS(T) add_bias_as(T, terms->bias, terms->bias_stride, first, n, s)
        FOR_DTYPE(terms->bias_dtype, ADD_BIAS);
#undef ADD_BIAS
    }
    if (terms->slope != 0) add_alibi(terms->slope, first - terms->diagonal, n, s);
}

// A vector whose largest lane is the row's maximum.
static vf row_top(const float *s, int64_t n) {
    const vf lowest = vf_set1(-INFINITY);
    vf a = lowest, b = lowest, c = lowest, d = lowest;
    int64_t j = 0;
    for (; j + 4 * VL <= n; j += 4 * VL) {
        a = vf_max(vf_load(s + j), a);
        b = vf_max(vf_load(s + j + VL), b);
        c = vf_max(vf_load(s + j + 2 * VL), c);
        d = vf_max(vf_load(s + j + 3 * VL), d);
    }
    for (; j + VL <= n; j += VL) a = vf_max(vf_load(s + j), a);
    if (j < n) b = vf_max(vf_keep_n(vf_load_n(s + j, n - j), n - j, -INFINITY), b);
    return vf_max(vf_max(a, b), vf_max(c, d));
}

static float max(const float *s, int64_t n) { return vf_hmax(row_top(s, n)); }

// Subtracts before it scales: s log2(e) - max log2(e) in one FMA would overflow for scores near the largest number.
static float weigh(float *s, int64_t n, float max, float low) {
    vf top = vf_set1(max), log2e = vf_set1(SIMD_LOG2E), rest = vf_set1(-low * SIMD_LOG2E);
    vf a = vf_set1(0.0f), b = a;
    int64_t j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL) {
        vf x = vf_exp2(vf_fma(vf_load(s + j) - top, log2e, rest));
        vf y = vf_exp2(vf_fma(vf_load(s + j + VL) - top, log2e, rest));
        vf_store(s + j, x);
        vf_store(s + j + VL, y);
        a = a + x;
        b = b + y;
    }
    for (; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf x = vf_exp2(vf_fma(vf_load_n(s + j, lanes) - top, log2e, rest));
        vf_store_n(s + j, x, lanes);
        a = a + vf_keep_n(x, lanes, 0.0f);
    }
    return vf_hsum(a + b);
}

// Weights of a row, and lanes of their sum. The shorter exponential is exact enough if the largest weight is 1, but not if lse is
// the caller's.
static vf row_weigh(float *s, int64_t n, vf top) {
    const vf log2e = vf_set1(SIMD_LOG2E);
    vf a = vf_set1(0.0f), b = a;
    int64_t j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL) {
        vf x = vf_exp2_flushed(TSR_F32, (vf_load(s + j) - top) * log2e);
        vf y = vf_exp2_flushed(TSR_F32, (vf_load(s + j + VL) - top) * log2e);
        vf_store(s + j, x);
        vf_store(s + j + VL, y);
        a = a + x;
        b = b + y;
    }
    for (int part = 0; j < n; j += VL, part++) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf x = vf_exp2_flushed(TSR_F32, (vf_load_n(s + j, lanes) - top) * log2e);
        vf_store_n(s + j, x, lanes);
        x = vf_keep_n(x, lanes, 0.0f);
        if (part == 0)
            a = a + x;
        else
            b = b + x;
    }
    return a + b;
}

static bool weigh_rows(int rows, const int64_t *begin, const int64_t *end, float *s, int64_t stride,
                       float *max, float *sum, float *alpha) {
    vf row[VL];
    float top[VL];
    for (int i = 0; i < VL; i++)
        row[i] =
            i < rows ? row_top(s + i * stride + begin[i], end[i] - begin[i]) : vf_set1(-INFINITY);
    vf before = vf_load_n(max, rows), now = vf_max(before, vf_maxima(row));
    vf_store(top, now);
    bool is_usual = true; // false: a maximum of -inf, or a NaN from a sink
    for (int i = 0; i < rows; i++) is_usual &= top[i] > -INFINITY && max[i] < INFINITY;
    if (!is_usual) return false;
    vf one = vf_set1(1.0f), lowest = vf_set1(-INFINITY);
    vf a = vf_select_lt(before, now, vf_exp2((before - now) * vf_set1(SIMD_LOG2E)), one);
    a = vf_select_lt(lowest, before, a, one); // nothing to scale before the first score
    for (int i = 0; i < rows; i++)
        row[i] = row_weigh(s + i * stride + begin[i], end[i] - begin[i], vf_set1(top[i]));
    vf_store_n(max, now, rows);
    vf_store_n(alpha, a, rows);
    vf_store_n(sum, vf_fma(vf_load_n(sum, rows), a, vf_sums(row)), rows);
    return true;
}

static void drop(const struct attention_dropout *d, int64_t first, int64_t n, float *p) {
    enum { WORDS = 4 * VL };
    uint32_t most = (uint32_t)(d->threshold - 1); // the largest word that is dropped
    for (int64_t from = first / 4 * 4; from < first + n; from += WORDS) {
        vf words[4];
        float factor[WORDS];
        simd_philox(d->seed, (uint32_t)((uint64_t)(from / 4) + d->offset), d->i, d->head, d->batch,
                    words);
        for (int w = 0; w < 4; w++)
            vf_store(factor + w * VL, simd_words_above(words[w], most, d->scale));
        int64_t begin = first > from ? first - from : 0;
        int64_t end = first + n - from < WORDS ? first + n - from : WORDS;
        for (int64_t w = begin; w < end; w += VL) {
            int64_t lanes = end - w < VL ? end - w : VL;
            float *at = p + from - first + w;
            vf_store_n(at, vf_load_n(at, lanes) * vf_load_n(factor + w, lanes), lanes);
        }
    }
}

static void scale(float *x, int64_t n, float factor) {
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(x + i, vf_load(x + i) * f);
    if (i < n) vf_store_n(x + i, vf_load_n(x + i, n - i) * f, n - i);
}

static void add(const float *x, int64_t n, float *sum) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(sum + i, vf_load(sum + i) + vf_load(x + i));
    if (i < n) vf_store_n(sum + i, vf_load_n(sum + i, n - i) + vf_load_n(x + i, n - i), n - i);
}

// ---- Backward ---------------------------------------------------------------------------------

SIMD_INLINE float dot_as(tsr_dtype dtype, const void *x, const void *y, int64_t n) {
    vf sum = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        sum = vf_fma(vf_load_as(dtype, x, i), vf_load_as(dtype, y, i), sum);
    if (i < n)
        sum = vf_fma(vf_load_as_n(dtype, x, i, n - i), vf_load_as_n(dtype, y, i, n - i), sum);
    return vf_hsum(sum);
}

SIMD_INLINE void dots_as(tsr_dtype dtype, const char *x, int64_t x_stride, const char *y,
                         int64_t y_stride, int64_t rows, int64_t n, float *sums) {
    int64_t bytes = tsri_dtype_bytes(dtype);
    for (int64_t r = 0; r < rows; r++, x += x_stride * bytes, y += y_stride * bytes)
        sums[r] = dot_as(dtype, x, y, n);
}

static void dots(tsr_dtype dtype, const void *x, int64_t x_stride, const void *y, int64_t y_stride,
                 int64_t rows, int64_t n, float *sums) {
#define DOTS(T) dots_as(T, x, x_stride, y, y_stride, rows, n, sums)
    FOR_DTYPE(dtype, DOTS);
#undef DOTS
}

static void weigh_grad(float *s, int64_t n, float lse, float low, float delta, float *dp) {
    vf top = vf_set1(lse), log2e = vf_set1(SIMD_LOG2E), rest = vf_set1(-low * SIMD_LOG2E);
    vf d = vf_set1(delta);
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        vf p = vf_exp2(vf_fma(vf_load(s + j) - top, log2e, rest));
        vf_store(s + j, p);
        vf_store(dp + j, p * (vf_load(dp + j) - d));
    }
    if (j == n) return;
    vf p = vf_exp2(vf_fma(vf_load_n(s + j, n - j) - top, log2e, rest));
    vf_store_n(s + j, p, n - j);
    vf_store_n(dp + j, p * (vf_load_n(dp + j, n - j) - d), n - j);
}

static void score_grad(const float *p, const float *slope, float delta, int64_t n, float *dp) {
    vf d = vf_set1(delta);
    int64_t j = 0;
    for (; slope == NULL && j + VL <= n; j += VL)
        vf_store(dp + j, vf_load(p + j) * (vf_load(dp + j) - d));
    for (; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf ds = vf_load_n(p + j, lanes) * (vf_load_n(dp + j, lanes) - d);
        if (slope != NULL) ds = ds * vf_load_n(slope + j, lanes);
        vf_store_n(dp + j, ds, lanes);
    }
}

const struct attention_kernels TSRI_KERNEL_TABLE(attention) = {
    .load = load,
    .store = store,
    .load_rows = load_rows,
    .store_rows = store_rows,
    .have_nonfinite = have_nonfinite,
    .modify = modify,
    .max = max,
    .weigh = weigh,
    .set = VL,
    .weigh_rows = weigh_rows,
    .drop = drop,
    .scale = scale,
    .add = add,
    .dots = dots,
    .weigh_grad = weigh_grad,
    .score_grad = score_grad,
};
