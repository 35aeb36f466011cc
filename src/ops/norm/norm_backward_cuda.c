// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the norms' backward on CUDA. Rows that fit are held in the registers of a block, wider ones in
// those of a cluster of blocks (sm_90); even wider ones are swept.
#include "context/cuda_elements.h"
#include "ops/norm/norm_cuda.h"

// Each thread holds parts of two rows and of two rows of sums. A multiprocessor has registers for 512 such threads, all
// in one block.
enum { FLOATS = 16, THREADS = NORM_MAX_THREADS, SLAB = THREADS * FLOATS };
enum { MAX_STAGES = 4, STRIP = 128 };

static const struct norm_kernel rows_kernel = {"ops/norm/norm_backward.cu", "norm_backward"},
                                sweeps_kernel = {"ops/norm/norm_backward_sweeps.cu",
                                                 "norm_backward_sweeps"},
                                rest_kernel = {"ops/norm/norm_rest.cu", "norm_rest"},
                                columns_kernel = {"ops/norm/norm_columns.cu", "norm_columns"},
                                reduce_kernel = {"ops/norm/norm_reduce.cu", "norm_reduce"};

// ---- Plans ------------------------------------------------------------------------------------

static bool wants_sums(const struct norm_problem *p) {
    return p->dweight.data != NULL || p->dbias.data != NULL;
}

static void plan_sums(const struct norm_problem *p, int64_t groups, struct tsri_plan *plan) {
    if (wants_sums(p)) plan->workspace_bytes = (size_t)(2 * groups * p->cols) * sizeof(float);
}

bool norm_cuda_backward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_fits(p, limits) && p->cols <= SLAB;
}

bool norm_cuda_backward_clusters_fit(const void *problem, const struct tsri_limits *limits) {
    return norm_clusters_fit(problem, limits, SLAB);
}

// As many blocks as run at once, one per multiprocessor, each with its own sums. Their number must not depend on the
// batch.
void norm_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_rows(plan, p->rows, p->cols, FLOATS);
    plan->grain = THREADS / plan->block_m;
    plan->num_tasks = norm_even_blocks(tsri_ceil_div(p->rows, plan->grain), limits->num_sms);
    plan_sums(p, plan->num_tasks, plan);
}

// Two blocks of half the threads share a multiprocessor where clusters of them hold the row: while one waits for its cluster's
// sums, the other one works.
static int cluster_threads(const struct norm_problem *p) {
    return p->cols <= SLAB / 2 * NORM_MAX_CLUSTER ? THREADS / 2 : THREADS;
}

void norm_cuda_plan_backward_clusters(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan) {
    norm_plan_clusters(problem, limits, cluster_threads(problem), FLOATS, plan);
    plan_sums(problem, plan->num_tasks / plan->block_k, plan);
}

// block_k: groups of rows for the sums, enough that the strips of 128 columns fill the card eight times.
void norm_cuda_plan_backward_sweeps(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_sweeps(plan, p->rows);
    int64_t strips = tsri_max(tsri_ceil_div(p->cols, STRIP), 1);
    int64_t groups = tsri_ceil_div((int64_t)limits->num_sms * 8, strips);
    plan->block_k = wants_sums(p) ? tsri_min(groups, p->rows) : 0;
    plan_sums(p, plan->block_k, plan);
    if (!p->is_rmsnorm) plan->workspace_bytes += (size_t)p->rows * sizeof(float); // after the sums
}

// ---- Programs ---------------------------------------------------------------------------------

static bool is_sweeping(const struct tsri_plan *plan) { return plan->block_n == 0; }

static const char *name_of(const struct norm_problem *p) {
    return p->is_rmsnorm ? "rmsnorm_backward" : "layernorm_backward";
}

static bool is_aligned(const struct norm_problem *p) {
    const struct tsri_rows *const rows[] = {&p->x, &p->dy, &p->dresidual_out, &p->dx};
    return norm_are_aligned(rows, TSRI_COUNT(rows)) && norm_is_vector_aligned(&p->weight);
}

