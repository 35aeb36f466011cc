// SPDX-License-Identifier: Apache-2.0
// cuda-flash2 of attention's backward: one kernel over keys for dk and dv, one over queries for dq. See
// attention_backward_flash2.cuh.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"

static const char op[] = "attention_backward";

// ---- Tiles --------------------------------------------------------------------------------------

static int64_t owned_rows(bool is_of_keys, tsr_dtype dtype, int64_t head_dim, bool is_narrow) {
    return is_narrow ? 16 * FLASH2_NARROW_WARPS
                     : FLASH2_OWNED(is_of_keys, head_dim, dtype == TSR_F32);
}

static int num_threads(tsr_dtype dtype, int64_t head_dim, bool is_narrow) {
    return 32 * (is_narrow ? FLASH2_NARROW_WARPS : FLASH2_WARPS(head_dim, dtype == TSR_F32));
}

// Two tiles that a block owns, two stages of two passing tiles, and values for their rows; with features also scores and their
// gradients.
static int64_t shared_bytes(bool is_of_keys, tsr_dtype dtype, int64_t head_dim, bool has_features,
                            bool is_narrow) {
    const bool is_f32 = dtype == TSR_F32;
    const int64_t owned = owned_rows(is_of_keys, dtype, head_dim, is_narrow),
                  passing = is_narrow ? FLASH2_NARROW_PASSING(is_of_keys, head_dim, is_f32)
                                      : FLASH2_PASSING(is_of_keys, head_dim, is_f32),
                  floats = 4 * passing + (has_features ? 2 * owned * passing : 0);
    return (2 * owned + 4 * passing) * head_dim * (int64_t)tsr_dtype_bytes(dtype) +
           floats * (int64_t)sizeof(float);
}

static bool has_room(tsr_dtype dtype, int64_t head_dim, bool has_features, bool is_narrow,
                     int64_t room) {
    enum { STATIC_BYTES = 128 };
    return tsri_max(shared_bytes(true, dtype, head_dim, has_features, is_narrow),
                    shared_bytes(false, dtype, head_dim, has_features, is_narrow)) +
               STATIC_BYTES <=
           room;
}

// ---- Programs ---------------------------------------------------------------------------------

// With 256 columns one kernel serves with and without features.
enum kernel { QUERIES, KEYS, SUMS };
static struct tsri_cuda_program program_of(enum kernel kernel, tsr_dtype dtype, int64_t head_dim,
                                           bool has_features, bool is_narrow) {
    static const struct {
        const char *source, *entry;
    } kernels[] = {
        [QUERIES] = {"ops/attention/cuda/backward/attention_backward_flash2_queries.cu",
                     "attention_backward_flash2_queries"},
        [KEYS] = {"ops/attention/cuda/backward/attention_backward_flash2_keys.cu",
                  "attention_backward_flash2_keys"},
        [SUMS] = {"ops/attention/cuda/backward/attention_backward_flash2_sums.cu",
                  "attention_backward_flash2_sums"},
    };
    struct tsri_cuda_program program =
        attention_cuda_program(kernels[kernel].source, kernels[kernel].entry, dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    attention_cuda_define(&program, "HAS_FEATURES", has_features || head_dim == 256);
    attention_cuda_define(&program, "NARROW", is_narrow);
    return program;
}

// Whether rows are summed again with a bias. For this purpose products of 16 bits are as good as those of fp32.
static bool sums_rows(tsr_dtype dtype) { return dtype == TSR_F32; }

bool attention_backward_flash2_kernel(int *index, int cuda_arch,
                                      struct tsri_cuda_program *program) {
    static const int head_dims[] = {64, 128, 256};
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16, TSR_F32};
    const int64_t room = tsri_cuda_arch_shared_bytes(cuda_arch);
    for (int d = 0; d < TSRI_COUNT(dtypes); d++)
        for (int n = 0; n < TSRI_COUNT(head_dims) - (dtypes[d] == TSR_F32); n++)
            for (int kind = 0; kind < (head_dims[n] == 256    ? 2
                                       : sums_rows(dtypes[d]) ? 5
                                                              : 4);
                 kind++) {
                const bool has_features = kind >= 2,
                           is_narrow =
                               !has_room(dtypes[d], head_dims[n], has_features, false, room);
                if (is_narrow && !has_room(dtypes[d], head_dims[n], has_features, true, room))
                    continue;
                if ((*index)-- > 0) continue;
                *program = program_of(kind == 4 ? SUMS : (enum kernel)(kind % 2), dtypes[d],
                                      head_dims[n], has_features, is_narrow);
                const bool is_plain = !has_features && head_dims[n] < 256;
                program->is_rare = // bf16 is standard before flash3
                    dtypes[d] == TSR_BF16 ? cuda_arch == 90 && !is_plain
                                          : !is_plain || (dtypes[d] == TSR_F16 && cuda_arch == 90);
                return true;
            }
    return false;
}

