// SPDX-License-Identifier: Apache-2.0
// The launch of AdamW on CUDA: one kernel per dtype of param.
#include "context/cuda_elements.h"
#include "ops/adamw/adamw_params.h"
#include "ops/adamw/adamw_problem.h"

static const char source[] = "ops/adamw/adamw_step.cu", name[] = "adamw_step";

tsr_status adamw_cuda_prepare(tsr_context *ctx, const void *problem, const struct tsri_plan *plan) {
    const struct adamw_problem *p = problem;
    const struct tsri_cuda_program program = tsri_cuda_dtype_program(source, name, p->param.dtype);
    (void)plan;
    return tsri_cuda_prepare(name, tsri_context_queue(ctx), &program);
}

tsr_status adamw_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                          void *workspace) {
    const struct adamw_problem *p = problem;
    const struct tsri_cuda_program program = tsri_cuda_dtype_program(source, name, p->param.dtype);
    const struct tsri_rows *const views[] = {&p->param, &p->grad, &p->m, &p->v, &p->master};
    struct adamw_params params = {
        .param = tsri_elements_view(&p->param),
        .grad = tsri_elements_view(&p->grad),
        .m = tsri_elements_view(&p->m),
        .v = tsri_elements_view(&p->v),
        .master = tsri_elements_view(&p->master),
        .grad_scale = (float)p->grad_scale,
        .beta1 = (float)p->beta1,
        .rest1 = (float)p->rest1,
        .beta2 = (float)p->beta2,
        .rest2 = (float)p->rest2,
        .rate = (float)p->rate,
        .root_factor = (float)p->root_factor,
        .eps = (float)p->eps,
        .decay = (float)p->decay,
        .grad_is_f32 = p->grad.dtype == TSR_F32,
    };
    (void)plan, (void)workspace;
    if (!p->has_master) params.master.data = NULL;
    tsri_cuda_elements_grid(&params.grid, views, TSRI_COUNT(views), ADAMW_UNIT, ADAMW_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, name, &program, &params.grid, &params);
}

bool adamw_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(source, name, index, program);
}
