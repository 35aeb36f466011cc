// SPDX-License-Identifier: Apache-2.0
// What a tile of matmul_split_sm90.cu and a share of k need on a multiprocessor, and the estimated time of such a
// product. Pure.
#include "ops/matmul/cuda/split/matmul_split_layout.h"

#include <math.h>

enum {
    UNIT = MATMUL_SPLIT_COLS,
    MIN_STAGES = 5,    // enough to keep copies in flight when blocks share a multiprocessor
    SM_BYTES = 233472, // shared memory of a multiprocessor
    RESERVED = SM_BYTES - MATMUL_SPLIT_MOST_BYTES, // per block
    LARGE_BYTES = MATMUL_SPLIT_LARGE_BYTES,
};

static struct matmul_matrix in_pairs(struct matmul_matrix t, tsr_dtype dtype, bool is_a) {
    t.dtype = dtype;
    *(is_a ? &t.row : &t.col) /= 2; // the other step is 1
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) t.batch[i] /= 2;
    return t;
}

struct matmul_problem matmul_split_problem(const struct matmul_problem *p) {
    struct matmul_problem pairs = *p;
    if (!matmul_is_fp8(p->a.dtype)) return pairs;
    const tsr_dtype dtype = matmul_cuda_dtype(p);
    pairs.k = p->k / 2;
    pairs.a = in_pairs(p->a, dtype, true);
    pairs.b = in_pairs(p->b, dtype, false);
    pairs.b_up = in_pairs(p->b_up, dtype, false);
    return pairs;
}

int64_t matmul_split_blocks_of_k(const struct matmul_problem *p,
                                 const struct matmul_split_tile *t) {
    return tsri_ceil_div(p->k, UNIT * t->slabs);
}

double matmul_split_bytes_of_b(const struct matmul_problem *p) {
    const bool is_shared = p->b.batch[0] == 0 && p->b.batch[1] == 0 && p->b.batch[2] == 0;
    return 2.0 * (double)(is_shared ? 1 : p->num_batches) * (double)p->n * (double)p->k *
           (p->b_up.data != NULL ? 2 : 1);
}

// The number of stages that fit with so many blocks per multiprocessor.
static int stages_of(const struct matmul_split_layout *l, int blocks) {
    const int beside = matmul_split_received_bytes(l->rows, l->groups, l->num_splits) +
                       matmul_split_ring(&l->tile, 0) + 8;
    return (SM_BYTES / blocks - RESERVED - beside) / (matmul_split_stage(&l->tile) + 2 * 8);
}

// Whether the blocks of two launches fit on separate multiprocessors with some to spare.
static bool are_apart(int64_t num_blocks, int num_sms) { return 9 * num_blocks <= 4 * num_sms; }

// Whether there is almost one block per multiprocessor, or more.
static bool is_full(int64_t num_blocks, int num_sms) { return 16 * num_blocks >= 15 * num_sms; }

// Number of blocks that share a multiprocessor: of this launch, or of this one and the next, which is set up early. But
// blocks of the next launch start wherever there is room: with half to all of the multiprocessors busy, some would get
// two and take twice the time. In that case, one block must fill a multiprocessor.
static int blocks_of_sm(const struct matmul_split_layout *l, int num_sms) {
    const bool is_few = l->rows <= 32, is_some = l->rows <= 96;
    const bool is_held = l->num_splits == 2 && 2 * l->num_blocks > num_sms;
    if (is_few && l->num_blocks > 2 * num_sms) return 3;
    if (l->num_splits > 2) return is_few && are_apart(l->num_blocks, num_sms) ? 2 : 1;
    if (is_full(l->num_blocks, num_sms))
        return is_some || (l->num_splits == 2 && l->groups == 1) ? 2 : 1;
    if (is_held && (is_some || l->groups == 1)) return 2;
    const bool is_48 = l->rows == 48 && l->groups == 1;
    // 88 blocks of 48 x 64 on 132 multiprocessors (512^3) stay on separate ones too; 72 do not.
    if (is_48 && 8 * l->num_blocks >= 5 * num_sms && 3 * l->num_blocks <= 2 * num_sms) return 2;
    return (is_few || is_48) && are_apart(l->num_blocks, num_sms) ? 2 : 1;
}

