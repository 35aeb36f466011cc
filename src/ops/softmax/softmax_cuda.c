// SPDX-License-Identifier: Apache-2.0
// Plans and launches of softmax on CUDA. Rows are held in registers or go through shared memory: one read, one write where
// they fit. The unfused baseline has three launches with an fp32 tensor between them.
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
enum { ROWS, STAGED, NUM_FORMS };
static const struct kernel kernels[2][NUM_FORMS] = {
    // [is_backward]
    {[ROWS] = {"ops/softmax/softmax_forward.cu", "softmax_forward"},
     [STAGED] = {"ops/softmax/softmax_forward_staged.cu", "softmax_forward_staged"}},
    {[ROWS] = {"ops/softmax/softmax_backward.cu", "softmax_backward"},
     [STAGED] = {"ops/softmax/softmax_backward_staged.cu", "softmax_backward_staged"}},
};

static int form_of(const struct tsri_plan *plan) { return plan->block_k > 0 ? STAGED : ROWS; }

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

bool softmax_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct softmax_problem *p = problem;
    (void)limits;
    return p->out.dtype != TSR_F64 && p->out.cols <= MAX_COLS;
}

static int num_inputs(const struct softmax_problem *p) { return is_backward(p) ? 2 : 1; }

void softmax_cuda_plan_stages(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    tsri_plan_cuda_stages(plan, limits, p->out.rows, p->out.cols, p->out.dtype, num_inputs(p));
}

static bool is_aligned(const struct softmax_problem *p) {
    return tsri_is_aligned(&p->in[0]) && tsri_is_aligned(&p->out) &&
           (!is_backward(p) || tsri_is_aligned(&p->in[1]));
}

// By width and dtype alone: a row's bits depend on none beside it, and so the choice depends on no number of rows. Forward rows
// of more columns fill the registers of a block badly.
const char *softmax_cuda_prefer(const struct softmax_problem *p, const struct tsri_limits *limits) {
    const bool is_wide = !is_backward(p) && p->out.cols > TSRI_ROWS_ORDINARY_COLS;
    return is_wide || !softmax_cuda_fits(p, limits) ? "cuda-staged" : "cuda-rows";
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

// Bytes of the tensor; one number per row follows it.
static size_t scratch_bytes(const struct softmax_problem *p) {
    return tsri_round_up((size_t)(p->out.rows * p->out.cols) * sizeof(float), 256);
}

void softmax_cuda_plan_unfused(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct softmax_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_sweeps(plan, p->out.rows);
    plan->workspace_bytes = scratch_bytes(p) + (size_t)p->out.rows * sizeof(float);
}

// ---- Launches ---------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(const struct softmax_problem *p,
                                           const struct tsri_plan *plan) {
    const struct kernel *kernel = &kernels[is_backward(p)][form_of(plan)];
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
        .is_aligned = is_aligned(p),
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
    int shared_bytes = 0;
    if (form_of(plan) == STAGED) {
        params.chunk = (int)plan->block_k;
        params.stage_bytes = tsri_cuda_stage_bytes(plan, p->out.dtype);
        shared_bytes = tsri_cuda_stages_bytes(plan, p->out.dtype, num_inputs(p));
    }
    return tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, shared_bytes, &params);
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
        TSRI_TRY(tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, 0, &params));
    }
    return TSR_OK;
}

// The index-th program of staged rows: each number of threads of each dtype; false after the last.
static bool staged_kernel(bool is_backward, int index, struct tsri_cuda_program *program) {
    if (index >= TSRI_NUM_STAGED_SIZES * TSRI_NUM_CUDA_DTYPES) return false;
    const tsr_dtype dtype = tsri_cuda_dtypes[index / TSRI_NUM_STAGED_SIZES];
    const struct softmax_problem p = {.out.dtype = dtype,
                                      .in[1].dtype = is_backward ? dtype : TSR_DTYPE_NONE};
    const struct tsri_plan plan = tsri_cuda_staged_size(index % TSRI_NUM_STAGED_SIZES);
    *program = program_of(&p, &plan);
    return true;
}

// The unfused kernel, which serves both passes, then the widths of each dtype, then staged rows.
bool softmax_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const int dtype = (index - 1) / NUM_WIDTHS, width = (index - 1) % NUM_WIDTHS;
    (void)cuda_arch;
    if (index == 0) {
        *program = unfused_program();
        program->is_rare = true; // a baseline
        return true;
    }
    if (dtype >= TSRI_NUM_CUDA_DTYPES)
        return staged_kernel(false, index - 1 - TSRI_NUM_CUDA_DTYPES * NUM_WIDTHS, program);
    const struct softmax_problem p = {.out.dtype = tsri_cuda_dtypes[dtype]};
    const struct tsri_cuda_width *widths = widths_of(p.out.dtype);
    struct tsri_plan plan = {0};
    tsri_plan_cuda_widths(&plan, 1, widths[width].cols, widths);
    *program = program_of(&p, &plan);
    program->is_rare = widths[width].cols > TSRI_ROWS_ORDINARY_COLS;
    return true;
}

bool softmax_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    enum { NUM_STAGED = TSRI_NUM_STAGED_SIZES * TSRI_NUM_CUDA_DTYPES };
    const struct kernel *rows = &kernels[1][ROWS];
    const struct tsri_cuda_rows_list list = {rows->source, rows->entry, BACKWARD_FLOATS,
                                             TSRI_ROWS_MAX_THREADS};
    (void)cuda_arch;
    return staged_kernel(true, index, program) ||
           tsri_cuda_rows_kernel(&list, index - NUM_STAGED, program);
}
