// SPDX-License-Identifier: Apache-2.0
// The activations of tessera/activation.h and their derivatives on vectors of floats, shared by the
// element-wise operations and the epilogues of matmul. With a constant kind the switches fold away.
//
// The three smooth ones are x F(x), where F is a distribution function with F(-x) = 1 - F(x). All use the small tail q
// = F(-t), t = |x|: x F(x) = max(x, 0) - t q for both signs. So the negative tail keeps its relative accuracy. t is
// clamped where t q underflows, so no infinity meets a zero.
#ifndef TSRI_SIMD_ACTIVATION_H
#define TSRI_SIMD_ACTIVATION_H

#include <tessera/activation.h>

#include "cpu/simd.h"

// min(|x|, limit); NaN stays NaN.
SIMD_INLINE vf simd_magnitude(vf x, float limit) { return vf_min(vf_set1(limit), vf_abs(x)); }
// The same, but a NaN may become any number up to limit; one operation on instruction sets that have it.
SIMD_INLINE vf simd_magnitude_of_number(vf x, float limit) {
#if defined(SIMD_HAS_MIN_ABS)
    return vf_min_abs(x, vf_set1(limit));
#else
    return simd_magnitude(x, limit);
#endif
}

// Phi(-t) and e = exp(-t^2/2) for 0 <= t <= 14.5. Phi(-t) exp(t^2/2) is smooth and is approximated by a rational
// function of degrees 3 and 4, minimax with weight 1 + t^2/4, to 1.4 units of that weight; rounding the exponent costs
// up to t^2 units anyway. All coefficients are positive, so the evaluation loses nothing. Total relative error (8 + 1.5
// t^2) 2^-24.
SIMD_INLINE vf simd_normal_tail(vf t, vf *e) {
    vf p = vf_fma(t, vf_set1(0.0147582491f), vf_set1(0.109781567f));
    vf d = vf_fma(t, vf_set1(0.0370041195f), vf_set1(0.274820384f));
    p = vf_fma(p, t, vf_set1(0.344877478f));
    d = vf_fma(d, t, vf_set1(0.906571821f));
    p = vf_fma(p, t, vf_set1(0.499999958f));
    d = vf_fma(d, t, vf_set1(1.4876345f));
    d = vf_fma(d, t, vf_set1(1.0f));
    *e = vf_exp2_bounded(t * t * vf_set1(-0.5f * SIMD_LOG2E));
    return *e * (p / d);
}

// The same for results that are later rounded to 16 bits: a rational function of degrees 2 and 3 with relative error
// 2^-15.3, a shorter exponential, and on AVX-512 a quotient from an estimated inverse. Total error 2^-12.6 for bf16 and
// 2^-15.1 for f16, less than half of an eighth of the final rounding error.
SIMD_INLINE vf simd_normal_tail_for(tsr_dtype dtype, vf t, vf *e) {
    if (dtype == TSR_F32) return simd_normal_tail(t, e);
    vf p = vf_fma(t, vf_set1(0.06282896505f), vf_set1(0.2789883641f));
    vf d = vf_fma(t, vf_set1(0.1573197222f), vf_set1(0.7042790195f));
    p = vf_fma(p, t, vf_set1(0.5000124832f));
    d = vf_fma(d, t, vf_set1(1.356633151f));
    d = vf_fma(d, t, vf_set1(1.0f));
    *e = vf_exp2_rounded_to(dtype, t * t * vf_set1(-0.5f * SIMD_LOG2E));
    return vf_quotient_rounded_to(dtype, *e * p, d);
}

// 1 / (1 + exp(s)) for 0 <= s <= 170: the logistic function of -s.
SIMD_INLINE vf simd_logistic_tail_for(tsr_dtype dtype, vf s) {
    vf x = s * vf_set1(-SIMD_LOG2E);
    vf e = dtype == TSR_F32 ? vf_exp2_bounded(x) : vf_exp2_rounded_to(dtype, x);
    vf d = vf_set1(1.0f) + e;
    return dtype == TSR_F32 ? (vf)(e / d) : vf_quotient_rounded_to(dtype, e, d);
}

// gelu_tanh is x / (1 + exp(-s(x))): s(t) = 2 sqrt(2/pi) (t + 0.044715 t^3), and s'(t).
SIMD_INLINE vf simd_gelu_tanh_argument(vf t) {
    return t * vf_fma(t * t, vf_set1(0.0713548163f), vf_set1(1.59576912f));
}
SIMD_INLINE vf simd_gelu_tanh_slope(vf t) {
    return vf_fma(t * t, vf_set1(0.214064449f), vf_set1(1.59576912f));
}

// Beyond these magnitudes t F(-t) is below the smallest subnormal number.
#define SIMD_GELU_LIMIT 14.5f
#define SIMD_GELU_TANH_LIMIT 12.0f
#define SIMD_SILU_LIMIT 110.0f
#define SIMD_CLAMPED_LIMIT 64.6f

// Of SWIGLU_CLAMPED; NaN stays NaN.
#define SIMD_CLAMP 7.0f
#define SIMD_CLAMPED_SLOPE 1.702f

