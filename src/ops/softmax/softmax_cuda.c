// SPDX-License-Identifier: Apache-2.0
// Plans and launches of softmax on CUDA. Rows that fit are held in registers: one read and one write. Wider rows are
// swept twice. The unfused baseline has three launches with an fp32 tensor between them.
#include "context/cuda_rows.h"
#include "ops/softmax/softmax_params.h"
#include "ops/softmax/softmax_problem.h"

// Both passes leave room for 64 registers per thread, the limit with 1024 threads. Backward holds two rows. In forward,
// rows that come from the cache have fewer floats per thread, because more threads finish sooner.
enum { BACKWARD_FLOATS = 16, MAX_COLS = INT32_MAX - 65536 };
enum { NUM_WIDTHS = 7, FORWARD_COLS = 24576, SM_THREADS = 1024 };
static const struct tsri_cuda_width f32_widths[NUM_WIDTHS] = {{256, 32},         {1024, 8},
                                                              {2048, 16},        {4096, 16},
                                                              {8192, 16},        {16384, 32},
                                                              {FORWARD_COLS, 24}},
                                    half_widths[NUM_WIDTHS] = {
                                        {256, 32},  {1024, 16},  {2048, 16},        {4096, 32},
                                        {8192, 32}, {16384, 32}, {FORWARD_COLS, 24}};

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

static const struct tsri_cuda_width *widths_of(tsr_dtype dtype) {
    return dtype == TSR_F32 ? f32_widths : half_widths;
}

bool softmax_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    (void)limits;
    if (p->out.dtype == TSR_F64) return false;
    return is_backward(p) ? tsri_cuda_rows_fit(p->out.cols, BACKWARD_FLOATS, TSRI_ROWS_MAX_THREADS)
                          : p->out.cols <= FORWARD_COLS;
}

bool softmax_cuda_sweeps_fit(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    (void)limits;
    return p->out.dtype != TSR_F64 && p->out.cols <= MAX_COLS;
}

void softmax_cuda_plan(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    if (is_backward(p)) {
        tsri_plan_cuda_rows(plan, p->out.rows, p->out.cols, BACKWARD_FLOATS);
        return;
    }
    const int64_t bytes = p->out.rows * p->out.cols * (int64_t)tsr_dtype_bytes(p->out.dtype);
    tsri_plan_cuda_widths(plan, p->out.rows, p->out.cols, widths_of(p->out.dtype));
    plan->is_streaming = tsri_should_stream(limits, 2 * bytes);
}

void softmax_cuda_plan_sweeps(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_sweeps(plan, p->out.rows);
}

// Bytes of the tensor; one number per row follows it.
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
    struct softmax_params params = params_of(p);
    if (plan->is_streaming && params.is_aligned)
        params.early_rows =
            tsri_min(p->out.rows, (int64_t)tsri_context_limits(ctx)->num_sms *
                                      (SM_THREADS / tsri_cuda_block_threads(plan)) * plan->grain);
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

// The unfused kernel, which serves both passes, then the widths and the sweeps of each dtype.
bool softmax_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const int dtype = (index - 1) / (NUM_WIDTHS + 1), width = (index - 1) % (NUM_WIDTHS + 1);
    (void)cuda_arch;
    if (index == 0) {
        *program = unfused_program();
        program->is_rare = true; // a baseline
        return true;
    }
    if (dtype >= TSRI_NUM_CUDA_DTYPES) return false;
    const struct softmax_problem p = {.out.dtype = tsri_cuda_dtypes[dtype]};
    const struct tsri_cuda_width *widths = widths_of(p.out.dtype);
    struct tsri_plan plan = {.block_m = TSRI_SWEEPS_THREADS};
    if (width < NUM_WIDTHS) tsri_plan_cuda_widths(&plan, 1, widths[width].cols, widths);
    *program = program_of(&p, &plan);
    program->is_rare =
        width < NUM_WIDTHS ? widths[width].cols > TSRI_ROWS_ORDINARY_COLS : p.out.dtype == TSR_F16;
    return true;
}

bool softmax_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const struct kernel *rows = &kernels[1][0], *sweeps = &kernels[1][1];
    const struct tsri_cuda_rows_list list = {rows->source,          rows->entry,    BACKWARD_FLOATS,
                                             TSRI_ROWS_MAX_THREADS, sweeps->source, sweeps->entry};
    (void)cuda_arch;
    return tsri_cuda_rows_kernel(&list, index, program);
}
