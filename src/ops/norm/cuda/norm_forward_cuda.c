// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the norms' forward on CUDA. Rows that fit are held in the registers of a block, wider ones in
// those of a cluster of blocks (sm_90) or in shared memory. Those that do not move in groups of 16 bytes are held in
// words.
#include "ops/norm/cuda/norm_cuda.h"

// A thread holds 64 bytes of a row, or up to 128 of a short fp32 row, so that 1024 or 640 threads run on a
// multiprocessor. Rows of clusters and the widest fp32 rows, with 512 threads, use a queue of QUEUE_BYTES per thread.
enum { FLOATS = 32, QUEUE_BYTES = 256 };
enum { SM_THREADS = 1024, NO_QUEUE_F32_COLS = 8192 };
static const struct tsri_cuda_width f32_widths[] = {{256, 32},  {512, 16},  {1024, 16}, {2048, 16},
                                                    {4096, 16}, {8192, 16}, {16384, 32}},
                                    widths[] = {{256, 32},  {1024, 32}, {2048, 32},
                                                {4096, 32}, {8192, 32}, {16384, 32}};
// Rows that do not move in groups of 16 bytes: wider ones are faster in stages. 16-bit rows in words take half of the registers.
enum { MOST_WORDS = 1024 };
static const struct tsri_cuda_width f32_words_widths[] = {{256, 32}, {512, 16}, {MOST_WORDS, 16}},
                                    words_widths[] = {{256, 32}, {MOST_WORDS, 32}};

static const struct norm_kernel rows_kernel = {"ops/norm/cuda/norm_forward.cu", "norm_forward"},
                                queue_kernel = {"ops/norm/cuda/norm_forward_queue.cu",
                                                "norm_forward_queue"},
                                words_kernel = {"ops/norm/cuda/norm_forward_words.cu",
                                                "norm_forward_words"},
                                staged_kernel = {"ops/norm/cuda/norm_forward_staged.cu",
                                                 "norm_forward_staged"};

// ---- Plans ------------------------------------------------------------------------------------

bool norm_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_mixed_fits(p, limits) && !p->is_mixed && p->weight_offset == 0;
}

static int num_tensors(const struct norm_problem *p) { return p->residual.data != NULL ? 2 : 1; }

static int num_stages(const struct norm_problem *p) {
    return QUEUE_BYTES / (num_tensors(p) * FLOATS * (int)tsr_dtype_bytes(p->dtype));
}

// The queue of the largest blocks takes 128 KiB, more than some cards have; blocks with half the threads need half of
// that. Of rows that one block holds, only fp32 ones have a queue.
static bool has_room_for(const struct norm_problem *p, const struct tsri_limits *limits) {
    enum { FOR_REDUCER = 1024 };
    return p->cols <= FLOATS * NORM_MAX_THREADS / 2 ||
           QUEUE_BYTES * NORM_MAX_THREADS + FOR_REDUCER <= limits->shared_bytes_per_block;
}

bool norm_cuda_forward_fits(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    const bool is_whole = p->cols * (int64_t)tsr_dtype_bytes(p->dtype) % 16 == 0;
    return norm_cuda_fits(p, limits) && tsri_cuda_rows_fit(p->cols, FLOATS, NORM_MAX_THREADS) &&
           (is_whole || p->cols <= MOST_WORDS) &&
           (p->dtype != TSR_F32 || has_room_for(p, limits)) && p->rows <= INT32_MAX; // a block each
}

static bool is_aligned(const struct norm_problem *p) {
    const struct tsri_rows *const rows[] = {&p->x, &p->residual, &p->y, &p->residual_out};
    return norm_are_aligned(rows, TSRI_COUNT(rows)) && norm_is_vector_aligned(&p->weight) &&
           norm_is_vector_aligned(&p->bias);
}

static bool has_queue(const struct norm_problem *p, const struct tsri_plan *plan) {
    return norm_is_cluster(plan) ||
           (plan->block_n * plan->block_m > NO_QUEUE_F32_COLS && p->dtype == TSR_F32);
}

static bool is_staged(const struct tsri_plan *plan) { return plan->block_n == 0; }

struct width_list {
    const struct tsri_cuda_width *widths;
    int count;
};

#define WIDTHS(of) ((struct width_list){of, TSRI_COUNT(of)})
static struct width_list widths_of(tsr_dtype dtype, bool in_words) {
    if (dtype == TSR_F32) return in_words ? WIDTHS(f32_words_widths) : WIDTHS(f32_widths);
    return in_words ? WIDTHS(words_widths) : WIDTHS(widths);
}

// First blocks of a few steps, then blocks of half as many, which fill the time until the last long block ends. If all
// rows were dealt to blocks that run at once, the slowest block would decide the time.
struct deal {
    int64_t long_blocks, short_blocks, long_rows;
};

static struct deal deal_out(const struct norm_problem *p, const struct tsri_limits *limits) {
    enum { STEPS = 2 };
    const int64_t ahead = tsri_max(p->rows - (int64_t)limits->num_sms * STEPS, 0) / STEPS;
    return (struct deal){
        .long_blocks = ahead, .short_blocks = p->rows - ahead * STEPS, .long_rows = ahead * STEPS};
}

// In 16 bits, and where rows do not move in groups of 16 bytes, stages are faster than clusters.
bool norm_cuda_forward_clusters_fit(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return norm_cuda_fits(p, limits) && p->dtype == TSR_F32 && p->cols % 4 == 0 &&
           norm_clusters_fit(p, limits, FLOATS * NORM_MAX_THREADS) && has_room_for(p, limits);
}

