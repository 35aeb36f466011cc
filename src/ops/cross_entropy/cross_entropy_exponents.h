// SPDX-License-Identifier: Apache-2.0
// Shared by cross-entropy's CPU kernels: exponentials relative to a shift, sweeps of a block with them, and the
// gradient of an element.
#ifndef TSRI_CROSS_ENTROPY_EXPONENTS_H
#define TSRI_CROSS_ENTROPY_EXPONENTS_H

#include <math.h>

#include "cpu/simd_pairs.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

// A block's sum is spread over lanes times accumulators, so that at most 128 terms are added serially in fp32.
enum { UNROLL = 4, BLOCK = VL == 1 ? 512 : 2048 };

// One instantiation per dtype, which is a constant inside.
#define BY_DTYPE(name)                                                                             \
    static void name(const struct cross_entropy_problem *p, int64_t first, int64_t last,           \
                     float *scratch, bool is_streaming) {                                          \
        switch (p->logits.dtype) {                                                                 \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, scratch, is_streaming); break;          \
        case TSR_F16: name##_as(TSR_F16, p, first, last, scratch, is_streaming); break;            \
        default: name##_as(TSR_F32, p, first, last, scratch, is_streaming);                        \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

// ---- Exponents --------------------------------------------------------------------------------
// e^x = 2^(x L - c) e^(ln2 (c - x eta)), where L is the float closest to log2 e and eta = L - log2 e. c = m L is
// rounded to float, so the exponent takes one FMA, whose rounding is the only difference between elements. The second
// factor is corrected in double once per row, with x ~ m for the elements that count.

#define LN2 0.693147180559945309
#define LOG2E_EXCESS ((double)SIMD_LOG2E - 1.44269504088896340736)

// From this magnitude on, the rounding of m L is too large: such rows, and those with +inf, use x - m. The scalar build
// always does, because its vf_fma may round twice.
static const float LARGEST_SHIFT = VL > 1 ? 1e6f : 0.0f;

struct shift {
    vf log2e, minus_c, minus_m;
    float c, m;
    bool is_plain; // uses x - m, then times L
};

// The exponent in a sweep: (x - m) L, x L - c, or x L.
enum exponents { PLAIN, SHIFTED, UNSHIFTED };

static inline struct shift shift_of(float m) {
    struct shift s = {.m = m == -__builtin_inff() ? 0.0f : m}; // -inf gives exponents of -inf
    s.is_plain = !(s.m < LARGEST_SHIFT && s.m > -LARGEST_SHIFT);
    s.c = s.is_plain ? 0 : s.m * SIMD_LOG2E;
    s.log2e = vf_set1(SIMD_LOG2E), s.minus_c = vf_set1(-s.c), s.minus_m = vf_set1(-s.m);
    return s;
}

SIMD_INLINE vf exponent(const struct shift *s, vf x, bool is_plain) {
    if (is_plain) return (x + s->minus_m) * s->log2e;
    return vf_fma(x, s->log2e, s->minus_c);
}

// The logarithm of the ratio between a sum of e^x and the sum of 2^exponent, if terms with x ~ max dominate.
static inline double shift_log(const struct shift *s, double max) {
    return s->is_plain ? (double)s->m : LN2 * ((double)s->c - max * LOG2E_EXCESS);
}

// ---- Sweeps over one block --------------------------------------------------------------------

// The results of one sweep over a block.
struct sums {
    float exp, weighted; // weighted: sum of weight (x - m), for label smoothing
};

// Stores the exponentials in e unless it is NULL. s may be NULL if there is neither a shift nor a mean. Prefetches
// AHEAD bytes ahead.
SIMD_INLINE struct sums sweep_as(tsr_dtype dtype, const void *x, int64_t cols,
                                 const struct shift *s, enum exponents how, bool has_mean,
                                 float weight, float *e, bool is_fetching) {
    enum { AHEAD = 4096 };
    vf sum[UNROLL], mean[UNROLL], w = vf_set1(weight);
    vf weighted_shift = vf_set1(has_mean ? -s->m * weight : 0);
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = 0;
    bool is_plain = how == PLAIN;
    for (int u = 0; u < UNROLL; u++) sum[u] = mean[u] = vf_set1(0.0f);
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            int64_t at = i + u * VL;
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++)
                if ((at + k * VL) * bytes % 64 == 0) {
                    uintptr_t line = (uintptr_t)x + (uintptr_t)((at + k * VL) * bytes);
                    __builtin_prefetch((const void *)(line + AHEAD));
                    if (is_fetching) __builtin_prefetch(simd_far_line(line), 0, 2);
                }
            struct vf_pair value = vf_load_pair(dtype, x, at);
            if (has_mean) {
                mean[u] = mean[u] + vf_fma(value.a, w, weighted_shift);
                mean[u + 1] = mean[u + 1] + vf_fma(value.b, w, weighted_shift);
            }
            if (how == UNSHIFTED) {
                sum[u] = vf_add_exp(sum[u], value.a);
                sum[u + 1] = vf_add_exp(sum[u + 1], value.b);
                continue;
            }
            value.a = exponent(s, value.a, is_plain);
            value.b = exponent(s, value.b, is_plain);
            if (e == NULL) {
                sum[u] = vf_add_exp2(dtype, sum[u], value.a);
                sum[u + 1] = vf_add_exp2(dtype, sum[u + 1], value.b);
                continue;
            }
            value.a = vf_exp2(value.a), value.b = vf_exp2(value.b);
            sum[u] = sum[u] + value.a, sum[u + 1] = sum[u + 1] + value.b;
            if (vf_is_split(dtype)) value = vf_join(value);
            vf_store_pair(TSR_F32, e, at, value);
        }
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf value = vf_load_as_n(dtype, x, i, n);
        if (has_mean) mean[0] = mean[0] + vf_keep_n(vf_fma(value, w, weighted_shift), n, 0.0f);
        if (how == UNSHIFTED) {
            sum[0] = vf_add_exp(sum[0], vf_keep_n(value, n, -1e4f));
            continue;
        }
        value = vf_keep_n(exponent(s, value, is_plain), n, -__builtin_inff());
        if (e == NULL) {
            sum[0] = vf_add_exp2(dtype, sum[0], value);
            continue;
        }
        value = vf_exp2(value);
        vf_store_n(e + i, value, n);
        sum[0] = sum[0] + value;
    }
    return (struct sums){vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3])),
                         has_mean ? vf_hsum((mean[0] + mean[1]) + (mean[2] + mean[3])) : 0.0f};
}

