// SPDX-License-Identifier: Apache-2.0
// cuda-few, attention's forward of few queries on Hopper: what is served, plan, launch. It is flash3 with other rows in a tile:
// see struct attention_few.
#include <math.h>

#include "ops/attention/cuda/forward/attention_flash3_cuda.h"

static const char op[] = "attention_forward";

enum {
    SOFTCAP = 2, // as in a tile's terms
    GROUP_ROWS = FLASH3_GROUP_ROWS,
    MOST_SPLITS = 64,
    MERGE_THREADS = 128,
    MOST_ROWS = 1 << 24, // of a sequence
    MOST_TASKS = 1 << 28,
};

static const struct flash3_tile tiles[] = {
    {64, 64, 1, 128, 2, 4, .ns = 1050},   {64, 64, 2, 128, 2, 4, .ns = 1400},
    {128, 128, 1, 128, 2, 2, .ns = 1330}, {128, 128, 2, 128, 2, 2, .ns = 1600},
    {192, 128, 1, 128, 1, 2, .ns = 1800}, {256, 256, 1, 64, 1, 2, .ns = 1500},
};

static int64_t group_of(const struct attention_problem *p) {
    return tsri_max(p->num_heads_q / tsri_max(p->num_heads_kv, 1), 1);
}

// Other tiles have too few registers for softcap.
static bool has_softcap(const struct flash3_tile *tile) {
    return tile->groups == 1 && tile->head_dim <= 128;
}

// Whether the tile is one of the narrowest that hold the heads, and a query's heads fit in it.
static bool may_serve(const struct flash3_tile *tile, const struct attention_problem *p) {
    const struct flash3_tile *first = tiles;
    while (first < tiles + TSRI_COUNT(tiles) &&
           (p->head_dim > first->head_dim || p->head_dim_v > first->head_dim_v))
        first++;
    return first < tiles + TSRI_COUNT(tiles) && tile->head_dim == first->head_dim &&
           group_of(p) <= tile->groups * GROUP_ROWS && (p->softcap == 0 || has_softcap(tile));
}

// ---- Programs ---------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(const struct flash3_tile *tile, tsr_dtype dtype,
                                           bool with_softcap) {
    struct flash3_tile with_terms = *tile;
    with_terms.terms = with_softcap ? SOFTCAP : 0;
    struct tsri_cuda_program program = attention_cuda_flash3_program(&with_terms, dtype);
    attention_cuda_define(&program, "FEW", 1);
    return program;
}

struct tsri_cuda_program attention_cuda_few_merge_program(void) {
    return attention_cuda_program("ops/attention/cuda/forward/attention_few_merge.cu",
                                  "attention_few_merge", TSR_F32);
}

static bool is_rare(const struct flash3_tile *tile, tsr_dtype dtype, bool with_softcap) {
    return with_softcap || (dtype == TSR_F16 && tile->head_dim > 128);
}

bool attention_cuda_few_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    if (dtype == TSR_F32) return false;
    for (int i = 0; i < 2 * TSRI_COUNT(tiles); i++) {
        const struct flash3_tile *tile = &tiles[i / 2];
        const bool with_softcap = i % 2 != 0;
        if ((with_softcap && !has_softcap(tile)) || (*index)-- > 0) continue;
        *program = program_of(tile, dtype, with_softcap);
        program->is_rare = is_rare(tile, dtype, with_softcap);
        return true;
    }
    return false;
}

// ---- What is served, and how --------------------------------------------------------------------

struct way {
    const struct flash3_tile *tile;
    int64_t queries, num_tiles, num_splits, num_tasks;
    double ns;
};

// Keys that a tile of so many queries sees, at most.
static int64_t keys_of(const struct attention_problem *p, int64_t queries) {
    const bool is_causal = p->mask != TSR_MASK_NONE;
    if (!p->has_window_left || !(is_causal || p->has_window_right)) return p->seqlen_k;
    const int64_t behind = is_causal ? 0 : p->window_right;
    if (p->window_left >= p->seqlen_k || behind >= p->seqlen_k) return p->seqlen_k;
    return tsri_min(p->window_left + behind + queries, p->seqlen_k);
}

// Nanoseconds of a launch with the first tile, and of a second launch; rates of memory and second-level cache in bytes per
// nanosecond.
#define START_NS 4300.0
#define MERGE_NS 2500.0
#define MEMORY_RATE 4200.0
#define CACHE_RATE 2200.0

static double ns_of_memory(const struct attention_problem *p, int64_t keys) {
    const int64_t bytes = (p->head_dim + p->head_dim_v) * (int64_t)sizeof(uint16_t);
    return (double)(p->num_batches * p->num_heads_kv * keys * bytes) / MEMORY_RATE;
}

