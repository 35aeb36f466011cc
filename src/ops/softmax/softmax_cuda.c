// SPDX-License-Identifier: Apache-2.0
// Softmax on CUDA: plans and launches. Rows that fit are held in registers, one read and one write; wider ones
// are gone over twice. The unfused form, to measure against, is three launches with a tensor in fp32 between them.
#include "context/cuda_rows.h"
#include "ops/softmax/softmax_params.h"
#include "ops/softmax/softmax_problem.h"

// Backward holds two rows. Both leave room for 64 registers a thread, as many as 1024 threads can have.
enum { FORWARD_FLOATS = 32, BACKWARD_FLOATS = 16, MAX_COLS = INT32_MAX - 65536 };

struct kernel {
    const char *source, *entry;
};
static const struct kernel kernels[2][2] = {
    // [is_backward][is_sweeping]
    {{"ops/softmax/softmax_forward.cu", "softmax_forward"},
     {"ops/softmax/softmax_forward_sweeps.cu", "softmax_forward_sweeps"}},
    {{"ops/softmax/softmax_backward.cu", "softmax_backward"},
     {"ops/softmax/softmax_backward_sweeps.cu", "softmax_backward_sweeps"}},
};

static bool is_backward(const struct softmax_problem *p) {
    return p->in[1].dtype != TSR_DTYPE_NONE;
}

// ---- Plans ------------------------------------------------------------------------------------

static int floats_of(const struct softmax_problem *p) {
    return is_backward(p) ? BACKWARD_FLOATS : FORWARD_FLOATS;
}

bool softmax_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    (void)limits;
    return p->out.dtype != TSR_F64 &&
           tsri_cuda_rows_fit(p->out.cols, floats_of(p), TSRI_ROWS_MAX_THREADS);
}

bool softmax_cuda_sweeps_fit(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    (void)limits;
    return p->out.dtype != TSR_F64 && p->out.cols <= MAX_COLS;
}

void softmax_cuda_plan(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_rows(plan, p->out.rows, p->out.cols, floats_of(p));
}

void softmax_cuda_plan_sweeps(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_sweeps(plan, p->out.rows);
}

// The tensor, then one number a row.
static size_t scratch_bytes(const struct softmax_problem *p) {
    return tsri_round_up((size_t)(p->out.rows * p->out.cols) * sizeof(float), 256);
}

void softmax_cuda_plan_unfused(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    softmax_cuda_plan_sweeps(problem, limits, plan);
    plan->workspace_bytes = scratch_bytes(p) + (size_t)p->out.rows * sizeof(float);
}

// ---- Launches ---------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(const struct softmax_problem *p,
                                           const struct tsri_plan *plan) {
    const struct kernel *kernel = &kernels[is_backward(p)][plan->block_n == 0];
    return tsri_cuda_rows_program(kernel->source, kernel->entry, p->out.dtype, plan);
}

static const char *name_of(const struct softmax_problem *p) {
    return is_backward(p) ? "softmax_backward" : "softmax_forward";
}

static struct softmax_params params_of(const struct softmax_problem *p) {
    return (struct softmax_params){
        .in = {p->in[0].data, p->in[1].data},
        .out = p->out.data,
        .in_stride = {p->in[0].stride, p->in[1].stride},
        .out_stride = p->out.stride,
        .rows = p->out.rows,
        .cols = (int)p->out.cols,
        .is_aligned = tsri_is_aligned(&p->in[0]) && tsri_is_aligned(&p->out) &&
                      (!is_backward(p) || tsri_is_aligned(&p->in[1])),
    };
}

tsr_status softmax_cuda_prepare(tsr_context *ctx, const void *problem,
                                const struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p, plan);
    return tsri_cuda_prepare(name_of(p), tsri_context_queue(ctx), &program);
}

tsr_status softmax_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                            void *workspace) {
    (void)workspace;
    const struct softmax_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p, plan);
    const struct softmax_params params = params_of(p);
    return tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, &params);
}

static struct tsri_cuda_program unfused_program(void) {
    const struct tsri_plan sweeps = {.block_m = TSRI_SWEEPS_THREADS};
    return tsri_cuda_rows_program("ops/softmax/softmax_unfused.cu", "softmax_unfused", TSR_F32,
                                  &sweeps);
}

tsr_status softmax_cuda_prepare_unfused(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    (void)plan;
    const struct softmax_problem *p = problem;
    const struct tsri_cuda_program program = unfused_program();
    return tsri_cuda_prepare(name_of(p), tsri_context_queue(ctx), &program);
}

tsr_status softmax_cuda_run_unfused(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct softmax_problem *p = problem;
    const struct tsri_cuda_program program = unfused_program();
    struct softmax_params params = params_of(p);
    int first = is_backward(p) ? SOFTMAX_PASS_PRODUCT : SOFTMAX_PASS_MAX;
    params.dtype = (int)p->out.dtype;
    params.scratch = workspace;
    params.of_rows = (float *)(void *)((char *)workspace + scratch_bytes(p));
    for (int i = 0; i < 3; i++) {
        params.pass = first + i;
        TSRI_TRY(tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, &params));
    }
    return TSR_OK;
}

// The unfused one, which serves both passes and is forward's here, then those of the other plans.
static bool list_kernel(int pass, int floats, int index, struct tsri_cuda_program *program) {
    const struct kernel *rows = &kernels[pass][0], *sweeps = &kernels[pass][1];
    const struct tsri_cuda_rows_list list = {rows->source,          rows->entry,    floats,
                                             TSRI_ROWS_MAX_THREADS, sweeps->source, sweeps->entry};
    if (pass != 0) return tsri_cuda_rows_kernel(&list, index, program);
    if (index > 0) return tsri_cuda_rows_kernel(&list, index - 1, program);
    *program = unfused_program();
    program->is_rare = true; // a baseline
    return true;
}

bool softmax_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return list_kernel(0, FORWARD_FLOATS, index, program);
}

bool softmax_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return list_kernel(1, BACKWARD_FLOATS, index, program);
}
