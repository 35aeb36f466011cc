// SPDX-License-Identifier: Apache-2.0
// Shared by the descriptions of the norms: see spec_norm.c.
#ifndef TOOL_SPEC_NORM_H
#define TOOL_SPEC_NORM_H

#include "specs/spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32
static const double tiny = 0x1p-126;
static const double standard_eps = 1e-5;

static inline bool is_rmsnorm(const struct op_case *c) { return spec_slot(c->spec, "mean") < 0; }

static inline bool is_slot(const struct op_case *c, int slot, const char *name) {
    return spec_slot(c->spec, name) == slot;
}

static inline bool has(const struct op_case *c, const char *name) {
    int slot = spec_slot(c->spec, name);
    return slot >= 0 && c->is_present[slot];
}

// The tensor of this name; absent if the operation does not have it.
static inline tsr_tensor tensor_of(const struct op_case *c, const char *name) {
    return has(c, name) ? c->tensor[spec_slot(c->spec, name)] : (tsr_tensor){0};
}

// Slots and parameters of both passes: x is the first, (rows, cols).
int norm_shape(const struct op_case *c, int slot, int64_t *shape);
bool norm_infer(struct op_case *c);

void norm_set_presence(struct op_case *c, const char *name, bool is_present);
void norm_draw_sizes(struct rng *rng, struct op_case *c);
// Fills that concern x give the other inputs ordinary values.
bool norm_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill, double eps,
               double *values);

#endif
