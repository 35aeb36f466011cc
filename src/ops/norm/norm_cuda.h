// SPDX-License-Identifier: Apache-2.0
// What the norms' plans and launches on CUDA share, forward and backward.
#ifndef TSRI_NORM_CUDA_H
#define TSRI_NORM_CUDA_H

#include "context/cuda_rows.h"
#include "ops/norm/norm_params.h"
#include "ops/norm/norm_problem.h"

enum { NORM_MAX_THREADS = 512 }; // of a row: with more of them there are too few registers for each

struct norm_kernel {
    const char *source, *entry;
};

static inline struct tsri_cuda_program norm_program(const struct norm_kernel *kernel,
                                                    const struct norm_problem *p,
                                                    const struct tsri_plan *plan) {
    return tsri_cuda_rows_program(kernel->source, kernel->entry, p->dtype, plan);
}

static inline bool norm_is_vector_aligned(const struct norm_vector *vector) {
    return (uintptr_t)vector->data % 16 == 0; // absent ones are
}

static inline bool norm_are_aligned(const struct tsri_rows *const *rows, int count) {
    bool aligned = true;
    for (int i = 0; i < count; i++) aligned &= rows[i]->data == NULL || tsri_is_aligned(rows[i]);
    return aligned;
}

// Blocks that go over so many groups of rows in steps: no more than run at once, and with the same number of steps
// each, or one fewer.
static inline int64_t norm_even_blocks(int64_t groups, int64_t resident) {
    return groups > 0 ? tsri_ceil_div(groups, tsri_ceil_div(groups, resident)) : 0;
}

#endif
