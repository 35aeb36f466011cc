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

// Slots and parameters of both passes: x is the first, (rows, cols) or (rows, heads, cols).
int norm_shape(const struct op_case *c, int slot, int64_t *shape);
// The dtype of a slot other than x: "y_dtype" for y.
tsr_dtype norm_slot_dtype(const struct op_case *c, int slot);
bool norm_infer(struct op_case *c);

extern const char *const norm_dtype_names[];
#define NORM_DTYPE_PARAM(of)                                                                       \
    { of "_dtype", "dtype of " of "; main is that of --dtype", PARAM_CHOICE, 0, norm_dtype_names }
// Parameters of both passes.
#define NORM_COMMON_PARAMS                                                                         \
    {"heads",                                                                                      \
     "rows lie in groups of so many, one stride in a group and one between groups; 0: one stride", \
     PARAM_SIZE, 0, NULL},                                                                         \
        {"weight_dtype", "dtype of weight and bias; main: that of --dtype or f32", PARAM_CHOICE,   \
         0, norm_dtype_names},                                                                     \
    {                                                                                              \
        "zero_centered_weight", "the factor is 1 + weight", PARAM_FLAG, 0, NULL                    \
    }

static inline int64_t norm_rows(const struct op_case *c) {
    const int64_t heads = case_int(c, "heads");
    return (int64_t)c->param[0] * (heads > 0 ? heads : 1);
}
// What a row's element is multiplied by.
static inline double norm_weight(const struct op_case *c, int64_t i) {
    const double *weight = case_values(c, "weight");
    return weight != NULL ? weight[i] + case_real(c, "zero_centered_weight") : 1;
}

void norm_set_presence(struct op_case *c, const char *name, bool is_present);
void norm_draw_sizes(struct rng *rng, struct op_case *c);
// Draws heads, dtypes other than the case's, and a weight centred at zero.
void norm_draw_forms(struct rng *rng, struct op_case *c, const char *const *dtype_params);
// Fills that concern x give the other inputs ordinary values.
bool norm_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill, double eps,
               double *values);

#endif
