// SPDX-License-Identifier: Apache-2.0
// The activations of tessera/activation.h and their derivatives, for element-wise kernels and epilogues. The formulas
// are those of the CPU. All smooth kinds are x F(x), where F is a distribution function, and use its small tail q =
// F(-t), t = |x|, as max(x, 0) - t q. So the negative tail keeps its relative accuracy. t is clamped where t q
// underflows, so no infinity meets a zero. NaN stays NaN. With a constant kind the switches disappear.
#ifndef TSRI_DEVICE_ACTIVATION_CUH
#define TSRI_DEVICE_ACTIVATION_CUH

#include "cuda/device/numbers.cuh"

// The values of tsr_activation.
#define ACTIVATION_NONE 0
#define ACTIVATION_GELU 1
#define ACTIVATION_GELU_TANH 2
#define ACTIVATION_SILU 3
#define ACTIVATION_RELU 4
#define ACTIVATION_RELU2 5
#define ACTIVATION_SWIGLU_CLAMPED 6

// Beyond these magnitudes t F(-t) is below the smallest subnormal number.
#define GELU_LIMIT 14.5f
#define GELU_TANH_LIMIT 12.0f
#define SILU_LIMIT 110.0f
#define CLAMPED_LIMIT 64.6f

// Of SWIGLU_CLAMPED.
#define CLAMP 7.0f
#define CLAMPED_SLOPE 1.702f

