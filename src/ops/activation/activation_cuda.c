// SPDX-License-Identifier: Apache-2.0
// The activations on CUDA: launches. One kernel for each pass and dtype; kind and gating are branches that all
// threads take alike.
#include "context/cuda_elements.h"
#include "ops/activation/activation_params.h"
#include "ops/activation/activation_problem.h"

static const char forward_source[] = "ops/activation/activation_forward.cu",
                  backward_source[] = "ops/activation/activation_backward.cu",
                  forward_name[] = "activation_forward", backward_name[] = "activation_backward";

static bool is_backward(const struct activation_problem *p) {
    return p->dy.dtype != TSR_DTYPE_NONE;
}

static struct tsri_cuda_program program_of(const struct activation_problem *p) {
    return is_backward(p) ? tsri_cuda_dtype_program(backward_source, backward_name, p->y.dtype)
                          : tsri_cuda_dtype_program(forward_source, forward_name, p->y.dtype);
}

tsr_status activation_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = program_of(problem);
    (void)plan;
    return tsri_cuda_prepare(program.entry, tsri_context_queue(ctx), &program);
}

tsr_status activation_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct activation_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p);
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
    if (!p->is_gated) params.up.data = params.dup.data = NULL;
    tsri_cuda_elements_grid(
        &params.grid, views, TSRI_COUNT(views), 16 / (int)tsr_dtype_bytes(p->y.dtype),
        is_backward(p) ? ACTIVATION_BACKWARD_AT_ONCE : ACTIVATION_FORWARD_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, program.entry, &program, &params.grid, &params);
}

bool activation_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(forward_source, forward_name, index, program);
}

bool activation_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(backward_source, backward_name, index, program);
}
