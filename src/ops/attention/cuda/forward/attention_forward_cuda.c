// SPDX-License-Identifier: Apache-2.0
// Attention's forward on CUDA: what each variant serves, plans, launches.
#include <math.h>

#include "ops/attention/cuda/forward/attention_flash3_cuda.h"

static const char op[] = "attention_forward";

enum {
    FLASH1_BLOCK_M = 64,
    FMA_THREADS = 128,
    NUM_HEAD_TILES = 3,
    NAIVE_HEAD_TILE = 256,
    NAIVE_PHASES = 3, // scores, softmax, values
};
static const int head_tiles[NUM_HEAD_TILES] = {64, 128, 256};

// The tile whose columns hold both heads.
static int head_tile(const struct attention_problem *p) {
    int64_t dim = tsri_max(p->head_dim, p->head_dim_v);
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

static int64_t num_heads(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q;
}

// ---- Kernels ----------------------------------------------------------------------------------

static int64_t flash2_block_m(tsr_dtype dtype) { return dtype == TSR_F32 ? 64 : 128; }

static int64_t flash2_shared_bytes(tsr_dtype dtype, int64_t tile, int64_t block_n) {
    return (int64_t)tsr_dtype_bytes(dtype) * tile * (flash2_block_m(dtype) + 4 * block_n) +
           ATTENTION_TASK_BYTES;
}

// Keys of a tile; with heads of 256 in 16 bits as many as a block's shared memory has room for, which differs between cards.
static int64_t flash2_block_n(tsr_dtype dtype, int64_t tile, int64_t room) {
    if (dtype == TSR_F32) return tile == 64 ? 64 : tile == 128 ? 32 : 24;
    int64_t block_n = 64;
    while (block_n > 16 && flash2_shared_bytes(dtype, tile, block_n) > room) block_n /= 2;
    return block_n;
}

static bool flash2_has_room(tsr_dtype dtype, int64_t tile, int64_t room) {
    return flash2_shared_bytes(dtype, tile, flash2_block_n(dtype, tile, room)) <= room;
}

static int flash2_threads(tsr_dtype dtype, int64_t tile, bool with_features) {
    bool has_two_units = dtype != TSR_F32 && tile < 256 && !with_features;
    return (int)flash2_block_m(dtype) / (has_two_units ? 32 : 16) * 32;
}

// Rows of queries, of keys or values, and of weights, each with 4 floats more.
static int64_t fma_shared_bytes(int tile, int block_n) {
    return (int64_t)sizeof(float) *
               ((FLASH1_BLOCK_M + block_n) * (tile + 4) + FLASH1_BLOCK_M * (block_n + 4)) +
           ATTENTION_TASK_BYTES;
}

// Keys of a tile of flash1 and naive, as flash2's.
static int fma_block_n(int tile, int64_t room) {
    const int block_n = tile == 256 ? 32 : 64;
    return fma_shared_bytes(tile, block_n) > room ? block_n / 2 : block_n;
}

static bool fma_has_room(int tile, int64_t room) {
    return fma_shared_bytes(tile, fma_block_n(tile, room)) <= room;
}

static struct tsri_cuda_program flash2_program(tsr_dtype dtype, int64_t tile, bool with_features,
                                               int64_t room) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/forward/attention_flash2.cu", "attention_flash2", dtype);
    attention_cuda_define(&program, "HEAD_DIM", tile);
    attention_cuda_define(&program, "BLOCK_N", flash2_block_n(dtype, tile, room));
    attention_cuda_define(&program, "FEATURES", with_features);
    return program;
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

// 16-bit dtypes have the largest alone: it is their fallback for rows that are not aligned.
static int flash1_tile(const struct attention_problem *p) {
    return p->dtype == TSR_F32 ? head_tile(p) : 256;
}

// The next of flash2's programs of a dtype; false: there are fewer, and *index is less by their number.
static bool flash2_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                          struct tsri_cuda_program *program) {
    const int64_t room = tsri_cuda_arch_shared_bytes(cuda_arch);
    for (int t = 0; t < NUM_HEAD_TILES; t++) {
        if (!flash2_has_room(dtype, head_tiles[t], room)) continue;
        bool is_f32 = dtype == TSR_F32, is_deep = head_tiles[t] == 256;
        for (int features = cuda_arch == 90 && !is_f32; features < 2 - (is_f32 && is_deep);
             features++)
            if ((*index)-- == 0) {
                *program = flash2_program(dtype, head_tiles[t], features, room);
                program->is_rare =
                    is_f32 ? is_deep || features
                           : features && (dtype == TSR_F16 || is_deep || cuda_arch == 90);
                return true;
            }
    }
    return false;
}

