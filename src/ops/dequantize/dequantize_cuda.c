// SPDX-License-Identifier: Apache-2.0
// Dequantize on CUDA: context/cuda_quant.c launches its kernel, for other operations too.
#include "context/cuda_quant.h"
#include "ops/dequantize/dequantize_problem.h"

tsr_status dequantize_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct dequantize_problem *p = problem;
    (void)plan;
    return tsri_cuda_dequantize_prepare(ctx, "dequantize", p->y.dtype);
}

tsr_status dequantize_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct dequantize_problem *p = problem;
    (void)plan, (void)workspace;
    return tsri_cuda_dequantize(ctx, "dequantize", &p->x, p->has_list ? &p->x_rows : NULL, &p->y);
}

bool dequantize_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dequantize_kernel(index, program);
}
