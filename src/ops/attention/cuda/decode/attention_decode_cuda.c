// SPDX-License-Identifier: Apache-2.0
// Decode on CUDA: what is served, how keys are split, programs and launches. Lengths are on the device and only kernels read them,
// so a plan knows only the longest possible length. max_chunks bounds the chunks of a sequence; kernels make fewer if a sequence
// is short.
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "ops/attention/attention_decode_problem.h"
#include "ops/attention/cuda/attention_cuda.h"
#include "ops/attention/cuda/decode/attention_decode_params.h"

static const char op[] = "attention_decode";

enum {
    THREADS = 128,
    CHECK_THREADS = 256, // 8 warps, as in attention_decode_check.cu
    FMA_ROWS = 4,
    INVARIANT_KEYS = 1024, // of a chunk, batch-invariant
    INVARIANT_CHUNKS = 64, // at most
    ITEM_KEYS = 64,        // cost of an item besides its keys, in keys
    MOST_WAVES = 8,
    MARKED_CHUNKS = 8,      // most chunks of a tile that its last block merges,
    MARKED_ROWS = 4,        // and most rows
    SHORT_KEYS = 256,       // with up to so many, tensor cores take less than a merge
    EARLY_BYTES = 16 << 20, // bytes of the caches, at most
    NAIVE_BLOCKS = 1 << 20,
};

// ---- What is served ---------------------------------------------------------------------------

bool attention_decode_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct attention_decode_problem *p = problem;
    return attention_cuda_serves(&p->a, limits) && p->most_keys <= ATTENTION_CUDA_MAX_SEQLEN &&
           p->a.num_batches * p->a.num_heads_kv <= DECODE_CUDA_MAX_ITEMS &&
           p->a.num_heads_kv <= DECODE_CUDA_MAX_HEADS &&
           p->a.num_heads_q <= DECODE_CUDA_MAX_ROWS / tsri_max(p->a.seqlen_q, 1) &&
           p->a.num_batches <= DECODE_CUDA_MAX_ROWS / tsri_max(p->a.num_heads_q * p->a.seqlen_q, 1);
}

// ---- Programs ---------------------------------------------------------------------------------
// The split's kernels by dtype, columns and rows of a tile, with the blocks per multiprocessor that their registers allow.

struct shape {
    int dims, row_tiles, blocks;
};
static const struct shape mma_shapes[] = {
    {64, 1, 4}, {64, 2, 3}, {128, 1, 3}, {128, 2, 2}, {256, 1, 2}};
static const struct shape fma_shapes[] = {{64, 1, 3}, {128, 1, 3}, {256, 1, 2}};

static const struct shape *shapes_of(tsr_dtype dtype, int *count) {
    *count = dtype == TSR_F32 ? TSRI_COUNT(fma_shapes) : TSRI_COUNT(mma_shapes);
    return dtype == TSR_F32 ? fma_shapes : mma_shapes;
}

// Caches of e4m3 have one kernel for both dtypes of 16 bits.
static struct tsri_cuda_program split_program(tsr_dtype dtype, bool is_e4m3,
                                              const struct shape *shape) {
    bool is_mma = dtype != TSR_F32;
    struct tsri_cuda_program program =
        attention_cuda_program(is_mma ? "ops/attention/cuda/decode/attention_decode_mma.cu"
                                      : "ops/attention/cuda/decode/attention_decode_fma.cu",
                               is_mma ? "attention_decode_mma" : "attention_decode_fma",
                               is_mma && is_e4m3 ? TSR_F16 : dtype);
    attention_cuda_define(&program, "IS_E4M3", is_e4m3);
    attention_cuda_define(&program, "DIMS", shape->dims);
    if (is_mma) attention_cuda_define(&program, "ROW_TILES", shape->row_tiles);
    attention_cuda_define(&program, "BLOCKS", shape->blocks);
    return program;
}

