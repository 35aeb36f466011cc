// SPDX-License-Identifier: Apache-2.0
// The launches of activation on CUDA. One kernel per pass, dtype and gating, because gating needs registers; the kind
// is a branch that all threads take alike. Rows that have weights take a kernel of rows, whatever else they have.
#include "context/cuda_elements.h"
#include "ops/activation/activation_params.h"
#include "ops/activation/activation_problem.h"

static const char forward_source[] = "ops/activation/activation_forward.cu",
                  backward_source[] = "ops/activation/activation_backward.cu",
                  weighted_source[] = "ops/activation/activation_weighted.cu",
                  forward_name[] = "activation_forward", backward_name[] = "activation_backward",
                  weighted_name[] = "activation_weighted";

static bool is_backward(const struct activation_problem *p) {
    return p->dy.dtype != TSR_DTYPE_NONE;
}

static struct tsri_cuda_program program_for(bool is_backward, tsr_dtype dtype, bool is_gated) {
    return (struct tsri_cuda_program){is_backward ? backward_source : forward_source,
                                      is_backward ? backward_name : forward_name,
                                      2,
                                      {{"DTYPE", (int)dtype}, {"IS_GATED", is_gated}}};
}

static struct tsri_cuda_program program_of(const struct activation_problem *p) {
    if (p->is_weighted) return tsri_cuda_dtype_program(weighted_source, weighted_name, p->y.dtype);
    return program_for(is_backward(p), p->y.dtype, p->is_gated);
}

tsr_status activation_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct tsri_cuda_program of_call = program_of(problem);
    (void)plan;
    return tsri_cuda_prepare(is_backward(problem) ? backward_name : forward_name,
                             tsri_context_queue(ctx), &of_call);
}

static bool starts_at_groups(const struct tsri_rows *t) {
    const int64_t bytes = t->rows > 1 ? t->stride * (int64_t)tsr_dtype_bytes(t->dtype) : 0;
    return t->dtype == TSR_DTYPE_NONE || ((uintptr_t)t->data % 16 == 0 && bytes % 16 == 0);
}

static tsr_status run_weighted(tsr_context *ctx, const struct activation_problem *p,
                               const struct tsri_cuda_program *program) {
    const int64_t units = tsri_ceil_div(p->y.cols * (int64_t)tsr_dtype_bytes(p->y.dtype), 16),
                  warps = ACTIVATION_WEIGHTED_THREADS / 32;
    const struct activation_weighted_params params = {
        .x = tsri_elements_view(&p->x),
        .up = tsri_elements_view(&p->up),
        .dy = tsri_elements_view(&p->dy),
        .dx = tsri_elements_view(&p->y),
        .dup = tsri_elements_view(&p->dup),
        .weighted_y = tsri_elements_view(&p->weighted_y),
        .row_weights = tsri_elements_view(&p->row_weights),
        .drow_weights = tsri_elements_view(&p->drow_weights),
        .rows = p->y.rows,
        .cols = p->y.cols,
        .kind = (int)p->kind,
        .is_aligned = starts_at_groups(&p->x) && starts_at_groups(&p->up) &&
                      starts_at_groups(&p->dy) && starts_at_groups(&p->y) &&
                      starts_at_groups(&p->dup) && starts_at_groups(&p->weighted_y),
        .rows_of_block = units > ACTIVATION_WEIGHTED_LONG ? 1
                         : units > ACTIVATION_WEIGHTED_SHORT
                             ? (int)warps
                             : (int)warps * ACTIVATION_WEIGHTED_AT_ONCE,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(params.rows, params.rows_of_block), INT32_MAX),
        .num_threads = ACTIVATION_WEIGHTED_THREADS,
        .is_early = true,
        .params = &params,
    };
    if (params.rows == 0) return TSR_OK;
    return tsri_cuda_launch(backward_name, tsri_context_queue(ctx), program, &launch);
}

tsr_status activation_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct activation_problem *p = problem;
    const struct tsri_cuda_program of_call = program_of(p);
    if (p->is_weighted) return run_weighted(ctx, p, &of_call);
    const struct tsri_rows *const views[] = {&p->x, &p->up, &p->dy, &p->y, &p->dup};
    struct activation_params params = {
        .x = tsri_elements_view(&p->x),
        .up = tsri_elements_view(&p->up),
        .dy = tsri_elements_view(&p->dy),
        .y = tsri_elements_view(&p->y),
        .dup = tsri_elements_view(&p->dup),
        .kind = (int)p->kind,
    };
    (void)plan, (void)workspace;
    tsri_cuda_elements_grid(
        &params.grid, views, TSRI_COUNT(views), 16 / (int)tsr_dtype_bytes(p->y.dtype),
        is_backward(p) ? ACTIVATION_BACKWARD_AT_ONCE : ACTIVATION_FORWARD_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, of_call.entry, &of_call, &params.grid, &params);
}

static bool list_kernel(bool is_backward, int index, struct tsri_cuda_program *listed) {
    if (index >= 2 * TSRI_NUM_CUDA_DTYPES) return false;
    *listed = program_for(is_backward, tsri_cuda_dtypes[index / 2], index % 2 != 0);
    return true;
}

bool activation_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return list_kernel(false, index, program);
}

bool activation_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    if (list_kernel(true, index, program)) return true;
    index -= 2 * TSRI_NUM_CUDA_DTYPES;
    if (!tsri_cuda_dtype_kernel(weighted_source, weighted_name, index, program)) return false;
    program->is_rare = tsri_cuda_dtypes[index] == TSR_F16;
    return true;
}
