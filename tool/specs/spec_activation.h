// SPDX-License-Identifier: Apache-2.0
// What both passes of activation share: sizes, the parts of an evaluation, bounds.
#ifndef TOOL_SPEC_ACTIVATION_H
#define TOOL_SPEC_ACTIVATION_H

#include "specs/spec.h"

// Parameters, in this order: rows, cols, kind.
extern const struct param_spec activation_params[];
bool activation_infer(struct op_case *c);
void activation_draw_sizes(struct rng *rng, struct op_case *c);
bool activation_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                     double *values);
double activation_flops(const struct op_case *c); // of one element

static const double u32 = 0x1p-24; // unit roundoff of fp32

static inline tsr_activation kind_of(const struct op_case *c) {
    return (tsr_activation)(int)c->param[2];
}

// The parts of the evaluation of x F(x): x where it counts (clamped), the tail F(-|x|), F(x), the slope |x F'(x)|, the number
// of u that the tail loses to the rounding of its exponent, and that of roundings besides.
struct parts {
    double x, tail, whole, slope, loss, more;
};
struct parts activation_parts(tsr_activation kind, double x);
double activation_value(tsr_activation kind, double x);
// gate(up) and gate'(up).
double activation_gate(tsr_activation kind, double up, double *slope);

// act(x) factor = max(x, 0) factor - |x| tail factor. Subnormal products lose a part of the smallest
// normal number, times the factor. 16-bit results also lose the share `eighth` of the tail.
double activation_value_bound(const struct parts *at, double value, double factor, double eighth);

#endif
