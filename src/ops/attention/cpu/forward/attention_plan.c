// SPDX-License-Identifier: Apache-2.0
// Blocks, tasks and workspace of forward's variants. Those of backward are in attention_grad_plan.c. Pure.
#include "ops/attention/cpu/attention_seen.h"
#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/backward/attention_grad_mixed.h"
#include "ops/attention/cpu/forward/attention_mixed.h"

enum {
    FLASH_BLOCK_M = 64, // as in the papers
    FLASH_BLOCK_N = 64,
    NAIVE_BLOCK_M = 96,
    TUNED_BLOCK_M = 96, // a multiple of the register tile's 6 and 4 rows
    TUNED_TALL_BLOCK_M = 192,
    LEAST_BLOCK_M = 24,      // if there are few tiles
    TILE_COST = 8,           // overhead of a tile, in rows
    PACKED_AGAIN = 96 << 10, // elements of keys and values that a thread may pack again
    // Elements of a head that few threads take tile by tile: packed, they fill the second-level cache.
    SHARED_MOST = 128 << 10,
    SHARED_LEAST_WORK = 65000,   // rows x elements that are worth two threads; twice for one tile
    HELPED_LEAST_WORK = 1 << 20, // rows x elements; in bf16 these count half
    CROWD_ROWS = 32,             // of a thread that packs a head for itself
    CROWD_OF_HEAD = 8,           // threads of one head,
    CROWD_OF_SQUARE = 16,        // and if it has no more keys than rows
    MANY_TILES = 32,             // of a thread: any height is even enough
    TUNED_BLOCK_N = 512,         // AVX-512
    TUNED_NARROW_BLOCK_N = 256,
    LONE_BLOCK_NUMEL = 64 << 10, // elements of a block of keys and values that a lone tile packs
    LONE_RUN_NUMEL = 32 << 10,   // elements of a run worth merging, twice in bf16
    LONE_TASKS = 64,             // heads x runs, at most
    STRIPE_FLOATS = 8 << 20,     // packed keys and values of as many heads as fit in 32 MiB
};

static size_t bytes(int64_t floats) { return (size_t)floats * sizeof(float); }

bool attention_has_kernels(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct attention_problem *)problem)->dtype != TSR_F64;
}

bool attention_has_naive(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    int64_t rows = attention_num_pairs(p) * attention_most_rows(p);
    return attention_has_kernels(p, limits) &&
           (rows == 0 || p->seqlen_k <= TSRI_MAX_ELEMENTS / rows);
}

// The work in multiplications of fp32 tiles. Measured; most of it is not the products.
int attention_flash2_threads(const struct attention_problem *p, const struct tsri_limits *limits) {
    enum { OF_HEAD = 40 << 10, OF_ROW = 8 << 10, OF_PACKING = 8, OF_SCORE = 32, PANEL = 32 };
    double keys = (double)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), PANEL);
    double dims = (double)(p->head_dim + p->head_dim_v), rows = (double)attention_most_rows(p);
    double of_row = OF_ROW + (double)p->seqlen_k * (dims + OF_SCORE);
    return tsri_worth_threads(limits, (double)attention_num_pairs(p) *
                                          (OF_HEAD + keys * dims * OF_PACKING + rows * of_row));
}

void attention_plan_flash2(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    plan->block_m = FLASH_BLOCK_M;
    plan->block_n = FLASH_BLOCK_N;
    plan->num_tasks = attention_num_pairs(p) * tsri_ceil_div(attention_most_rows(p), plan->block_m);
    plan->grain = attention_tile_floats(p, plan->block_m, plan->block_n) +
                  tsri_max(attention_k_floats(p, plan->block_n, nr),
                           attention_v_floats(p, plan->block_n, nr));
    plan->workspace_bytes = bytes(plan->grain * limits->num_threads);
}

