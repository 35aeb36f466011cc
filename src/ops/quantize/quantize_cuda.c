// SPDX-License-Identifier: Apache-2.0
// The launch of quantize on CUDA: one kernel for each dtype of x. Gate, row list, kind and y's format are branches that all threads
// take alike.
#include "context/cuda_elements.h"
#include "ops/quantize/quantize_problem.h"

static const char name[] = "quantize", source[] = "ops/quantize/quantize.cu";

static struct tsri_cuda_program program_of(const struct quantize_problem *p) {
    return tsri_cuda_dtype_program(source, name, p->x.dtype);
}

tsr_status quantize_cuda_prepare(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = program_of(problem);
    (void)plan;
    return tsri_cuda_prepare(name, tsri_context_queue(ctx), &program);
}

// Whether every row begins at a multiple of so many bytes.
static bool begins_at(const struct tsri_rows *t, int64_t multiple) {
    const int64_t stride = t->rows > 1 ? t->stride * tsri_dtype_bytes(t->dtype) : 0;
    return t->dtype == TSR_DTYPE_NONE || ((int64_t)(uintptr_t)t->data | stride) % multiple == 0;
}

tsr_status quantize_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    enum { UNIT_BYTES = 16 };
    const struct quantize_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p);
    const int64_t unit = UNIT_BYTES / tsri_dtype_bytes(p->x.dtype);
    const int64_t groups = QUANTIZE_THREADS / (QUANTIZE_BLOCK / unit), width = p->y_scale.cols;
    const int64_t num_blocks = p->y.rows * width;
    (void)plan, (void)workspace;
    if (num_blocks == 0) return TSR_OK;
    const struct quantize_params params = {
        .x = tsri_elements_view(&p->x),
        .up = tsri_elements_view(&p->up),
        .y = tsri_elements_view(&p->y),
        .y_scale = tsri_elements_view(&p->y_scale),
        .x_rows = p->x_rows.data,
        .x_rows_stride = p->x_rows.stride,
        .rows = p->y.rows,
        .cols = p->y.cols,
        .num_x_rows = p->x.rows,
        .blocks_of_row = width,
        .num_blocks = num_blocks,
        .row_step = groups / width,
        .block_step = groups % width,
        .kind = (int)p->kind,
        .is_e5m2 = p->y.dtype == TSR_E5M2,
        .is_aligned = begins_at(&p->x, UNIT_BYTES) && begins_at(&p->up, UNIT_BYTES) &&
                      begins_at(&p->y, unit) && p->y.cols % unit == 0,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(num_blocks, groups * QUANTIZE_AT_ONCE), INT32_MAX),
        .num_threads = QUANTIZE_THREADS,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(name, tsri_context_queue(ctx), &program, &launch);
}

bool quantize_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(source, name, index, program);
}
