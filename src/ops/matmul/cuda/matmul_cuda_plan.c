// SPDX-License-Identifier: Apache-2.0
// Matmul on CUDA: chooses the tile and the number of parts of k. Pure.
//
// The choice minimizes the time of a simple cost model: whole waves of tiles over the multiprocessors, at the rate of
// the tile, plus the memory traffic of the splits' partial sums. Under TSR_BATCH_INVARIANT, the number of tiles does
// not decide whether k is split, and a variant uses only tiles that add in the same order.
#include "ops/matmul/cuda/matmul_cuda.h"

#include <math.h>

enum {
    MIN_SPLIT_K = 256,       // columns of k from which a separate split pays
    MAX_SPLITS = 32,         //
    GEMV_K = 3072,           // per part: 48 KiB of shared memory
    MAX_BLOCKS = 0x7fffffff, // per launch
};

// ---- The cost model ------------------------------------------------------------------------------
// The named constants and the tiles' rates were fitted to device times on an H200 (docs/kernels/matmul_cuda.md): a
// launch after another in a graph, the kernel that adds splits, the copy of an operand, and bytes from the caches.

enum {
    H200_BYTES_PER_NS = 3000,
    LAUNCH_NS = 2000,
    SPLIT_NS = 3500,
    COPY_NS = 3000,
    PLANES_NS = 1000
};

// Tiles, of clusters, that are processed at the same time.
static int64_t at_once_of(const struct matmul_cuda_layout *l, const struct tsri_limits *limits) {
    return tsri_max(limits->num_sms / tsri_max(l->tile->cluster, 1), 1);
}

// Rounds of tiles on the busiest multiprocessor, or pair of them.
static double rounds_of(const struct matmul_cuda_layout *l, const struct tsri_limits *limits) {
    return (double)tsri_ceil_div(l->num_tiles, at_once_of(l, limits));
}

static double ns_of_copies(const struct matmul_cuda_layout *l, enum matmul_cuda_kind kind) {
    const struct matmul_cuda_operand *const operands[] = {&l->a, &l->b, &l->b_up};
    const bool is_planes = kind == MATMUL_BF16X6; // 6 bytes instead of 4
    const double moved = is_planes ? 10.0 / 6 : 2;
    double ns = 0;
    for (int i = 0; i < TSRI_COUNT(operands); i++)
        if (operands[i]->is_copied)
            ns += (is_planes ? PLANES_NS : COPY_NS) +
                  moved * (double)operands[i]->bytes / H200_BYTES_PER_NS;
    return ns;
}

static double ns_of_splits(const struct matmul_problem *p, const struct matmul_cuda_layout *l) {
    const double sums = (double)p->num_batches * (double)p->m * (double)l->partial_row *
                        (p->b_up.data != NULL ? 2 : 1);
    return l->num_splits > 1 ? SPLIT_NS + (double)l->num_splits * 8 * sums / H200_BYTES_PER_NS : 0;
}

// Number of parts of k whose sums are added in fp32.
static double parts_of(const struct matmul_cuda_layout *l, double k) {
    return k > 0 ? ceil(k / (l->blocks_of_part * l->tile->block_k)) : 1;
}

// Half of the end of the widest tile takes the same time for a tile of any width.
static double share_of_width(const struct matmul_cuda_tile *tile) {
    return (256 + tile->block_n) / 512.0;
}

enum { RICH_NS = 4000, RICH_ACTIVATION_NS = 3000, PART_NS = 6000 };

// Additional time of the end for a tile of 128 x 256 in 16 bits.
static double ns_of_end(const struct matmul_problem *p, double parts) {
    enum { BIAS_NS = 400, GELU_NS = 1950, ACTIVATION_NS = 1650 };
    const bool is_active = p->activation != TSR_ACTIVATION_NONE;
    const double sums = (parts - 1) * PART_NS;
    if (!matmul_cuda_wgmma_is_short(p))
        return RICH_NS + (is_active ? RICH_ACTIVATION_NS : 0) + sums;
    return (p->bias != NULL ? BIAS_NS : 0) + sums +
           (p->activation == TSR_ACTIVATION_GELU ? GELU_NS
            : is_active                          ? ACTIVATION_NS
                                                 : 0);
}

