// SPDX-License-Identifier: Apache-2.0
// The activations and their derivatives in double, for the oracles.
#ifndef TSRI_CORE_ACTIVATION_H
#define TSRI_CORE_ACTIVATION_H

#include <math.h>
#include <stdbool.h>
#include <tessera/activation.h>

#define TSRI_SQRT_2_OVER_PI 0.79788456080286535588
#define TSRI_SQRT_1_OVER_2PI 0.39894228040143267794
#define TSRI_CLAMP 7.0 // of SWIGLU_CLAMPED

// An activation is x F(x). Returns F(x) and stores x F'(x) in *slope, which is 0 at both infinities.
static inline double tsri_activation_distribution(tsr_activation kind, double x, double *slope) {
    if (kind == TSR_ACTIVATION_GELU) {
        *slope = isinf(x) ? 0 : x * TSRI_SQRT_1_OVER_2PI * exp(-0.5 * x * x);
        return 0.5 * erfc(-x * 0.70710678118654752440);
    }
    double s = x, ds = 1; // F(x) = 1 / (1 + exp(-s(x)))
    if (kind == TSR_ACTIVATION_SWIGLU_CLAMPED) s = 1.702 * x, ds = 1.702;
    if (kind == TSR_ACTIVATION_GELU_TANH) {
        s = 2 * TSRI_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
        ds = 2 * TSRI_SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
    }
    double tail = exp(-fabs(s)) / (1 + exp(-fabs(s)));
    *slope = tail == 0 ? 0 : x * tail * (1 - tail) * ds;
    return s < 0 ? tail : 1 - tail;
}

// Returns act(x) and stores act'(x) in *grad.
static inline double tsri_activate(tsr_activation kind, double x, double *grad) {
    double slope, f;
    *grad = 1;
    if (kind == TSR_ACTIVATION_NONE) return x;
    if (isnan(x)) return *grad = x;
    if (kind == TSR_ACTIVATION_RELU) {
        *grad = x > 0;
        return x > 0 ? x : 0;
    }
    if (kind == TSR_ACTIVATION_RELU2) {
        *grad = x > 0 ? 2 * x : 0;
        return x > 0 ? x * x : 0;
    }
    const bool is_clamped = kind == TSR_ACTIVATION_SWIGLU_CLAMPED && x > TSRI_CLAMP;
    if (is_clamped) x = TSRI_CLAMP;
    f = tsri_activation_distribution(kind, x, &slope);
    *grad = is_clamped ? 0 : f + slope;
    return f == 0 ? 0 : x * f; // x * f is NaN at -inf: the result is 0
}

// Returns gate(up) and stores gate'(up) in *grad.
static inline double tsri_gate(tsr_activation kind, double up, double *grad) {
    const bool is_clamped = kind == TSR_ACTIVATION_SWIGLU_CLAMPED && fabs(up) > TSRI_CLAMP;
    *grad = !is_clamped;
    if (kind != TSR_ACTIVATION_SWIGLU_CLAMPED) return up;
    return (is_clamped ? copysign(TSRI_CLAMP, up) : up) + 1;
}

#endif