DEVICE float min_or_nan(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

DEVICE float max_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// 2^(x / EXPONENT_PART), including subnormal results, because they reach the output. For f32, within 2 units in the
// last place. For 16-bit outputs, as a square: one instruction instead of three, with an error below that of the
// rounding.
#if DTYPE == DTYPE_F32
#define EXPONENT_PART 1.0f
DEVICE float exp2_gradual(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
#define EXPONENT_PART 0.5f
DEVICE float exp2_gradual(float x) {
    float y = exp2_fast(x);
    return y * y;
}
#endif

// 1 / x within 1 unit in the last place, for normal numbers.
DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Phi(-t) and e = exp(-t^2/2) for 0 <= t <= 14.5. Phi(-t) exp(t^2/2) is a rational function of degrees 3 and 4; its
// coefficients are positive, so the evaluation loses nothing.
DEVICE float normal_tail(float t, float *e) {
    float p = fmaf(fmaf(fmaf(0.0147582491f, t, 0.109781567f), t, 0.344877478f), t, 0.499999958f);
    float d = fmaf(fmaf(0.0370041195f, t, 0.274820384f), t, 0.906571821f);
    d = fmaf(fmaf(d, t, 1.4876345f), t, 1.0f);
    *e = exp2_gradual(t * t * (-0.5f * LOG2_E * EXPONENT_PART));
    return *e * (p * reciprocal_fast(d));
}

// 1 / (1 + exp(s)), 0 <= s <= 170.
DEVICE float logistic_tail(float s) {
    float e = exp2_gradual(s * (-LOG2_E * EXPONENT_PART));
    return e * reciprocal_fast(1.0f + e);
}

// gelu_tanh is x / (1 + exp(-s(x))): s(t) = 2 sqrt(2/pi) (t + 0.044715 t^3), and s'(t).
DEVICE float gelu_tanh_argument(float t) { return t * fmaf(t * t, 0.0713548163f, 1.59576912f); }
DEVICE float gelu_tanh_slope(float t) { return fmaf(t * t, 0.214064449f, 1.59576912f); }

DEVICE float activate(int kind, float x) {
    if (kind == ACTIVATION_SWIGLU_CLAMPED) x = min_or_nan(x, CLAMP);
    float positive = max_or_nan(x, 0.0f), t, q, unused;
    switch (kind) {
    case ACTIVATION_GELU:
        t = min_or_nan(fabsf(x), GELU_LIMIT);
        q = normal_tail(t, &unused);
        break;
    case ACTIVATION_GELU_TANH:
        t = min_or_nan(fabsf(x), GELU_TANH_LIMIT);
        q = logistic_tail(gelu_tanh_argument(t));
        break;
    case ACTIVATION_SILU:
        t = min_or_nan(fabsf(x), SILU_LIMIT);
        q = logistic_tail(t);
        break;
    case ACTIVATION_SWIGLU_CLAMPED:
        t = min_or_nan(fabsf(x), CLAMPED_LIMIT);
        q = logistic_tail(CLAMPED_SLOPE * t);
        break;
    case ACTIVATION_RELU: return positive;
    case ACTIVATION_RELU2: return positive * positive;
    default: return x;
    }
    return fmaf(-t, q, positive);
}

// gate(up) and gate'(up): what act(x) is multiplied by.
DEVICE float gate(int kind, float up) {
    if (kind != ACTIVATION_SWIGLU_CLAMPED) return up;
    return max_or_nan(min_or_nan(up, CLAMP), -CLAMP) + 1.0f;
}
DEVICE float gate_slope(int kind, float up) {
    return kind == ACTIVATION_SWIGLU_CLAMPED && fabsf(up) > CLAMP ? 0.0f : 1.0f;
}

#if DTYPE != DTYPE_F32
// log2 Phi(-t) for 0 <= t <= 14.5. Relative error of 2 to this power, up to t = 6: below 2^-11.2 for bf16 and 2^-14.3
// for f16; beyond, the absolute error is below 2^-40.
DEVICE float normal_tail_exponent(float t) {
#if DTYPE == DTYPE_BF16
    float p = fmaf(t, -0.000209463931f, 0.0045939102f);
    p = fmaf(p, t, -0.0435746146f);
    p = fmaf(p, t, -0.47089509f);
    p = fmaf(p, t, -1.14633503f);
#else
    float p = fmaf(t, 2.34332081e-5f, -0.000619738659f);
    p = fmaf(p, t, 0.00726034834f);
    p = fmaf(p, t, -0.0514185982f);
    p = fmaf(p, t, -0.460863514f);
    p = fmaf(p, t, -1.15048034f);
#endif
    return fmaf(p, t, -1.0f);
}

// x / (1 + 2^z).
DEVICE float logistic_product(float x, float z) { return x * reciprocal_fast(1.0f + exp2_fast(z)); }

// For results that are then rounded to DTYPE: the error is less than an eighth of the rounding error of the activation
// itself, at half the instructions. Results below the smallest normal number are 0.
DEVICE float activate_rounded(int kind, float x) {
    switch (kind) {
    case ACTIVATION_GELU: {
        const float t = min_or_nan(fabsf(x), GELU_LIMIT);
        return fmaf(-t, exp2_fast(normal_tail_exponent(t)), max_or_nan(x, 0.0f));
    }
    case ACTIVATION_GELU_TANH:
        x = max_or_nan(x, -GELU_TANH_LIMIT);
        return logistic_product(x, x * fmaf(x * x, -0.0713548163f * LOG2_E, -1.59576912f * LOG2_E));
    case ACTIVATION_SILU: x = max_or_nan(x, -SILU_LIMIT); return logistic_product(x, x * -LOG2_E);
    case ACTIVATION_SWIGLU_CLAMPED:
        x = min_or_nan(max_or_nan(x, -CLAMPED_LIMIT), CLAMP);
        return logistic_product(x, x * (-CLAMPED_SLOPE * LOG2_E));
    default: return activate(kind, x);
    }
}
#endif

// Returns act(x) and stores act'(x) in *grad: 1 at +inf, 0 at -inf, NaN at NaN (NONE: 1), and for RELU 0 at 0.
DEVICE float activate_with_grad(int kind, float x, float *grad) {
    float positive = max_or_nan(x, 0.0f), t, q, slope; // slope: |x| F'(x)
    switch (kind) {
    case ACTIVATION_GELU: {
        float e;
        t = min_or_nan(fabsf(x), GELU_LIMIT);
        q = normal_tail(t, &e);
        slope = t * e * 0.398942280f;
        break;
    }
    case ACTIVATION_GELU_TANH:
        t = min_or_nan(fabsf(x), GELU_TANH_LIMIT);
        q = logistic_tail(gelu_tanh_argument(t));
        slope = t * q * (1.0f - q) * gelu_tanh_slope(t);
        break;
    case ACTIVATION_SILU:
        t = min_or_nan(fabsf(x), SILU_LIMIT);
        q = logistic_tail(t);
        slope = t * q * (1.0f - q);
        break;
    case ACTIVATION_SWIGLU_CLAMPED:
        positive = min_or_nan(positive, CLAMP);
        t = min_or_nan(fabsf(min_or_nan(x, CLAMP)), CLAMPED_LIMIT);
        q = logistic_tail(CLAMPED_SLOPE * t);
        slope = CLAMPED_SLOPE * t * q * (1.0f - q);
        *grad = x < 0.0f ? q - slope : (1.0f - q) + slope;
        if (x > CLAMP) *grad = 0.0f;
        return fmaf(-t, q, positive);
    case ACTIVATION_RELU2: *grad = positive + positive; return positive * positive;
    case ACTIVATION_RELU: // for x <= 0 or NaN, `positive` is 0 or NaN
        *grad = positive > 0.0f ? 1.0f : positive;
        return positive;
    default: *grad = 1.0f; return x;
    }
    *grad = x < 0.0f ? q - slope : (1.0f - q) + slope;
    return fmaf(-t, q, positive);
}

// Calls function(kind, ...) with a kind that the compiler knows.
#define WITH_CONSTANT_KIND(kind, function, ...)                                                    \
    switch (kind) {                                                                                \
    case ACTIVATION_GELU: function(ACTIVATION_GELU, __VA_ARGS__); break;                           \
    case ACTIVATION_GELU_TANH: function(ACTIVATION_GELU_TANH, __VA_ARGS__); break;                 \
    case ACTIVATION_SILU: function(ACTIVATION_SILU, __VA_ARGS__); break;                           \
    case ACTIVATION_RELU: function(ACTIVATION_RELU, __VA_ARGS__); break;                           \
    case ACTIVATION_RELU2: function(ACTIVATION_RELU2, __VA_ARGS__); break;                         \
    case ACTIVATION_SWIGLU_CLAMPED: function(ACTIVATION_SWIGLU_CLAMPED, __VA_ARGS__); break;       \
    default: function(ACTIVATION_NONE, __VA_ARGS__);                                               \
    }

// For an element-wise kernel's outputs in DTYPE: the same for f32; for 16 bits the tail, small ones too, may lose an eighth of
// what rounding loses.
#if DTYPE == DTYPE_F32
DEVICE float activate_dtype(int kind, float x) { return activate(kind, x); }
DEVICE float activate_dtype_with_grad(int kind, float x, float *grad) {
    return activate_with_grad(kind, x, grad);
}
#else
// normal_tail with an eighth of the rounding's error, over the whole range: degrees 2 and 3, 2^-15.3.
DEVICE float normal_tail_rounded(float t, float *e) {
    const float p = fmaf(fmaf(0.06282896505f, t, 0.2789883641f), t, 0.5000124832f);
    float d = fmaf(fmaf(0.1573197222f, t, 0.7042790195f), t, 1.356633151f);
    d = fmaf(d, t, 1.0f);
    *e = exp2_fast(t * t * (-0.5f * LOG2_E));
    return *e * (p * reciprocal_fast(d));
}

DEVICE float activate_dtype(int kind, float x) {
    if (kind != ACTIVATION_GELU) return activate_rounded(kind, x);
    float e;
    const float t = min_or_nan(fabsf(x), GELU_LIMIT);
    return fmaf(-t, normal_tail_rounded(t, &e), max_or_nan(x, 0.0f));
}
DEVICE float activate_dtype_with_grad(int kind, float x, float *grad) {
    const float positive = max_or_nan(x, 0.0f);
    float t, q, e, below; // below: act'(-t)
    switch (kind) {
    case ACTIVATION_GELU:
        t = min_or_nan(fabsf(x), GELU_LIMIT);
        q = normal_tail_rounded(t, &e);
        below = fmaf(t * -0.398942280f, e, q);
        break;
    case ACTIVATION_GELU_TANH:
        t = min_or_nan(fabsf(x), GELU_TANH_LIMIT);
        q = logistic_product(1.0f, gelu_tanh_argument(t) * LOG2_E);
        below = fmaf(t * gelu_tanh_slope(t), fmaf(q, q, -q), q);
        break;
    case ACTIVATION_SILU:
        t = min_or_nan(fabsf(x), SILU_LIMIT);
        q = logistic_product(1.0f, t * LOG2_E);
        below = fmaf(t, fmaf(q, q, -q), q);
        break;
    default: return activate_with_grad(kind, x, grad);
    }
    *grad = x < 0.0f ? below : 1.0f - below;
    return fmaf(-t, q, positive);
}
#endif

#endif