static struct tsri_cuda_program merge_program(void) {
    return attention_cuda_program("ops/attention/cuda/decode/attention_decode_merge.cu",
                                  "attention_decode_merge", TSR_F32);
}
static struct tsri_cuda_program append_program(void) {
    return attention_cuda_program("ops/attention/cuda/decode/attention_decode_append.cu",
                                  "attention_decode_append", TSR_F32);
}
static struct tsri_cuda_program check_program(void) {
    return attention_cuda_program("ops/attention/cuda/decode/attention_decode_check.cu",
                                  "attention_decode_check", TSR_F32);
}
static struct tsri_cuda_program naive_program(tsr_dtype dtype) {
    return attention_cuda_program("ops/attention/cuda/decode/attention_decode_naive.cu",
                                  "attention_decode_naive", dtype);
}

bool attention_decode_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        for (int is_e4m3 = 0; is_e4m3 < (dtype == TSR_F16 ? 1 : 2); is_e4m3++) {
            int count;
            const struct shape *shapes = shapes_of(dtype, &count);
            for (int i = 0; i < count; i++) {
                if (index-- > 0) continue;
                *program = split_program(dtype, is_e4m3 != 0, &shapes[i]);
                program->is_rare = is_e4m3 || (dtype != TSR_BF16 && shapes[i].dims == 256) ||
                                   (dtype == TSR_F16 && shapes[i].row_tiles > 1);
                return true;
            }
        }
        if (index-- > 0) continue;
        *program = naive_program(dtype);
        program->is_rare = true; // a baseline
        return true;
    }
    *program = index == 0 ? merge_program() : index == 1 ? append_program() : check_program();
    program->is_rare = index == 2; // only for callers of num_errors
    return index < 3;
}

// ---- Plans ------------------------------------------------------------------------------------

static bool is_e4m3(const struct attention_decode_problem *p) {
    return p->k_cache.dtype == TSR_E4M3;
}

static int64_t group_of(const struct attention_problem *a) {
    return tsri_max(a->num_heads_q / tsri_max(a->num_heads_kv, 1), 1);
}

// The narrowest shape that holds the columns and, if there is one, the rows of the longest sequence.
static const struct shape *shape_of(const struct attention_decode_problem *p) {
    const struct attention_problem *a = &p->a;
    int64_t dims = tsri_max(a->head_dim, a->head_dim_v), rows = group_of(a) * a->seqlen_q;
    int count;
    const struct shape *shapes = shapes_of(a->dtype, &count), *best = NULL;
    for (int i = 0; i < count; i++) {
        if (shapes[i].dims < dims || (best != NULL && shapes[i].dims > best->dims)) continue;
        if (best == NULL || 8 * best->row_tiles < rows) best = &shapes[i];
    }
    return best;
}

static int64_t rows_of(const struct attention_problem *a, const struct shape *shape) {
    return a->dtype == TSR_F32 ? FMA_ROWS : 8 * shape->row_tiles;
}

// The number of chunks of the longest sequence that nearly fills the last wave of blocks. If results may not depend on the batch,
// only the room for keys decides.
static int64_t chunks_of(const struct attention_decode_problem *p, const struct tsri_limits *limits,
                         int64_t slots) {
    int64_t items = tsri_max(p->a.num_batches * p->a.num_heads_kv, 1), best = 1, least = INT64_MAX;
    int64_t most = tsri_max(p->most_keys / DECODE_CHUNK_LEAST, 1);
    if (limits->flags & TSR_BATCH_INVARIANT)
        return tsri_min(tsri_max(tsri_ceil_div(p->most_keys, INVARIANT_KEYS), 1), INVARIANT_CHUNKS);
    if (p->most_keys <= SHORT_KEYS && 4 * items <= slots && p->a.dtype != TSR_F32) return 1;
    for (int64_t waves = 1; waves <= MOST_WAVES; waves++) {
        int64_t chunks = tsri_min(tsri_max(waves * slots / items, 1), most);
        int64_t keys =
            (int64_t)tsri_round_up((size_t)tsri_ceil_div(p->most_keys, chunks), DECODE_CHUNK_STEP);
        int64_t cost = tsri_ceil_div(items * chunks, slots) * (keys + ITEM_KEYS);
        if (cost < least) {
            least = cost;
            best = chunks;
        }
    }
    return best;
}

