// SPDX-License-Identifier: Apache-2.0
// What the two passes of moe_combine share: parameters, random sizes, the rows of tokens.
#ifndef TOOL_SPEC_MOE_COMBINE_H
#define TOOL_SPEC_MOE_COMBINE_H

#include "specs/spec.h"

#define combine_u32 0x1p-24 // unit roundoff of fp32

// token_rows is the first slot: fills of other slots depend on it.
enum { COMBINE_TOKENS, COMBINE_TOP_K, COMBINE_HIDDEN, COMBINE_NUM_ROWS };
enum { COMBINE_TOKEN_ROWS, COMBINE_ROWS, COMBINE_WEIGHTS, COMBINE_SHARED, COMBINE_GATE };

extern const struct param_spec combine_params[];

int combine_shape_of_rows(const struct op_case *c, int64_t *shape);
int combine_shape_of_assignments(const struct op_case *c, int64_t *shape);
int combine_shape_of_tokens(const struct op_case *c, int64_t *shape);
// bench: a row for each assignment.
void combine_complete(struct op_case *c);
// Sizes of a random case with spare_rows more rows than assignments at most.
void combine_randomize(struct rng *rng, struct op_case *c, int64_t spare_rows);
// Fills the slots of the enum above; false for the others and for fills of rows by the general rule.
bool combine_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                  double *values);
// The row of an assignment, -1 without one.
int64_t combine_row(const struct op_case *c, int64_t token, int64_t k);

#endif
