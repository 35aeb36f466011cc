// SPDX-License-Identifier: Apache-2.0
// cuda-small, forward of few keys on Hopper: what is served, plan, launch. See attention_small.cu.
#include "ops/attention/attention_cuda.h"

static const char op[] = "attention_forward";

enum {
    THREADS = 256,
    TALL_THREADS = 512,
    WARPS = THREADS / 32,
    FOR_ALIGNMENT = 1024,
    STEP = 16, // keys; a warp goes through 1, 2, 4 or 8 such steps
    TALL = 8,  // ROWS of attention_small_tall_sm90.cu, whose tiles of keys are as high as its block
    MOST_KEYS = 256,
    MOST_WIDE_KEYS =
        128, // for which this is the default with 128 columns: registers suffice for one block
};

static int64_t tile_dims(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v) <= 64 ? 64 : 128;
}

static int64_t num_tasks(const struct attention_problem *p, int64_t rows) {
    return p->num_batches * p->num_heads_q * tsri_ceil_div(p->seqlen_q, 16 * rows);
}

// Warps beside each other, of 16 queries each; the others of the eight share these queries' keys. With few blocks the way of a warp
// through its keys is what lasts, with many the products.
static int64_t rows_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    if (num_tasks(p, 2) <= (tile_dims(p) == 64 ? 2 : 1) * (int64_t)limits->num_sms) return 2;
    return tile_dims(p) == 64 ? TALL : 4;
}

// Queries, all values, all keys; in place of these, later, what warps have of the output, with a maximum and a sum for each row.
static int64_t shared_bytes(const struct attention_problem *p, int64_t rows) {
    const int64_t groups = WARPS / rows, dims = tile_dims(p),
                  row_bytes = dims * (int64_t)sizeof(uint16_t),
                  kept = p->head_dim_v <= dims / 2 ? dims / 2 : dims;
    int64_t keys = STEP * groups;
    // Two tiles of queries, two halves of keys and of values; a maximum and a sum for each row and half.
    if (rows == TALL) return 5 * 16 * TALL * row_bytes + 2 * 16 * TALL * 2 * (int64_t)sizeof(float);
    while (keys < p->seqlen_k) keys += keys;
    return (16 * rows + keys) * row_bytes +
           tsri_max(keys * row_bytes, WARPS * 16 * (kept + 2) * (int64_t)sizeof(float));
}

static struct tsri_cuda_program program_of(tsr_dtype dtype, int64_t head_dim, int64_t rows) {
    if (rows == TALL)
        return attention_cuda_program("ops/attention/attention_small_tall_sm90.cu",
                                      "attention_small_tall", dtype);
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/attention_small.cu", "attention_small", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    attention_cuda_define(&program, "ROWS", rows);
    return program;
}

bool attention_cuda_small_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    if (dtype == TSR_F32) return false;
    for (int64_t head_dim = 64; head_dim <= 128; head_dim += head_dim)
        for (int64_t rows = 2; rows <= (head_dim == 64 ? TALL : 4); rows += rows)
            if ((*index)-- == 0) {
                *program = program_of(dtype, head_dim, rows);
                return true;
            }
    return false;
}

bool attention_cuda_has_small(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return limits->cuda_arch == 90 && p->dtype != TSR_F32 && attention_cuda_has_flash2(p, limits) &&
           !attention_cuda_has_features(p) && p->seqlen_k <= MOST_KEYS &&
           tsri_max(p->head_dim, p->head_dim_v) <= 128 && num_tasks(p, 2) <= INT32_MAX &&
           tsri_max(shared_bytes(p, 4), shared_bytes(p, TALL)) + FOR_ALIGNMENT <=
               limits->shared_bytes_per_block;
}

const char *attention_cuda_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    enum { MOST_BLOCKS = 2 }; // of 64 queries, a multiprocessor
    const bool is_narrow = tile_dims(p) == 64;
    const bool is_few =
        num_tasks(p, 4) <= (is_narrow ? MOST_BLOCKS : 1) * (int64_t)limits->num_sms &&
        p->seqlen_k <= (is_narrow ? MOST_KEYS : MOST_WIDE_KEYS);
    return is_few && (limits->flags & TSR_BATCH_INVARIANT) == 0 &&
                   attention_cuda_has_small(problem, limits)
               ? "cuda-small"
               : NULL;
}

void attention_cuda_plan_small(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    plan->grain = rows_of(problem, limits);
    attention_cuda_plan_tiles(problem, limits, 16 * (int)plan->grain, (int)tile_dims(problem),
                              plan);
}

tsr_status attention_cuda_small_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, plan->grain);
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_small_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, plan->block_n, plan->grain);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    (void)workspace;
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    if (plan->num_tasks == 0) return TSR_OK;
    // Comes in before the kernel ahead has ended, and waits for it before it reads.
    const struct tsri_cuda_launch launch = {.num_blocks = plan->num_tasks,
                                            .num_threads =
                                                plan->grain == TALL ? TALL_THREADS : THREADS,
                                            .shared_bytes = (int)shared_bytes(p, plan->grain),
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}