// Of a stage of a tile: its products; what a multiprocessor takes in, from the second-level cache; or what it takes from memory,
// where wide tiles below each other read b together.
static double ns_of_stage(const struct matmul_problem *p, const struct matmul_cuda_layout *l) {
    static const double bytes_per_ns = 114, narrow_bytes_per_ns = 98, memory_bytes_per_ns = 62;
    enum { LINE = 128, NARROW = 64, WIDE = 256, MOST_BELOW = 4 };
    const struct matmul_cuda_tile *tile = l->tile;
    const double products = 2.0 * tile->block_m * tile->block_n * tile->block_k / tile->rate;
    const double rows = (double)(l->a.is_mn ? tile->block_m : tsri_min(tile->block_m, p->m));
    const double taken = (rows + tile->block_n) * LINE /
                         (tile->block_n == NARROW ? narrow_bytes_per_ns : bytes_per_ns);
    const double below =
        tile->block_n < WIDE ? 1 : fmin((double)tsri_ceil_div(p->m, tile->block_m), MOST_BELOW);
    const double of_b = tile->block_n * LINE / below / memory_bytes_per_ns;
    return fmax(fmax(products, taken), of_b);
}

// By wgmma, 16 bits and fp8, fitted to 2,900 times of 105 products by weights out of memory (docs/kernels/matmul_cuda_wgmma.md):
// the start; rounds of stages and ends; and the power limit, which slows down what takes long. If warpgroups alternate, only
// the last tile's end shows.
static double account_wgmma(const struct matmul_problem *p, const struct matmul_cuda_layout *l,
                            enum matmul_cuda_kind kind, const struct tsri_limits *limits) {
    enum {
        START_NS = 1450,
        COLD_NS = 1200, // added if b comes from memory
        COLD_BYTES = 8 << 20,
        CLUSTER_NS = 470,
        END_NS = 1500,
        LAST_NS = 800,
        LONG_NS = 12000
    };
    static const double in_turns = 0.24, slower = 0.25, promoted = 1.15, of_a = 0.5;
    const struct matmul_cuda_tile *tile = l->tile;
    const double rounds = rounds_of(l, limits), k = (double)tsri_min(p->k, l->k_of_split);
    const double more = ns_of_end(p, parts_of(l, k));
    const double area = tile->block_m * tile->block_n / (128.0 * 256),
                 blocks = ceil(k / tile->block_k);
    const double stages =
        blocks * ns_of_stage(p, l) * (kind == MATMUL_FP8 && !p->may_sum_fast ? promoted : 1);
    const double end =
        tile->in_turns ? more * in_turns : END_NS * area + more * (tile->block_n + 32) / 288.0;
    const double busy = (double)l->num_tiles / (double)at_once_of(l, limits) * blocks * 2 *
                        tile->block_m * tile->block_n * tile->block_k / tile->rate;
    const double ns = rounds * (stages + end) + (tile->in_turns ? LAST_NS + more : 0) +
                      slower * busy * (1 - exp(-busy / LONG_NS));
    const double of_k = (double)tsr_dtype_bytes(p->a.dtype) * (double)p->k * (double)p->num_batches;
    const double b = of_k * (double)p->n * (p->b_up.data != NULL ? 2 : 1);
    const double bytes = b + of_a * of_k * (double)p->m;
    return START_NS + (b > COLD_BYTES ? COLD_NS : 0) + (tile->cluster > 1 ? CLUSTER_NS : 0) +
           ns_of_copies(l, kind) + fmax(ns, bytes / MATMUL_CUDA_MEMORY_BYTES_PER_NS) +
           ns_of_splits(p, l);
}

