// SPDX-License-Identifier: Apache-2.0
#ifndef TSRI_MATMUL_BACKWARD_H
#define TSRI_MATMUL_BACKWARD_H

#include "ops/matmul/matmul_problem.h"

// g = dc act'(preact), da = g b^T, db = a^T g, dbias = sum g. data is NULL in absent gradients.
struct matmul_backward_problem {
    struct matmul_problem product; // forward's m, n, k, batches, a, b and activation
    struct matmul_matrix preact, dc, da, db;
    void *dbias;
    tsr_dtype dbias_dtype;
    bool is_b_shared; // several batches share b: db and dbias sum over them
};

// matmul_backward_steps.c
// The steps of backward: g, then products of the forward kind on views of g, a, b and the gradients.
struct matmul_backward_steps {
    struct matmul_matrix g;
    struct matmul_problem da, db;
    bool is_db_summed; // batch after batch into fp32 scratch, then stored
    // On CUDA instead: these operands are copied, so that all batches form one matrix.
    bool is_a_copied, is_g_copied;
    struct matmul_matrix a_copy, g_copy;
    int64_t num_groups, rows_per_group;
    size_t g_bytes, sum_bytes, copy_bytes, dbias_bytes,
        product_bytes; // in the workspace, in this order
};
struct matmul_backward_steps matmul_backward_steps(const struct matmul_backward_problem *p,
                                                   const struct tsri_limits *limits,
                                                   char *workspace);
void matmul_backward_plan(const void *problem, const struct tsri_limits *, struct tsri_plan *);
// Whether strides let the matrices of all batches form one with num_batches * m rows.
bool matmul_collapses(const struct matmul_problem *p, const struct matmul_matrix *t);

// matmul_backward_cuda.c
bool matmul_backward_cuda_serves(const void *problem, const struct tsri_limits *limits);
tsr_status matmul_backward_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_backward_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_backward_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

tsr_status matmul_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                         void *);

#endif
