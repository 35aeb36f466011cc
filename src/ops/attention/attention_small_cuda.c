// SPDX-License-Identifier: Apache-2.0
// cuda-small, forward of few keys on Hopper: what is served, plan, launch. See attention_small.cu.
#include "ops/attention/attention_flash3_cuda.h"

static const char op[] = "attention_forward";

enum {
    THREADS = 256,
    BLOCK = 32, // queries of a block of attention_small.cu
    STEP = 64,  // keys of its warps that share queries; they go through 1, 2 or 4 such steps
    MOST_KEYS = 256,
    MOST_WIDE_KEYS = 128, // for which this is the default with 128 columns
    TALL_THREADS = 512,
    TALL_BLOCK = 128, // queries of a block of attention_small_tall_sm90.cu
    FOR_ALIGNMENT = 1024,
};

static int64_t tile_dims(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v) <= 64 ? 64 : 128;
}

static int64_t num_tasks(const struct attention_problem *p, int64_t block) {
    return p->num_batches * p->num_heads_q * tsri_ceil_div(p->seqlen_q, block);
}

// How many blocks of 32 queries run side by side: with up to so many the way of a warp through its keys is what lasts, with more of
// them the products, of which heads of a single block have few.
static int64_t most_blocks(const struct attention_problem *p, const struct tsri_limits *limits) {
    return (tile_dims(p) == 64 ? 2 : 1) * (int64_t)limits->num_sms;
}
static bool is_tall(const struct attention_problem *p, const struct tsri_limits *limits) {
    return tile_dims(p) == 64 && num_tasks(p, BLOCK) > most_blocks(p, limits) &&
           (p->seqlen_q > BLOCK || p->seqlen_k > STEP);
}

// Queries, all values, all keys; in place of these, later, what warps have of the output, with a maximum and a sum for each row. Tall:
// queries, two halves of keys and of values; a maximum and a sum for each row and half.
static int64_t shared_bytes(const struct attention_problem *p, bool is_tall) {
    const int64_t dims = tile_dims(p), row_bytes = dims * (int64_t)sizeof(uint16_t),
                  kept = p->head_dim_v <= dims / 2 ? dims / 2 : dims;
    int64_t keys = STEP;
    if (is_tall) return 5 * TALL_BLOCK * row_bytes + 2 * TALL_BLOCK * 2 * (int64_t)sizeof(float);
    while (keys < p->seqlen_k) keys += keys;
    return (BLOCK + keys) * row_bytes +
           tsri_max(keys * row_bytes, THREADS / 2 * (kept + 2) * (int64_t)sizeof(float));
}

static struct tsri_cuda_program program_of(tsr_dtype dtype, int64_t head_dim, bool is_tall) {
    if (is_tall)
        return attention_cuda_program("ops/attention/attention_small_tall_sm90.cu",
                                      "attention_small_tall", dtype);
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/attention_small.cu", "attention_small", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    return program;
}

bool attention_cuda_small_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    enum { NUM_KERNELS = 3 };
    if (dtype == TSR_F32) return false;
    for (int i = 0; i < NUM_KERNELS; i++)
        if ((*index)-- == 0) {
            *program = program_of(dtype, i == 0 ? 64 : 128, i == 2);
            return true;
        }
    return false;
}

// Not under TSR_BATCH_INVARIANT: the order of a row's sums hangs on the number of heads and on the rows after it.
bool attention_cuda_has_small(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return limits->cuda_arch == 90 && (limits->flags & TSR_BATCH_INVARIANT) == 0 &&
           p->dtype != TSR_F32 && attention_cuda_has_flash2(p, limits) &&
           !attention_cuda_has_features(p) && p->seqlen_k <= MOST_KEYS &&
           tsri_max(p->head_dim, p->head_dim_v) <= 128 && num_tasks(p, BLOCK) <= INT32_MAX &&
           tsri_max(shared_bytes(p, false), shared_bytes(p, true)) + FOR_ALIGNMENT <=
               limits->shared_bytes_per_block;
}

const char *attention_cuda_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    const bool is_few =
        tile_dims(p) == 64
            ? num_tasks(p, TALL_BLOCK) <= limits->num_sms || !is_tall(p, limits)
            : num_tasks(p, BLOCK) <= most_blocks(p, limits) && p->seqlen_k <= MOST_WIDE_KEYS;
    if (is_few && attention_cuda_has_small(problem, limits)) return "cuda-small";
    return attention_cuda_prefers_few(p, limits) ? "cuda-few" : NULL;
}

void attention_cuda_plan_small(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    plan->grain = is_tall(problem, limits);
    attention_cuda_plan_tiles(problem, limits, plan->grain ? TALL_BLOCK : BLOCK,
                              (int)tile_dims(problem), plan);
}

tsr_status attention_cuda_small_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, plan->grain != 0);
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_small_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, plan->grain != 0);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    (void)workspace;
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    if (plan->num_tasks == 0) return TSR_OK;
    // Comes in before the kernel ahead has ended, and waits for it before it reads.
    const struct tsri_cuda_launch launch = {.num_blocks = plan->num_tasks,
                                            .num_threads = plan->grain ? TALL_THREADS : THREADS,
                                            .shared_bytes = (int)shared_bytes(p, plan->grain != 0),
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}