static int64_t partial_stride_of(const struct attention_problem *a) {
    return (int64_t)tsri_round_up((size_t)a->head_dim_v, 4);
}

// Whether the block of a tile's last chunk merges the chunks. It does on tensor cores where that was measured to be faster, but
// not if a tile's rows may not depend on other sequences' lengths.
static bool merges_itself(const struct attention_problem *a, const struct tsri_plan *plan) {
    return a->dtype != TSR_F32 && plan->block_k > 1 && plan->block_k <= MARKED_CHUNKS &&
           group_of(a) * a->seqlen_q <= MARKED_ROWS && (plan->flags & TSR_BATCH_INVARIANT) == 0;
}
_Static_assert((int)MARKED_CHUNKS <= DECODE_MOST_MARKED, "what the kernel takes");

// block_m: rows of a tile. block_n: tiles of the longest sequence. block_k: chunks. grain: blocks that run at once.
void attention_decode_cuda_plan(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    const struct shape *shape = shape_of(p);
    int64_t rows = rows_of(&p->a, shape), slots = (int64_t)shape->blocks * limits->num_sms;
    plan->block_m = rows;
    plan->block_n = tsri_max(tsri_ceil_div(group_of(&p->a) * p->a.seqlen_q, rows), 1);
    plan->block_k = chunks_of(p, limits, slots);
    plan->num_tasks = p->a.num_batches * p->a.num_heads_kv * plan->block_k;
    plan->grain = slots;
    if (p->a.seqlen_q == 0 || p->a.num_heads_q == 0) plan->num_tasks = 0;
    if (plan->block_k > 1)
        plan->workspace_bytes =
            (size_t)(plan->num_tasks * rows * (partial_stride_of(&p->a) + 2)) * sizeof(float) +
            (size_t)plan->num_tasks * sizeof(uint64_t);
}

void attention_decode_cuda_plan_naive(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    (void)limits;
    plan->num_tasks = p->a.num_batches * p->a.seqlen_q * p->a.num_heads_q;
}

// ---- Params -----------------------------------------------------------------------------------

static bool is_cache_aligned(const struct attention_decode_problem *p,
                             const struct attention_view *cache, int64_t dims) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(cache->dtype);
    int64_t piece = is_e4m3(p) && p->a.dtype != TSR_F32 ? 8 : 16;
    return (uintptr_t)cache->data % (uintptr_t)piece == 0 && dims * bytes % piece == 0 &&
           (p->a.num_heads_kv <= 1 || cache->head * bytes % piece == 0) &&
           (p->page_size <= 1 || cache->seq * bytes % piece == 0) &&
           (p->num_pages <= 1 || cache->batch * bytes % piece == 0);
}

static struct attention_tensor cache_of(const struct attention_view *cache) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(cache->dtype);
    return (struct attention_tensor){cache->data, cache->batch * bytes, cache->seq * bytes,
                                     cache->head * bytes};
}

static struct attention_head_values scale_of(const struct attention_per_head *scale) {
    return (struct attention_head_values){
        .data = scale->data, .batch = scale->batch, .head = scale->head, .is_f32 = true};
}

static struct attention_head_values norm_of(const struct attention_decode_weight *weight) {
    return (struct attention_head_values){
        .data = (void *)(uintptr_t)weight->data, .head = 1, .is_f32 = weight->dtype == TSR_F32};
}