struct matmul_split_layout matmul_split_lay_out(const struct matmul_problem *p,
                                                struct matmul_split_ways ways, int rows, int cols,
                                                int cluster, int num_sms) {
    const bool is_gated = p->b_up.data != NULL, is_sharing = cluster >= MATMUL_SPLIT_BELOW;
    const int num_splits = is_sharing ? 1 : cluster;
    struct matmul_split_layout l = {
        .sums = ways.sums, .rows = rows, .num_splits = num_splits, .share_m = 1, .share_n = 1};
    if (is_sharing) {
        l.share_m = cluster / MATMUL_SPLIT_BELOW % 10;
        l.share_n = cluster / MATMUL_SPLIT_BESIDE;
    }
    l.tile = matmul_split_tile_of(rows, cols, rows <= 32 ? 2 : 1, is_gated, ways.b_is_mn);
    l.groups = l.tile.groups;
    l.tiles_m = tsri_ceil_div(p->m, rows);
    l.tiles_n = tsri_ceil_div(p->n, cols);
    // The last clusters may have tiles beyond the edge.
    l.tiles_m = tsri_ceil_div(l.tiles_m, l.share_m) * l.share_m;
    l.tiles_n = tsri_ceil_div(l.tiles_n, l.share_n) * l.share_n;
    l.num_blocks = l.tiles_m * l.tiles_n * p->num_batches * num_splits;
    l.ends_with_c = l.share_n == 1 && !ways.a_is_mn;
    l.copied_rows = l.ends_with_c ? tsri_min(rows, p->m) : rows;
    l.blocks_of_sm = is_sharing && rows > 72 ? 1 : blocks_of_sm(&l, num_sms); // registers
    const bool is_even = cols % UNIT != 0;
    // Many rows of a in tiles of few columns, or of a large b, keep a multiprocessor busy alone: more stages pay.
    if ((is_even || matmul_split_bytes_of_b(p) > LARGE_BYTES) && rows > 32 &&
        l.num_blocks <= num_sms && num_splits <= 2)
        l.blocks_of_sm = 1;
    l.stages = stages_of(&l, l.blocks_of_sm);
    if (l.tile.slabs > 1 && l.stages < (is_even ? MIN_STAGES - 1 : 3)) { // more, of half the size
        l.tile.slabs = 1;
        l.stages = stages_of(&l, l.blocks_of_sm);
    }
    l.blocks_of_k = tsri_ceil_div(matmul_split_blocks_of_k(p, &l.tile), num_splits);
    if (rows > 32 && l.stages < tsri_min(l.blocks_of_k, num_splits > 1 ? 4 : MIN_STAGES)) {
        l.blocks_of_sm = 1; // fewer stages would not keep copies in flight
        l.stages = stages_of(&l, 1);
    }
    l.stages = (int)tsri_max(tsri_min(l.stages, l.blocks_of_k), 2);
    l.shared_bytes = matmul_split_bytes(&l.tile, l.stages, num_splits);
    // If b is large, data that is prefetched so early is evicted before its use.
    if (matmul_split_bytes_of_b(p) < LARGE_BYTES) l.ahead = l.stages * l.tile.slabs;
    // If it helps, every multiprocessor gets exactly one block of each launch, if necessary a block without a tile.
    if (l.blocks_of_sm == 2 && l.num_blocks <= num_sms &&
        (num_splits == 2 ? 2 * l.num_blocks > num_sms
                         : num_splits == 1 && is_full(l.num_blocks, num_sms))) {
        const int of_cluster = matmul_split_blocks_of_cluster(&l);
        l.num_held = num_sms / of_cluster * of_cluster - l.num_blocks;
        l.shared_bytes = (int)tsri_max(l.shared_bytes, SM_BYTES / 3);
    }
    return l;
}