// ---- Gradients --------------------------------------------------------------------------------

// The gradient of a row's elements: dloss (p - q) with p = scale e^(x - lse), and q = `other` except at the target.
// Plain: factor (scale 2^exponent - offset) with factor = dloss and offset = q. Else: factor 2^exponent - offset with
// factor = dloss scale e^(shift_log - lse) and offset = dloss q.
struct gradient {
    struct shift shift;
    vf factor, scale, offset;
    bool is_plain;
};

SIMD_INLINE void set_offset(struct gradient *g, float dloss, double q) {
    double offset = (double)dloss * q;
    g->offset = vf_set1(g->is_plain ? (float)q : (float)offset);
}

// NaNs in lse and dloss get zero low bits, as vf_store_pair requires; NaNs from 16-bit logits have them already.
SIMD_INLINE struct gradient gradient_with(float lse, double row_scale, float dloss, double q) {
    if (lse != lse) lse = __builtin_nanf("");
    if (dloss != dloss) dloss = __builtin_nanf("");
    struct gradient g = {.shift = shift_of(lse), .scale = vf_set1((float)row_scale)};
    double factor = (double)dloss * row_scale * exp(shift_log(&g.shift, (double)lse) - (double)lse);
    g.is_plain = g.shift.is_plain || !(factor > -1e38 && factor < 1e38);
    g.factor = vf_set1(g.is_plain ? dloss : (float)factor);
    set_offset(&g, dloss, q);
    return g;
}

SIMD_INLINE vf gradient_of(const struct gradient *g, vf x, bool is_plain) {
    vf e = vf_exp2(exponent(&g->shift, x, is_plain));
    if (is_plain) return g->factor * vf_fms(e, g->scale, g->offset);
    return vf_fms(e, g->factor, g->offset);
}

#endif