// act(x). NaN gives NaN, +inf gives +inf, -inf gives 0 (NONE: -inf).
// The result, or its product with other factors, is later rounded to `dtype`. F32 keeps the bounds of
// tessera/activation.h; 16-bit types add at most an eighth of that rounding.
SIMD_INLINE vf vf_activate_for(tsr_dtype dtype, tsr_activation kind, vf x) {
    vf positive = vf_max(vf_set1(0.0f), x), t, q, unused; // positive: NaN if x is NaN
    switch (kind) {
    case TSR_ACTIVATION_GELU:
        t = simd_magnitude_of_number(x, SIMD_GELU_LIMIT);
        q = simd_normal_tail_for(dtype, t, &unused);
        break;
    case TSR_ACTIVATION_GELU_TANH:
        t = simd_magnitude_of_number(x, SIMD_GELU_TANH_LIMIT);
        q = simd_logistic_tail_for(dtype, simd_gelu_tanh_argument(t));
        break;
    case TSR_ACTIVATION_SILU:
        t = simd_magnitude_of_number(x, SIMD_SILU_LIMIT);
        q = simd_logistic_tail_for(dtype, t);
        break;
    case TSR_ACTIVATION_SWIGLU_CLAMPED:
        x = vf_min(vf_set1(SIMD_CLAMP), x);
        positive = vf_max(vf_set1(0.0f), x);
        t = simd_magnitude_of_number(x, SIMD_CLAMPED_LIMIT);
        q = simd_logistic_tail_for(dtype, t * vf_set1(SIMD_CLAMPED_SLOPE));
        break;
    case TSR_ACTIVATION_RELU2: return positive * positive;
    case TSR_ACTIVATION_RELU: return positive;
    default: return x;
    }
    return vf_fnma(t, q, positive);
}
SIMD_INLINE vf vf_activate(tsr_activation kind, vf x) { return vf_activate_for(TSR_F32, kind, x); }

// gate(up) and gate'(up): what act(x) is multiplied by.
SIMD_INLINE vf vf_gate(tsr_activation kind, vf up) {
    if (kind != TSR_ACTIVATION_SWIGLU_CLAMPED) return up;
    return vf_max(vf_set1(-SIMD_CLAMP), vf_min(vf_set1(SIMD_CLAMP), up)) + vf_set1(1.0f);
}
SIMD_INLINE vf vf_gate_grad(tsr_activation kind, vf up) {
    if (kind != TSR_ACTIVATION_SWIGLU_CLAMPED) return vf_set1(1.0f);
    return vf_select_lt(vf_set1(SIMD_CLAMP), vf_abs(up), vf_set1(0.0f), vf_set1(1.0f));
}

// act(x) and act'(x) in one evaluation. The derivative is 1 at +inf, 0 at -inf and NaN at NaN (NONE: 1).
SIMD_INLINE vf vf_activate_with_grad_for(tsr_dtype dtype, tsr_activation kind, vf x, vf *grad) {
    vf zero = vf_set1(0.0f), one = vf_set1(1.0f), positive = vf_max(zero, x);
    vf t, q, rise, run; // rise * run = |x| F'(x)
    switch (kind) {
    case TSR_ACTIVATION_GELU: {
        vf e;
        t = simd_magnitude(x, SIMD_GELU_LIMIT);
        q = simd_normal_tail_for(dtype, t, &e);
        rise = t * e, run = vf_set1(0.398942280f);
        break;
    }
    case TSR_ACTIVATION_GELU_TANH:
        t = simd_magnitude(x, SIMD_GELU_TANH_LIMIT);
        q = simd_logistic_tail_for(dtype, simd_gelu_tanh_argument(t));
        rise = t * q * (one - q), run = simd_gelu_tanh_slope(t);
        break;
    case TSR_ACTIVATION_SILU:
        t = simd_magnitude(x, SIMD_SILU_LIMIT);
        q = simd_logistic_tail_for(dtype, t);
        rise = t * q, run = one - q;
        break;
    case TSR_ACTIVATION_SWIGLU_CLAMPED: {
        const vf clamped = vf_min(vf_set1(SIMD_CLAMP), x);
        positive = vf_max(zero, clamped);
        t = simd_magnitude(clamped, SIMD_CLAMPED_LIMIT);
        q = simd_logistic_tail_for(dtype, t * vf_set1(SIMD_CLAMPED_SLOPE));
        rise = t * q * (one - q), run = vf_set1(SIMD_CLAMPED_SLOPE);
        *grad = vf_select_lt(x, zero, vf_fnma(rise, run, q), vf_fma(rise, run, one - q));
        *grad = vf_select_lt(vf_set1(SIMD_CLAMP), x, zero, *grad);
        return vf_fnma(t, q, positive);
    }
    case TSR_ACTIVATION_RELU2: *grad = positive + positive; return positive * positive;
    case TSR_ACTIVATION_RELU: // for x <= 0 or NaN, `positive` is 0 or NaN
        *grad = vf_select_lt(zero, positive, one, positive);
        return positive;
    default: *grad = one; return x;
    }
    *grad = vf_select_lt(x, zero, vf_fnma(rise, run, q), vf_fma(rise, run, one - q));
    return vf_fnma(t, q, positive);
}

// act'(x)
SIMD_INLINE vf vf_activate_grad_for(tsr_dtype dtype, tsr_activation kind, vf x) {
    vf grad;
    (void)vf_activate_with_grad_for(dtype, kind, x, &grad);
    return grad;
}
SIMD_INLINE vf vf_activate_grad(tsr_activation kind, vf x) {
    return vf_activate_grad_for(TSR_F32, kind, x);
}

#endif