int matmul_split_blocks_of_cluster(const struct matmul_split_layout *l) {
    return l->num_splits * l->share_m * l->share_n;
}

int64_t matmul_split_k_of_part(const struct matmul_split_layout *l) {
    return l->blocks_of_k * UNIT * l->tile.slabs;
}

// The time of a launch besides its tiles. Fitted, like all constants of account_tiles, to the times of 56 shapes and
// 1,900 of their tiles on an H200.
static double account_launch(const struct matmul_split_layout *l, int num_sms) {
    enum {
        START_NS = 1380,
        ALONE_NS = 390,           // added if the next block cannot be set up beside this one,
        ALONE_IN_PARTS_NS = 1400, // or its cluster cannot
        APART_NS = 70,            // subtracted if it is on another multiprocessor
        SHARED_NS = 300,          // blocks that share copies start together
    };
    static const int cluster_ns[MATMUL_SPLIT_MOST_SPLITS + 1] = {0, 0, 510, 750, 740, 0, 0, 0, 450};
    const bool is_alone = l->blocks_of_sm == 1;
    // Blocks without splits, if fewer than the multiprocessors, share one only if they are apart.
    const bool is_apart = !is_alone && l->num_splits == 1 && !is_full(l->num_blocks, num_sms);
    return START_NS + cluster_ns[l->num_splits] - (is_apart ? APART_NS : 0) +
           (l->share_m * l->share_n > 1 ? SHARED_NS : 0) +
           (!is_alone                     ? 0
            : l->num_splits == 1          ? ALONE_NS
            : 2 * l->num_blocks > num_sms ? ALONE_IN_PARTS_NS
                                          : 0);
}

// The time of the rows that a block finishes.
double matmul_split_account_end(const struct matmul_problem *p,
                                const struct matmul_split_layout *l) {
    enum { BIAS_NS = 50, BIAS_ROW_NS = 3, ACTIVATION_NS = -120, ACTIVATION_ROW_NS = 8 };
    const double rows = (double)l->rows / l->num_splits;
    const double activated = ACTIVATION_NS + ACTIVATION_ROW_NS * rows;
    return (p->bias != NULL ? BIAS_NS + BIAS_ROW_NS * rows : 0) +
           (p->activation != TSR_ACTIVATION_NONE && activated > 0 ? activated : 0);
}

// The time of a stage: a multiprocessor's copies or products, whichever is longer.
static double account_stage(const struct matmul_problem *p, const struct matmul_split_layout *l,
                            bool b_is_mn, int num_sms) {
    static const double slab_ns = 8, clocks_per_ns = 1.48, promoted = 1.15;
    const bool is_large = matmul_split_bytes_of_b(p) > LARGE_BYTES; // it may come from memory
    const double bytes_per_ns = is_large ? 105 : 117, outside_ns = is_large ? 0.9 : 0.3;
    enum { MORE_ROWS = 9 }; // extra rows: fixed cost of the products
    const bool is_sharing = l->share_m * l->share_n > 1;
    const int slabs = l->tile.slabs;
    const double outside = (double)(l->tiles_m * l->rows - p->m); // rows of the last tile
    double copies = slab_ns + ((double)l->copied_rows + l->tile.lines) * 128 / bytes_per_ns;
    if (l->share_n > 1) copies *= l->groups > 1 ? 0.95 : 1.05;
    if (l->share_m > 1) copies *= 1.06;
    if (!l->ends_with_c) copies += outside_ns * (outside < l->rows ? outside : l->rows);
    // Adjacent tiles read a large a at different times.
    const double a = 2.0 * (double)p->num_batches * (double)p->m * (double)p->k;
    if (a > LARGE_BYTES && l->share_n == 1 && 10 * l->num_blocks >= 9 * num_sms) copies *= 1.2;
    // Lines that are not aligned to 128 bytes.
    if (!b_is_mn && p->k % UNIT != 0) copies *= l->share_m > 1 ? 0.89 : 1.5;
    const double products = l->groups * (l->rows + MORE_ROWS) * 2 / clocks_per_ns *
                            (l->sums == MATMUL_SPLIT_PROMOTED ? promoted : 1);
    const double stage = slabs * (products > copies ? products : copies);
    // Held places do not keep away all blocks that would share a multiprocessor.
    if (l->num_splits == 2 && l->groups > 1 && l->num_held > num_sms / 11) return 1.15 * stage;
    return l->num_held > 0 && l->num_splits == 1 && !is_sharing ? 1.4 * stage : stage;
}

