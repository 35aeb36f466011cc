// SPDX-License-Identifier: Apache-2.0
// A product of contiguous matrices, for what is planned and chosen on the CPU without running it.
#ifndef MATMUL_CPU_CASE_H
#define MATMUL_CPU_CASE_H

#include "ops/matmul/matmul_problem.h"

static inline struct matmul_problem product_of(tsr_dtype dtype, int64_t m, int64_t n, int64_t k) {
    return (struct matmul_problem){.m = m,
                                   .n = n,
                                   .k = k,
                                   .num_batches = 1,
                                   .batch = {1, 1, 1},
                                   .a = {NULL, dtype, k, 1, {0}},
                                   .b = {NULL, dtype, n, 1, {0}},
                                   .c = {NULL, dtype, n, 1, {0}},
                                   .alpha = 1};
}

#endif
