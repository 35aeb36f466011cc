// SPDX-License-Identifier: Apache-2.0
// cuda-small, forward of few keys on Hopper: what is served, plan, launch. See attention_small.cu.
#include "ops/attention/attention_cuda.h"

static const char op[] = "attention_forward";

enum {
    BLOCK = 64, // queries of a block; keys of a tile
    THREADS = 256,
    MOST_KEYS = 256,
    MOST_WIDE_KEYS =
        128, // for which this is the default with 128 columns: registers suffice for one block
    MOST_BLOCKS = 2, // of a multiprocessor, for which this is the default with 64
};

static int64_t tile_dims(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v) <= 64 ? 64 : 128;
}

// Queries, all keys and all values.
static int64_t shared_bytes(const struct attention_problem *p) {
    return (BLOCK + 2 * BLOCK * tsri_ceil_div(p->seqlen_k, BLOCK)) * tile_dims(p) *
           (int64_t)sizeof(uint16_t);
}

static struct tsri_cuda_program program_of(tsr_dtype dtype, int64_t head_dim) {
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/attention_small.cu", "attention_small", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    return program;
}

bool attention_cuda_small_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    if (dtype == TSR_F32) return false;
    for (int64_t head_dim = 64; head_dim <= 128; head_dim += head_dim)
        if ((*index)-- == 0) {
            *program = program_of(dtype, head_dim);
            return true;
        }
    return false;
}

static int64_t num_tasks(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q * tsri_ceil_div(p->seqlen_q, BLOCK);
}

bool attention_cuda_has_small(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return limits->cuda_arch == 90 && p->dtype != TSR_F32 && attention_cuda_has_flash2(p, limits) &&
           !attention_cuda_has_features(p) && p->seqlen_k <= MOST_KEYS &&
           tsri_max(p->head_dim, p->head_dim_v) <= 128 && num_tasks(p) <= INT32_MAX &&
           shared_bytes(p) <= limits->shared_bytes_per_block;
}

const char *attention_cuda_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    const bool is_narrow = tile_dims(p) == 64;
    const bool is_few = num_tasks(p) <= (is_narrow ? MOST_BLOCKS : 1) * (int64_t)limits->num_sms &&
                        p->seqlen_k <= (is_narrow ? MOST_KEYS : MOST_WIDE_KEYS);
    return is_few && (limits->flags & TSR_BATCH_INVARIANT) == 0 &&
                   attention_cuda_has_small(problem, limits)
               ? "cuda-small"
               : NULL;
}

void attention_cuda_plan_small(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    attention_cuda_plan_tiles(problem, limits, BLOCK, (int)tile_dims(problem), plan);
}

tsr_status attention_cuda_small_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n);
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_small_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    (void)workspace;
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    if (plan->num_tasks == 0) return TSR_OK;
    // Comes in before the kernel ahead has ended, and waits for it before it reads.
    const struct tsri_cuda_launch launch = {.num_blocks = plan->num_tasks,
                                            .num_threads = THREADS,
                                            .shared_bytes = (int)shared_bytes(p),
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}