// Nanoseconds: the time to read b from the second-level cache or from memory, or the work of a multiprocessor; then the
// sums and c. Clusters lie within groups of multiprocessors, so some multiprocessors stay unused.
static double account_tiles(const struct matmul_problem *p, const struct matmul_split_layout *l,
                            bool b_is_mn, int num_sms) {
    static const double cache_bytes_per_ns = 7800, sums_per_ns = 25, row_ns = 2.5,
                        row_alone_ns = 2.3, c_bytes_per_ns = 3760;
    const int splits = l->num_splits, of_cluster = matmul_split_blocks_of_cluster(l);
    const int at_work = of_cluster == 3
                            ? num_sms * 8 / 9 // three leave more of a group of multiprocessors idle
                        : of_cluster > 2 ? num_sms * 10 / 11
                                         : num_sms;
    const int clusters = at_work / of_cluster;
    if (clusters == 0) return INFINITY; // on a part of a card
    const int at_once = clusters * of_cluster;
    const double waves = (double)tsri_ceil_div(l->num_blocks, at_once);
    const double apart = waves > 1 && splits > 1 ? 1.15 : 1; // clusters do not end together
    const double of_sm =
        apart * waves * (double)l->blocks_of_k * account_stage(p, l, b_is_mn, num_sms);
    const double b = matmul_split_bytes_of_b(p);
    const double cached =
        b > LARGE_BYTES ? b * (double)(l->tiles_m / l->share_m) / cache_bytes_per_ns : 0;
    const double uneven = waves > 1 ? waves * at_once / (double)l->num_blocks : 1;
    const double from_memory =
        b > MATMUL_SPLIT_CACHE_BYTES ? b * uneven / MATMUL_SPLIT_MEMORY_BYTES_PER_NS : 0;
    const double of_b = from_memory > cached ? from_memory : cached;
    const double larger = of_sm > of_b ? of_sm : of_b, smaller = of_sm > of_b ? of_b : of_sm;
    const double sums =
        splits > 1 ? waves * matmul_split_received_bytes(l->rows, l->groups, splits) : 0;
    const double rows = waves * l->rows / splits;
    const double c = 2.0 * (double)p->num_batches * (double)p->m * (double)p->n;
    return account_launch(l, num_sms) + larger + (l->tiles_m > 1 ? 0 : smaller / 8) +
           sums / sums_per_ns + rows * (row_ns + (l->blocks_of_sm == 1 ? row_alone_ns : 0)) +
           c / c_bytes_per_ns;
}

