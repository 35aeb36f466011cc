// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the norms' backward on CUDA. Aligned rows that fit are held in the registers of a block, others in a ring
// of stages in shared memory, wider ones in those of a cluster of blocks (sm_90); even wider ones are read in tiles
// (norm_mixed_cuda.c).
#include "ops/norm/cuda/norm_cuda.h"

// Each thread holds parts of two rows and of two rows of sums. A multiprocessor has registers for 512 such threads, all
// in one block. With rows in stages, a thread holds two rows of sums and one of weights.
enum { FLOATS = 16, THREADS = NORM_MAX_THREADS, SLAB = THREADS * FLOATS };
enum { RING_FLOATS = 20, RING_F32_FLOATS = 16 }; // of a thread of a ring
enum { MAX_STAGES = 4 };

static const struct norm_kernel rows_kernel = {"ops/norm/cuda/norm_backward.cu", "norm_backward"},
                                ring_kernel = {"ops/norm/cuda/norm_backward_ring.cu",
                                               "norm_backward_ring"};

// ---- Plans ------------------------------------------------------------------------------------

static void plan_sums(const struct norm_problem *p, int64_t groups, struct tsri_plan *plan) {
    if (norm_wants_sums(p)) plan->workspace_bytes = (size_t)(2 * groups * p->cols) * sizeof(float);
}

static int num_tensors(const struct norm_problem *p) {
    return p->dresidual_out.data != NULL ? 3 : 2;
}

// Rows that move in groups of 16 bytes wherever the tensors lie.
bool norm_cuda_backward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_fits(p, limits) && p->cols <= SLAB &&
           p->cols * (int64_t)tsr_dtype_bytes(p->dtype) % 16 == 0;
}

// ---- Stages -----------------------------------------------------------------------------------

static int ring_floats(tsr_dtype dtype) { return dtype == TSR_F32 ? RING_F32_FLOATS : RING_FLOATS; }

// The fewest blocks that hold a row, and their rings; 0: there are none.
static int ring_blocks(const struct norm_problem *p, const struct tsri_limits *limits,
                       struct norm_ring *ring) {
    const int most = limits->cuda_arch >= 90 ? NORM_MAX_CLUSTER : 1;
    for (int blocks = 1; blocks <= most; blocks *= 2) {
        const int64_t cols = blocks > 1 ? norm_slab_of(p->cols, blocks) : p->cols;
        if (norm_ring_fits(p->dtype, limits, cols, blocks > 1 ? THREADS : 0, ring_floats(p->dtype),
                           num_tensors(p), ring))
            return blocks;
    }
    return 0;
}

bool norm_cuda_backward_stages_fit(const void *problem, const struct tsri_limits *limits) {
    struct norm_ring ring;
    return norm_cuda_fits(problem, limits) && ring_blocks(problem, limits, &ring) > 0;
}

void norm_cuda_plan_backward_stages(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    struct norm_ring ring;
    const int blocks = ring_blocks(p, limits, &ring);
    norm_plan_ring(p, limits, &ring, blocks, plan);
    plan_sums(p, plan->num_tasks / blocks, plan);
}

// ---- Rows in registers -------------------------------------------------------------------------

// For tensors whose rows do not move in groups of 16 bytes.
static void plan_anywhere(const struct norm_problem *p, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    if (norm_cuda_backward_stages_fit(p, limits))
        norm_cuda_plan_backward_stages(p, limits, plan);
    else
        norm_cuda_plan_mixed_backward(p, limits, plan);
}

// As many blocks as run at once, one per multiprocessor, each with its own sums. Their number must not depend on the
// batch. The workspace serves tensors at other addresses, too.
void norm_cuda_plan_backward(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    struct tsri_plan other = {0};
    tsri_plan_cuda_rows(plan, p->rows, p->cols, FLOATS);
    plan->grain = THREADS / plan->block_m;
    plan->num_tasks = norm_even_blocks(tsri_ceil_div(p->rows, plan->grain), limits->num_sms);
    plan_sums(p, plan->num_tasks, plan);
    plan_anywhere(p, limits, &other);
    if (other.workspace_bytes > plan->workspace_bytes)
        plan->workspace_bytes = other.workspace_bytes;
}

// ---- Programs ---------------------------------------------------------------------------------

static bool is_in_tiles(const struct tsri_plan *plan) { return plan->block_n == 0; }
static bool is_staged(const struct tsri_plan *plan) {
    return plan->block_n > 0 && plan->block_k > 0;
}

static bool is_aligned(const struct norm_problem *p) {
    const struct tsri_rows *const rows[] = {&p->x, &p->dy, &p->dresidual_out, &p->dx};
    return norm_are_aligned(rows, TSRI_COUNT(rows)) && norm_is_vector_aligned(&p->weight);
}

// The plan for the tensors' addresses, which may differ from those that the plan was made for.
static struct tsri_plan plan_here(tsr_context *ctx, const struct norm_problem *p,
                                  const struct tsri_plan *plan) {
    struct tsri_plan other = *plan;
    if (is_in_tiles(plan) || is_staged(plan) || is_aligned(p)) return other;
    other = (struct tsri_plan){0};
    plan_anywhere(p, tsri_context_limits(ctx), &other);
    return other;
}

static struct tsri_cuda_program main_program(const struct norm_problem *p,
                                             const struct tsri_plan *plan) {
    return norm_program(is_staged(plan) ? &ring_kernel : &rows_kernel, p, plan);
}

