// SPDX-License-Identifier: Apache-2.0
// The activations of the layer and their slopes, in double, for the error bounds.
#include "specs/moe/spec_moe_error.h"

struct part {
    double f, slope;
};

static struct part sigmoid_part(double x, double steepness) {
    const double s = 1 / (1 + exp(-steepness * x));
    return (struct part){x * s, s + steepness * x * s * (1 - s)};
}

static struct part part_of(tsr_activation kind, double x) {
    const double root = 0.79788456080286536;
    switch (kind) {
    case TSR_ACTIVATION_GELU: {
        const double phi = 0.5 * erfc(-x * 0.70710678118654752);
        return (struct part){x * phi, phi + x * exp(-0.5 * x * x) / 2.5066282746310005};
    }
    case TSR_ACTIVATION_GELU_TANH: {
        const double t = tanh(root * (x + 0.044715 * x * x * x));
        return (struct part){0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root *
                                                                    (1 + 3 * 0.044715 * x * x)};
    }
    case TSR_ACTIVATION_SILU: return sigmoid_part(x, 1);
    case TSR_ACTIVATION_RELU: return (struct part){fmax(x, 0), x > 0};
    case TSR_ACTIVATION_RELU2: return (struct part){x > 0 ? x * x : 0, 2 * fmax(x, 0)};
    case TSR_ACTIVATION_SWIGLU_CLAMPED: {
        struct part part = sigmoid_part(fmin(x, 7), 1.702);
        if (x > 7) part.slope = 0;
        return part;
    }
    default: return (struct part){x, 1};
    }
}

struct mix_act mix_act_of(const struct op_case *c, double gate, double up) {
    const tsr_activation kind = moe_activation_of(c);
    const struct part part = part_of(kind, gate);
    const bool is_smooth = kind == TSR_ACTIVATION_GELU || kind == TSR_ACTIVATION_GELU_TANH ||
                           kind == TSR_ACTIVATION_SILU || kind == TSR_ACTIVATION_SWIGLU_CLAMPED;
    double factor = c->is_present[MIX_W_GATE] ? up : 1, of_up = 1;
    if (kind == TSR_ACTIVATION_SWIGLU_CLAMPED) {
        factor = fmin(fmax(up, -7), 7) + 1;
        of_up = fabs(up) < 7;
    }
    const double line = kind == TSR_ACTIVATION_SWIGLU_CLAMPED ? fmin(gate, 7) : gate;
    return (struct mix_act){
        part.f * factor,
        part.slope * factor,
        part.f * of_up,
        part.f,
        part.slope,
        factor,
        is_smooth ? fabs(part.f - fmax(line, 0)) : 0,
    };
}

// The steepest slope within the error: at most its largest value at three places, and curvature between them.
double mix_steepest(const struct op_case *c, double gate, double e) {
    double most = 0;
    for (int i = -1; i <= 1; i++)
        most = fmax(most, fabs(part_of(moe_activation_of(c), gate + i * e).slope));
    return most + e;
}