// ---- Plans ------------------------------------------------------------------------------------
// block_m, block_n: rows that a block of queries, of keys owns. block_k: columns of tiles. grain: tiles are narrow.

static bool is_served(const struct attention_problem *p, bool is_narrow,
                      const struct tsri_limits *limits) {
    return has_room(p->dtype, attention_backward_tile_dims(p), attention_backward_has_features(p),
                    is_narrow, limits->shared_bytes_per_block);
}

bool attention_cuda_has_flash2_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    const bool has_kernel =
        p->dtype != TSR_F32 || (attention_backward_tile_dims(p) < 256 && limits->cuda_arch >= 80);
    return attention_cuda_serves(p, limits) && has_kernel &&
           attention_backward_has_room_for_dbias(p, limits) &&
           (is_served(p, false, limits) || is_served(p, true, limits));
}

void attention_cuda_plan_flash2_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const bool is_narrow = !is_served(p, false, limits);
    plan->grain = is_narrow;
    plan->block_k = attention_backward_tile_dims(p);
    plan->block_m = owned_rows(false, p->dtype, plan->block_k, is_narrow);
    plan->block_n = owned_rows(true, p->dtype, plan->block_k, is_narrow);
    plan->workspace_bytes = (size_t)attention_backward_statistics_floats(p) * sizeof(float);
}

// ---- Launches -----------------------------------------------------------------------------------

tsr_status attention_cuda_flash2_backward_prepare(tsr_context *ctx, const void *problem,
                                                  const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, sums_rows(p->dtype), programs);
    if (p->bias.data != NULL && sums_rows(p->dtype))
        programs[count++] = program_of(SUMS, p->dtype, plan->block_k, true, plan->grain != 0);
    for (int of_keys = 0; of_keys < 2; of_keys++)
        programs[count++] = program_of(of_keys == 1 ? KEYS : QUERIES, p->dtype, plan->block_k,
                                       attention_backward_has_features(p), plan->grain != 0);
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_flash2_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const bool is_narrow = plan->grain != 0;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    TSRI_TRY(attention_backward_start(ctx, p, b, sums_rows(p->dtype)));
    b.is_vector = attention_backward_is_aligned(p);
    if (p->bias.data != NULL && sums_rows(p->dtype)) {
        const struct tsri_cuda_program sums =
            program_of(SUMS, p->dtype, plan->block_k, true, is_narrow);
        b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m);
        b.num_tasks = p->num_batches * p->num_heads_q * b.num_tiles;
        TSRI_TRY(attention_cuda_launch(
            ctx, op, &sums, b.num_tasks, num_threads(p->dtype, plan->block_k, is_narrow),
            shared_bytes(false, p->dtype, plan->block_k, true, is_narrow), &b));
    }
    for (int of_keys = 1; of_keys >= 0; of_keys--) {
        const struct tsri_cuda_program program =
            program_of(of_keys == 1 ? KEYS : QUERIES, p->dtype, plan->block_k,
                       attention_backward_has_features(p), is_narrow);
        int64_t tiles = of_keys ? tsri_ceil_div(p->seqlen_k, plan->block_n)
                                : tsri_ceil_div(p->seqlen_q, plan->block_m);
        b.num_tiles = (int)tiles;
        b.num_tasks = p->num_batches * (of_keys ? p->num_heads_kv : p->num_heads_q) * tiles;
        b.num_tasks *= 1 + (of_keys && FLASH2_HAS_ONE(plan->block_k, p->dtype == TSR_F32));
        if (of_keys ? p->dk.data == NULL && p->dv.data == NULL : p->dq.data == NULL) continue;
        TSRI_TRY(attention_cuda_launch(ctx, op, &program, b.num_tasks,
                                       num_threads(p->dtype, plan->block_k, is_narrow),
                                       shared_bytes(of_keys == 1, p->dtype, plan->block_k,
                                                    attention_backward_has_features(p), is_narrow),
                                       &b));
    }
    return attention_backward_finish(ctx, p, b);
}