void norm_cuda_plan_forward(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    const bool in_words = p->cols <= MOST_WORDS && !is_aligned(p);
    tsri_plan_cuda_widths(plan, p->rows, p->cols, widths_of(p->dtype, in_words).widths);
    const int64_t bytes = p->rows * p->cols * (int64_t)tsr_dtype_bytes(p->dtype);
    plan->is_streaming = tsri_should_stream(limits, 2 * bytes);
    if (!has_queue(p, plan)) return;
    const struct deal deal = deal_out(p, limits);
    plan->num_tasks = deal.long_blocks + deal.short_blocks;
}

void norm_cuda_plan_forward_clusters(const void *problem, const struct tsri_limits *limits,
                                     struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    int blocks = 2;
    while (blocks * FLOATS * NORM_MAX_THREADS < p->cols) blocks *= 2;
    norm_plan_clusters(p, limits, blocks, plan);
    plan->block_n = FLOATS;
}

void norm_cuda_plan_forward_stages(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct norm_problem *p = problem;
    tsri_plan_cuda_stages(plan, limits, p->rows, p->cols, p->dtype, num_tensors(p));
}

// ---- Launches ---------------------------------------------------------------------------------

// The plan for the tensors' addresses: wide rows that are not aligned go through stages.
static struct tsri_plan plan_here(tsr_context *ctx, const struct norm_problem *p,
                                  const struct tsri_plan *plan) {
    struct tsri_plan here = *plan;
    if (is_staged(plan) || p->cols <= MOST_WORDS || is_aligned(p)) return here;
    here = (struct tsri_plan){0};
    norm_cuda_plan_forward_stages(p, tsri_context_limits(ctx), &here);
    return here;
}

static struct tsri_cuda_program program_of(const struct norm_problem *p,
                                           const struct tsri_plan *plan, bool in_words) {
    const struct norm_kernel *kernel = is_staged(plan)      ? &staged_kernel
                                       : has_queue(p, plan) ? &queue_kernel
                                       : in_words           ? &words_kernel
                                                            : &rows_kernel;
    return norm_program(kernel, p, plan);
}

tsr_status norm_cuda_forward_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct tsri_plan here = plan_here(ctx, problem, plan);
    const struct tsri_cuda_program program = program_of(problem, &here, !is_aligned(problem));
    return tsri_cuda_prepare(norm_cuda_name(problem, false), tsri_context_queue(ctx), &program);
}

tsr_status norm_cuda_forward_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *of_call, void *workspace) {
    (void)workspace;
    const struct norm_problem *p = problem;
    const struct tsri_limits *limits = tsri_context_limits(ctx);
    const struct tsri_plan here = plan_here(ctx, p, of_call), *plan = &here;
    const int threads = tsri_cuda_block_threads(plan);
    struct deal deal = {.long_blocks = 0};
    if (has_queue(p, plan) && !norm_is_cluster(plan)) deal = deal_out(p, limits);
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
        .early_rows =
            plan->is_streaming && is_aligned(p)
                ? tsri_min(p->rows, (int64_t)limits->num_sms * (SM_THREADS / threads) * plan->grain)
                : 0,
        .long_rows = deal.long_rows,
        .long_blocks = (int)deal.long_blocks,
        .eps = p->eps,
        .inverse_cols = 1 / (double)tsri_max(p->cols, 1),
        .cols = (int)p->cols,
        .is_rmsnorm = p->is_rmsnorm,
        .weight_is_f32 = p->weight.dtype == TSR_F32,
        .stages = num_stages(p),
        .slab = norm_slab(p, plan),
        .chunk = (int)plan->block_k,
        .stage_bytes = tsri_cuda_stage_bytes(plan, p->dtype),
    };
    const struct tsri_cuda_program program = program_of(p, plan, !is_aligned(p));
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = threads,
        .shared_bytes = is_staged(plan) ? tsri_cuda_stages_bytes(plan, p->dtype, num_tensors(p))
                        : has_queue(p, plan) ? QUEUE_BYTES * threads
                                             : 0,
        .cluster_blocks = norm_is_cluster(plan) ? (int)plan->block_k : 0,
        .is_early = true,
        .params = &params,
    };
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(norm_cuda_name(p, false), tsri_context_queue(ctx), &program, &launch);
}

// layernorm lists these kernels for rmsnorm too: of each dtype those of each width, aligned and then in words, then stages, then
// clusters; last those of several dtypes.
bool norm_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        const struct norm_problem p = {.dtype = tsri_cuda_dtypes[d]};
        const struct width_list aligned = widths_of(p.dtype, false),
                                words = widths_of(p.dtype, true);
        const int num_rows = aligned.count + words.count;
        const int num_staged = num_rows + TSRI_NUM_STAGED_SIZES;
        const int num_all = num_staged + (cuda_arch >= 90 && p.dtype == TSR_F32);
        struct tsri_plan plan = {0};
        const bool in_words = index >= aligned.count && index < num_rows;
        if (index >= num_all) {
            index -= num_all;
            continue;
        }
        if (index < num_rows) {
            const struct width_list *of = in_words ? &words : &aligned;
            const int width = index - (in_words ? aligned.count : 0);
            tsri_plan_cuda_widths(&plan, 1, of->widths[width].cols, of->widths);
        } else if (index < num_staged) {
            plan = tsri_cuda_staged_size(index - num_rows);
        } else {
            plan = norm_ring_size(FLOATS, NORM_NUM_RINGS);
        }
        *program = program_of(&p, &plan, in_words);
        program->is_rare = index >= num_rows;
        return true;
    }
    return norm_cuda_mixed_kernel(index, false, program);
}
