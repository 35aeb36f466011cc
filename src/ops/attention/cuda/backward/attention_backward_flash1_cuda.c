// SPDX-License-Identifier: Apache-2.0
// cuda-flash1 and cuda-naive of attention's backward, in fp32 arithmetic: what is served, plans, launches. flash1 has one kernel
// for dk and dv and one for dq.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/attention_backward_fma_cuda.h"

enum {
    LOW_DIM = 128,   // columns up to which tiles have BACKWARD_FMA_BLOCK rows
    DEEP_BLOCK = 32, // rows; half if a block has less shared memory
    NAIVE_THREADS = 128,
};
static const char op[] = "attention_backward";

// ---- Programs ---------------------------------------------------------------------------------

#define SOURCE(name) "ops/attention/cuda/backward/attention_backward_" name ".cu"
enum kernel { NAIVE_SCORES, NAIVE_PRODUCTS, FLASH1_KEYS, FLASH1_QUERIES };
static const struct {
    const char *source, *entry;
    bool is_flash1; // with DEPTH, 128 or 256
} any_dtype[] = {
    [NAIVE_SCORES] = {SOURCE("naive_scores"), "attention_backward_naive_scores", false},
    [NAIVE_PRODUCTS] = {SOURCE("naive_products"), "attention_backward_naive_products", false},
    [FLASH1_KEYS] = {SOURCE("flash1_keys"), "attention_backward_flash1_keys", true},
    [FLASH1_QUERIES] = {SOURCE("flash1_queries"), "attention_backward_flash1_queries", true},
};

static struct tsri_cuda_program any_program(enum kernel kernel) {
    return (struct tsri_cuda_program){.source = any_dtype[kernel].source,
                                      .entry = any_dtype[kernel].entry};
}

static struct tsri_cuda_program flash1_program(enum kernel kernel, int64_t depth, int64_t block) {
    struct tsri_cuda_program program = any_program(kernel);
    attention_cuda_define(&program, "BLOCK", block);
    attention_cuda_define(&program, "DEPTH", depth);
    return program;
}

static int64_t most_rows(int64_t depth) {
    return depth > LOW_DIM ? DEEP_BLOCK : BACKWARD_FMA_BLOCK;
}

bool attention_backward_flash1_kernel(int *index, int cuda_arch,
                                      struct tsri_cuda_program *program) {
    const int num_blocks = attention_backward_has_whole_tiles(cuda_arch) ? 1 : 2;
    for (int kernel = 0; kernel < TSRI_COUNT(any_dtype); kernel++) {
        const bool is_flash1 = any_dtype[kernel].is_flash1;
        for (int i = 0; i < (is_flash1 ? 2 * num_blocks : 1); i++) {
            const int64_t depth = is_flash1 && i / num_blocks == 1 ? 256 : LOW_DIM;
            if ((*index)-- > 0) continue;
            *program = is_flash1 ? flash1_program((enum kernel)kernel, depth,
                                                  most_rows(depth) >> i % num_blocks)
                                 : any_program((enum kernel)kernel);
            program->is_rare = !is_flash1 || depth > LOW_DIM || cuda_arch == 90;
            return true;
        }
    }
    return false;
}

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program, int num_threads,
                         int64_t shared_bytes, const struct attention_backward_params *b) {
    return attention_cuda_launch(ctx, op, program, b->num_tasks, num_threads, shared_bytes, b);
}

// ---- flash1 -----------------------------------------------------------------------------------

static int64_t flash1_depth(const struct attention_problem *p) {
    return attention_backward_deepest(p) <= LOW_DIM ? LOW_DIM : 256;
}

static int64_t flash1_block(const struct attention_problem *p, const struct tsri_limits *limits) {
    return attention_backward_fma_rows(p, most_rows(attention_backward_deepest(p)), 2, limits);
}

