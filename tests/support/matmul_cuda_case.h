// SPDX-License-Identifier: Apache-2.0
// A product and a card for the tests of matmul's kernels that need no GPU. One test program includes this file.
#ifndef MATMUL_CUDA_CASE_H
#define MATMUL_CUDA_CASE_H

#include "ops/matmul/cuda/matmul_cuda.h"

static _Alignas(16) uint16_t memory[1024];

static const struct tsri_limits hopper = {.device = {TSR_CUDA, 0},
                                          .cuda_arch = 90,
                                          .num_sms = 132,
                                          .shared_bytes_per_block = MATMUL_WGMMA_SHARED_BYTES};

// a is (m, k); b is (n, k), as weights are stored; c is (m, n).
static inline struct matmul_problem product_of(tsr_dtype a, tsr_dtype b, tsr_dtype c, int64_t m,
                                               int64_t n, int64_t k) {
    char *data = (char *)memory;
    return (struct matmul_problem){.m = m,
                                   .n = n,
                                   .k = k,
                                   .num_batches = 1,
                                   .batch = {1, 1, 1},
                                   .a = {data, a, k, 1, {0}},
                                   .b = {data, b, 1, k, {0}},
                                   .c = {data, c, n, 1, {0}},
                                   .alpha = 1};
}

#endif
