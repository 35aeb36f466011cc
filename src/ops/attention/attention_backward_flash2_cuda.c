// SPDX-License-Identifier: Apache-2.0
// cuda-flash2 of attention's backward: a kernel of keys for dk and dv, one of queries for dq. See
// attention_backward_flash2.cuh.
#include "ops/attention/attention_backward_cuda.h"

static const char op[] = "attention_backward";

// ---- Programs ---------------------------------------------------------------------------------

// With 256 columns one kernel does both.
static struct tsri_cuda_program program_of(bool is_of_keys, tsr_dtype dtype, int64_t head_dim,
                                           bool has_features) {
    struct tsri_cuda_program program =
        is_of_keys ? attention_cuda_program("ops/attention/attention_backward_flash2_keys.cu",
                                            "attention_backward_flash2_keys", dtype)
                   : attention_cuda_program("ops/attention/attention_backward_flash2_queries.cu",
                                            "attention_backward_flash2_queries", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    attention_cuda_define(&program, "HAS_FEATURES", has_features || head_dim == 256);
    return program;
}

bool attention_backward_flash2_kernel(int *index, int cuda_arch,
                                      struct tsri_cuda_program *program) {
    static const int head_dims[] = {64, 128, 256};
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16, TSR_F32};
    for (int d = 0; d < TSRI_COUNT(dtypes); d++)
        for (int n = 0; n < TSRI_COUNT(head_dims) - (dtypes[d] == TSR_F32); n++)
            for (int kind = 0; kind < (head_dims[n] == 256 ? 2 : 4); kind++) {
                if ((*index)-- > 0) continue;
                *program = program_of(kind % 2 == 1, dtypes[d], head_dims[n], kind / 2 == 1);
                const bool is_plain = kind / 2 == 0 && head_dims[n] < 256;
                program->is_rare = // bf16's are ordinary before flash3
                    dtypes[d] == TSR_BF16 ? cuda_arch == 90 && !is_plain
                                          : !is_plain || (dtypes[d] == TSR_F16 && cuda_arch == 90);
                return true;
            }
    return false;
}

// ---- Plans ------------------------------------------------------------------------------------

static int num_threads(int64_t head_dim, bool is_f32) {
    return 32 * FLASH2_WARPS(head_dim, is_f32);
}

// Two tiles that a block owns, two stages of two that pass by, and what belongs to their rows; with features, scores
// and their gradients.
static int64_t shared_bytes(bool is_of_keys, const struct attention_problem *p, int64_t head_dim) {
    bool is_f32 = p->dtype == TSR_F32;
    int64_t owned = FLASH2_OWNED(is_of_keys, head_dim, is_f32),
            passing = FLASH2_PASSING(is_of_keys, head_dim, is_f32), floats = 4 * passing;
    if (attention_backward_has_features(p)) floats += 2 * owned * passing;
    return (2 * owned + 4 * passing) * head_dim * (int64_t)tsr_dtype_bytes(p->dtype) +
           floats * (int64_t)sizeof(float);
}

bool attention_cuda_has_flash2_backward(const void *problem, const struct tsri_limits *limits) {
    enum { STATIC_BYTES = 128 };
    const struct attention_problem *p = problem;
    int64_t of_keys = shared_bytes(true, p, attention_backward_tile_dims(p));
    int64_t of_queries = shared_bytes(false, p, attention_backward_tile_dims(p));
    bool is_served =
        p->dtype != TSR_F32 || (attention_backward_tile_dims(p) < 256 && limits->cuda_arch >= 80);
    return attention_cuda_serves(p, limits) && is_served &&
           attention_backward_has_room_for_dbias(p, limits) &&
           tsri_max(of_keys, of_queries) + STATIC_BYTES <= limits->shared_bytes_per_block;
}

void attention_cuda_plan_flash2_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    (void)limits;
    plan->block_k = attention_backward_tile_dims(p);
    plan->block_m = FLASH2_OWNED(false, plan->block_k, p->dtype == TSR_F32);
    plan->block_n = FLASH2_OWNED(true, plan->block_k, p->dtype == TSR_F32);
    plan->workspace_bytes = (size_t)(2 * attention_backward_statistics(p)) * sizeof(float);
}

// ---- Launches -----------------------------------------------------------------------------------

tsr_status attention_cuda_flash2_backward_prepare(tsr_context *ctx, const void *problem,
                                                  const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, programs);
    for (int of_keys = 0; of_keys < 2; of_keys++)
        programs[count++] =
            program_of(of_keys == 1, p->dtype, plan->block_k, attention_backward_has_features(p));
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_flash2_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    TSRI_TRY(attention_backward_start(ctx, p, b));
    b.is_vector = attention_backward_is_aligned(p);
    for (int of_keys = 1; of_keys >= 0; of_keys--) {
        const struct tsri_cuda_program program =
            program_of(of_keys == 1, p->dtype, plan->block_k, attention_backward_has_features(p));
        int64_t tiles = of_keys ? tsri_ceil_div(p->seqlen_k, plan->block_n)
                                : tsri_ceil_div(p->seqlen_q, plan->block_m);
        b.num_tiles = (int)tiles;
        b.num_tasks = p->num_batches * (of_keys ? p->num_heads_kv : p->num_heads_q) * tiles;
        b.num_tasks *= 1 + (of_keys && FLASH2_HAS_ONE(plan->block_k, p->dtype == TSR_F32));
        if (of_keys ? p->dk.data == NULL && p->dv.data == NULL : p->dq.data == NULL) continue;
        TSRI_TRY(attention_cuda_launch(ctx, op, &program, b.num_tasks,
                                       num_threads(plan->block_k, p->dtype == TSR_F32),
                                       shared_bytes(of_keys == 1, p, plan->block_k), &b));
    }
    return attention_backward_finish(ctx, p, b);
}