static struct attention_decode_params params_of(const struct attention_decode_problem *p) {
    return (struct attention_decode_params){
        .a = attention_cuda_params(&p->a),
        .k_cache = cache_of(&p->k_cache),
        .v_cache = cache_of(&p->v_cache),
        .cache_seqlens = p->cache_seqlens,
        .page_table = p->page_table,
        .cache_seqlens_stride = p->cache_seqlens_stride,
        .page_table_stride = {p->page_table_stride[0], p->page_table_stride[1]},
        .leftpad_k = p->leftpad_k,
        .leftpad_stride = p->leftpad_stride,
        .num_pages = p->num_pages,
        .page_size = p->page_size,
        .capacity = p->capacity,
        .tree_mask = p->tree_mask,
        .tree_stride = {p->tree_stride[0], p->tree_stride[1], p->tree_stride[2]},
        .cos = (const float *)(const void *)p->cos.data,
        .sin = (const float *)(const void *)p->sin.data,
        .cos_stride = p->cos.stride,
        .sin_stride = p->sin.stride,
        .num_angles = p->cos.rows,
        .rotary_dim = (int)p->rotary_dim,
        .is_interleaved = p->is_interleaved,
        .q_norm = norm_of(&p->q_norm),
        .k_norm = norm_of(&p->k_norm),
        .norm_eps = (float)p->norm_eps,
        .norm_offset = (float)p->norm_offset,
        // Two of f16 are as exact as fp32.
        .num_query_parts = p->cos.data == NULL && p->q_norm.data == NULL ? 1
                           : is_e4m3(p)                                  ? 2
                                                                         : 3,
        .most_keys = (int)p->most_keys,
        .is_aligned = is_cache_aligned(p, &p->k_cache, p->a.head_dim) &&
                      is_cache_aligned(p, &p->v_cache, p->a.head_dim_v),
        .k_scale = scale_of(&p->k_scale),
        .v_scale = scale_of(&p->v_scale),
        .is_e4m3 = is_e4m3(p),
        .dtype = (int)p->a.dtype,
    };
}

// ---- Runs -------------------------------------------------------------------------------------

static tsr_status prepare_shared(tsr_context *ctx, const struct attention_decode_problem *p) {
    const struct tsri_cuda_program append = append_program(), check = check_program();
    if (p->num_errors != NULL) TSRI_TRY(tsri_cuda_prepare(op, tsri_context_queue(ctx), &check));
    if (p->a.k.data != NULL) TSRI_TRY(tsri_cuda_prepare(op, tsri_context_queue(ctx), &append));
    return attention_cuda_prepare_clear(ctx, op, &p->a);
}

// If no sequence has more than one tile of queries, one block of a head reads each new row, so that block may append it.
static bool is_appending(const struct attention_decode_problem *p, const struct tsri_plan *plan) {
    return p->a.k.data != NULL && plan->block_n == 1 && plan->num_tasks > 0;
}

// Counts bad sequences, writes new rows into the caches (unless the next kernel appends them), and clears rows of no sequence.
static tsr_status run_shared(tsr_context *ctx, const struct attention_decode_problem *p,
                             const struct attention_decode_params *params, bool is_appended) {
    const struct tsri_cuda_program append = append_program(), check = check_program();
    int64_t rows = p->a.num_batches * p->a.seqlen_q;
    if (p->num_errors != NULL) {
        const struct attention_decode_check_params counted = {*params, p->num_errors};
        TSRI_TRY(attention_cuda_launch(ctx, op, &check, 1, CHECK_THREADS, 0, &counted));
    }
    if (p->a.k.data != NULL && !is_appended)
        TSRI_TRY(attention_cuda_launch(ctx, op, &append, rows, THREADS, 0, params));
    return attention_cuda_clear(ctx, op, &p->a, &p->a.out, p->a.head_dim_v, false, true);
}

tsr_status attention_decode_cuda_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    const struct tsri_cuda_program split = split_program(p->a.dtype, is_e4m3(p), shape_of(p)),
                                   merge = merge_program();
    TSRI_TRY(prepare_shared(ctx, p));
    if (plan->block_k > 1 && !merges_itself(&p->a, plan))
        TSRI_TRY(tsri_cuda_prepare(op, tsri_context_queue(ctx), &merge));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &split);
}

