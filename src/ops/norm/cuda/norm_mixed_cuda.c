// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the norms on CUDA for tensors of several dtypes, rows of two strides, a weight centred at zero, and
// backward rows that no other kernel holds.
#include "context/cuda_elements.h"
#include "ops/norm/cuda/norm_cuda.h"

// A thread's floats, and the columns of the widest tile.
enum { FORWARD_FLOATS = 8, BACKWARD_FLOATS = 16, THREADS = NORM_MAX_THREADS };
enum { TILE = THREADS * BACKWARD_FLOATS };
_Static_assert(TILE == TSRI_ROWS_MAX_THREADS * FORWARD_FLOATS,
               "forward and backward have one widest tile");
enum { STRIP = 128 }; // columns of a block of norm_columns.cu

static const struct norm_kernel forward_kernel = {"ops/norm/cuda/norm_mixed_forward.cu",
                                                  "norm_mixed_forward"},
                                backward_kernel = {"ops/norm/cuda/norm_mixed_backward.cu",
                                                   "norm_mixed_backward"},
                                rest_kernel = {"ops/norm/cuda/norm_rest.cu", "norm_rest"},
                                columns_kernel = {"ops/norm/cuda/norm_columns.cu", "norm_columns"};

bool norm_cuda_mixed_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    (void)limits;
    return p->dtype != TSR_F64 && p->cols <= NORM_CUDA_MAX_COLS;
}

// ---- Plans ------------------------------------------------------------------------------------

// block_n is 0: the kernels know their floats per thread.
static void plan_rows(const struct norm_problem *p, int floats, struct tsri_plan *plan) {
    tsri_plan_cuda_rows(plan, p->rows, tsri_min(p->cols, TILE), floats);
    plan->block_n = 0;
}

static bool is_long(const struct norm_problem *p) { return p->cols > TILE; }

static size_t sums_bytes(const struct norm_problem *p, int64_t groups) {
    return norm_wants_sums(p) ? (size_t)(2 * groups * p->cols) * sizeof(float) : 0;
}

void norm_cuda_plan_mixed_forward(const void *problem, const struct tsri_limits *limits,
                                  struct tsri_plan *plan) {
    (void)limits;
    plan_rows(problem, FORWARD_FLOATS, plan);
}

// block_k: groups of rows for the sums. Of long rows, enough that the strips of columns fill the card eight times; before
// their sums, the rounding errors of the means.
void norm_cuda_plan_mixed_backward(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    plan_rows(p, BACKWARD_FLOATS, plan);
    plan->grain = THREADS / plan->block_m;
    plan->num_tasks = norm_even_blocks(tsri_ceil_div(p->rows, plan->grain), limits->num_sms);
    plan->block_k = plan->num_tasks;
    if (is_long(p)) {
        const int64_t strips = tsri_ceil_div(p->cols, STRIP);
        plan->block_k =
            tsri_min(tsri_ceil_div((int64_t)limits->num_sms * 8, strips), tsri_max(p->rows, 1));
    }
    plan->workspace_bytes = sums_bytes(p, plan->block_k);
    if (is_long(p) && !p->is_rmsnorm && norm_wants_sums(p))
        plan->workspace_bytes += (size_t)p->rows * sizeof(float);
}

// ---- Programs and parameters --------------------------------------------------------------------

static struct tsri_cuda_program rows_program(const struct norm_kernel *kernel,
                                             const struct tsri_plan *plan) {
    return tsri_cuda_rows_program(kernel->source, kernel->entry, TSR_F32, plan);
}

static struct tsri_cuda_program columns_program(const struct norm_kernel *kernel) {
    return tsri_cuda_dtype_program(kernel->source, kernel->entry, TSR_F32);
}

static struct norm_view view_of(const struct tsri_rows *t) {
    return (struct norm_view){tsri_elements_view(t), (int)t->dtype};
}

static struct norm_view view_of_vector(const struct norm_vector *v) {
    return (struct norm_view){.rows = {.data = v->data}, .dtype = (int)v->dtype};
}

// Four elements of a row move at once; absent tensors allow it.
static bool is_aligned(const struct norm_view *t) {
    const uintptr_t four = t->dtype == (int)TSR_F32 ? 16 : 8;
    const struct elements_view *rows = &t->rows;
    return rows->data == NULL || ((uintptr_t)rows->data % four == 0 && rows->stride % 4 == 0 &&
                                  rows->group_stride % 4 == 0);
}