static struct tsri_cuda_program main_program(const struct norm_problem *p,
                                             const struct tsri_plan *plan) {
    const bool sweeps = is_sweeping(plan);
    return norm_program(sweeps ? &sweeps_kernel : &rows_kernel, p, plan, !sweeps && !is_aligned(p));
}

// These kernels serve all dtypes.
static struct tsri_cuda_program sums_program(const struct norm_kernel *kernel) {
    return tsri_cuda_dtype_program(kernel->source, kernel->entry, TSR_F32);
}

tsr_status norm_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct tsri_cuda_program of_rows = main_program(p, plan),
                                   of_columns = sums_program(&columns_kernel),
                                   of_reduce = sums_program(&reduce_kernel);
    const struct tsri_cuda_program of_rest = sums_program(&rest_kernel);
    TSRI_TRY(tsri_cuda_prepare(name_of(p), queue, &of_rows));
    if (is_sweeping(plan) && !p->is_rmsnorm)
        TSRI_TRY(tsri_cuda_prepare(name_of(p), queue, &of_rest));
    if (!wants_sums(p)) return TSR_OK;
    if (is_sweeping(plan)) TSRI_TRY(tsri_cuda_prepare(name_of(p), queue, &of_columns));
    return tsri_cuda_prepare(name_of(p), queue, &of_reduce);
}

// ---- Launches ---------------------------------------------------------------------------------

static tsr_status launch(tsr_context *ctx, const struct norm_problem *p,
                         const struct norm_kernel *kernel, int64_t num_blocks, int num_threads,
                         const void *params) {
    const struct tsri_cuda_program program = sums_program(kernel);
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = num_threads,
                                            .is_early = kernel == &reduce_kernel,
                                            .params = params};
    return tsri_cuda_launch(name_of(p), tsri_context_queue(ctx), &program, &launch);
}

// Processes the rows in blocks with a queue each, whose memory then serves to add the sums.
static tsr_status run_rows(tsr_context *ctx, const struct norm_problem *p,
                           const struct tsri_plan *plan, struct norm_backward_params *params) {
    int tensors = p->dresidual_out.data != NULL ? 3 : 2;
    int threads = norm_is_cluster(plan) ? (int)plan->block_m : THREADS;
    int stage_bytes = tensors * (threads * FLOATS * (int)tsr_dtype_bytes(p->dtype) +
                                 ROW_QUEUE_ENDS * (int)sizeof(uint32_t));
    int64_t room = tsri_context_limits(ctx)->shared_bytes_per_block * threads / THREADS -
                   2048; // for the system and the reducer
    params->stages = (int)tsri_max(tsri_min(room / stage_bytes, MAX_STAGES), 1);
    params->slab = norm_slab(p, plan);
    const struct tsri_cuda_program program = main_program(p, plan);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = threads,
        .shared_bytes = params->stages * stage_bytes,
        .cluster_blocks = norm_is_cluster(plan) ? (int)plan->block_k : 0,
        .is_early = true,
        .params = params,
    };
    return tsri_cuda_launch(name_of(p), tsri_context_queue(ctx), &program, &launch);
}

// The sums over rows come first, because dx may overwrite x or dy.
static tsr_status run_sweeps(tsr_context *ctx, const struct norm_problem *p,
                             const struct tsri_plan *plan,
                             const struct norm_backward_params *params) {
    enum { THREADS_OF_REST = 256 };
    const struct tsri_cuda_program program = main_program(p, plan);
    int64_t strips = tsri_ceil_div(p->cols, STRIP);
    if (params->rest != NULL)
        TSRI_TRY(
            launch(ctx, p, &rest_kernel, tsri_min(p->rows, INT32_MAX), THREADS_OF_REST, params));
    if (params->partial != NULL)
        TSRI_TRY(launch(ctx, p, &columns_kernel, plan->block_k * strips, STRIP, params));
    return tsri_cuda_rows_launch(ctx, name_of(p), plan, &program, 0, params);
}

