// SPDX-License-Identifier: Apache-2.0
// The launch of dequantize on CUDA: one kernel for each dtype of y.
#include "ops/dequantize/dequantize_params.h"

#include "context/cuda_elements.h"
#include "ops/dequantize/dequantize_problem.h"

static const char name[] = "dequantize", source[] = "ops/dequantize/dequantize.cu";

static struct tsri_cuda_program program_of(const struct dequantize_problem *p) {
    return tsri_cuda_dtype_program(source, name, p->y.dtype);
}

tsr_status dequantize_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = program_of(problem);
    (void)plan;
    return tsri_cuda_prepare(name, tsri_context_queue(ctx), &program);
}

static bool is_aligned(const struct tsri_rows *y) {
    enum { LINE = 16 };
    const int64_t stride = y->rows > 1 ? y->stride * tsri_dtype_bytes(y->dtype) : 0;
    return y->cols % DEQUANTIZE_NUMBERS == 0 && ((int64_t)(uintptr_t)y->data | stride) % LINE == 0;
}

tsr_status dequantize_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct dequantize_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p);
    const struct tsri_quant_block block = tsri_quant_block(p->x.format);
    const int64_t units = tsri_ceil_div(p->y.cols, DEQUANTIZE_NUMBERS);
    (void)plan, (void)workspace;
    if (p->y.rows * units == 0) return TSR_OK;
    const struct dequantize_params params = {
        .x = tsri_elements_view(&p->x.x),
        .scale = tsri_elements_view(&p->x.scale),
        .zero = tsri_elements_view(&p->x.zero),
        .minimum = tsri_elements_view(&p->x.minimum),
        .y = tsri_elements_view(&p->y),
        .x_rows = p->x_rows.data,
        .x_rows_stride = p->x_rows.stride,
        .rows = p->y.rows,
        .cols = p->y.cols,
        .num_x_rows = p->x.x.rows,
        .units_of_row = units,
        .num_units = p->y.rows * units,
        .group = p->x.group,
        .format = (int)p->x.format,
        .block_cols = block.cols,
        .block_bytes = block.bytes,
        .scale_dtype = (int)p->x.scale.dtype,
        .is_aligned = is_aligned(&p->y),
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(params.num_units, DEQUANTIZE_THREADS), INT32_MAX),
        .num_threads = DEQUANTIZE_THREADS,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(name, tsri_context_queue(ctx), &program, &launch);
}

bool dequantize_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(source, name, index, program);
}