// A new number of 64 bits for every call, mixed from one number of the process and one of the call. A workspace can only hold it
// if that call wrote it.
static uint64_t new_mark(void) {
    static atomic_uint_fast64_t next;
    uint64_t mark = atomic_fetch_add_explicit(&next, 0x9e3779b97f4a7c15u, memory_order_relaxed);
    if (mark == 0) { // the first
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        mark = (uint64_t)now.tv_nsec << 34 ^ (uint64_t)now.tv_sec ^ (uint64_t)getpid() << 20;
        atomic_fetch_add(&next, mark);
    }
    mark = (mark ^ mark >> 30) * 0xbf58476d1ce4e5b9u;
    mark = (mark ^ mark >> 27) * 0x94d049bb133111ebu;
    return (mark ^ mark >> 31) | 1; // never 0, as memory may be cleared to 0
}

// Whether blocks start while the previous kernel ends: on tensor cores with small caches. Large caches are in the second-level
// cache, if at all, near the multiprocessors that read them last, and blocks that start early are on other multiprocessors in each
// call.
static bool comes_early(const struct attention_decode_problem *p) {
    const int64_t row =
        (p->a.head_dim + p->a.head_dim_v) * (int64_t)tsr_dtype_bytes(p->k_cache.dtype);
    return p->a.dtype != TSR_F32 &&
           p->a.num_batches * p->a.num_heads_kv * p->most_keys * row <= EARLY_BYTES;
}

static tsr_status launch(tsr_context *ctx, const struct attention_decode_problem *p,
                         const struct tsri_cuda_program *program, int64_t num_blocks,
                         const struct attention_decode_params *params) {
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = THREADS,
                                            .is_early = comes_early(p),
                                            .params = params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

tsr_status attention_decode_cuda_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct attention_decode_problem *p = problem;
    struct attention_decode_params params = params_of(p);
    int64_t tiles = p->a.num_batches * p->a.num_heads_kv * plan->block_n;
    params.is_appending = is_appending(p, plan);
    params.num_items = (int)plan->num_tasks;
    params.max_chunks = (int)plan->block_k;
    params.rows_per_tile = (int)plan->block_m;
    params.partial_stride = (int)partial_stride_of(&p->a);
    params.partial = workspace;
    params.states = params.partial + plan->num_tasks * plan->block_m * params.partial_stride;
    params.merged_tiles = (int)tsri_min(plan->block_k, plan->block_n);
    params.num_merged =
        (int)(p->a.num_batches * p->a.num_heads_kv * params.merged_tiles * plan->block_m);
    if (merges_itself(&p->a, plan)) {
        params.mark = new_mark();
        params.marks =
            (unsigned long long *)(void *)(params.states + 2 * plan->num_tasks * plan->block_m);
    }
    TSRI_TRY(run_shared(ctx, p, &params, params.is_appending));
    if (plan->num_tasks == 0) return TSR_OK;
    const struct tsri_cuda_program split = split_program(p->a.dtype, is_e4m3(p), shape_of(p)),
                                   merge = merge_program();
    // Further blocks for sequences with more tiles than chunks, if there may be any.
    int64_t others = plan->block_n > plan->block_k ? tsri_min(tiles, plan->grain) : 0;
    TSRI_TRY(launch(ctx, p, &split, params.num_items + others, &params));
    if (plan->block_k == 1 || params.marks != NULL) return TSR_OK;
    return launch(ctx, p, &merge, params.num_merged, &params);
}

tsr_status attention_decode_cuda_prepare_naive(tsr_context *ctx, const void *problem,
                                               const struct tsri_plan *plan) {
    const struct attention_decode_problem *p = problem;
    const struct tsri_cuda_program naive = naive_program(p->a.dtype);
    (void)plan;
    TSRI_TRY(prepare_shared(ctx, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &naive);
}

tsr_status attention_decode_cuda_run_naive(tsr_context *ctx, const void *problem,
                                           const struct tsri_plan *plan, void *workspace) {
    const struct attention_decode_problem *p = problem;
    const struct attention_decode_params params = params_of(p);
    const struct tsri_cuda_program naive = naive_program(p->a.dtype);
    (void)workspace;
    TSRI_TRY(run_shared(ctx, p, &params, false));
    return attention_cuda_launch(ctx, op, &naive, tsri_min(plan->num_tasks, NAIVE_BLOCKS), THREADS,
                                 0, &params);
}