static tsr_status run_reduce(tsr_context *ctx, const struct norm_problem *p, const float *partial,
                             int64_t groups) {
    enum { STRIP_OF_REDUCE = 32, THREADS_OF_REDUCE = 256 };
    const struct norm_reduce_params params = {
        .partial = partial,
        .dweight = p->dweight.data,
        .dbias = p->dbias.data,
        .blocks = (int)groups,
        .cols = (int)p->cols,
        .dweight_dtype = (int)p->dweight.dtype,
        .dbias_dtype = (int)p->dbias.dtype,
    };
    return launch(ctx, p, &reduce_kernel, 2 * tsri_ceil_div(p->cols, STRIP_OF_REDUCE),
                  THREADS_OF_REDUCE, &params);
}

tsr_status norm_cuda_backward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct norm_problem *p = problem;
    if (p->cols == 0) return TSR_OK;
    int64_t groups = is_sweeping(plan)       ? plan->block_k
                     : norm_is_cluster(plan) ? plan->num_tasks / plan->block_k
                                             : plan->num_tasks;
    struct norm_backward_params params = {
        .x = p->x.data,
        .dy = p->dy.data,
        .dresidual_out = p->dresidual_out.data,
        .weight = p->weight.data,
        .mean = p->mean.data,
        .rstd = p->rstd.data,
        .dx = p->dx.data,
        .partial = wants_sums(p) ? workspace : NULL,
        .x_stride = p->x.stride,
        .dy_stride = p->dy.stride,
        .dresidual_out_stride = p->dresidual_out.stride,
        .dx_stride = p->dx.stride,
        .rows = p->rows,
        .cols = (int)p->cols,
        .dtype = (int)p->dtype,
        .is_rmsnorm = p->is_rmsnorm,
        .weight_is_f32 = p->weight.dtype == TSR_F32,
        .is_aligned = is_aligned(p),
    };
    if (is_sweeping(plan) && !p->is_rmsnorm)
        params.rest = (float *)workspace + (wants_sums(p) ? 2 * groups * p->cols : 0);
    if (p->rows > 0)
        TSRI_TRY((is_sweeping(plan) ? run_sweeps(ctx, p, plan, &params)
                                    : run_rows(ctx, p, plan, &params)));
    if (!wants_sums(p)) return TSR_OK;
    return run_reduce(ctx, p, workspace, groups);
}

// ---- The standard set ---------------------------------------------------------------------------
// layernorm lists these kernels for rmsnorm too.

// Clusters of both numbers of threads, aligned and in words; then rows in words; then aligned rows and the sweeps.
static bool rows_program(int index, int cuda_arch, struct tsri_cuda_program *program) {
    struct tsri_cuda_rows_list list = {rows_kernel.source, rows_kernel.entry, FLOATS, THREADS,
                                       .are_sweeps_rare = cuda_arch >= 90}; // clusters serve them
    const int num_clusters = cuda_arch >= 90 ? 4 * TSRI_NUM_CUDA_DTYPES : 0;
    if (index < num_clusters) {
        const struct norm_problem p = {.dtype = tsri_cuda_dtypes[index / 4]};
        const struct tsri_plan cluster =
            norm_cluster_plan(index % 4 < 2 ? THREADS / 2 : THREADS, FLOATS);
        *program = norm_program(&rows_kernel, &p, &cluster, index % 2 != 0);
        program->is_rare = p.dtype != TSR_BF16;
        return true;
    }
    index -= num_clusters;
    if (tsri_cuda_rows_kernel(&list, index, program)) {
        program->defines[program->num_defines++] = (struct tsri_cuda_define){"IN_WORDS", 1};
        return true;
    }
    for (int i = 0; tsri_cuda_rows_kernel(&list, i, program); i++) index--;
    list.sweeps_source = sweeps_kernel.source;
    list.sweeps_entry = sweeps_kernel.entry;
    return tsri_cuda_rows_kernel(&list, index, program);
}

bool norm_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const struct norm_kernel *const others[] = {&columns_kernel, &reduce_kernel,
                                                       &rest_kernel};
    enum { NUM_OTHERS = TSRI_COUNT(others) };
    if (index >= NUM_OTHERS) return rows_program(index - NUM_OTHERS, cuda_arch, program);
    *program = sums_program(others[index]);
    return true;
}
