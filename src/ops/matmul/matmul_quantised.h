// SPDX-License-Identifier: Apache-2.0
// What matmul by quantised weights has beyond matmul.
#ifndef TSRI_MATMUL_QUANTISED_H
#define TSRI_MATMUL_QUANTISED_H

#include "ops/matmul/matmul_problem.h"

struct matmul_quant_kernels {
    // m rows of fp32 a by columns [col, col + n) of b, of k steps; overwrites acc (m x n, `stride` floats per row).
    void (*few)(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k, int64_t m,
                const float *a, int64_t a_stride, float *acc, int64_t stride);
    // Steps [step, step + depth) of k of columns [col, col + n) of b, as rows of floats.
    void (*widen)(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t step,
                  int64_t depth, int64_t k, float *to, int64_t stride);
};
TSRI_DECLARE_KERNELS(matmul_quant)

// matmul_quant_cpu.c
struct gemm_kernels;
// Packs steps of n columns of b, or of b_up, at most nr, as pack_b does.
void matmul_pack_quant(const struct gemm_kernels *gemm, const struct matmul_quant_kernels *kernels,
                       const struct matmul_problem *p, bool is_up, int64_t step, int64_t depth,
                       int64_t col, int64_t n, float *panel);
const char *matmul_quant_prefer(const void *problem, const struct tsri_limits *limits);
bool matmul_quant_is_skinny(const void *problem, const struct tsri_limits *limits);
void matmul_quant_plan_skinny(const void *problem, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_quant_skinny_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_quant_integers.c
bool matmul_quant_has_integers(const void *problem, const struct tsri_limits *limits);
void matmul_quant_plan_integers(const void *problem, const struct tsri_limits *,
                                struct tsri_plan *);
tsr_status matmul_quant_integers_run(tsr_context *, const void *problem, const struct tsri_plan *,
                                     void *);

// matmul_quant_cuda.c
bool matmul_quant_cuda_serves(const void *problem, const struct tsri_limits *limits);
void matmul_quant_plan_cuda(const void *problem, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_quant_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_quant_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
