// SPDX-License-Identifier: Apache-2.0
// The norms forward on CUDA: plans and launches. Rows that fit are held in the registers of a block, wider ones in those
// of a cluster of blocks (sm_90), and what is wider yet is gone over in sweeps.
#include "ops/norm/norm_cuda.h"

// Rows of 16-bit numbers come by a queue, of so many bytes for each thread, to blocks of a few steps: with as many blocks
// as run at once and all rows dealt out before, the slowest would be waited for. Rows of fp32 have bytes enough on their
// way without: a block takes one step.
enum { FLOATS = 32, QUEUE_BYTES = 256, STEPS = 8, MAX_COLS = INT32_MAX - 65536 };

static const struct norm_kernel rows_kernel = {"ops/norm/norm_forward.cu", "norm_forward"},
                                sweeps_kernel = {"ops/norm/norm_forward_sweeps.cu",
                                                 "norm_forward_sweeps"};

// ---- Plans ------------------------------------------------------------------------------------

bool norm_cuda_sweeps_fit(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    (void)limits;
    return p->dtype != TSR_F64 && p->cols <= MAX_COLS;
}

// The queue of the largest blocks takes 128 KiB, more than some cards have: half the threads do with half of that.
static bool has_room_for(const struct norm_problem *p, const struct tsri_limits *limits) {
    enum { FOR_REDUCER = 1024 };
    return p->cols <= FLOATS * NORM_MAX_THREADS / 2 ||
           QUEUE_BYTES * NORM_MAX_THREADS + FOR_REDUCER <= limits->shared_bytes_per_block;
}

bool norm_cuda_forward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_sweeps_fit(p, limits) &&
           tsri_cuda_rows_fit(p->cols, FLOATS, NORM_MAX_THREADS) &&
           (p->dtype == TSR_F32 || has_room_for(p, limits));
}

static bool is_aligned(const struct norm_problem *p) {
    const struct tsri_rows *const rows[] = {&p->x, &p->residual, &p->y, &p->residual_out};
    return norm_are_aligned(rows, TSRI_COUNT(rows)) && norm_is_vector_aligned(&p->weight) &&
           norm_is_vector_aligned(&p->bias);
}

static bool has_queue(const struct norm_problem *p, const struct tsri_plan *plan) {
    return is_aligned(p) && plan->block_n > 0 && (p->dtype != TSR_F32 || norm_is_cluster(plan));
}

// Of 16-bit numbers, sweeps are faster than clusters of more than two blocks.
bool norm_cuda_forward_clusters_fit(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    const int64_t slab = FLOATS * NORM_MAX_THREADS;
    return norm_clusters_fit(p, limits, slab) && has_room_for(p, limits) &&
           (p->dtype == TSR_F32 || p->cols <= 2 * slab);
}

void norm_cuda_plan_forward(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_rows(plan, p->rows, p->cols, FLOATS);
    if (!has_queue(p, plan)) return;
    int64_t groups = tsri_ceil_div(p->rows, plan->grain), few = 4 * (int64_t)limits->num_sms;
    plan->num_tasks =
        tsri_min(groups, tsri_max(tsri_min(tsri_ceil_div(groups, STEPS), INT32_MAX), few));
}

void norm_cuda_plan_forward_clusters(const void *problem, const struct tsri_limits *limits,
                                     struct tsri_plan *plan) {
    norm_plan_clusters(problem, limits, FLOATS, plan);
}

void norm_cuda_plan_forward_sweeps(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    (void)limits;
    tsri_plan_cuda_sweeps(plan, p->rows);
}

// ---- Launches ---------------------------------------------------------------------------------

static const char *name_of(const struct norm_problem *p) {
    return p->is_rmsnorm ? "rmsnorm_forward" : "layernorm_forward";
}

static struct tsri_cuda_program program_of(const struct norm_problem *p,
                                           const struct tsri_plan *plan) {
    return norm_program(plan->block_n == 0 ? &sweeps_kernel : &rows_kernel, p, plan);
}

tsr_status norm_cuda_forward_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = program_of(problem, plan);
    return tsri_cuda_prepare(name_of(problem), tsri_context_queue(ctx), &program);
}

tsr_status norm_cuda_forward_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    const struct norm_problem *p = problem;
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
        .is_aligned = is_aligned(p),
        .stages = QUEUE_BYTES /
                  ((p->residual.data != NULL ? 2 : 1) * FLOATS * (int)tsr_dtype_bytes(p->dtype)),
        .slab = norm_slab(p, plan),
    };
    const struct tsri_cuda_program program = program_of(p, plan);
    const int threads = tsri_cuda_block_threads(plan);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = threads,
        .shared_bytes = has_queue(p, plan) ? QUEUE_BYTES * threads : 0,
        .cluster_blocks = norm_is_cluster(plan) ? (int)plan->block_k : 0,
        .params = &params,
    };
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(name_of(p), tsri_context_queue(ctx), &program, &launch);
}

// layernorm lists it for rmsnorm too.
bool norm_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    return norm_list_kernel(&rows_kernel, &sweeps_kernel, FLOATS, index, cuda_arch, program);
}
