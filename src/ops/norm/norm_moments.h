// SPDX-License-Identifier: Apache-2.0
// Statistics of a row, for fused and unfused kernels. fp32 lanes sum blocks that stay in the first-level cache; blocks
// are merged in double (Chan, Golub, LeVeque), so the error does not grow with the row.
//
// A block is summed once, about a shift: s1 = sum(x - shift), s2 = sum((x - shift)^2); then mean = shift + s1/n and m2
// = s2 - s1^2/n (the corrected two-pass formula). The shift is the mean of the block's first 64 elements, or 0 if that
// mean is within half of their root mean square. If the shift is off by more than a standard deviation (s1^2/n above
// half of s2, so the difference would lose more than a bit), the block, now in the cache, is summed again about the
// mean just found. Usual data takes one sweep instead of two, and no data loses accuracy.
#ifndef TSRI_NORM_MOMENTS_H
#define TSRI_NORM_MOMENTS_H

#include <math.h>

#include "cpu/simd_pairs.h"
#include "ops/norm/cuda/norm_params.h"
#include "ops/norm/norm_problem.h"

enum { UNROLL = 4 }; // independent accumulators: add and FMA have a latency of four cycles
// Each lane adds chains of 64 terms, on every instruction set, because long sums of one sign drift.
enum { BLOCK = 64 * UNROLL * VL, PILOT = 64 };

static inline bool is_mean_far(float mean, float rstd) {
    return fabsf(mean) * rstd > NORM_FAR_MEAN;
}

struct moments {
    double mean, m2; // m2: sum of (x - mean)^2; rmsnorm: of x^2, with mean 0
};

SIMD_INLINE int64_t dtype_bytes(tsr_dtype dtype) { return dtype == TSR_F32 ? 4 : 2; }

// Two vectors from element i on, of n in all; then `fill`.
SIMD_INLINE struct vf_pair pair_at(tsr_dtype dtype, const void *x, int64_t i, int64_t n,
                                   float fill) {
    return i + PAIR <= n ? vf_load_pair(dtype, x, i) : vf_load_pair_n(dtype, x, i, n - i, fill);
}

// The sums of a block in progress, of x - shift and of its square; rmsnorm needs only the second.
struct block_sums {
    vf one[UNROLL], two[UNROLL];
    float shift; // finite
};

// By pointer, and below vector by vector, because gcc keeps a copied struct of this size in memory.
SIMD_INLINE void begin_sums(float shift, struct block_sums *s) {
    s->shift = shift;
    for (int u = 0; u < UNROLL; u++) s->one[u] = s->two[u] = vf_set1(0.0f);
}
SIMD_INLINE void copy_sums(const struct block_sums *from, struct block_sums *to) {
    to->shift = from->shift;
    for (int u = 0; u < UNROLL; u++) to->one[u] = from->one[u], to->two[u] = from->two[u];
}

SIMD_INLINE void add_pair(bool is_rmsnorm, struct vf_pair v, int u, struct block_sums *s) {
    if (!is_rmsnorm) s->one[u] = s->one[u] + v.a, s->one[u + 1] = s->one[u + 1] + v.b;
    s->two[u] = vf_fma(v.a, v.a, s->two[u]);
    s->two[u + 1] = vf_fma(v.b, v.b, s->two[u + 1]);
}

// Adds columns [begin, end) of a block. begin is a multiple of UNROLL * VL, and so is end unless the block ends there.
// A shift of 0 costs no subtraction.
SIMD_INLINE void add_columns(tsr_dtype dtype, bool is_rmsnorm, bool is_shifted, const void *x,
                             int64_t begin, int64_t end, struct block_sums *sums) {
    struct block_sums s;
    copy_sums(sums, &s);
    vf shift = vf_set1(s.shift);
    int64_t i = begin;
    for (; i + UNROLL * VL <= end; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            struct vf_pair v = vf_load_pair(dtype, x, i + u * VL);
            if (is_shifted) v.a = v.a - shift, v.b = v.b - shift;
            add_pair(is_rmsnorm, v, u, &s);
        }
    for (; i < end; i += PAIR) {
        struct vf_pair v = pair_at(dtype, x, i, end, s.shift);
        if (is_shifted) v.a = v.a - shift, v.b = v.b - shift;
        add_pair(is_rmsnorm, v, 0, &s);
    }
    copy_sums(&s, sums);
}
// The sums over all lanes.
struct totals {
    float one, two;
};
SIMD_INLINE struct totals totals_of(const struct block_sums *s) {
    return (struct totals){vf_hsum((s->one[0] + s->one[1]) + (s->one[2] + s->one[3])),
                           vf_hsum((s->two[0] + s->two[1]) + (s->two[2] + s->two[3]))};
}

