// SPDX-License-Identifier: Apache-2.0
// Parameters and slots of matmul's cases, for its description and its bounds.
#ifndef SPEC_MATMUL_H
#define SPEC_MATMUL_H

#include "spec.h"

enum { M, N, K, BATCH, TRANSPOSE_A, TRANSPOSE_B, SHARED_B, ACTIVATION, ACCUMULATE, ALPHA };

enum { A, B, B_UP, BIAS, RESIDUAL, C };

enum { PREACT = 2, DC, DA, DB, DBIAS };

static inline bool is(const struct op_case *c, int param) { return c->param[param] != 0; }

// spec_matmul_bound.c
void matmul_forward_bound(const struct op_case *c, int slot, double *bound);
void matmul_backward_bound(const struct op_case *c, int slot, double *bound);

#endif