// For fp32 by wgmma.
static double account_f32(const struct matmul_problem *p, const struct matmul_cuda_layout *l,
                          enum matmul_cuda_kind kind, const struct tsri_limits *limits) {
    enum { END_NS = 1300, CLUSTER_NS = 1500, IN_TURNS = 8 };
    const struct matmul_cuda_tile *tile = l->tile;
    const double rounds = rounds_of(l, limits), k = (double)tsri_min(p->k, l->k_of_split);
    const double products = 2.0 * tile->block_m * tile->block_n * k / tile->rate;
    const double more = RICH_NS + (parts_of(l, k) - 1) * PART_NS +
                        (p->activation != TSR_ACTIVATION_NONE ? RICH_ACTIVATION_NS : 0);
    const double after = tile->in_turns ? more / IN_TURNS : (END_NS + more) * share_of_width(tile);
    return LAUNCH_NS + (tile->cluster > 1 ? CLUSTER_NS : 0) + ns_of_copies(l, kind) +
           rounds * (products + after) + (tile->in_turns ? END_NS : 0) + ns_of_splits(p, l);
}

// Nanoseconds, as doubles, because the product of the sizes may overflow an integer.
static double account(const struct matmul_problem *p, const struct matmul_cuda_layout *l,
                      enum matmul_cuda_kind kind, const struct tsri_limits *limits) {
    if (kind == MATMUL_WGMMA || kind == MATMUL_FP8) return account_wgmma(p, l, kind, limits);
    if (kind > MATMUL_WGMMA) return account_f32(p, l, kind, limits);
    const struct matmul_cuda_tile *tile = l->tile;
    double k = (double)tsri_min(p->k, l->k_of_split), rounds = rounds_of(l, limits);
    double of_tile = 2.0 * tile->block_m * tile->block_n * (k + 2 * tile->block_k) / tile->rate;
    double num_blocks = rounds < tile->blocks_per_sm ? rounds : tile->blocks_per_sm;
    // A single tile leaves units of its multiprocessor idle.
    double idle = 1 + 0.3 * (tile->blocks_per_sm - num_blocks) / tile->blocks_per_sm;
    return LAUNCH_NS + of_tile * rounds * idle + ns_of_copies(l, kind) + ns_of_splits(p, l);
}

// Reading b once, and adding splits, because k is usually split.
static double account_gemv(const struct matmul_problem *p) {
    const double b = (double)tsr_dtype_bytes(p->b.dtype) * (double)p->num_batches * (double)p->n *
                     (double)p->k * (p->b_up.data != NULL ? 2 : 1);
    return LAUNCH_NS + SPLIT_NS + b / H200_BYTES_PER_NS;
}

// ---- The choice -------------------------------------------------------------------------------

static const int splits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, MAX_SPLITS};

static bool is_f32_by_wgmma(enum matmul_cuda_kind kind) {
    return kind == MATMUL_TF32 || kind == MATMUL_BF16X6;
}

// The number of entries of `splits` that a product may use.
static int num_splits_of(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                         const struct tsri_limits *limits) {
    const bool can_split = is_f32_by_wgmma(kind)
                               ? p->num_batches == 1 && p->b_up.data == NULL
                               : kind < MATMUL_WGMMA && !matmul_is_fp8(p->a.dtype);
    const bool may_split =
        can_split && (limits->flags & TSR_BATCH_INVARIANT) == 0 && p->groups.starts.data == NULL;
    int count = 1;
    while (may_split && count < TSRI_COUNT(splits) && p->k / splits[count] >= MIN_SPLIT_K) count++;
    return count;
}

// Swapped tiles have neither batches nor a rich end, and of fp8 only one format and scales of tensors.
static bool may_swap(const struct matmul_problem *p, const struct matmul_cuda_tile *t) {
    const bool is_fp8 = matmul_is_fp8(p->a.dtype);
    if (p->num_batches > 1 || !matmul_cuda_wgmma_is_short(p)) return false;
    if (!is_fp8) return true;
    if (p->a.dtype != TSR_E4M3 || p->b.dtype != TSR_E4M3 || p->is_block_scaled) return false;
    return p->may_sum_fast || matmul_cuda_swapped_has_parts(t);
}