bool attention_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const int64_t room = tsri_cuda_arch_shared_bytes(cuda_arch);
    if (index-- == 0) {
        *program = attention_cuda_clear_program();
        return true;
    }
    if (cuda_arch == 90 && index-- == 0) {
        *program = attention_cuda_few_merge_program();
        return true;
    }
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        if (index-- == 0) {
            *program = naive_program(dtype, room);
            program->is_rare = true; // a baseline
            return true;
        }
        if (cuda_arch == 90 && (attention_cuda_flash3_kernel(&index, dtype, program) ||
                                attention_cuda_small_kernel(&index, dtype, program) ||
                                attention_cuda_few_kernel(&index, dtype, program)))
            return true;
        if (flash2_kernel(&index, dtype, cuda_arch, program)) return true;
        for (int t = 0; t < NUM_HEAD_TILES; t++) {
            if (dtype != TSR_F32 && head_tiles[t] != 256) continue;
            if (index-- == 0) {
                *program = flash1_program(dtype, head_tiles[t], room);
                program->is_rare = head_tiles[t] == 256 || cuda_arch == 90;
                return true;
            }
        }
    }
    return false;
}

// ---- What is served ---------------------------------------------------------------------------

bool attention_cuda_has_naive(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           fma_has_room(NAIVE_HEAD_TILE, limits->shared_bytes_per_block);
}

bool attention_cuda_has_flash1(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           fma_has_room(flash1_tile(problem), limits->shared_bytes_per_block);
}

static bool is_aligned(const struct attention_problem *p) {
    return attention_cuda_is_aligned(p, &p->q, false) &&
           attention_cuda_is_aligned(p, &p->k, true) && attention_cuda_is_aligned(p, &p->v, true) &&
           attention_cuda_is_aligned(p, &p->out, false);
}

bool attention_cuda_is_scale_plain(const struct attention_problem *p) {
    return p->softmax_scale > 1e-10 && p->softmax_scale < 1e10;
}

bool attention_cuda_has_features(const struct attention_problem *p) {
    return p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL ||
           p->dropout_threshold != 0 || !attention_cuda_is_scale_plain(p);
}

// fp32 may start anywhere; with features and heads above 128 its registers do not suffice.
bool attention_cuda_has_flash2(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return attention_cuda_serves(p, limits) && limits->cuda_arch >= 80 &&
           flash2_has_room(p->dtype, head_tile(p), limits->shared_bytes_per_block) &&
           (p->dtype == TSR_F32 ? head_tile(p) < 256 || !attention_cuda_has_features(p)
                                : is_aligned(p));
}

// ---- Plans ------------------------------------------------------------------------------------
// block_m: queries of a tile, block_n: columns of the kernel's tile, block_k: heads of a section, grain: the
// kernel has features; num_tasks.

void attention_cuda_plan_tiles(const struct attention_problem *p, const struct tsri_limits *limits,
                               int block_m, int tile, struct tsri_plan *plan) {
    bool is_even = p->mask == TSR_MASK_NONE && !p->has_window_left && !p->has_window_right;
    int64_t head_bytes =
        p->seqlen_k * (p->head_dim + p->head_dim_v) * (int64_t)tsr_dtype_bytes(p->dtype);
    // Heads whose keys and values take half of the cache; a group shares them.
    int64_t group = p->num_heads_q / tsri_max(p->num_heads_kv, 1);
    plan->block_m = block_m;
    plan->block_n = tile;
    plan->block_k =
        is_even ? 1 : tsri_max(limits->l2_bytes / 2 / tsri_max(head_bytes, 1), 1) * group;
    plan->block_k = tsri_max(tsri_min(plan->block_k, num_heads(p)), 1);
    plan->num_tasks = num_heads(p) * tsri_ceil_div(p->seqlen_q, block_m);
}

static float scale_log2(const struct attention_problem *p) {
    return (float)(p->softmax_scale * 1.4426950408889634);
}

void attention_cuda_plan_flash2(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    attention_cuda_plan_tiles(p, limits, (int)flash2_block_m(p->dtype), head_tile(p), plan);
    // flash3 serves the rest of 16 bits there.
    plan->grain =
        attention_cuda_has_features(p) || (limits->cuda_arch == 90 && p->dtype != TSR_F32);
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

struct attention_forward_params attention_cuda_forward_params(const struct attention_problem *p,
                                                              const struct tsri_plan *plan) {
    return (struct attention_forward_params){
        .p = attention_cuda_params(p),
        .num_tasks = plan->num_tasks,
        .num_heads = num_heads(p),
        .num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m),
        .section = (int)plan->block_k,
        .is_reversed = p->mask != TSR_MASK_NONE,
        .is_aligned = is_aligned(p),
        .scale_log2 = scale_log2(p),
    };
}

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

static struct tsri_cuda_program flash2_program_of(tsr_context *ctx,
                                                  const struct attention_problem *p,
                                                  const struct tsri_plan *plan) {
    return flash2_program(p->dtype, plan->block_n, plan->grain != 0, room_of(ctx));
}

tsr_status attention_cuda_flash2_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = flash2_program_of(ctx, p, plan);
    return prepare(ctx, p, &program);
}

tsr_status attention_cuda_flash2_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = flash2_program_of(ctx, p, plan);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    const int64_t block_n = flash2_block_n(p->dtype, plan->block_n, room_of(ctx));
    TSRI_TRY(clear(ctx, p));
    return attention_cuda_launch(ctx, op, &program, plan->num_tasks,
                                 flash2_threads(p->dtype, plan->block_n, plan->grain != 0),
                                 flash2_shared_bytes(p->dtype, plan->block_n, block_n), &params);
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
