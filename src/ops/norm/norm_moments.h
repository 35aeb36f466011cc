// SPDX-License-Identifier: Apache-2.0
// Statistics of a row, for the fused and the unfused kernels. fp32 lanes sum over blocks that stay
// in the first-level cache; blocks are merged in double (Chan, Golub, LeVeque), so that the error
// does not grow with the row.
//
// A block is summed once, about a shift: s1 = sum(x - shift), s2 = sum((x - shift)^2), then
// mean = shift + s1/n and m2 = s2 - s1^2/n (the corrected two-pass formula). The shift is the mean
// of the block's first 64 elements, or 0 where that is within a half of their root mean square. Where it is
// off by more than a standard deviation - s1^2/n above half of s2, so that the difference would lose more
// than a bit - the block, in cache now, is summed again about the mean just found. Usual data takes one
// sweep in place of two, and no data loses accuracy.
#ifndef TSRI_NORM_MOMENTS_H
#define TSRI_NORM_MOMENTS_H

#include <math.h>

#include "cpu/simd_pairs.h"
#include "ops/norm/norm_problem.h"

enum { UNROLL = 4 }; // independent accumulators: add and FMA have a latency of four cycles
// Chains of 64 additions in each lane, on every instruction set: same-sign sums drift as they grow.
enum { BLOCK = 64 * UNROLL * VL, PILOT = 64 };

struct moments {
    double mean, m2; // m2: sum of (x - mean)^2; of x^2 for rmsnorm, with mean 0
};

SIMD_INLINE int64_t dtype_bytes(tsr_dtype dtype) { return dtype == TSR_F32 ? 4 : 2; }

// Two vectors from element i on, of n in all; `fill` beyond.
SIMD_INLINE struct vf_pair pair_at(tsr_dtype dtype, const void *x, int64_t i, int64_t n,
                                   float fill) {
    return i + PAIR <= n ? vf_load_pair(dtype, x, i) : vf_load_pair_n(dtype, x, i, n - i, fill);
}

SIMD_INLINE float squares_of(tsr_dtype dtype, const void *x, int64_t n) {
    vf sum[UNROLL];
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            struct vf_pair v = vf_load_pair(dtype, x, i + u * VL);
            sum[u] = vf_fma(v.a, v.a, sum[u]);
            sum[u + 1] = vf_fma(v.b, v.b, sum[u + 1]);
        }
    for (; i < n; i += PAIR) {
        struct vf_pair v = pair_at(dtype, x, i, n, 0.0f);
        sum[0] = vf_fma(v.a, v.a, sum[0]);
        sum[1] = vf_fma(v.b, v.b, sum[1]);
    }
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// about is finite; a constant 0 costs no subtraction.
SIMD_INLINE void shifted_sums(tsr_dtype dtype, const void *x, int64_t n, float about, float *s1,
                              float *s2) {
    vf shift = vf_set1(about), one[UNROLL], two[UNROLL];
    bool is_zero = __builtin_constant_p(about) && about == 0;
    for (int u = 0; u < UNROLL; u++) one[u] = two[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            struct vf_pair v = vf_load_pair(dtype, x, i + u * VL);
            if (!is_zero) v.a = v.a - shift, v.b = v.b - shift;
            one[u] = one[u] + v.a;
            one[u + 1] = one[u + 1] + v.b;
            two[u] = vf_fma(v.a, v.a, two[u]);
            two[u + 1] = vf_fma(v.b, v.b, two[u + 1]);
        }
    for (; i < n; i += PAIR) {
        struct vf_pair v = pair_at(dtype, x, i, n, about);
        v.a = v.a - shift, v.b = v.b - shift;
        one[0] = one[0] + v.a;
        one[1] = one[1] + v.b;
        two[0] = vf_fma(v.a, v.a, two[0]);
        two[1] = vf_fma(v.b, v.b, two[1]);
    }
    *s1 = vf_hsum((one[0] + one[1]) + (one[2] + one[3]));
    *s2 = vf_hsum((two[0] + two[1]) + (two[2] + two[3]));
}

SIMD_INLINE struct moments moments_about(tsr_dtype dtype, const void *x, int64_t n, float shift) {
    float s1, s2;
    if (shift == 0)
        shifted_sums(dtype, x, n, 0.0f, &s1, &s2);
    else
        shifted_sums(dtype, x, n, shift, &s1, &s2);
    double offset = (double)s1 / (double)n, correction = (double)s1 * offset;
    if (correction > 0.5 * (double)s2) {
        shift = (float)((double)shift + offset);
        shifted_sums(dtype, x, n, shift, &s1, &s2);
        offset = (double)s1 / (double)n;
        correction = (double)s1 * offset;
    }
    double m2 = (double)s2 - correction;
    return (struct moments){(double)shift + offset, m2 < 0 ? 0 : m2};
}

SIMD_INLINE struct moments block_moments(tsr_dtype dtype, bool is_rmsnorm, const void *x,
                                         int64_t n) {
    if (is_rmsnorm) return (struct moments){0, (double)squares_of(dtype, x, n)};
    int64_t pilot = n < PILOT ? n : PILOT;
    float s1, s2;
    shifted_sums(dtype, x, pilot, 0.0f, &s1, &s2);
    float shift = s1 / (float)pilot;
    if (s1 * shift <= 0.25f * s2) shift = 0;
    if (!(fabsf(shift) <= 3.4e38f)) shift = 0; // infinities keep their sign in the mean
    return moments_about(dtype, x, n, shift);
}

// a over n_a elements and b over n_b.
SIMD_INLINE struct moments merge(struct moments a, int64_t n_a, struct moments b, int64_t n_b) {
    double delta = b.mean - a.mean, share = (double)n_b / (double)(n_a + n_b);
    a.mean += delta * share;
    a.m2 += b.m2 + delta * delta * (double)n_a * share;
    return a;
}

// Whether fp32 lanes could not hold the squares: they overflowed, or fell among the subnormal
// numbers while eps is too small to hide it. A row with an infinity or a NaN counts too; it gives
// the same values either way.
SIMD_INLINE bool is_beyond_fp32(double variance_eps) {
    return !(variance_eps >= 0x1p-100 && variance_eps <= 1e77);
}

#endif