static bool may_have(const struct matmul_problem *p, enum matmul_cuda_kind kind, int tile,
                     const struct matmul_cuda_tile *t, int num_splits) {
    if (is_f32_by_wgmma(kind) && num_splits > 1 &&
        (t->cluster > 1 || p->k % (num_splits * t->block_k) > 0))
        return false;
    if (!matmul_cuda_has_tile(kind, tile, p->a.dtype, matmul_cuda_is_listed(p))) return false;
    if (t->cluster > 1 && (t->is_swapped ? p->n <= t->block_n : p->m <= t->block_m))
        return false; // needs two tiles
    if (t->is_swapped && !may_swap(p, t)) return false;
    if (kind == MATMUL_WGMMA && p->b_up.data != NULL && t->block_n % 128 != 0)
        return false; // units of b and b_up come in pairs
    return !matmul_is_fp8(p->a.dtype) || kind != MATMUL_FMA || tile == MATMUL_FMA_FP8_TILE;
}

// Fills a choice except for the time, because every call goes through all of them. num_splits: from num_splits_of.
static bool choice_of(const struct matmul_problem *p, enum matmul_cuda_kind kind, int num_splits,
                      int index, struct matmul_cuda_choice *choice) {
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(kind, &num_tiles);
    const int tile = index / num_splits, wanted = splits[index % num_splits];
    if (tile >= num_tiles) return false;
    const struct matmul_cuda_tile *t = &tiles[tile];
    const int64_t least = tsri_max(tsri_ceil_div(p->k, MATMUL_MAX_SPLIT_K), 1);
    const bool has_clusters = kind >= MATMUL_WGMMA;
    *choice = (struct matmul_cuda_choice){
        .tile = tile,
        .num_splits = tsri_max(wanted, least),
        .block = {t->block_m, t->block_n,
                  has_clusters && wanted == 1 ? tsri_max(t->cluster, 1)
                  : has_clusters              ? 1 + wanted
                                              : wanted},
        .ns = may_have(p, kind, tile, t, wanted) ? 0 : (double)INFINITY};
    return true;
}

static double ns_of(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                    const struct tsri_limits *limits, const struct matmul_cuda_choice *choice) {
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, choice->tile, choice->num_splits);
    const bool has_room = l.shared_bytes <= limits->shared_bytes_per_block;
    const bool is_free = (limits->flags & TSR_BATCH_INVARIANT) == 0 && !l.a.is_mn && !l.has_sums;
    if (!has_room || (l.tile->is_swapped && !is_free)) return (double)INFINITY;
    return account(p, &l, kind, limits);
}

bool matmul_cuda_choice_of(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                           const struct tsri_limits *limits, int index,
                           struct matmul_cuda_choice *choice) {
    if (!choice_of(p, kind, num_splits_of(p, kind, limits), index, choice)) return false;
    if (isfinite(choice->ns)) choice->ns = ns_of(p, kind, limits, choice);
    return true;
}

bool matmul_cuda_is_asked(const struct tsri_limits *limits, const int64_t block[3]) {
    for (int i = 0; i < 3; i++)
        if (limits->block[i] > 0 && limits->block[i] != block[i]) return false;
    return true;
}

// The fastest choice among those that a tuning row allows, if one of them is possible; else among all. The last tile if
// none fits.
static struct matmul_cuda_choice choose(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                                        const struct tsri_limits *limits) {
    const int num_splits = num_splits_of(p, kind, limits);
    struct matmul_cuda_choice best = {.ns = INFINITY}, c;
    for (int is_free = limits->block[0] == 0; is_free < 2 && isinf(best.ns); is_free++)
        for (int i = 0; choice_of(p, kind, num_splits, i, &c); i++) {
            if (isinf(c.ns) || (!is_free && !matmul_cuda_is_asked(limits, c.block))) continue;
            c.ns = ns_of(p, kind, limits, &c);
            if (c.ns < best.ns) best = c;
        }
    if (isfinite(best.ns)) return best;
    int num_tiles;
    (void)matmul_cuda_tiles(kind, &num_tiles);
    const int last =
        kind >= MATMUL_WGMMA ? 0 : num_tiles - 1; // swapped tiles do not serve everything
    (void)choice_of(p, kind, num_splits, last * num_splits, &best);
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, kind, best.tile, best.num_splits);
    best.ns = account(p, &l, kind, limits);
    return best;
}