// The same for small m and a b that comes from memory along its lines. A multiprocessor reads about 36 bytes per ns from it,
// so the one with the most blocks decides the time; a is read from the second-level cache meanwhile.
static double account_few(const struct matmul_problem *p, const struct matmul_split_layout *l,
                          int num_sms) {
    enum { SM_BYTES_PER_NS = 36, A_BYTES_PER_NS = 20000, PARTS_NS = 300, ALONE_NS = 500 };
    if (matmul_split_blocks_of_cluster(l) > l->num_splits) return INFINITY;
    const double blocks = (double)l->num_blocks, b = matmul_split_bytes_of_b(p);
    const double rounds = (double)tsri_ceil_div(l->num_blocks, num_sms);
    const double of_sm = b / blocks * rounds / SM_BYTES_PER_NS,
                 of_all = b / MATMUL_SPLIT_MEMORY_BYTES_PER_NS;
    const double a = blocks * (double)matmul_split_k_of_part(l) * (double)l->copied_rows * 2;
    return MATMUL_SPLIT_LAUNCH_NS + (l->blocks_of_sm == 1 ? ALONE_NS : 0) +
           (l->num_splits > 1 ? PARTS_NS : 0) + (of_sm > of_all ? of_sm : of_all) +
           a / A_BYTES_PER_NS;
}

// With more rows, fitted to 220 tiles of 20 products of 65 to 144 rows (H200): parts and shared copies start later.
static double account_some(const struct matmul_problem *p, const struct matmul_split_layout *l,
                           int num_sms) {
    enum { START_NS = 2950, TOGETHER_NS = 3450 };
    static const double sm_bytes_per_ns = 58, a_bytes_per_ns = 18900;
    const double blocks = (double)l->num_blocks, b = matmul_split_bytes_of_b(p);
    const double rounds = (double)tsri_ceil_div(l->num_blocks, num_sms);
    const double of_k = (double)matmul_split_k_of_part(l),
                 a = blocks * of_k * (double)l->copied_rows * 2;
    return START_NS + (matmul_split_blocks_of_cluster(l) > 1 ? TOGETHER_NS : 0) +
           b / blocks * rounds / sm_bytes_per_ns + a / l->share_n / a_bytes_per_ns;
}

enum { FEW_ROWS = 64, SOME_ROWS = MATMUL_SPLIT_SOME_ROWS };

static double account_streamed(const struct matmul_problem *p, const struct matmul_split_layout *l,
                               int num_sms) {
    const bool is_once = matmul_split_reads_b_once(l);
    if (p->m <= FEW_ROWS) return is_once ? account_few(p, l, num_sms) : INFINITY;
    // More rows may need what reads it several times.
    return is_once ? account_some(p, l, num_sms) : 2 * account_tiles(p, l, false, num_sms);
}

bool matmul_split_is_streamed(const struct matmul_problem *p, bool b_is_mn) {
    return p->m <= SOME_ROWS && !b_is_mn && matmul_split_bytes_of_b(p) > MATMUL_SPLIT_CACHE_BYTES;
}

// How much longer a product takes whose b comes from memory than by its account. Blocks below each other that share b read it
// once.
static double account_cold(const struct matmul_split_layout *l) {
    return l->share_m > 1 ? 0.85 : l->num_splits == MATMUL_SPLIT_MOST_SPLITS ? 1.2 : 1;
}

double matmul_split_account(const struct matmul_problem *p, const struct matmul_split_layout *l,
                            bool b_is_mn, int num_sms) {
    if (matmul_split_is_streamed(p, b_is_mn)) return account_streamed(p, l, num_sms);
    const bool is_cold = matmul_split_bytes_of_b(p) > LARGE_BYTES;
    return (is_cold ? account_cold(l) : 1) * account_tiles(p, l, b_is_mn, num_sms);
}

int matmul_split_even_cols(const struct matmul_problem *p, int rows, int num_splits, int num_sms) {
    enum { LEAST = 8 };
    const int64_t most = p->b_up.data != NULL ? UNIT : UNIT * MATMUL_SPLIT_MOST_GROUPS;
    const int64_t others = tsri_ceil_div(p->m, rows) * p->num_batches * num_splits;
    const int64_t rounds = tsri_ceil_div(tsri_ceil_div(p->n, most) * others, num_sms);
    const int64_t tiles = tsri_max(rounds * num_sms / others, 1);
    return (int)tsri_min(tsri_ceil_div(tsri_ceil_div(p->n, tiles), LEAST) * LEAST, most);
}