bool attention_cuda_has_flash1_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return attention_cuda_serves(p, limits) && attention_backward_has_room_for_dbias(p, limits) &&
           attention_backward_has_fma_room(p, flash1_block(p, limits), 2, limits);
}

void attention_cuda_plan_flash1_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    plan->block_m = plan->block_n = flash1_block(p, limits);
    plan->block_k = flash1_depth(p);
    plan->workspace_bytes = (size_t)attention_backward_statistics_floats(p) * sizeof(float);
}

tsr_status attention_cuda_flash1_backward_prepare(tsr_context *ctx, const void *problem,
                                                  const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, false, programs);
    programs[count++] = flash1_program(FLASH1_KEYS, plan->block_k, plan->block_n);
    programs[count++] = flash1_program(FLASH1_QUERIES, plan->block_k, plan->block_m);
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_flash1_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    const struct tsri_cuda_program keys = flash1_program(FLASH1_KEYS, plan->block_k, plan->block_n);
    const struct tsri_cuda_program queries =
        flash1_program(FLASH1_QUERIES, plan->block_k, plan->block_m);
    TSRI_TRY(attention_backward_start(ctx, p, b, false));
    attention_backward_set_any_dtype(p, &b);
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_k, plan->block_n);
    b.num_tasks = p->num_batches * p->num_heads_kv * b.num_tiles;
    if (p->dk.data != NULL || p->dv.data != NULL)
        TSRI_TRY(launch(ctx, &keys, BACKWARD_FMA_THREADS,
                        attention_backward_fma_bytes(p, plan->block_n, 2), &b));
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m);
    b.num_tasks = p->num_batches * p->num_heads_q * b.num_tiles;
    if (p->dq.data != NULL)
        TSRI_TRY(launch(ctx, &queries, BACKWARD_FMA_THREADS,
                        attention_backward_fma_bytes(p, plan->block_m, 1), &b));
    return attention_backward_finish(ctx, p, b);
}

// ---- naive ------------------------------------------------------------------------------------

static int64_t num_scores(const struct attention_problem *p) {
    return attention_round16(p->num_batches * p->num_heads_q * p->seqlen_q * p->seqlen_k);
}

bool attention_cuda_has_naive_backward(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           attention_backward_has_room_for_dbias(problem, limits);
}

void attention_cuda_plan_naive_backward(const void *problem, const struct tsri_limits *limits,
                                        struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    (void)limits;
    plan->workspace_bytes =
        (size_t)(attention_backward_statistics_floats(p) + 2 * num_scores(p)) * sizeof(float);
}

tsr_status attention_cuda_naive_backward_prepare(tsr_context *ctx, const void *problem,
                                                 const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, false, programs);
    (void)plan;
    programs[count++] = any_program(NAIVE_SCORES);
    programs[count++] = any_program(NAIVE_PRODUCTS);
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_naive_backward_run(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    const struct tsri_cuda_program scores = any_program(NAIVE_SCORES);
    const struct tsri_cuda_program products = any_program(NAIVE_PRODUCTS);
    (void)plan;
    TSRI_TRY(attention_backward_start(ctx, p, b, false));
    attention_backward_set_any_dtype(p, &b);
    b.weights = b.lse + attention_backward_statistics_floats(p);
    b.grads = b.weights + num_scores(p);
    b.num_tasks = p->num_batches * p->num_heads_q * p->seqlen_q;
    TSRI_TRY(launch(ctx, &scores, NAIVE_THREADS, 0, &b));
    if (p->dq.data != NULL) TSRI_TRY(launch(ctx, &products, NAIVE_THREADS, 0, &b));
    b.is_of_keys = true;
    b.num_tasks = p->num_batches * p->num_heads_kv * p->seqlen_k;
    if (p->dk.data != NULL || p->dv.data != NULL)
        TSRI_TRY(launch(ctx, &products, NAIVE_THREADS, 0, &b));
    return attention_backward_finish(ctx, p, b);
}
