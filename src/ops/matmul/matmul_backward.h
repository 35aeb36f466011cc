// SPDX-License-Identifier: Apache-2.0
#ifndef TSRI_MATMUL_BACKWARD_H
#define TSRI_MATMUL_BACKWARD_H

#include "ops/matmul/matmul_problem.h"

// g = dc act'(preact), da = g b^T, db = a^T g, dbias = sum g; absent where data is NULL.
struct matmul_backward_problem {
    struct matmul_problem product; // forward's m, n, k, batches, a, b and activation
    struct matmul_matrix preact, dc, da, db;
    void *dbias;
    tsr_dtype dbias_dtype;
    bool is_b_shared; // by several batches: db and dbias sum over them
};

tsr_status matmul_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                         void *);

#endif
