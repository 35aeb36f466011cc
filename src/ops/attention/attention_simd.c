// SPDX-License-Identifier: Apache-2.0
// Rows of attention: what stands between the two products. A row is a run of keys, in fp32.
#include <math.h>

#include "core/core_philox.h"
#include "cpu/simd.h"
#include "ops/attention/attention_kernels.h"

#define FOR_DTYPE(dtype, X)                                                                        \
    do {                                                                                           \
        if ((dtype) == TSR_BF16)                                                                   \
            X(TSR_BF16);                                                                           \
        else if ((dtype) == TSR_F16)                                                               \
            X(TSR_F16);                                                                            \
        else                                                                                       \
            X(TSR_F32);                                                                            \
    } while (0)

// ---- Rows in and out --------------------------------------------------------------------------

SIMD_INLINE void load_as(tsr_dtype dtype, const void *x, int64_t n, float scale, float *y) {
    int64_t i = 0;
    vf factor = vf_set1(scale);
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_load_as(dtype, x, i) * factor);
    if (i < n) vf_store_n(y + i, vf_load_as_n(dtype, x, i, n - i) * factor, n - i);
}

static void load(tsr_dtype dtype, const void *x, int64_t n, float scale, float *y) {
#define LOAD(T) load_as(T, x, n, scale, y)
    FOR_DTYPE(dtype, LOAD);
#undef LOAD
}

SIMD_INLINE void store_as(tsr_dtype dtype, const float *x, int64_t n, float scale, void *y) {
    int64_t i = 0;
    vf factor = vf_set1(scale);
    for (; i + VL <= n; i += VL) vf_store_as(dtype, y, i, vf_load(x + i) * factor);
    if (i < n) vf_store_as_n(dtype, y, i, vf_load_n(x + i, n - i) * factor, n - i);
}

static void store(tsr_dtype dtype, const float *x, int64_t n, float scale, void *y) {
#define STORE(T) store_as(T, x, n, scale, y)
    FOR_DTYPE(dtype, STORE);
#undef STORE
}

// 0 x is 0 for what is finite, and NaN otherwise.
SIMD_INLINE bool has_nonfinite_as(tsr_dtype dtype, const void *x, int64_t n) {
    vf sum = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) sum = vf_fma(vf_load_as(dtype, x, i), vf_set1(0.0f), sum);
    if (i < n) sum = vf_fma(vf_load_as_n(dtype, x, i, n - i), vf_set1(0.0f), sum);
    return vf_hsum(sum) != 0.0f;
}

static bool has_nonfinite(tsr_dtype dtype, const void *x, int64_t n) {
    if (dtype == TSR_BF16) return has_nonfinite_as(TSR_BF16, x, n);
    if (dtype == TSR_F16) return has_nonfinite_as(TSR_F16, x, n);
    return has_nonfinite_as(TSR_F32, x, n);
}

// ---- Scores -----------------------------------------------------------------------------------

// s = cap tanh(s / cap); its slope is 1 - tanh^2.
static void cap(float softcap, int64_t n, float *s, float *slope) {
    vf up = vf_set1(softcap), down = vf_set1(1.0f / softcap), one = vf_set1(1.0f);
    for (int64_t j = 0; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf t = vf_tanh(vf_load_n(s + j, lanes) * down);
        vf_store_n(s + j, t * up, lanes);
        if (slope != NULL) vf_store_n(slope + j, one - t * t, lanes);
    }
}

SIMD_INLINE void add_bias_as(tsr_dtype dtype, const void *bias, int64_t stride, int64_t first,
                             int64_t n, float *s) {
    if (stride != 1) { // repeated, or along another dimension
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

// s -= slope |j - diagonal|, from a table of 0, 1, 2, ...
static void add_alibi(float slope, int64_t distance, int64_t n, float *s) {
    for (int64_t j = 0; j < n;
         j++) { // distance + j may exceed 2^24: exact in 64 bits, then rounded
        int64_t far = distance + j;
        s[j] -= slope * (float)(far < 0 ? -far : far);
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

static float max(const float *s, int64_t n) {
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
    return vf_hmax(vf_max(vf_max(a, b), vf_max(c, d)));
}

// Not s log2(e) - max log2(e) in one step: scores near the largest number would overflow.
static float weigh(float *s, int64_t n, float max) {
    vf top = vf_set1(max), log2e = vf_set1(SIMD_LOG2E);
    vf a = vf_set1(0.0f), b = a;
    int64_t j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL) {
        vf x = vf_exp2((vf_load(s + j) - top) * log2e);
        vf y = vf_exp2((vf_load(s + j + VL) - top) * log2e);
        vf_store(s + j, x);
        vf_store(s + j + VL, y);
        a = a + x;
        b = b + y;
    }
    for (; j < n; j += VL) {
        int64_t lanes = n - j < VL ? n - j : VL;
        vf x = vf_exp2((vf_load_n(s + j, lanes) - top) * log2e);
        vf_store_n(s + j, x, lanes);
        a = a + vf_keep_n(x, lanes, 0.0f);
    }
    return vf_hsum(a + b);
}

static void drop(const struct attention_dropout *d, int64_t first, int64_t n, float *p) {
    uint32_t words[4];
    for (int64_t j = 0; j < n; j++) {
        int64_t key = first + j;
        if (j == 0 || key % 4 == 0)
            tsri_philox(d->seed,
                        (const uint32_t[4]){(uint32_t)((uint64_t)(key / 4) + d->offset), d->i,
                                            d->head, d->batch},
                        words);
        p[j] = words[key % 4] >= d->threshold ? p[j] * d->scale : p[j] * 0.0f;
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

static float dot(tsr_dtype dtype, const void *x, const void *y, int64_t n) {
    if (dtype == TSR_BF16) return dot_as(TSR_BF16, x, y, n);
    if (dtype == TSR_F16) return dot_as(TSR_F16, x, y, n);
    return dot_as(TSR_F32, x, y, n);
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
    .has_nonfinite = has_nonfinite,
    .modify = modify,
    .max = max,
    .weigh = weigh,
    .drop = drop,
    .scale = scale,
    .add = add,
    .dot = dot,
    .score_grad = score_grad,
};
