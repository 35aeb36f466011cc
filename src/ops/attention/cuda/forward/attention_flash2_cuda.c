// SPDX-License-Identifier: Apache-2.0
// cuda-flash2, attention's forward on tensor cores: what is served, plan, launch. See attention_flash2.cu.
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

static const char op[] = "attention_forward";

static int64_t flash2_block_m(tsr_dtype dtype) { return dtype == TSR_F32 ? 64 : 128; }

static int64_t flash2_shared_bytes(tsr_dtype dtype, int64_t tile, int64_t block_n) {
    return (int64_t)tsr_dtype_bytes(dtype) * tile * (flash2_block_m(dtype) + 4 * block_n) +
           ATTENTION_TASK_BYTES;
}

// Keys of a tile. For heads of 256 in 16 bits, as many as fit in a block's shared memory, which differs between cards.
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

static struct tsri_cuda_program flash2_program(tsr_dtype dtype, int64_t tile, bool with_features,
                                               int64_t room) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/forward/attention_flash2.cu", "attention_flash2", dtype);
    attention_cuda_define(&program, "HEAD_DIM", tile);
    attention_cuda_define(&program, "BLOCK_N", flash2_block_n(dtype, tile, room));
    attention_cuda_define(&program, "FEATURES", with_features);
    return program;
}

bool attention_cuda_flash2_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                  struct tsri_cuda_program *program) {
    static const int head_tiles[] = {64, 128, 256};
    const int64_t room = tsri_cuda_arch_shared_bytes(cuda_arch);
    for (int t = 0; t < TSRI_COUNT(head_tiles); t++) {
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

// fp32 rows may start at any address. With features and heads above 128, fp32 has too few registers.
bool attention_cuda_has_flash2(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return attention_cuda_serves(p, limits) && limits->cuda_arch >= 80 &&
           flash2_has_room(p->dtype, attention_cuda_head_tile(p), limits->shared_bytes_per_block) &&
           (p->dtype == TSR_F32
                ? attention_cuda_head_tile(p) < 256 || !attention_cuda_has_features(p)
                : attention_cuda_is_forward_aligned(p));
}

// grain: the kernel has features.
void attention_cuda_plan_flash2(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    attention_cuda_plan_tiles(p, limits, (int)flash2_block_m(p->dtype), attention_cuda_head_tile(p),
                              plan);
    // On Hopper flash3 serves the other calls of 16 bits.
    plan->grain =
        attention_cuda_has_features(p) || (limits->cuda_arch == 90 && p->dtype != TSR_F32);
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
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_flash2_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    (void)workspace;
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = flash2_program_of(ctx, p, plan);
    const struct attention_forward_params params = attention_cuda_forward_params(p, plan);
    const int64_t block_n = flash2_block_n(p->dtype, plan->block_n, room_of(ctx));
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    return attention_cuda_launch(ctx, op, &program, plan->num_tasks,
                                 flash2_threads(p->dtype, plan->block_n, plan->grain != 0),
                                 flash2_shared_bytes(p->dtype, plan->block_n, block_n), &params);
}