tsr_status norm_cuda_backward_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    const struct tsri_plan here = plan_here(ctx, p, plan);
    if (is_in_tiles(&here)) return norm_cuda_mixed_prepare_backward(ctx, p, &here);
    const struct tsri_cuda_program of_rows = main_program(p, &here);
    TSRI_TRY(tsri_cuda_prepare(norm_cuda_name(p, true), tsri_context_queue(ctx), &of_rows));
    return norm_wants_sums(p) ? norm_cuda_prepare_reduce(ctx, p) : TSR_OK;
}

// ---- Launches ---------------------------------------------------------------------------------

// Processes the rows in blocks with a queue each, whose memory then serves to add the sums.
static tsr_status run_rows(tsr_context *ctx, const struct norm_problem *p,
                           const struct tsri_plan *plan, struct norm_backward_params *params) {
    const int stage = num_tensors(p) * THREADS * FLOATS * (int)tsr_dtype_bytes(p->dtype);
    const int64_t room = tsri_context_limits(ctx)->shared_bytes_per_block - NORM_OTHER_BYTES;
    params->stages = (int)tsri_max(tsri_min(room / stage, MAX_STAGES), 1);
    const struct tsri_cuda_program program = main_program(p, plan);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = THREADS,
        .shared_bytes = params->stages * stage,
        .is_early = true,
        .params = params,
    };
    return tsri_cuda_launch(norm_cuda_name(p, true), tsri_context_queue(ctx), &program, &launch);
}

// The stages' memory serves to add the sums, too, of half of a block's rows at a time.
static tsr_status run_stages(tsr_context *ctx, const struct norm_problem *p,
                             const struct tsri_plan *plan, struct norm_backward_params *params) {
    struct norm_ring ring;
    (void)ring_blocks(p, tsri_context_limits(ctx), &ring);
    params->slab = norm_slab(p, plan);
    params->num_tensors = num_tensors(p);
    params->stage_bytes = ring.stage_bytes;
    params->stages = ring.stages;
    const int of_sums = THREADS / 2 * (int)plan->block_n * (int)sizeof(float);
    const struct tsri_cuda_program program = main_program(p, plan);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = THREADS,
        .shared_bytes = ring.shared_bytes > of_sums ? ring.shared_bytes : of_sums,
        .cluster_blocks = norm_is_cluster(plan) ? (int)plan->block_k : 0,
        .is_early = true,
        .params = params,
    };
    return tsri_cuda_launch(norm_cuda_name(p, true), tsri_context_queue(ctx), &program, &launch);
}

tsr_status norm_cuda_backward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *of_call, void *workspace) {
    const struct norm_problem *p = problem;
    const struct tsri_plan here = plan_here(ctx, p, of_call), *plan = &here;
    if (p->cols == 0) return TSR_OK;
    if (is_in_tiles(plan)) return norm_cuda_mixed_backward(ctx, p, plan, workspace);
    const int64_t groups = is_staged(plan) ? plan->num_tasks / plan->block_k : plan->num_tasks;
    struct norm_backward_params params = {
        .x = p->x.data,
        .dy = p->dy.data,
        .dresidual_out = p->dresidual_out.data,
        .weight = p->weight.data,
        .mean = p->mean.data,
        .rstd = p->rstd.data,
        .dx = p->dx.data,
        .partial = norm_wants_sums(p) ? workspace : NULL,
        .x_stride = p->x.stride,
        .dy_stride = p->dy.stride,
        .dresidual_out_stride = p->dresidual_out.stride,
        .dx_stride = p->dx.stride,
        .rows = p->rows,
        .cols = (int)p->cols,
        .is_rmsnorm = p->is_rmsnorm,
        .weight_is_f32 = p->weight.dtype == TSR_F32,
    };
    if (p->rows > 0)
        TSRI_TRY((is_staged(plan) ? run_stages(ctx, p, plan, &params)
                                  : run_rows(ctx, p, plan, &params)));
    return norm_wants_sums(p) ? norm_cuda_reduce(ctx, p, workspace, groups) : TSR_OK;
}

// ---- The standard set ---------------------------------------------------------------------------
// layernorm lists these kernels for rmsnorm too.

// Of each dtype stages of each number of threads, and of clusters; then aligned rows.
static bool rows_program(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const struct tsri_cuda_rows_list list = {rows_kernel.source, rows_kernel.entry, FLOATS,
                                             THREADS};
    const int of_dtype = NORM_NUM_RINGS + (cuda_arch >= 90);
    const int num_staged = of_dtype * TSRI_NUM_CUDA_DTYPES;
    if (index >= num_staged) return tsri_cuda_rows_kernel(&list, index - num_staged, program);
    const struct norm_problem p = {.dtype = tsri_cuda_dtypes[index / of_dtype]};
    const struct tsri_plan plan = norm_ring_size(ring_floats(p.dtype), index % of_dtype);
    *program = main_program(&p, &plan);
    const bool is_wide = index % of_dtype == NORM_NUM_RINGS;
    program->is_rare = is_wide && p.dtype != TSR_BF16;
    return true;
}

bool norm_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (index < NORM_NUM_MIXED_BACKWARD) return norm_cuda_mixed_kernel(index, true, program);
    index -= NORM_NUM_MIXED_BACKWARD;
    if (index > 0) return rows_program(index - 1, cuda_arch, program);
    *program = norm_cuda_reduce_program();
    return true;
}
