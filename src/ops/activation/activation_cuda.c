// SPDX-License-Identifier: Apache-2.0
// The launches of activation on CUDA. One kernel per pass, dtype and gating, because gating needs registers; the kind
// is a branch that all threads take alike.
#include "context/cuda_elements.h"
#include "ops/activation/activation_params.h"
#include "ops/activation/activation_problem.h"

static const char forward_source[] = "ops/activation/activation_forward.cu",
                  backward_source[] = "ops/activation/activation_backward.cu",
                  forward_name[] = "activation_forward", backward_name[] = "activation_backward";

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
    return program_for(is_backward(p), p->y.dtype, p->is_gated);
}

tsr_status activation_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct tsri_cuda_program of_call = program_of(problem);
    (void)plan;
    return tsri_cuda_prepare(of_call.entry, tsri_context_queue(ctx), &of_call);
}

tsr_status activation_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct activation_problem *p = problem;
    const struct tsri_cuda_program of_call = program_of(p);
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
    return list_kernel(true, index, program);
}
