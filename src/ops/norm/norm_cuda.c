// SPDX-License-Identifier: Apache-2.0
// The norms on CUDA: plans and launches. Rows that fit are held in registers; wider ones are gone over in sweeps.
#include "context/cuda_rows.h"
#include "ops/norm/norm_params.h"
#include "ops/norm/norm_problem.h"

// Forward holds a row and the residual's, backward two rows, weight and two rows of sums: 512 threads a row are the most
// that have the registers.
enum { FORWARD_FLOATS = 32, BACKWARD_FLOATS = 16, MAX_THREADS = 512, STRIP = 128 };
enum { MAX_COLS = INT32_MAX - 65536 };

struct kernel {
    const char *source, *entry;
};
static const struct kernel forward_rows = {"ops/norm/norm_forward.cu", "norm_forward"},
                           forward_sweeps = {"ops/norm/norm_forward_sweeps.cu",
                                             "norm_forward_sweeps"},
                           backward_rows = {"ops/norm/norm_backward.cu", "norm_backward"},
                           backward_sweeps = {"ops/norm/norm_backward_sweeps.cu",
                                              "norm_backward_sweeps"},
                           columns = {"ops/norm/norm_columns.cu", "norm_columns"},
                           reduce = {"ops/norm/norm_reduce.cu", "norm_reduce"};

// ---- Plans ------------------------------------------------------------------------------------

static bool is_forward(const struct norm_problem *p) { return p->y.dtype != TSR_DTYPE_NONE; }

static bool wants_sums(const struct norm_problem *p) {
    return p->dweight.data != NULL || p->dbias.data != NULL;
}

bool norm_cuda_sweeps_fit(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    (void)limits;
    return p->dtype != TSR_F64 && p->cols <= MAX_COLS;
}

bool norm_cuda_forward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_sweeps_fit(p, limits) &&
           tsri_cuda_rows_fit(p->cols, FORWARD_FLOATS, MAX_THREADS);
}

bool norm_cuda_backward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_sweeps_fit(p, limits) &&
           tsri_cuda_rows_fit(p->cols, BACKWARD_FLOATS, MAX_THREADS);
}

void norm_cuda_plan_forward(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_rows(plan, p->rows, p->cols, FORWARD_FLOATS);
}

void norm_cuda_plan_forward_sweeps(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_sweeps(plan, p->rows);
}

// As many blocks as run at once, each with sums of its own, whose number must not follow the batch more than
// that: on a multiprocessor as many as norm_backward.cu has registers for.
void norm_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_rows(plan, p->rows, p->cols, BACKWARD_FLOATS);
    int64_t most = p->dtype == TSR_F32 ? 384 : 512; // threads
    int64_t resident = tsri_max(most / tsri_cuda_block_threads(plan), 1);
    plan->num_tasks = tsri_min(plan->num_tasks, resident * limits->num_sms);
    if (wants_sums(p))
        plan->workspace_bytes = (size_t)(2 * plan->num_tasks * p->cols) * sizeof(float);
}

// block_k: groups of rows for the sums, so many that the strips of 128 columns fill the card eight times.
void norm_cuda_plan_backward_sweeps(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_sweeps(plan, p->rows);
    int64_t strips = tsri_max(tsri_ceil_div(p->cols, STRIP), 1);
    int64_t groups = tsri_ceil_div((int64_t)limits->num_sms * 8, strips);
    plan->block_k = wants_sums(p) ? tsri_min(groups, p->rows) : 0;
    plan->workspace_bytes = (size_t)(2 * plan->block_k * p->cols) * sizeof(float);
}

// ---- Programs ---------------------------------------------------------------------------------

static struct tsri_cuda_program rows_program(const struct kernel *kernel,
                                             const struct norm_problem *p,
                                             const struct tsri_plan *plan) {
    return tsri_cuda_rows_program(kernel->source, kernel->entry, p->dtype, plan);
}

static struct tsri_cuda_program plain_program(const struct kernel *kernel, tsr_dtype dtype) {
    return (struct tsri_cuda_program){kernel->source, kernel->entry, 1, {{"DTYPE", (int)dtype}}};
}

static const struct kernel *main_kernel(const struct norm_problem *p,
                                        const struct tsri_plan *plan) {
    bool is_sweeping = plan->block_n == 0;
    if (is_forward(p)) return is_sweeping ? &forward_sweeps : &forward_rows;
    return is_sweeping ? &backward_sweeps : &backward_rows;
}

static const char *name_of(const struct norm_problem *p) {
    if (p->is_rmsnorm) return is_forward(p) ? "rmsnorm_forward" : "rmsnorm_backward";
    return is_forward(p) ? "layernorm_forward" : "layernorm_backward";
}

tsr_status norm_cuda_prepare(tsr_context *ctx, const void *problem, const struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct tsri_cuda_program of_rows = rows_program(main_kernel(p, plan), p, plan),
                                   of_columns = plain_program(&columns, p->dtype),
                                   of_reduce = plain_program(&reduce, p->dtype);
    TSRI_TRY(tsri_cuda_prepare(name_of(p), queue, &of_rows));
    if (!wants_sums(p)) return TSR_OK;
    if (plan->block_k > 0) TSRI_TRY(tsri_cuda_prepare(name_of(p), queue, &of_columns));
    return tsri_cuda_prepare(name_of(p), queue, &of_reduce);
}

// ---- Launches ---------------------------------------------------------------------------------

static bool is_vector_aligned(const struct norm_vector *vector) {
    return (uintptr_t)vector->data % 16 == 0; // absent ones are
}

