// SPDX-License-Identifier: Apache-2.0
// cuda-flash1 and cuda-naive, attention's forward in fp32 arithmetic: what is served, plans, launches. See attention_flash1.cu and
// attention_naive.cu.
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

static const char op[] = "attention_forward";

enum {
    FLASH1_BLOCK_M = 64,
    FMA_THREADS = 128,
    NAIVE_HEAD_TILE = 256,
    NAIVE_PHASES = 3, // scores, softmax, values
};

static int64_t num_heads(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q;
}

// ---- Kernels ----------------------------------------------------------------------------------

// Rows of queries, of keys or values, and of weights, each padded by 4 floats.
static int64_t fma_shared_bytes(int tile, int block_n) {
    return (int64_t)sizeof(float) *
               ((FLASH1_BLOCK_M + block_n) * (tile + 4) + FLASH1_BLOCK_M * (block_n + 4)) +
           ATTENTION_TASK_BYTES;
}

// Keys of a tile of flash1 and naive, as in flash2.
static int fma_block_n(int tile, int64_t room) {
    const int block_n = tile == 256 ? 32 : 64;
    return fma_shared_bytes(tile, block_n) > room ? block_n / 2 : block_n;
}

static bool fma_has_room(int tile, int64_t room) {
    return fma_shared_bytes(tile, fma_block_n(tile, room)) <= room;
}

static struct tsri_cuda_program flash1_program(tsr_dtype dtype, int tile, int64_t room) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/forward/attention_flash1.cu", "attention_flash1", dtype);
    attention_cuda_define(&program, "HEAD_DIM", tile);
    attention_cuda_define(&program, "BLOCK_N", fma_block_n(tile, room));
    return program;
}

static struct tsri_cuda_program naive_program(tsr_dtype dtype, int64_t room) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/forward/attention_naive.cu", "attention_naive", dtype);
    attention_cuda_define(&program, "HEAD_DIM", NAIVE_HEAD_TILE);
    attention_cuda_define(&program, "BLOCK_N", fma_block_n(NAIVE_HEAD_TILE, room));
    return program;
}

// 16-bit dtypes have only the largest tile: flash1 is their fallback for rows that are not aligned.
static int flash1_tile(const struct attention_problem *p) {
    return p->dtype == TSR_F32 ? attention_cuda_head_tile(p) : 256;
}

bool attention_cuda_naive_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                 struct tsri_cuda_program *program) {
    if ((*index)-- != 0) return false;
    *program = naive_program(dtype, tsri_cuda_arch_shared_bytes(cuda_arch));
    program->is_rare = true; // a baseline
    return true;
}

bool attention_cuda_flash1_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                  struct tsri_cuda_program *program) {
    static const int head_tiles[] = {64, 128, 256};
    const int64_t room = tsri_cuda_arch_shared_bytes(cuda_arch);
    for (int t = 0; t < TSRI_COUNT(head_tiles); t++) {
        if (dtype != TSR_F32 && head_tiles[t] != 256) continue;
        if ((*index)-- == 0) {
            *program = flash1_program(dtype, head_tiles[t], room);
            program->is_rare = head_tiles[t] == 256 || cuda_arch == 90;
            return true;
        }
    }
    return false;
}

// ---- What is served, and how ------------------------------------------------------------------

bool attention_cuda_has_naive(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           fma_has_room(NAIVE_HEAD_TILE, limits->shared_bytes_per_block);
}

bool attention_cuda_has_flash1(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           fma_has_room(flash1_tile(problem), limits->shared_bytes_per_block);
}

void attention_cuda_plan_flash1(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    attention_cuda_plan_tiles(problem, limits, FLASH1_BLOCK_M, flash1_tile(problem), plan);
}

void attention_cuda_plan_naive(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    attention_cuda_plan_tiles(p, limits, FLASH1_BLOCK_M, NAIVE_HEAD_TILE, plan);
    plan->block_k = 1;
    plan->workspace_bytes =
        (size_t)(num_heads(p) * p->seqlen_q * (p->seqlen_k + 1)) * sizeof(float);
}

// ---- Launches ---------------------------------------------------------------------------------

static tsr_status prepare(tsr_context *ctx, const struct attention_problem *p,
                          const struct tsri_cuda_program *program) {
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), program);
}

static tsr_status clear(tsr_context *ctx, const struct attention_problem *p) {
    return attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true);
}

static int64_t room_of(const tsr_context *ctx) {
    return tsri_context_limits(ctx)->shared_bytes_per_block;
}

tsr_status attention_cuda_flash1_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program =
        flash1_program(p->dtype, (int)plan->block_n, room_of(ctx));
    return prepare(ctx, p, &program);
}

tsr_status attention_cuda_flash1_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program =
        flash1_program(p->dtype, (int)plan->block_n, room_of(ctx));
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    const int tile = (int)plan->block_n;
    TSRI_TRY(clear(ctx, p));
    return attention_cuda_launch(ctx, op, &program, plan->num_tasks, FMA_THREADS,
                                 fma_shared_bytes(tile, fma_block_n(tile, room_of(ctx))), &params);
}

tsr_status attention_cuda_naive_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    (void)plan;
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = naive_program(p->dtype, room_of(ctx));
    return prepare(ctx, p, &program);
}

tsr_status attention_cuda_naive_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = naive_program(p->dtype, room_of(ctx));
    const int block_n = fma_block_n(NAIVE_HEAD_TILE, room_of(ctx));
    struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    int64_t rows = num_heads(p) * p->seqlen_q;
    const int64_t num_tasks[NAIVE_PHASES] = {plan->num_tasks * tsri_ceil_div(p->seqlen_k, block_n),
                                             tsri_ceil_div(rows, FMA_THREADS / 32),
                                             plan->num_tasks};
    params.sums = workspace;
    params.scores = params.sums + rows;
    TSRI_TRY(clear(ctx, p));
    for (params.phase = 0; params.phase < NAIVE_PHASES; params.phase++) {
        params.num_tasks = num_tasks[params.phase];
        TSRI_TRY(attention_cuda_launch(ctx, op, &program, params.num_tasks, FMA_THREADS,
                                       fma_shared_bytes(NAIVE_HEAD_TILE, block_n), &params));
    }
    return TSR_OK;
}