// The estimate with at most most_splits runs of keys.
static struct way way_of(const struct attention_problem *p, const struct tsri_limits *limits,
                         const struct flash3_tile *tile, int64_t most_splits) {
    const int64_t rows = (int64_t)tile->groups * GROUP_ROWS, queries = rows / group_of(p),
                  num_tiles = tsri_ceil_div(p->seqlen_q, queries), keys = keys_of(p, queries),
                  blocks = tsri_max(tsri_ceil_div(keys, tile->block_n), 1),
                  part = tsri_ceil_div(blocks, tsri_min(most_splits, blocks)),
                  splits = tsri_ceil_div(blocks, part),
                  num_tasks = p->num_batches * p->num_heads_kv * num_tiles * splits,
                  rounds = tsri_ceil_div(num_tasks, tsri_max(limits->num_sms, 1)),
                  rows_there = tsri_min(queries, p->seqlen_q) * group_of(p);
    struct way way = {tile, queries, num_tiles, splits, num_tasks, START_NS};
    way.ns += fmax((double)(rounds * part * tile->ns), ns_of_memory(p, keys));
    if (splits > 1) // partial results are written and read
        way.ns += MERGE_NS + (double)(num_tasks * rows_there * tile->head_dim_v) * 8 / CACHE_RATE;
    return way;
}

// The tile and the number of runs of keys with the least time: one run, or as many as fill one or two rounds of blocks.
static struct way best_way(const struct attention_problem *p, const struct tsri_limits *limits) {
    enum { MOST_ROUNDS = 2 };
    struct way best = {.ns = INFINITY};
    for (int i = 0; i < TSRI_COUNT(tiles); i++) {
        if (!may_serve(&tiles[i], p)) continue;
        const struct way whole = way_of(p, limits, &tiles[i], 1);
        if (whole.ns < best.ns) best = whole;
        for (int rounds = 1; rounds <= MOST_ROUNDS && whole.num_tasks > 0; rounds++) {
            const int64_t splits = rounds * limits->num_sms / whole.num_tasks;
            if (splits < 2) continue;
            const struct way way = way_of(p, limits, &tiles[i], tsri_min(splits, MOST_SPLITS));
            if (way.ns < best.ns) best = way;
        }
    }
    return best;
}

static bool map_queries(const struct attention_problem *p, const struct way *way,
                        struct tsri_tensor_map_args *args, struct attention_flash3_tensor *tensor) {
    const int64_t group = group_of(p);
    const struct attention_view *q = &p->q;
    if (group > 1 && q->head == 0) return false;
    tensor->head = p->num_heads_kv > 1 && q->head != 0;
    tensor->batch = !p->is_packed && p->num_batches > 1 && q->batch != 0;
    *args = (struct tsri_tensor_map_args){
        .data = q->data,
        .dtype = q->dtype,
        .size = {p->head_dim, group, p->total_q, tensor->head ? p->num_heads_kv : 1,
                 tensor->batch ? p->num_batches : 1},
        .stride = {1, group > 1 ? q->head : FLASH3_SLAB, p->total_q > 1 ? q->seq : FLASH3_SLAB,
                   tensor->head ? q->head * group : FLASH3_SLAB,
                   tensor->batch ? q->batch : FLASH3_SLAB},
        .box = {FLASH3_SLAB, (int)group, (int)way->queries, 1, 1},
        .is_swizzled = true};
    return tsri_tensor_map_fits(args);
}

// Not under TSR_BATCH_INVARIANT: the runs of keys depend on other rows and heads.
bool attention_cuda_has_few(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    struct tsri_tensor_map_args map;
    struct attention_flash3_tensor t;
    if ((limits->flags & TSR_BATCH_INVARIANT) != 0 || p->bias.data != NULL ||
        p->slopes.data != NULL || p->dropout_threshold != 0 ||
        !attention_cuda_has_flash3(p, limits))
        return false;
    if (p->num_heads_q == 0 || group_of(p) > 2 * GROUP_ROWS ||
        p->seqlen_q > MOST_ROWS / group_of(p) ||
        p->num_batches * p->num_heads_q > MOST_TASKS / tsri_max(p->seqlen_q, 1) / MOST_SPLITS)
        return false;
    const struct way way = best_way(p, limits);
    return way.tile != NULL &&
           attention_cuda_flash3_bytes(way.tile) <= limits->shared_bytes_per_block &&
           map_queries(p, &way, &map, &t);
}