void attention_plan_flash1(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    attention_plan_flash2(problem, limits, plan);
    // Keys and values of a block at the same time; output, maximum and denominator of all rows of a head.
    plan->grain += tsri_min(attention_k_floats(p, plan->block_n, nr),
                            attention_v_floats(p, plan->block_n, nr));
    int64_t o_stride = attention_row_stride(p->head_dim_v);
    plan->num_tasks = attention_num_pairs(p);
    plan->grain += (int64_t)tsri_round_up((size_t)(attention_most_rows(p) * (o_stride + 2)), 16);
    plan->workspace_bytes = bytes(plan->grain * limits->num_threads);
}

void attention_plan_naive(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    int64_t rows = attention_num_pairs(p) * attention_most_rows(p);
    plan->block_m = NAIVE_BLOCK_M;
    plan->num_tasks = attention_num_pairs(p) * tsri_ceil_div(attention_most_rows(p), plan->block_m);
    plan->grain =
        attention_tile_floats(p, plan->block_m, 0) +
        tsri_max(attention_k_floats(p, p->seqlen_k, nr), attention_v_floats(p, p->seqlen_k, nr));
    plan->grain = (int64_t)tsri_round_up((size_t)plan->grain, 16);
    plan->workspace_bytes =
        bytes((int64_t)tsri_round_up((size_t)(rows * p->seqlen_k), 16) +
              2 * (int64_t)tsri_round_up((size_t)rows, 16) + plan->grain * limits->num_threads);
}

// Bytes of one packed element of keys and values.
static int64_t packed_bytes(bool is_mixed) { return is_mixed ? sizeof(uint16_t) : sizeof(float); }

// Packed keys and values of a large head leave the second-level cache between two tiles. Taller tiles bring them in less often.
static bool head_is_large(const struct attention_problem *p, const struct tsri_limits *limits,
                          bool is_mixed) {
    return p->seqlen_k * (p->head_dim + p->head_dim_v) * packed_bytes(is_mixed) >
           limits->l2_bytes / 2;
}

// Whether threads with whole heads also take tiles of other threads' last heads. Many threads differ in speed, and heads need not
// divide evenly. With more heads the last ones matter less, and for small heads the counting costs more than it gains.
static bool helps(const struct attention_problem *p, const struct tsri_limits *limits,
                  bool is_mixed) {
    int64_t pairs = attention_num_pairs(p), rows = attention_most_rows(p);
    int64_t threads = limits->num_threads;
    double work = (double)rows * (double)p->seqlen_k * (double)(p->head_dim + p->head_dim_v);
    return threads > 1 && threads <= ATTENTION_MOST_HELPED && pairs >= threads &&
           pairs <= INT32_MAX && rows > TUNED_BLOCK_M && rows <= INT32_MAX &&
           (is_mixed ? work / 2 : work) >=
               (double)HELPED_LEAST_WORK * (double)tsri_max(tsri_ceil_div(pairs, threads), 2);
}

// Whether a head's rows are one tile, for any number of threads.
static bool is_lone(const struct attention_problem *p) {
    return attention_most_rows(p) < ATTENTION_LONE_ROWS;
}

// Whether each thread may keep a head of this size while threads help each other.
static bool can_keep_heads(const struct attention_problem *p, const struct tsri_limits *limits,
                           bool is_mixed) {
    return p->seqlen_k * (p->head_dim + p->head_dim_v) * packed_bytes(is_mixed) <=
           2 * limits->l2_bytes;
}

// Whether each thread packs the heads that it uses. There must be enough heads for every thread, or one tile per head. A head must
// be so small that it and the next one fit in the second-level cache. Otherwise threads share heads.
static bool has_own_heads(const struct attention_problem *p, const struct tsri_limits *limits,
                          bool is_mixed) {
    int64_t numel = p->seqlen_k * (p->head_dim + p->head_dim_v), pairs = attention_num_pairs(p);
    bool is_small = numel * (packed_bytes(is_mixed) + (int64_t)tsr_dtype_bytes(p->dtype)) <=
                    limits->l2_bytes - (limits->l2_bytes >> 2);
    bool is_even = !p->is_packed && p->seqused_k == NULL && pairs % limits->num_threads == 0;
    // No other tile reads what is packed for a lone tile.
    return is_small && (is_even || is_lone(p) || pairs >= 4 * limits->num_threads);
}

