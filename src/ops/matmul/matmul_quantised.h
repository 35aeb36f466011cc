// SPDX-License-Identifier: Apache-2.0
// What matmul by quantised weights has beyond matmul.
#ifndef TSRI_MATMUL_QUANTISED_H
#define TSRI_MATMUL_QUANTISED_H

#include "ops/matmul/matmul_problem.h"

struct matmul_quant_kernels {
    // m rows of fp32 a by columns [col, col + n) of b, of k steps; overwrites acc (m x n, `stride` floats per row).
    void (*few)(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k, int64_t m,
                const float *a, int64_t a_stride, float *acc, int64_t stride);
};
TSRI_DECLARE_KERNELS(matmul_quant)

// matmul_quant_cpu.c
const char *matmul_quant_prefer(const void *problem, const struct tsri_limits *limits);
bool matmul_quant_is_skinny(const void *problem, const struct tsri_limits *limits);
void matmul_quant_plan_skinny(const void *problem, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_quant_skinny_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_quant_cuda.c
bool matmul_quant_cuda_serves(const void *problem, const struct tsri_limits *limits);
void matmul_quant_plan_cuda(const void *problem, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_quant_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_quant_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