// Compares the time with that of flash3 for its rounds of tiles. Not tried if these rounds are full and all multiprocessors busy,
// nor for one or two tiles of keys.
bool attention_cuda_prefers_few(const struct attention_problem *p,
                                const struct tsri_limits *limits) {
    const int64_t sms = tsri_max(limits->num_sms, 1);
    if (p->seqlen_k <= 256 ||
        p->num_batches * p->num_heads_q * (p->seqlen_q / (3 * GROUP_ROWS)) >= sms ||
        !attention_cuda_has_few(p, limits))
        return false;
    const struct way way = best_way(p, limits);
    if (is_rare(way.tile, p->dtype, p->softcap != 0)) return false; // flash3's is not rare
    const struct attention_flash3_work work = attention_cuda_flash3_work(p, limits);
    const double per_task = fmin((double)work.num_tiles / (double)tsri_max(work.num_tasks, 1),
                                 (double)keys_of(p, work.rows) / way.tile->block_n + 1),
                 row_ns = way.tile->head_dim == 64 ? 10
                          : way.tile->head_dim == 256 && p->seqlen_k >= 2048
                              ? 17 // tiles of 80 keys
                              : 12,
                 tile_ns = (double)work.rows * row_ns,
                 ns = START_NS + (double)tsri_ceil_div(work.num_tasks, sms) * per_task * tile_ns;
    return way.ns * 1.15 < ns;
}

// block_m: rows of a tile. block_n: keys. block_k: runs of keys. grain: queries of a tile.
void attention_cuda_plan_few(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct way way = best_way(problem, limits);
    plan->block_m = (int64_t)way.tile->groups * GROUP_ROWS;
    plan->block_n = way.tile->block_n;
    plan->block_k = way.num_splits;
    plan->grain = way.queries;
    plan->num_tasks = way.num_tasks;
    if (way.num_splits > 1)
        plan->workspace_bytes =
            (size_t)(way.num_tasks * plan->block_m * (way.tile->head_dim_v + 2)) * sizeof(float);
}

static const struct flash3_tile *planned_tile(const struct attention_problem *p,
                                              const struct tsri_plan *plan) {
    const struct flash3_tile *tile = tiles;
    while (!may_serve(tile, p) || tile->groups * GROUP_ROWS != plan->block_m ||
           tile->block_n != plan->block_n)
        tile++;
    return tile;
}

// ---- Launches ---------------------------------------------------------------------------------

tsr_status attention_cuda_few_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program =
                                       program_of(planned_tile(p, plan), p->dtype, p->softcap != 0),
                                   merge = attention_cuda_few_merge_program();
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    if (plan->block_k > 1) TSRI_TRY(tsri_cuda_prepare(op, tsri_context_queue(ctx), &merge));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

static tsr_status launch_merge(tsr_context *ctx, const struct attention_flash3_params *params,
                               const struct attention_problem *p) {
    const struct tsri_cuda_program program = attention_cuda_few_merge_program();
    const struct attention_few *few = &params->few;
    const int64_t rows = tsri_min(few->queries, p->seqlen_q) * group_of(p);
    const struct attention_few_merge_params merge = {
        params->forward.p, *few, params->forward.num_tiles, (int)rows, (int)p->dtype};
    const int64_t rows_of_block = 4 * MERGE_THREADS / few->dims,
                  num_tiles = p->num_batches * p->num_heads_kv * merge.num_tiles;
    const struct tsri_cuda_launch launch = {.num_blocks =
                                                num_tiles * tsri_ceil_div(rows, rows_of_block),
                                            .num_threads = MERGE_THREADS,
                                            .is_early = true,
                                            .params = &merge};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}

tsr_status attention_cuda_few_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct flash3_tile *tile = planned_tile(p, plan);
    const struct tsri_cuda_program program = program_of(tile, p->dtype, p->softcap != 0);
    const struct way way = {.queries = plan->grain};
    struct attention_flash3_params params = attention_cuda_flash3_params(p, plan);
    struct tsri_tensor_map_args map;
    params.forward.num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->grain);
    params.few = (struct attention_few){.partial = workspace,
                                        .queries = (int)plan->grain,
                                        .num_splits = (int)plan->block_k,
                                        .block_m = (int)plan->block_m,
                                        .dims = tile->head_dim_v};
    if (plan->block_k > 1)
        params.few.states = params.few.partial + plan->num_tasks * plan->block_m * tile->head_dim_v;
    (void)map_queries(p, &way, &map, &params.q);
    TSRI_TRY(tsri_cuda_queue_map(op, tsri_context_queue(ctx), &map, &params.q.map));
    TSRI_TRY(attention_cuda_flash3_launch(ctx, p, plan, tile, &program, &params));
    return plan->block_k > 1 ? launch_merge(ctx, &params, p) : TSR_OK;
}
