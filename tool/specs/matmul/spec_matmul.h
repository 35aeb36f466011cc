// SPDX-License-Identifier: Apache-2.0
// Parameters and slots of matmul's cases, for its description and its bounds.
#ifndef SPEC_MATMUL_H
#define SPEC_MATMUL_H

#include "specs/spec.h"

enum {
    M,
    N,
    K,
    BATCH,
    TRANSPOSE_A,
    TRANSPOSE_B,
    SHARED_B,
    ACTIVATION,
    ACCUMULATE,
    ALPHA,
    FP8,
    BLOCK_SCALES,
    FAST_ACCUMULATE,
    MATH,
    B_DTYPE
};

enum { A, B, B_UP, BIAS, BIAS_UP, RESIDUAL, C, A_SCALE, B_SCALE, B_UP_SCALE };

enum { PREACT = 2, DC, DA, DB, DBIAS };

// Parameters and slots of grouped products; backward has no activation.
enum {
    ROWS,
    GROUPS = 3,
    RAGGED,
    GROUPED_TRANSPOSE_B,
    GROUPED_ACCUMULATE,
    GROUPED_ALPHA,
    ROWS_OF_A, // with a_rows, like those of dc with dc_rows
    GROUPED_ACTIVATION,
    GROUPED_FP8,
    GROUPED_SCALES,
    GROUPED_B_DTYPE,
    ROWS_OF_DC = GROUPED_ACTIVATION
};

// GROUPED_SCALES: one of a and of b; one of each group's b, beside one of a or of each 128 columns of its rows; of blocks.
enum { SCALES_OF_TENSORS, SCALES_OF_GROUPS, SCALES_OF_ROWS, SCALES_OF_BLOCKS };

enum {
    OFFSETS,
    COUNTS,
    A_ROWS,
    GROUPED_A,
    GROUPED_B,
    GROUPED_B_UP,
    GROUPED_BIAS,
    GROUPED_BIAS_UP,
    GROUPED_C,
    GROUPED_A_SCALE,
    GROUPED_B_SCALE,
    GROUPED_B_UP_SCALE
};

enum { DC_ROWS = GROUPED_B, GROUPED_DC, GROUPED_DB };

static inline bool is(const struct op_case *c, int param) { return c->param[param] != 0; }

// The dtypes of a and b, a parameter: the case's, or these; the case's dtype is then c's.
extern const char *const matmul_fp8_names[];
tsr_dtype matmul_fp8_dtype(const struct op_case *c, int param, bool is_of_b);
double matmul_fp8_of(tsr_dtype a, tsr_dtype b);
// The dtype of b beside a of f32, a parameter.
extern const char *const matmul_b_dtype_names[];
tsr_dtype matmul_b_dtype(const struct op_case *c, int param);
double matmul_b_dtype_of(tsr_dtype a, tsr_dtype b);
void matmul_fill_scale(struct rng *rng, const struct op_case *c, int slot, double *values);

// spec_matmul_bound.c
void matmul_forward_bound(const struct op_case *c, int slot, double *bound);
// The same if numbers are rounded first: those of b by at most b_unit of themselves or by b_least, those of a by a_unit of the
// largest among their 32 steps of k, or 2^-115.
struct matmul_rounding {
    double b_unit, b_least, a_unit;
};
void matmul_bound_of_rounded(const struct op_case *c, int slot, struct matmul_rounding rounding,
                             double *bound);
void matmul_backward_bound(const struct op_case *c, int slot, double *bound);
void matmul_grouped_forward_bound(const struct op_case *c, int slot, double *bound);
void matmul_grouped_backward_bound(const struct op_case *c, int slot, double *bound);
// The rows [first, end) of a group, counted through all groups.
void matmul_grouped_rows(const struct op_case *c, int64_t group, int64_t *first, int64_t *end);
// The row of a tensor that row i of the groups is, by the list in slot `list` if that is present.
int64_t matmul_grouped_row(const struct op_case *c, int list, int64_t i);

// spec_matmul.c
extern const struct op_spec matmul_forward_spec;
// spec_matmul_edges.c
extern const struct edge_case matmul_forward_edges[];

// The activations' names on the command line; ends with NULL.
extern const char *const matmul_activations[];

#endif