static struct norm_mixed_params params_of(const struct norm_problem *p) {
    struct norm_mixed_params params = {
        .x = view_of(&p->x),
        .residual = view_of(&p->residual),
        .residual_out = view_of(&p->residual_out),
        .y = view_of(&p->y),
        .dy = view_of(&p->dy),
        .dresidual_out = view_of(&p->dresidual_out),
        .dx = view_of(&p->dx),
        .weight = view_of_vector(&p->weight),
        .bias = view_of_vector(&p->bias),
        .weight_offset = p->weight_offset,
        .forward = {.mean = p->mean.data,
                    .rstd = p->rstd.data,
                    .eps = p->eps,
                    .inverse_cols = 1 / (double)tsri_max(p->cols, 1),
                    .is_rmsnorm = p->is_rmsnorm},
        .mean = p->mean.data,
        .rstd = p->rstd.data,
        .rows = p->rows,
        .cols = (int)p->cols,
        .is_rmsnorm = p->is_rmsnorm,
    };
    const struct norm_view *const all[] = {
        &params.x,  &params.residual,      &params.residual_out, &params.y,   &params.dy,
        &params.dx, &params.dresidual_out, &params.weight,       &params.bias};
    params.is_aligned = p->cols % 4 == 0;
    for (int i = 0; i < TSRI_COUNT(all); i++) params.is_aligned &= is_aligned(all[i]);
    return params;
}

// ---- Launches ---------------------------------------------------------------------------------

tsr_status norm_cuda_mixed_prepare_forward(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = rows_program(&forward_kernel, plan);
    return tsri_cuda_prepare(norm_cuda_name(problem, false), tsri_context_queue(ctx), &program);
}

tsr_status norm_cuda_mixed_forward(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    const struct tsri_cuda_program program = rows_program(&forward_kernel, plan);
    const struct norm_mixed_params params = params_of(problem);
    (void)workspace;
    return tsri_cuda_rows_launch(ctx, norm_cuda_name(problem, false), plan, &program, 0, &params);
}

tsr_status norm_cuda_mixed_prepare_backward(tsr_context *ctx, const void *problem,
                                            const struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    const char *name = norm_cuda_name(p, true);
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct tsri_cuda_program of_rows = rows_program(&backward_kernel, plan),
                                   of_rest = columns_program(&rest_kernel),
                                   of_columns = columns_program(&columns_kernel);
    TSRI_TRY(tsri_cuda_prepare(name, queue, &of_rows));
    if (!norm_wants_sums(p)) return TSR_OK;
    if (is_long(p)) TSRI_TRY(tsri_cuda_prepare(name, queue, &of_columns));
    if (is_long(p) && !p->is_rmsnorm) TSRI_TRY(tsri_cuda_prepare(name, queue, &of_rest));
    return norm_cuda_prepare_reduce(ctx, p);
}

static tsr_status launch(tsr_context *ctx, const struct norm_problem *p,
                         const struct tsri_cuda_program *program, int64_t num_blocks,
                         int num_threads, bool is_early, const struct norm_mixed_params *params) {
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = num_threads,
                                            .is_early = is_early,
                                            .params = params};
    return tsri_cuda_launch(norm_cuda_name(p, true), tsri_context_queue(ctx), program, &launch);
}

// The sums of long rows come first, because dx may overwrite x or dy.
static tsr_status sum_long_rows(tsr_context *ctx, const struct norm_problem *p,
                                const struct tsri_plan *plan, struct norm_mixed_params *params) {
    enum { THREADS_OF_REST = 256 };
    const struct tsri_cuda_program of_rest = columns_program(&rest_kernel),
                                   of_columns = columns_program(&columns_kernel);
    const int64_t strips = tsri_ceil_div(p->cols, STRIP);
    if (!p->is_rmsnorm) {
        params->rest = params->partial + 2 * plan->block_k * p->cols;
        TSRI_TRY(
            launch(ctx, p, &of_rest, tsri_min(p->rows, INT32_MAX), THREADS_OF_REST, false, params));
    }
    return launch(ctx, p, &of_columns, plan->block_k * strips, STRIP, false, params);
}

tsr_status norm_cuda_mixed_backward(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    const struct tsri_cuda_program program = rows_program(&backward_kernel, plan);
    struct norm_mixed_params params = params_of(p);
    if (p->cols == 0) return TSR_OK;
    if (norm_wants_sums(p)) params.partial = workspace;
    if (params.partial != NULL && is_long(p) && p->rows > 0)
        TSRI_TRY(sum_long_rows(ctx, p, plan, &params));
    if (p->rows > 0) TSRI_TRY(launch(ctx, p, &program, plan->num_tasks, THREADS, true, &params));
    if (params.partial == NULL) return TSR_OK;
    return norm_cuda_reduce(ctx, p, workspace, p->rows > 0 ? plan->block_k : 0);
}

// ---- The standard set ---------------------------------------------------------------------------

bool norm_cuda_mixed_kernel(int index, bool is_backward, struct tsri_cuda_program *program) {
    static const int threads[] = {8, 32, 64, 128, 256, THREADS, TSRI_ROWS_MAX_THREADS};
    const int num_rows = is_backward ? NORM_NUM_MIXED_FORWARD - 1 : NORM_NUM_MIXED_FORWARD;
    static const struct norm_kernel *const others[] = {&columns_kernel, &rest_kernel};
    if (index < num_rows) {
        const struct tsri_plan plan = {.block_m = threads[index]};
        *program = rows_program(is_backward ? &backward_kernel : &forward_kernel, &plan);
        return true;
    }
    if (!is_backward || index >= NORM_NUM_MIXED_BACKWARD) return false;
    *program = columns_program(others[index - num_rows]);
    return true;
}