// The sums of n elements about a shift; a constant 0 costs no subtraction.
SIMD_INLINE struct totals totals_about(tsr_dtype dtype, bool is_rmsnorm, bool is_shifted,
                                       float shift, const void *x, int64_t n) {
    struct block_sums sums;
    begin_sums(shift, &sums);
    add_columns(dtype, is_rmsnorm, is_shifted, x, 0, n, &sums);
    return totals_of(&sums);
}

// The moments of a block of n elements from its sums about a shift.
SIMD_INLINE struct moments finish_block(tsr_dtype dtype, bool is_rmsnorm, const void *x, int64_t n,
                                        float shift, struct totals t) {
    if (is_rmsnorm) return (struct moments){0, (double)t.two};
    double offset = (double)t.one / (double)n, correction = (double)t.one * offset;
    if (correction > 0.5 * (double)t.two) {
        shift = (float)((double)shift + offset);
        t = totals_about(dtype, false, true, shift, x, n);
        offset = (double)t.one / (double)n;
        correction = (double)t.one * offset;
    }
    double m2 = (double)t.two - correction;
    return (struct moments){(double)shift + offset, m2 < 0 ? 0 : m2};
}

SIMD_INLINE struct moments moments_about(tsr_dtype dtype, const void *x, int64_t n, float shift) {
    struct totals t;
    if (shift == 0)
        t = totals_about(dtype, false, false, 0.0f, x, n);
    else
        t = totals_about(dtype, false, true, shift, x, n);
    return finish_block(dtype, false, x, n, shift, t);
}

// Chooses the shift of a block from the totals of its first n elements about 0.
SIMD_INLINE float shift_of_totals(struct totals t, int64_t n) {
    float shift = t.one / (float)n;
    if (t.one * shift <= 0.25f * t.two) shift = 0;
    if (!(fabsf(shift) <= 3.4e38f)) shift = 0; // infinities keep their sign in the mean
    return shift;
}
// The moments of a whole row from its totals about 0; sums again if they demand a shift.
SIMD_INLINE struct moments moments_of_totals(tsr_dtype dtype, const void *x, int64_t n,
                                             struct totals t) {
    float shift = shift_of_totals(t, n);
    return shift == 0 ? finish_block(dtype, false, x, n, 0, t) : moments_about(dtype, x, n, shift);
}

SIMD_INLINE float shift_of(tsr_dtype dtype, const void *x, int64_t n) {
    int64_t pilot = n < PILOT ? n : PILOT;
    return shift_of_totals(totals_about(dtype, false, false, 0.0f, x, pilot), pilot);
}

SIMD_INLINE struct moments block_moments(tsr_dtype dtype, bool is_rmsnorm, const void *x,
                                         int64_t n) {
    if (is_rmsnorm)
        return (struct moments){0, (double)totals_about(dtype, true, false, 0.0f, x, n).two};
    if (n > PILOT) return moments_about(dtype, x, n, shift_of(dtype, x, n));
    // All elements are among the first ones, so usual data is summed once.
    struct totals t = totals_about(dtype, false, false, 0.0f, x, n);
    return moments_of_totals(dtype, x, n, t);
}

// Merges a, of n_a elements, and b, of n_b elements.
SIMD_INLINE struct moments merge(struct moments a, int64_t n_a, struct moments b, int64_t n_b) {
    double delta = b.mean - a.mean, share = (double)n_b / (double)(n_a + n_b);
    a.mean += delta * share;
    a.m2 += b.m2 + delta * delta * (double)n_a * share;
    return a;
}

// Whether fp32 lanes cannot hold the squares: they overflowed, or became subnormal while eps is too small to hide it.
// Rows with an infinity or a NaN count too; their results are the same either way.
SIMD_INLINE bool is_beyond_fp32(double variance_eps) {
    return !(variance_eps >= 0x1p-100 && variance_eps <= 1e77);
}

#endif