double matmul_cuda_ns(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                      const struct tsri_limits *limits) {
    return kind == MATMUL_GEMV ? account_gemv(p) : choose(p, kind, limits).ns;
}

static void plan(const void *problem, enum matmul_cuda_kind kind, const struct tsri_limits *limits,
                 struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_choice c = choose(p, kind, limits);
    struct matmul_cuda_layout l = matmul_cuda_layout(p, kind, c.tile, c.num_splits);
    plan->block_m = l.tile->block_m;
    plan->block_n = l.tile->block_n;
    plan->block_k = c.tile;
    plan->grain = c.num_splits;
    plan->num_tasks = tsri_min(l.num_tiles, MAX_BLOCKS);
    plan->workspace_bytes = l.workspace_bytes;
    plan->expected_ns = c.ns;
}

struct tsri_limits matmul_cuda_limits(const struct matmul_problem *p,
                                      const struct tsri_limits *limits) {
    struct tsri_limits own = *limits;
    if (p->has_half) own.num_sms = (int)tsri_max(own.num_sms / 2, 1);
    return own;
}

void matmul_cuda_plan_fma(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *p) {
    plan(problem, MATMUL_FMA, limits, p);
}

void matmul_cuda_plan_mma(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *p) {
    plan(problem, MATMUL_MMA, limits, p);
}

// One block per multiprocessor; each processes tile after tile.
static void plan_ring(const void *problem, enum matmul_cuda_kind kind,
                      const struct tsri_limits *limits, struct tsri_plan *p) {
    plan(problem, kind, limits, p);
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(problem, kind, (int)p->block_k, p->grain);
    const int64_t cluster = tsri_max(l.tile->cluster, 1);
    const int64_t of_block = p->block_m * p->block_n * (l.tile->in_turns ? 2 : 1);
    p->num_tasks = tsri_min(l.num_tiles, at_once_of(&l, limits)) * cluster;
    if (l.has_sums) p->workspace_bytes += (size_t)(p->num_tasks * of_block) * sizeof(float);
}

void matmul_cuda_plan_wgmma(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *p) {
    const struct tsri_limits own = matmul_cuda_limits(problem, limits);
    plan_ring(problem, MATMUL_WGMMA, &own, p);
}

void matmul_cuda_plan_fp8(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *p) {
    plan_ring(problem, MATMUL_FP8, limits, p);
}

void matmul_cuda_plan_tf32(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *p) {
    plan_ring(problem, MATMUL_TF32, limits, p);
}

void matmul_cuda_plan_bf16x6(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *p) {
    plan_ring(problem, MATMUL_BF16X6, limits, p);
}

// gemv's tile for this layout of b.
static int gemv_tile(const struct matmul_problem *p, const struct matmul_cuda_layout *l) {
    return !l->b.is_mn ? 0 : p->b.dtype == TSR_F32 ? 2 : 1;
}

void matmul_cuda_plan_gemv(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_GEMV, 0, 1);
    int tile = gemv_tile(p, &l);
    l = matmul_cuda_layout(p, MATMUL_GEMV, tile, 1);
    // Two blocks per multiprocessor, as long as k is large enough.
    int64_t enough = 2 * (int64_t)limits->num_sms / tsri_max(l.num_tiles, 1);
    int64_t most = p->k / (l.b.is_mn ? 2 * l.tile->block_k : l.tile->block_k);
    int64_t least =
        tsri_max(tsri_ceil_div(p->k, p->m == 1 ? GEMV_K * MATMUL_GEMV_ROWS : GEMV_K), 1);
    plan->grain = tsri_max(tsri_min(tsri_min(enough, most), MAX_SPLITS), least);
    l = matmul_cuda_layout(p, MATMUL_GEMV, tile, plan->grain);
    plan->block_m = l.tile->block_m;
    plan->block_n = l.tile->block_n;
    plan->block_k = tile;
    plan->num_tasks = tsri_min(l.num_tiles, MAX_BLOCKS);
    plan->workspace_bytes = l.workspace_bytes;
}