// The height of a tile: as high as allowed, or lower to give threads equal rows. The thread with the most rows decides the time.
static int64_t even_block_m(int64_t rows, int64_t most_m, int64_t mr, int64_t pairs,
                            int64_t threads) {
    int64_t least = tsri_max(tsri_ceil_div(rows, most_m), 1), longest = INT64_MAX, block_m = mr;
    int64_t most = tsri_max(2 * least, tsri_ceil_div(threads, pairs));
    most = tsri_max(tsri_min(most, rows / LEAST_BLOCK_M), least);
    if (pairs * least >= MANY_TILES * threads || threads == 1) most = least;
    for (int64_t tiles = least; tiles <= most; tiles++) {
        int64_t block =
            (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(rows, tiles), 1), (size_t)mr);
        int64_t tasks = pairs * tsri_ceil_div(rows, block);
        int64_t length = tsri_ceil_div(tasks, threads) * (block + TILE_COST);
        if (length >= longest) continue;
        longest = length;
        block_m = block;
    }
    return block_m;
}

// Whether few threads take heads and tiles one by one. This serves heads that do not divide evenly, if one is worth two threads,
// and heads of several tiles, as threads may differ in speed.
bool attention_shares_heads(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t numel = p->seqlen_k * (p->head_dim + p->head_dim_v), threads = limits->num_threads;
    if (threads < 2 || threads > ATTENTION_FEW_THREADS || limits->isa == TSR_ISA_AVX512)
        return false;
    if (numel > SHARED_MOST) return false;
    int64_t rows = attention_most_rows(p);
    if (attention_num_pairs(p) % threads == 0) return rows >= 4 * LEAST_BLOCK_M;
    int64_t least = rows < ATTENTION_LONE_ROWS ? 2 * SHARED_LEAST_WORK : SHARED_LEAST_WORK;
    return rows >= LEAST_BLOCK_M && rows * numel >= least;
}

// Whether each tile packs for itself. For few elements that costs less than waiting for other threads and reading what they wrote.
static bool packs_by_tile(const struct attention_problem *p, const struct tsri_limits *limits,
                          int64_t tasks) {
    int64_t numel = p->seqlen_k * (p->head_dim + p->head_dim_v), threads = limits->num_threads;
    int64_t more = tsri_ceil_div(tasks, threads) * threads -
                   attention_num_pairs(p); // extra packings by all threads
    return threads > 1 && numel <= PACKED_AGAIN && more * numel <= PACKED_AGAIN * threads;
}

// Whether many threads share few heads as a few threads do. Reading what another thread packed is slow, so each thread packs a
// head for itself and takes tile after tile of it. Not with few rows per thread, nor with too many copies (fewer if a sequence is
// longer than its queries), nor for a single long head in fp32.
static bool crowd_shares_heads(const struct attention_problem *p, const struct tsri_limits *limits,
                               bool is_mixed) {
    int64_t threads = limits->num_threads, pairs = attention_num_pairs(p);
    int64_t rows = attention_most_rows(p), numel = p->seqlen_k * (p->head_dim + p->head_dim_v);
    return threads > ATTENTION_FEW_THREADS && threads <= ATTENTION_MOST_HELPED && pairs < threads &&
           can_keep_heads(p, limits, is_mixed) &&
           (double)pairs * (double)rows >= CROWD_ROWS * (double)threads &&
           (p->seqlen_k <= rows ? CROWD_OF_SQUARE : CROWD_OF_HEAD) * pairs >= threads &&
           (is_mixed || pairs > 1 || numel <= PACKED_AGAIN);
}

