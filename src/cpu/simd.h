// SPDX-License-Identifier: Apache-2.0
// Every *_simd.c file includes this: the SIMD vocabulary of the instruction set of this compilation (the build defines
// TSRI_SIMD_<ISA>), access by dtype, exponentials, and the name of the exported table. Everything here is static, so
// that no object file uses another one's AVX code.
//
// vf is a vector of VL floats. The compiler fuses nothing (-ffp-contract=off); kernels write fused operations
// themselves: vf_fma, vf_fms and vf_fnma on vectors, simd_fma and simd_fma_f64 on one float or double. The suffix _n
// means the first n lanes, 0 <= n <= VL: other lanes are loaded as 0 and not stored.
#ifndef TSRI_SIMD_H
#define TSRI_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tessera/types.h>

#include "core/core_dtype.h"

#define SIMD_LOG2E 1.44269504089f

#if defined(TSRI_SIMD_AVX512)
#include "cpu/simd_avx512.h"
#elif defined(TSRI_SIMD_AVX2)
#include "cpu/simd_avx2.h"
#elif defined(TSRI_SIMD_SCALAR)
#include "cpu/simd_scalar.h"
#else
#error "define TSRI_SIMD_SCALAR, TSRI_SIMD_AVX2 or TSRI_SIMD_AVX512"
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

// const struct softmax_kernels TSRI_KERNEL_TABLE(softmax) = {...};
#define SIMD_JOIN_(op, isa) tsri_##op##_kernels_##isa
#define SIMD_JOIN(op, isa) SIMD_JOIN_(op, isa)
#define TSRI_KERNEL_TABLE(op) SIMD_JOIN(op, SIMD_SUFFIX)

// ---- Access by dtype: a constant dtype removes the switch ---------------------------------------

SIMD_INLINE vf vf_load_as(tsr_dtype dtype, const void *base, int64_t i) {
    switch (dtype) {
    case TSR_BF16: return vf_load_bf16((const uint16_t *)base + i);
    case TSR_F16: return vf_load_f16((const uint16_t *)base + i);
    default: return vf_load((const float *)base + i);
    }
}

SIMD_INLINE vf vf_load_as_n(tsr_dtype dtype, const void *base, int64_t i, int64_t n) {
    switch (dtype) {
    case TSR_BF16: return vf_load_bf16_n((const uint16_t *)base + i, n);
    case TSR_F16: return vf_load_f16_n((const uint16_t *)base + i, n);
    default: return vf_load_n((const float *)base + i, n);
    }
}

SIMD_INLINE void vf_store_as(tsr_dtype dtype, void *base, int64_t i, vf x) {
    switch (dtype) {
    case TSR_BF16: vf_store_bf16((uint16_t *)base + i, x); break;
    case TSR_F16: vf_store_f16((uint16_t *)base + i, x); break;
    default: vf_store((float *)base + i, x);
    }
}

SIMD_INLINE void vf_store_as_n(tsr_dtype dtype, void *base, int64_t i, vf x, int64_t n) {
    switch (dtype) {
    case TSR_BF16: vf_store_bf16_n((uint16_t *)base + i, x, n); break;
    case TSR_F16: vf_store_f16_n((uint16_t *)base + i, x, n); break;
    default: vf_store_n((float *)base + i, x, n);
    }
}

// A non-temporal store; base + i must be aligned to a whole vector of the dtype (simd_stream_head).
SIMD_INLINE void vf_stream_as(tsr_dtype dtype, void *base, int64_t i, vf x) {
    switch (dtype) {
    case TSR_BF16: vf_stream_bf16((uint16_t *)base + i, x); break;
    case TSR_F16: vf_stream_f16((uint16_t *)base + i, x); break;
    default: vf_stream((float *)base + i, x);
    }
}

// Number of elements at base before the first aligned vector: 0 <= head < VL.
SIMD_INLINE int64_t simd_stream_head(tsr_dtype dtype, const void *base) {
    uintptr_t bytes = dtype == TSR_F32 ? 4 : 2, vector = VL * bytes;
    uintptr_t past = (uintptr_t)base % vector;
    return past == 0 ? 0 : (int64_t)((vector - past) / bytes);
}

