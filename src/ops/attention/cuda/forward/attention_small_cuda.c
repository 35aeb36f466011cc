// SPDX-License-Identifier: Apache-2.0
// cuda-small, forward of few keys on Hopper: what is served, plan, launch. See attention_small.cu.
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

static const char op[] = "attention_forward";

enum {
    THREADS = 256,
    BLOCK = 32, // queries of a block of attention_small.cu
    STEP = 64,  // keys of the warps that share queries; 1, 2 or 4 steps
    MOST_KEYS = 256,
    MOST_WIDE_KEYS = 128, // up to which it is the default, with 128 columns
    TALL_THREADS = 512,
    TALL_BLOCK = 128, // queries of a block of attention_small_tall_sm90.cu
    MANY_THREADS = 128,
    MANY_WARPS = 4,    // of a block of attention_small_many.cu
    MANY_QUERIES = 16, // of a warp
    MOST_MANY = 64,    // queries and keys there
    FOR_ALIGNMENT = 1024,
};

// Forms: blocks of 32 queries; blocks of two tiles of 64; blocks of four warps with 16 queries each.
enum { FEW, TALL, MANY };

static int64_t tile_dims(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v) <= 64 ? 64 : 128;
}

static int64_t num_tasks(const struct attention_problem *p, int64_t block) {
    return p->num_batches * p->num_heads_q * tsri_ceil_div(p->seqlen_q, block);
}

// The most blocks of 32 queries at which a warp's way through its keys limits the time. With more blocks the products limit it,
// and heads of a single block have fewer of these.
static int64_t most_blocks(const struct attention_problem *p, const struct tsri_limits *limits) {
    return (tile_dims(p) == 64 ? 2 : 1) * (int64_t)limits->num_sms;
}
static int form_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    if (num_tasks(p, BLOCK) <= most_blocks(p, limits)) return FEW;
    if (p->seqlen_q <= MOST_MANY && p->seqlen_k <= MOST_MANY) return MANY;
    return tile_dims(p) == 64 ? TALL : FEW;
}

// With MANY: how many warps share the queries of a head, and how many heads a block has.
static int64_t sharers_of(const struct attention_problem *p) {
    return p->seqlen_q > 2 * MANY_QUERIES ? 4 : p->seqlen_q > MANY_QUERIES ? 2 : 1;
}
static int64_t heads_of_block(const struct attention_problem *p) {
    return MANY_WARPS / sharers_of(p);
}

// Few: queries, all values, all keys; later, in place of values and keys, each warp's output with a maximum and a sum per row.
// Tall: queries, two halves of keys and of values; a maximum and a sum per row and half. Many: queries, keys and values.
static int64_t shared_bytes(const struct attention_problem *p, int form) {
    const int64_t dims = tile_dims(p), row_bytes = dims * (int64_t)sizeof(uint16_t),
                  kept = p->head_dim_v <= dims / 2 ? dims / 2 : dims;
    int64_t keys = STEP;
    if (form == MANY) {
        const int64_t rows = p->seqlen_k > 32 ? 64 : p->seqlen_k > 16 ? 32 : 16;
        return (MANY_WARPS * MANY_QUERIES + heads_of_block(p) * 2 * rows) * row_bytes;
    }
    if (form == TALL)
        return 5 * TALL_BLOCK * row_bytes + 2 * TALL_BLOCK * 2 * (int64_t)sizeof(float);
    while (keys < p->seqlen_k) keys += keys;
    return (BLOCK + keys) * row_bytes +
           tsri_max(keys * row_bytes, THREADS / 2 * (kept + 2) * (int64_t)sizeof(float));
}

static struct tsri_cuda_program program_of(tsr_dtype dtype, int64_t head_dim, int form) {
    if (form == TALL)
        return attention_cuda_program("ops/attention/cuda/forward/attention_small_tall_sm90.cu",
                                      "attention_small_tall", dtype);
    struct tsri_cuda_program program =
        form == MANY ? attention_cuda_program("ops/attention/cuda/forward/attention_small_many.cu",
                                              "attention_small_many", dtype)
                     : attention_cuda_program("ops/attention/cuda/forward/attention_small.cu",
                                              "attention_small", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    return program;
}

bool attention_cuda_small_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    static const struct {
        int head_dim, form;
    } kernels[] = {{64, FEW}, {128, FEW}, {64, TALL}, {64, MANY}, {128, MANY}};
    if (dtype == TSR_F32) return false;
    for (int i = 0; i < TSRI_COUNT(kernels); i++)
        if ((*index)-- == 0) {
            *program = program_of(dtype, kernels[i].head_dim, kernels[i].form);
            return true;
        }
    return false;
}

// Not under TSR_BATCH_INVARIANT: the order of a row's sums depends on the number of heads and on the rows after it.
bool attention_cuda_has_small(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return limits->cuda_arch == 90 && (limits->flags & TSR_BATCH_INVARIANT) == 0 &&
           p->dtype != TSR_F32 && attention_cuda_has_flash2(p, limits) &&
           !attention_cuda_has_features(p) && p->seqlen_k <= MOST_KEYS &&
           tsri_max(p->head_dim, p->head_dim_v) <= 128 && num_tasks(p, BLOCK) <= INT32_MAX &&
           tsri_max(shared_bytes(p, FEW), shared_bytes(p, TALL)) + FOR_ALIGNMENT <=
               limits->shared_bytes_per_block;
}

bool attention_cuda_prefers_small(const struct attention_problem *p,
                                  const struct tsri_limits *limits) {
    const int form = form_of(p, limits);
    const bool is_few =
        form == TALL  ? num_tasks(p, TALL_BLOCK) <= limits->num_sms
        : form == FEW ? tile_dims(p) == 64 || (num_tasks(p, BLOCK) <= most_blocks(p, limits) &&
                                               p->seqlen_k <= MOST_WIDE_KEYS)
                      : true;
    return is_few && attention_cuda_has_small(p, limits);
}

void attention_cuda_plan_small(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    static const int blocks[] = {[FEW] = BLOCK, [TALL] = TALL_BLOCK, [MANY] = MOST_MANY};
    plan->grain = form_of(problem, limits);
    attention_cuda_plan_tiles(problem, limits, blocks[plan->grain], (int)tile_dims(problem), plan);
}

tsr_status attention_cuda_small_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, (int)plan->grain);
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_small_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, (int)plan->grain);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    (void)workspace;
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    if (plan->num_tasks == 0) return TSR_OK;
    // The kernel starts before the previous one has ended, and waits for its end before it reads.
    static const int threads[] = {[FEW] = THREADS, [TALL] = TALL_THREADS, [MANY] = MANY_THREADS};
    const int64_t num_blocks =
        plan->grain == MANY ? tsri_ceil_div(plan->num_tasks, heads_of_block(p)) : plan->num_tasks;
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = threads[plan->grain],
                                            .shared_bytes = (int)shared_bytes(p, (int)plan->grain),
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}
