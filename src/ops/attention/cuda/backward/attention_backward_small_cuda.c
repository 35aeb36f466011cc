// SPDX-License-Identifier: Apache-2.0
// cuda-small of attention's backward, for few queries and keys on Hopper: what is served, plan, launch. See
// attention_backward_small.cu.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/attention_backward_small_params.h"

static const char op[] = "attention_backward";

enum {
    MOST_ROWS = 256,      // queries, and keys
    MOST_DEEP_ROWS = 128, // with heads above 64
    MOST_DIMS = 128,
    MOST_UNITS = 2,
    FOR_ALIGNMENT = 1024,
};

static struct tsri_cuda_program program_of(tsr_dtype dtype, int64_t dims, int64_t units) {
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/cuda/backward/attention_backward_small.cu",
                               "attention_backward_small", dtype);
    attention_cuda_define(&program, "HEAD_DIM", dims);
    attention_cuda_define(&program, "UNITS", units);
    return program;
}

bool attention_backward_small_kernel(int *index, struct tsri_cuda_program *program) {
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16};
    static const struct { int dims, units; } kernels[] = {{64, 1}, {64, MOST_UNITS}, {128, 1}};
    for (int d = 0; d < TSRI_COUNT(dtypes); d++)
        for (int i = 0; i < TSRI_COUNT(kernels); i++) {
            if ((*index)-- > 0) continue;
            *program = program_of(dtypes[d], kernels[i].dims, kernels[i].units);
            program->is_rare = dtypes[d] == TSR_F16 && i > 0;
            return true;
        }
    return false;
}

// ---- Tiles --------------------------------------------------------------------------------------

static int64_t num_heads(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q;
}

static int64_t dims_of(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v) <= 64 ? 64 : 128;
}

static int64_t blocks_of(const struct attention_problem *p, int64_t units) {
    return tsri_ceil_div(p->seqlen_k, SMALL_KEYS(units));
}

static int64_t round_to_slabs(int64_t rows) { return tsri_ceil_div(rows, SMALL_SLAB) * SMALL_SLAB; }

// The number of queries that a block of a head owns.
static int64_t queries_of(const struct attention_problem *p, int64_t units) {
    return round_to_slabs(tsri_ceil_div(p->seqlen_q, blocks_of(p, units)));
}

static int64_t shared_bytes(const struct attention_problem *p, int64_t units) {
    return SMALL_BYTES(dims_of(p), round_to_slabs(p->seqlen_q), units, blocks_of(p, units),
                       queries_of(p, units));
}

// Blocks of 64 keys give a head more blocks. But the blocks of a cluster run on one part of the card, and clusters of four leave
// some of each part's multiprocessors idle. A head of one block gains nothing from more threads, and heads above 64 have no
// registers for them.
static int64_t units_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    const int64_t blocks = blocks_of(p, 1), sms = limits->num_sms;
    if (blocks == 1 || dims_of(p) > 64) return 1;
    return num_heads(p) * blocks <= (blocks > 2 ? sms * 3 / 4 : sms) ? 1 : 2;
}

// ---- What is served ---------------------------------------------------------------------------

bool attention_cuda_has_small_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    if (limits->cuda_arch != 90 || !attention_cuda_serves(p, limits)) return false;
    if (p->dtype != TSR_BF16 && p->dtype != TSR_F16) return false;
    if (attention_backward_has_features(p) || p->dbias.data != NULL || p->dsinks.data != NULL)
        return false;
    if (p->is_packed || p->seqused_k != NULL || p->num_heads_q != p->num_heads_kv) return false;
    if (p->num_batches < 1 || p->num_heads_q < 1 || p->seqlen_q < 1 || p->seqlen_k < 1 ||
        tsri_max(p->seqlen_q, p->seqlen_k) > (dims_of(p) > 64 ? MOST_DEEP_ROWS : MOST_ROWS) ||
        tsri_max(p->head_dim, p->head_dim_v) > MOST_DIMS ||
        num_heads(p) * blocks_of(p, 1) > INT32_MAX)
        return false;
    return attention_backward_is_aligned(p) && attention_cuda_is_aligned(p, &p->out, false) &&
           tsri_max(shared_bytes(p, 1), dims_of(p) > 64 ? 0 : shared_bytes(p, 2)) + FOR_ALIGNMENT <=
               limits->shared_bytes_per_block;
}

bool attention_backward_prefers_small(const struct attention_problem *p,
                                      const struct tsri_limits *limits) {
    // Waves of blocks, for heads with more than one block of keys.
    enum { MOST_WAVES = 4, MOST_DEEP_WAVES = 2 };
    if (!attention_cuda_has_small_backward(p, limits) || (limits->flags & TSR_BATCH_INVARIANT) != 0)
        return false;
    if (dims_of(p) > 64)
        return blocks_of(p, 1) == 1 ||
               num_heads(p) * blocks_of(p, 1) <= MOST_DEEP_WAVES * (int64_t)limits->num_sms;
    return (blocks_of(p, 1) == 1 ||
            num_heads(p) * blocks_of(p, 2) <= MOST_WAVES * (int64_t)limits->num_sms);
}

void attention_cuda_plan_small_backward(const void *problem, const struct tsri_limits *limits,
                                        struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    plan->grain = units_of(p, limits);
    plan->block_m = queries_of(p, plan->grain);
    plan->block_n = SMALL_KEYS(plan->grain);
    plan->block_k = blocks_of(p, plan->grain);
    plan->num_tasks = num_heads(p) * plan->block_k;
}

// ---- Launch -------------------------------------------------------------------------------------

tsr_status attention_cuda_small_backward_prepare(tsr_context *ctx, const void *problem,
                                                 const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, dims_of(p), plan->grain);
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_small_backward_run(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->dtype, dims_of(p), plan->grain);
    const struct attention_params all = attention_cuda_params(p);
    const struct attention_backward_small_params params = {
        .q = all.q,
        .k = all.k,
        .v = all.v,
        .out = all.out,
        .dout = all.dout,
        .dq = all.dq,
        .dk = all.dk,
        .dv = all.dv,
        .lse = all.lse,
        .lse_batch = all.lse_batch,
        .lse_head = all.lse_head,
        .num_heads = all.num_heads_q,
        .seqlen_q = all.seqlen_q,
        .seqlen_k = all.seqlen_k,
        .head_dim = all.head_dim,
        .head_dim_v = all.head_dim_v,
        .shift = all.is_top_left ? 0 : all.seqlen_k - all.seqlen_q,
        .window_left = all.window_left,
        .window_right = all.window_right,
        .has_hidden =
            all.window_left < ATTENTION_NO_WINDOW || all.window_right < ATTENTION_NO_WINDOW,
        .blocks = (int)plan->block_k,
        .queries = (int)plan->block_m,
        .rows = (int)round_to_slabs(p->seqlen_q),
        .softmax_scale = all.softmax_scale,
    };
    // The kernel starts before the previous one has ended, and waits for its end before it reads.
    const struct tsri_cuda_launch launch = {.num_blocks = plan->num_tasks,
                                            .num_threads = SMALL_THREADS(plan->grain),
                                            .shared_bytes = (int)shared_bytes(p, plan->grain),
                                            .cluster_blocks = (int)plan->block_k,
                                            .is_early = true,
                                            .params = &params};
    (void)workspace;
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}