// The same for the alignment that vf_stream_two_as needs, VL * 4 bytes.
SIMD_INLINE int64_t simd_line_head(tsr_dtype dtype, const void *base) {
    uintptr_t bytes = dtype == TSR_F32 ? 4 : 2, line = VL * 4;
    uintptr_t past = (uintptr_t)base % line;
    return past == 0 ? 0 : (int64_t)((line - past) / bytes);
}

// Two consecutive vectors as non-temporal stores: one line at a time if the instruction set has registers of that size.
SIMD_INLINE void vf_stream_two_as(tsr_dtype dtype, void *base, int64_t i, vf a, vf b) {
#if defined(SIMD_HAS_LINES)
    if (dtype == TSR_BF16) {
        vf_stream_line_bf16((uint16_t *)base + i, a, b);
        return;
    }
    if (dtype == TSR_F16) {
        vf_stream_line_f16((uint16_t *)base + i, a, b);
        return;
    }
#endif
    vf_stream_as(dtype, base, i, a);
    vf_stream_as(dtype, base, i + VL, b);
}

// ---- Sweeps -----------------------------------------------------------------------------------

// Prefetches element i of x, of `bytes` bytes; it may lie beyond the array.
SIMD_INLINE void simd_prefetch(const void *x, int64_t i, size_t bytes) {
    __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)i * bytes), 0);
}

// The line to prefetch far ahead when data at `at` is read in order. While the reads go through a window of eight
// pages, this prefetches the next window, all eight pages at once. A core follows one stream per page, and one stream
// does not keep enough lines in flight.
enum { SIMD_FAR_BYTES = 8 * 4096 };
SIMD_INLINE const char *simd_far_line(uintptr_t at) {
    enum { PAGE = 4096, PAGES = SIMD_FAR_BYTES / PAGE, LINE = 64 };
    uintptr_t line = at / LINE % (SIMD_FAR_BYTES / LINE);
    uintptr_t window = at / SIMD_FAR_BYTES * SIMD_FAR_BYTES + SIMD_FAR_BYTES;
    return (const char *)(window + line % PAGES * PAGE + line / PAGES * LINE);
}

// The maximum of n elements; -inf for n = 0.
SIMD_INLINE float simd_max_of(tsr_dtype dtype, const void *x, int64_t n) {
    enum { SUMS = 4 }; // max has a latency of four cycles
    vf max[SUMS];
    for (int u = 0; u < SUMS; u++) max[u] = vf_set1(-__builtin_inff());
    int64_t i = 0;
    for (; i + SUMS * VL <= n; i += SUMS * VL)
        for (int u = 0; u < SUMS; u++) max[u] = vf_max(max[u], vf_load_as(dtype, x, i + u * VL));
    for (; i < n; i += VL) {
        int64_t left = n - i < VL ? n - i : VL;
        vf last = vf_keep_n(vf_load_as_n(dtype, x, i, left), left, -__builtin_inff());
        max[0] = vf_max(max[0], last);
    }
    return vf_hmax(vf_max(vf_max(max[0], max[1]), vf_max(max[2], max[3])));
}

// ---- Exponentials -----------------------------------------------------------------------------

// 2^x for |x| <= 250: a minimax polynomial of degree 5 for 2^f on [-1/2, 1/2], 1.3 ulp, exactly 0 below -150. NaN stays
// NaN. Estrin's scheme shortens the chain, whose latency limits the rate of a loop of exponentials.
SIMD_INLINE vf vf_exp2_bounded(vf x) {
    vf n = vf_round(x), f = x - n, f2 = f * f;
    vf p01 = vf_fma(f, vf_set1(0.693146967065f), vf_set1(1.00000007165f));
    vf p23 = vf_fma(f, vf_set1(0.0555071327288f), vf_set1(0.24022119724f));
    vf p45 = vf_fma(f, vf_set1(0.00132764721678f), vf_set1(0.00967554133102f));
    return vf_scale2(vf_fma(vf_fma(p45, f2, p23), f2, p01), n);
}

// The same for any x <= 0, -inf included.
SIMD_INLINE vf vf_exp2_nonpositive(vf x) { return vf_exp2_bounded(vf_max(vf_set1(-151.0f), x)); }

