// SPDX-License-Identifier: Apache-2.0
// Shared by both passes of grouped matmul.
#ifndef SPEC_MATMUL_GROUPED_H
#define SPEC_MATMUL_GROUPED_H

#include "specs/matmul/spec_matmul.h"

#define GROUPED_PARAMS                                                                             \
    {"rows", "rows of a and c: of all groups; with counts: per group", PARAM_SIZE, 4096, NULL},    \
        {"n", "columns of c", PARAM_SIZE, 1024, NULL},                                             \
        {"k", "columns of a", PARAM_SIZE, 1024, NULL},                                             \
        {"groups", "groups of rows", PARAM_SIZE, 8, NULL},                                         \
        {"ragged",      "groups of random sizes, and rows in no group", PARAM_FLAG, 0, NULL,       \
         SOURCE_TENSORS},                                                                          \
        {"transpose_b", "the groups' matrices are (n, k)", PARAM_FLAG, 0, NULL},                   \
        {"accumulate", "add to c or db, which are f32", PARAM_FLAG, 0, NULL},                      \
        {"alpha", "factor of the product", PARAM_REAL, 1, NULL, PARAM_FLOAT}, {                    \
        "rows_of_a", "with a_rows: rows of a; 0: as many as rows", PARAM_SIZE, 0, NULL             \
    }

bool grouped_has_counts(const struct op_case *c);
int grouped_shape_of_starts(const struct op_case *c, int slot, int64_t *shape);
// list, size: the slot of its list and, with it, the parameter that is its number of rows.
int grouped_shape_of_rows(const struct op_case *c, int cols, int list, int size, int64_t *shape);
int grouped_shape_of_list(const struct op_case *c, int64_t *shape);
int grouped_shape_of_matrices(const struct op_case *c, int64_t *shape);
// The number of multiplications: rows of all groups, times n and k.
double grouped_products(const struct op_case *c);
void grouped_complete(struct op_case *c);
bool grouped_infer_rows(struct op_case *c);
void grouped_randomize_rows(struct rng *rng, struct op_case *c);
void grouped_randomize_list(struct rng *rng, struct op_case *c, int list, int size);
// Writes NaN into rows of a slot that belong to no group, or that its list does not name in one; the call must not read
// them.
void grouped_spoil_rows(const struct op_case *c, int slot, int list, double *values);
// Draws a list of rows of a tensor with so many; elements of no group are no indices.
void grouped_fill_list(struct rng *rng, const struct op_case *c, int64_t num_rows, double *values);
// False for any other fill than its own.
bool grouped_fill_rows(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                       double *values);

// spec_matmul_grouped_edges.c
extern const struct edge_case matmul_grouped_forward_edges[];

#endif