// Keys of a block. A lone tile takes as many as it can pack and read within the second-level cache, unless a row's sums may not
// depend on the number of rows.
static int64_t block_n_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t most = limits->isa == TSR_ISA_AVX512 ? TUNED_BLOCK_N : TUNED_NARROW_BLOCK_N;
    int64_t nr = gemm_kernels(limits->isa)->nr, dims = tsri_max(p->head_dim + p->head_dim_v, 1);
    if (is_lone(p) && (limits->flags & TSR_BATCH_INVARIANT) == 0) {
        int64_t keys = LONE_BLOCK_NUMEL / dims / ATTENTION_CHUNK * ATTENTION_CHUNK;
        most = tsri_min(most, tsri_max(keys, ATTENTION_CHUNK));
    }
    return tsri_min(most, (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), (size_t)nr));
}

// The number of runs of keys of a head's only tile. A run is whole blocks; tuned_run_blocks derives its keys from this number.
static int64_t lone_runs(const struct attention_problem *p, const struct tsri_limits *limits,
                         bool is_mixed) {
    int64_t dims = tsri_max(p->head_dim + p->head_dim_v, 1), block_n = block_n_of(p, limits);
    bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    if (is_invariant || 2 * p->seqlen_k <= 3 * block_n) return 1; // a second run would be short
    int64_t most = tsri_max(LONE_TASKS / tsri_max(attention_num_pairs(p), 1), 1);
    int64_t worth = tsri_max((LONE_RUN_NUMEL << is_mixed) / dims / block_n, 1);
    int64_t blocks = tsri_ceil_div(p->seqlen_k, block_n);
    return tsri_ceil_div(blocks, tsri_max(tsri_ceil_div(blocks, most), worth));
}

enum attention_packing attention_packing(const struct attention_problem *p,
                                         const struct tsri_limits *limits, int64_t block_m,
                                         bool is_mixed) {
    if (is_lone(p) && lone_runs(p, limits, is_mixed) > 1)
        return ATTENTION_PACKS_BLOCKS; // before all others: its sums have another order
    if (attention_shares_heads(p, limits)) return ATTENTION_PACKS_SHARED;
    if (helps(p, limits, is_mixed)) {
        if (can_keep_heads(p, limits, is_mixed)) return ATTENTION_PACKS_HELPED;
    } else if (has_own_heads(p, limits, is_mixed)) {
        return ATTENTION_PACKS_HEADS;
    }
    if (is_lone(p)) return ATTENTION_PACKS_BLOCKS;
    int64_t tasks = attention_num_pairs(p) * tsri_ceil_div(attention_most_rows(p), block_m);
    bool is_by_tile = packs_by_tile(p, limits, tasks);
    if ((!is_by_tile || tasks > limits->num_threads) && crowd_shares_heads(p, limits, is_mixed))
        return ATTENTION_PACKS_SHARED;
    return is_by_tile ? ATTENTION_PACKS_TILES : ATTENTION_PACKS_STRIPES;
}

int64_t attention_slot_floats(const struct attention_packed *packed) {
    int64_t flags = tsri_ceil_div(packed->num_keys, ATTENTION_CHUNK);
    return packed->k_floats + packed->v_floats +
           (int64_t)tsri_round_up((size_t)flags, 64) / (int64_t)sizeof(float);
}

static int64_t slot_floats(const struct attention_problem *p, int64_t num_keys, int nr,
                           bool is_mixed) {
    struct attention_packed packed =
        is_mixed ? attention_mixed_packed(p, num_keys) : attention_packed(p, num_keys, nr);
    return attention_slot_floats(&packed);
}

// Tiles of a head for a few threads. Shared heads have an even number of tiles per thread: so shares are equal even under a causal
// mask, where tiles go from the heaviest to the lightest. More tiles let a slow thread delay the others less, but bring keys in
// from the second-level cache more often.
static int64_t shared_tiles(const struct attention_problem *p, int64_t rows, int64_t threads) {
    bool is_even = attention_num_pairs(p) % threads == 0, is_short = rows < 4 * LEAST_BLOCK_M;
    int64_t round = is_even ? 1 : is_short && p->mask == TSR_MASK_NONE ? threads : 2 * threads;
    int64_t wanted = rows / (is_even ? 2 * LEAST_BLOCK_M : LEAST_BLOCK_M);
    wanted = tsri_min(wanted / round * round, 4 * threads);
    int64_t least =
        (int64_t)tsri_round_up((size_t)tsri_ceil_div(rows, TUNED_BLOCK_M), (size_t)round);
    return tsri_max(is_short ? round : wanted, least);
}