// 2^x for any x, 2.5 ulp. 0 below -126, so that later operations meet no subnormal numbers; +inf from 128 on. NaN stays
// NaN. On AVX-512 it takes two thirds of the instructions of vf_exp2_nonpositive.
SIMD_INLINE vf vf_exp2(vf x) {
#if defined(SIMD_HAS_FRACTION)
    vf f = vf_fraction(x); // minimax of degree 5 on [0, 1) with p(0) = 1
    vf p = vf_fma(f, vf_set1(1.867130632e-03f), vf_set1(9.017028846e-03f));
    p = vf_fma(p, f, vf_set1(5.579991266e-02f));
    p = vf_fma(p, f, vf_set1(2.401644439e-01f));
    p = vf_fma(p, f, vf_set1(6.931512952e-01f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2_flushed(p, x);
#else
    vf bounded = vf_min(vf_set1(200.0f), vf_max(vf_set1(-126.0f), x));
    return vf_zero_below(vf_exp2_bounded(bounded), x, -126.0f);
#endif
}

// 2^x for x <= 120, as in softmax: exactly 0 below -126 and for -inf. NaN stays NaN; for 16-bit inputs, whose low bits
// are 0, without an extra operation. f32: 2.8 ulp. Results that are rounded to 16 bits: degree 4, 49 * 2^-24.
#if defined(SIMD_HAS_FRACTION)
SIMD_INLINE vf vf_exp2_for_16_bits(vf x) {
    vf f = vf_fraction(x);
    vf p = vf_fma(f, vf_set1(1.342668429e-02f), vf_set1(5.224247419e-02f));
    p = vf_fma(p, f, vf_set1(2.412802048e-01f));
    p = vf_fma(p, f, vf_set1(6.930448449e-01f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2_flushed(p, x);
}
SIMD_INLINE vf vf_exp2_flushed(tsr_dtype dtype, vf x) {
    return dtype == TSR_F32 ? vf_exp2(x) : vf_exp2_for_16_bits(x);
}
#elif defined(SIMD_HAS_SHIFTED_SCALE)
// Adding `shift` rounds x to the nearest integer; adding to the exponent bits multiplies by 2^n. 13 operations against
// 17 in vf_exp2_nonpositive. The low bits of an f32 NaN would be added to its exponent.
SIMD_INLINE vf simd_exp2_shifted(vf x, int degree) {
    vf shift = vf_set1(0x1.8p23f), bounded = vf_max(vf_set1(-126.0f), x), t = bounded + shift;
    vf f = bounded - (t - shift), p;
    if (degree == 5) {
        p = vf_fma(f, vf_set1(1.326472498e-03f), vf_set1(9.671512991e-03f));
        p = vf_fma(p, f, vf_set1(5.550733581e-02f));
        p = vf_fma(p, f, vf_set1(2.402224243e-01f));
        p = vf_fma(p, f, vf_set1(6.931470037e-01f));
    } else {
        p = vf_fma(f, vf_set1(9.582853876e-03f), vf_set1(5.590642989e-02f));
        p = vf_fma(p, f, vf_set1(2.402409911e-01f));
        p = vf_fma(p, f, vf_set1(6.931241751e-01f));
    }
    return vf_zero_below(vf_scale2_shifted(vf_fma(p, f, vf_set1(1.0f)), t), x, -126.0f);
}
SIMD_INLINE vf vf_exp2_flushed(tsr_dtype dtype, vf x) {
    if (dtype != TSR_F32) return simd_exp2_shifted(x, 4);
    return vf_or_nan(simd_exp2_shifted(x, 5), x);
}
#else
SIMD_INLINE vf vf_exp2_flushed(tsr_dtype dtype, vf x) {
    (void)dtype;
    return vf_exp2(x);
}
#endif

// sum + 2^x for logits of the dtype, for any x, as vf_exp2_flushed for f32. 2^x is at least 2^120 for x above 120.
SIMD_INLINE vf vf_add_exp2(tsr_dtype dtype, vf sum, vf x) {
#if defined(SIMD_HAS_EXP2_TABLE)
    (void)dtype;
    return simd_add_exp2(sum, x);
#elif defined(SIMD_HAS_SHIFTED_SCALE)
    vf y = simd_exp2_shifted(vf_min(vf_set1(120.0f), x), 5);
    return sum + (dtype == TSR_F32 ? vf_or_nan(y, x) : y);
#else
    (void)dtype;
    return sum + vf_exp2(x);
#endif
}

// sum + 2^(x L), L the float closest to log2 e, where a table in registers is cheaper than simd_exp2_shifted. NaN for x
// = -inf.
#if defined(SIMD_HAS_EXP2_TABLE)
enum { SIMD_ADDS_EXP = 1 };
SIMD_INLINE vf vf_add_exp(vf sum, vf x) { return simd_add_exp(sum, x); }
#else
enum { SIMD_ADDS_EXP = 0 };
SIMD_INLINE vf vf_add_exp(vf sum, vf x) { return sum + vf_exp2(x * vf_set1(SIMD_LOG2E)); }
#endif

// 2^x for -250 <= x <= 120, for results that are later rounded to 16 bits. bf16: degree 3, relative error 2^-13.7. f16,
// which has no results below 2^-24: degree 4, 2^-18.5. NaN stays NaN.
SIMD_INLINE vf vf_exp2_rounded_to(tsr_dtype dtype, vf x) {
#if defined(SIMD_HAS_FRACTION)
    if (dtype == TSR_F16) return vf_exp2_for_16_bits(x);
    vf f = vf_fraction(x);
    vf p = vf_fma(f, vf_set1(7.802401468e-02f), vf_set1(2.260678783e-01f));
    p = vf_fma(p, f, vf_set1(6.958332924e-01f));
    p = vf_fma(p, f, vf_set1(9.999252302e-01f));
    return vf_scale2(p, x);
#else
    vf n = vf_round(x), f = x - n, p;
    if (dtype == TSR_F16) {
        p = vf_fma(f, vf_set1(9.570101700e-03f), vf_set1(5.591786030e-02f));
        p = vf_fma(p, f, vf_set1(2.402474483e-01f));
        p = vf_fma(p, f, vf_set1(6.931218147e-01f));
        p = vf_fma(p, f, vf_set1(9.999992614e-01f));
    } else {
        p = vf_fma(f, vf_set1(5.517130987e-02f), vf_set1(2.426110946e-01f));
        p = vf_fma(p, f, vf_set1(6.932610517e-01f));
        p = vf_fma(p, f, vf_set1(9.999280769e-01f));
    }
    return vf_scale2(p, n);
#endif
}

// a / b for b from 1 to 2^100, for results that are later rounded to 16 bits. Relative error 2^-14 for bf16, 2^-22 for
// f16.
SIMD_INLINE vf vf_quotient_rounded_to(tsr_dtype dtype, vf a, vf b) {
#if defined(SIMD_HAS_INVERSE)
    vf inverse = vf_inverse(b);
    if (dtype == TSR_F16) inverse = vf_fma(inverse, vf_fnma(b, inverse, vf_set1(1.0f)), inverse);
    return a * inverse;
#else
    (void)dtype;
    return a / b;
#endif
}

// e^x over the whole range by Cody and Waite's reduction, degree 6: 0.9 ulp for normal results; 0 below -104, +inf
// above 89. NaN stays NaN.
SIMD_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.5f), x));
    vf n = vf_round(x * vf_set1(SIMD_LOG2E));
    vf r = vf_fma(n, vf_set1(-0x1.62e4p-1f), x);
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_fma(r, vf_set1(0.00138368461346f), vf_set1(0.0083748157983f));
    p = vf_fma(p, r, vf_set1(0.0416682255669f));
    p = vf_fma(p, r, vf_set1(0.166664201699f));
    p = vf_fma(p, r, vf_set1(0.499999920798f));
    p = vf_fma(p, r, vf_set1(1.00000003632f));
    p = vf_fma(p, r, vf_set1(1.00000000055f));
    return vf_scale2(p, n);
}

// tanh, 2 ulp: an odd polynomial near 0, where 1 - 2 / (e^2|x| + 1) cancels. NaN stays NaN.
SIMD_INLINE vf vf_tanh(vf x) {
    vf a = vf_abs(x), x2 = x * x, one = vf_set1(1.0f);
    vf p = vf_fma(x2, vf_set1(-5.70498872745e-3f), vf_set1(2.06390887954e-2f));
    p = vf_fma(p, x2, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, x2, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, x2, vf_set1(-3.33332819422e-1f));
    vf small = vf_fma(p * x2, x, x);
    vf large = vf_copysign(one - vf_set1(2.0f) / (vf_exp(a + a) + one), x);
    return vf_select_lt(a, vf_set1(0.625f), small, large);
}

#endif