static bool are_aligned(const struct tsri_rows *const *rows, int count) {
    bool aligned = true;
    for (int i = 0; i < count; i++) aligned &= rows[i]->data == NULL || tsri_is_aligned(rows[i]);
    return aligned;
}

tsr_status norm_cuda_forward_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    const struct norm_problem *p = problem;
    const struct tsri_rows *const rows[] = {&p->x, &p->residual, &p->y, &p->residual_out};
    const struct norm_forward_params params = {
        .x = p->x.data,
        .residual = p->residual.data,
        .weight = p->weight.data,
        .bias = p->bias.data,
        .y = p->y.data,
        .residual_out = p->residual_out.data,
        .mean = p->mean.data,
        .rstd = p->rstd.data,
        .x_stride = p->x.stride,
        .residual_stride = p->residual.stride,
        .y_stride = p->y.stride,
        .residual_out_stride = p->residual_out.stride,
        .rows = p->rows,
        .eps = p->eps,
        .inverse_cols = 1 / (double)tsri_max(p->cols, 1),
        .cols = (int)p->cols,
        .is_rmsnorm = p->is_rmsnorm,
        .weight_is_f32 = p->weight.dtype == TSR_F32,
        .is_aligned = are_aligned(rows, TSRI_COUNT(rows)) && is_vector_aligned(&p->weight) &&
                      is_vector_aligned(&p->bias),
    };
    const struct tsri_cuda_program program = rows_program(main_kernel(p, plan), p, plan);
    return tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, &params);
}

static tsr_status launch(tsr_context *ctx, const struct norm_problem *p,
                         const struct kernel *kernel, int64_t num_blocks, int num_threads,
                         const void *params) {
    const struct tsri_cuda_program program = plain_program(kernel, p->dtype);
    const struct tsri_cuda_launch launch = {
        .num_blocks = num_blocks, .num_threads = num_threads, .params = params};
    return tsri_cuda_launch(name_of(p), tsri_context_queue(ctx), &program, &launch);
}

static tsr_status run_reduce(tsr_context *ctx, const struct norm_problem *p, const float *partial,
                             int64_t blocks) {
    enum { STRIP_OF_REDUCE = 32, THREADS_OF_REDUCE = 256 };
    const struct norm_reduce_params params = {
        .partial = partial,
        .dweight = p->dweight.data,
        .dbias = p->dbias.data,
        .blocks = (int)blocks,
        .cols = (int)p->cols,
        .dweight_is_f32 = p->dweight.dtype == TSR_F32,
        .dbias_is_f32 = p->dbias.dtype == TSR_F32,
    };
    return launch(ctx, p, &reduce, 2 * tsri_ceil_div(p->cols, STRIP_OF_REDUCE), THREADS_OF_REDUCE,
                  &params);
}

tsr_status norm_cuda_backward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    const struct tsri_rows *const rows[] = {&p->x, &p->dy, &p->dresidual_out, &p->dx};
    bool has_sums = wants_sums(p) && p->cols > 0, is_sweeping = plan->block_n == 0;
    const struct norm_backward_params params = {
        .x = p->x.data,
        .dy = p->dy.data,
        .dresidual_out = p->dresidual_out.data,
        .weight = p->weight.data,
        .mean = p->mean.data,
        .rstd = p->rstd.data,
        .dx = p->dx.data,
        .partial = has_sums ? workspace : NULL,
        .x_stride = p->x.stride,
        .dy_stride = p->dy.stride,
        .dresidual_out_stride = p->dresidual_out.stride,
        .dx_stride = p->dx.stride,
        .rows = p->rows,
        .cols = (int)p->cols,
        .is_rmsnorm = p->is_rmsnorm,
        .weight_is_f32 = p->weight.dtype == TSR_F32,
        .is_aligned = are_aligned(rows, TSRI_COUNT(rows)) && is_vector_aligned(&p->weight),
    };
    const struct tsri_cuda_program program = rows_program(main_kernel(p, plan), p, plan);
    if (has_sums && is_sweeping && plan->block_k > 0)
        TSRI_TRY(launch(ctx, p, &columns, plan->block_k * tsri_ceil_div(p->cols, STRIP), STRIP,
                        &params));
    if (p->cols > 0) TSRI_TRY(tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, &params));
    if (!has_sums) return TSR_OK;
    return run_reduce(ctx, p, workspace, is_sweeping ? plan->block_k : plan->num_tasks);
}

// ---- The standard set ---------------------------------------------------------------------------
// layernorm lists it for rmsnorm too.

bool norm_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const struct tsri_cuda_rows_list list = {
        "ops/norm/norm_forward.cu",        "norm_forward",       FORWARD_FLOATS, MAX_THREADS,
        "ops/norm/norm_forward_sweeps.cu", "norm_forward_sweeps"};
    (void)cuda_arch;
    return tsri_cuda_rows_kernel(&list, index, program);
}

bool norm_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const struct tsri_cuda_rows_list list = {
        "ops/norm/norm_backward.cu",        "norm_backward",       BACKWARD_FLOATS, MAX_THREADS,
        "ops/norm/norm_backward_sweeps.cu", "norm_backward_sweeps"};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    enum { NUM_DTYPES = TSRI_COUNT(dtypes) };
    (void)cuda_arch;
    if (index < 2 * NUM_DTYPES) {
        *program =
            plain_program(index < NUM_DTYPES ? &columns : &reduce, dtypes[index % NUM_DTYPES]);
        return true;
    }
    return tsri_cuda_rows_kernel(&list, index - 2 * NUM_DTYPES, program);
}