// Blocks are whole register tiles, mr rows high.
static void plan_tuned(const struct attention_problem *whole, const struct tsri_limits *limits,
                       bool is_mixed, int64_t mr, struct tsri_plan *plan) {
    struct attention_problem part;
    const struct attention_problem *p = attention_seen_part(whole, limits->flags, &part);
    int64_t rows = attention_most_rows(p), pairs = attention_num_pairs(p);
    plan->block_n = block_n_of(p, limits);
    bool has_tall = head_is_large(p, limits, is_mixed) &&
                    pairs * rows >= 4 * TUNED_TALL_BLOCK_M * limits->num_threads;
    int64_t most_m = has_tall ? TUNED_TALL_BLOCK_M : TUNED_BLOCK_M;
    plan->block_m = even_block_m(rows, most_m, mr, tsri_max(pairs, 1), limits->num_threads);
    int64_t tiles = tsri_ceil_div(rows, plan->block_m), nr = gemm_kernels(limits->isa)->nr;
    int64_t slot = slot_floats(p, p->seqlen_k, (int)nr, is_mixed), partial = 0;
    plan->block_k = limits->num_threads; // heads or blocks that are packed at a time
    switch (attention_packing(p, limits, plan->block_m, is_mixed)) {
    case ATTENTION_PACKS_STRIPES:
        plan->block_k = tsri_min(STRIPE_FLOATS / tsri_max(slot, 1), pairs);
        break;
    case ATTENTION_PACKS_HEADS:
    case ATTENTION_PACKS_HELPED:
        plan->block_k = tsri_min(plan->block_k, pairs);
        tiles = 1;
        break;
    case ATTENTION_PACKS_SHARED:
        if (limits->num_threads > ATTENTION_FEW_THREADS) break; // keeps the height
        tiles = shared_tiles(p, rows, limits->num_threads);
        plan->block_m = tsri_max(tsri_ceil_div(tsri_ceil_div(rows, mr), tiles), 1) * mr;
        break;
    case ATTENTION_PACKS_BLOCKS:
        slot = slot_floats(p, plan->block_n, (int)nr, is_mixed);
        tiles = lone_runs(p, limits, is_mixed);
        if (tiles > 1) partial = pairs * tiles * attention_state_floats(p, plan->block_m);
        break;
    case ATTENTION_PACKS_TILES: break;
    }
    plan->block_k = tsri_max(plan->block_k, 1);
    plan->num_tasks = pairs * tiles;
    plan->grain = attention_tile_floats(p, plan->block_m, plan->block_n);
    plan->workspace_bytes =
        bytes(plan->block_k * slot + plan->grain * limits->num_threads + partial);
}

void attention_plan_tuned(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    plan_tuned(problem, limits, false, gemm_kernels(limits->isa)->mr, plan);
}

// ---- Products in bf16 -------------------------------------------------------------------------

bool attention_has_amx_bf16(const void *problem, const struct tsri_limits *limits) {
    return ((const struct attention_problem *)problem)->dtype == TSR_BF16 &&
           tsri_can_use_tiles(limits->bf16);
}

bool attention_has_avx512_bf16(const void *problem, const struct tsri_limits *limits) {
    return ((const struct attention_problem *)problem)->dtype == TSR_BF16 && limits->bf16.has_dot;
}

void attention_plan_amx_bf16(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    plan_tuned(problem, limits, true, gemm_bf16_kernels(true)->mr, plan);
}

void attention_plan_avx512_bf16(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    plan_tuned(problem, limits, true, gemm_bf16_kernels(false)->mr, plan);
}
