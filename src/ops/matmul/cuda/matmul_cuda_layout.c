// SPDX-License-Identifier: Apache-2.0
// Matmul on CUDA: the tiles, the copies of operands, and the resulting launch and workspace. Pure.
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

enum {
    LINE_BYTES = 16,            // unit of copies to shared memory
    UNIT_BYTES = 128,           // per line of a box of planes
    FMA_PROMOTE = 512,          // as in matmul_fma.cu
    MMA_PROMOTE = 2048,         // as in matmul_mma.cu
    WGMMA_PROMOTE = 16384,      // for c of f16, with matmul_wgmma_drift
    WGMMA_PROMOTE_BF16 = 65536, // for c of bf16, whose rounding loses eight times as much
    WGMMA_PROMOTE_F32 = 2048,   // a drift of 3/4 of the error allowed for sums
    TF32_PROMOTE = 8192,        // a drift of 1/8 of the rounding of the operands
    WGMMA_RATE = 7780,          // GFLOP/s of a multiprocessor at full clock: 16 bits; fp8 twice
    STAGING_ROW = 72 * 4,       // bytes per row of a warp, as in matmul_epilogue.cuh
};

// Arguments: rows and columns of a tile, step along k, stages, blocks per multiprocessor, rate.
#define MMA_TILE(m, n, k, stages, per_sm, rate)                                                    \
    { m, n, k, stages, 128, per_sm, ((m) + (n)) * (k)*2 * (stages), (m) * (n)*4, MMA_PROMOTE, rate }
#define FMA_TILE(block, threads, per_sm, rate)                                                     \
    {                                                                                              \
        block, block, 16, 0, threads, per_sm, (block)*16 * 4 * 4, (block) * (block)*4,             \
            FMA_PROMOTE, rate                                                                      \
    }
static const struct matmul_cuda_tile mma_tiles[] = {
    MMA_TILE(128, 128, 32, 3, 2, 2900),
    MMA_TILE(128, 64, 64, 4, 2, 2300),
    MMA_TILE(32, 128, 64, 4, 2, 1670),
    MMA_TILE(64, 64, 64, 4, 3, 1900),
};
static const struct matmul_cuda_tile fma_tiles[] = {
    FMA_TILE(128, 256, 2, 330),
    FMA_TILE(64, 128, 4, 250),
};

// Shared memory: stages, the tiles that eight warps hand over, barriers, the bias of two groups. Sums of parts of k are
// in the workspace.
#define WGMMA_TILE(m, n, k, stages, in_turns, promote, rate, cluster)                              \
    {                                                                                              \
        m, n, k, stages, 384, 1, ((m) + (n)) * 128 * (stages) + 8 * 4096 + 256 + (n)*8, 0,         \
            promote, rate, cluster, in_turns                                                       \
    }
// rate: with clusters; alone: without.
#define WIDE_TILES(k, promote, rate, alone)                                                        \
    WGMMA_TILE(128, 256, k, 4, false, promote, rate, 2),                                           \
        WGMMA_TILE(128, 256, k, 4, false, promote, alone, 0)
#define TILES_IN_TURNS(k, promote, rate, alone)                                                    \
    WGMMA_TILE(128, 128, k, 6, true, promote, rate, 2),                                            \
        WGMMA_TILE(128, 128, k, 6, true, promote, alone, 0)
// Of matmul_swapped_sm90.cu: stages, staged rows of two warpgroups, barriers.
#define SWAPPED_TILE(m, n, k, promote, cluster)                                                    \
    {                                                                                              \
        m, n, k, 4, 384, 1, ((m) + (n)) * 128 * 4 + 2 * MATMUL_SWAPPED_CHUNK(m) * 128 + 64, 0,     \
            promote, WGMMA_RATE *(k) / 64.0, cluster, false, true                                  \
    }
#define SWAPPED_TILES(m, n)                                                                        \
    SWAPPED_TILE(m, n, 64, WGMMA_PROMOTE, 2), SWAPPED_TILE(m, n, 64, WGMMA_PROMOTE, 0)
static const struct matmul_cuda_tile wgmma_tiles[] = {
    WIDE_TILES(64, WGMMA_PROMOTE, WGMMA_RATE, WGMMA_RATE),
    WGMMA_TILE(128, 192, 64, 4, false, WGMMA_PROMOTE, WGMMA_RATE, 2),
    WGMMA_TILE(128, 192, 64, 4, false, WGMMA_PROMOTE, WGMMA_RATE, 0),
    WGMMA_TILE(128, 64, 64, 7, false, WGMMA_PROMOTE, WGMMA_RATE, 0),
    TILES_IN_TURNS(64, WGMMA_PROMOTE, WGMMA_RATE, WGMMA_RATE),
    SWAPPED_TILES(88, 256),
    SWAPPED_TILES(104, 256),
    SWAPPED_TILES(112, 256),
    SWAPPED_TILES(120, 256),
    SWAPPED_TILES(136, 128),
    SWAPPED_TILES(152, 128),
    SWAPPED_TILES(168, 128),
    SWAPPED_TILES(200, 128),
    SWAPPED_TILES(240, 128),
};
// For fp32: tf32 at half the rate, and six bf16 products, which take longer.
#define TILES_OF_F32(k, promote, share)                                                            \
    WIDE_TILES(k, promote, 6550 / (share), 6150 / (share)),                                        \
        TILES_IN_TURNS(k, promote, 6000 / (share), 5450 / (share))
static const struct matmul_cuda_tile tf32_tiles[] = {TILES_OF_F32(32, TF32_PROMOTE, 2.0)};
static const struct matmul_cuda_tile bf16x6_tiles[] = {TILES_OF_F32(64, WGMMA_PROMOTE_F32, 5.7)};

// The same as in matmul_fp8_sm90.cu, and of matmul_swapped_sm90.cu.
#define FP8_TILE(cluster)                                                                          \
    {                                                                                              \
        128, 256, 128, 4, 384, 1, (128 + 256) * 128 * 4 + 8 * 4096 + 128, 0, MATMUL_MAX_SPLIT_K,   \
            WGMMA_RATE * 2.0, cluster                                                              \
    }
#define SWAPPED_FP8(m, n)                                                                          \
    SWAPPED_TILE(m, n, 128, MATMUL_MAX_SPLIT_K, 2), SWAPPED_TILE(m, n, 128, MATMUL_MAX_SPLIT_K, 0)
static const struct matmul_cuda_tile fp8_tiles[] = {
    FP8_TILE(2),           FP8_TILE(0),           SWAPPED_FP8(64, 128),
    SWAPPED_FP8(104, 128), SWAPPED_FP8(136, 128), SWAPPED_FP8(168, 128),
    SWAPPED_FP8(200, 128), SWAPPED_FP8(88, 256),  SWAPPED_FP8(112, 256)};

// For lines of b along k; along n with 2-byte and with 4-byte elements.
static const struct matmul_cuda_tile gemv_tiles[] = {
    {MATMUL_GEMV_ROWS, 16, 1024, 0, 256, 2, 0, 0, MATMUL_MAX_SPLIT_K, 0},
    {MATMUL_GEMV_ROWS, 256, 32, 0, 256, 2, 0, 0, MATMUL_MAX_SPLIT_K, 0},
    {MATMUL_GEMV_ROWS, 128, 32, 0, 256, 2, 0, 0, MATMUL_MAX_SPLIT_K, 0},
};

const struct matmul_cuda_tile *matmul_cuda_tiles(enum matmul_cuda_kind kind, int *num_tiles) {
    switch (kind) {
    case MATMUL_MMA: *num_tiles = TSRI_COUNT(mma_tiles); return mma_tiles;
    case MATMUL_GEMV: *num_tiles = TSRI_COUNT(gemv_tiles); return gemv_tiles;
    case MATMUL_WGMMA: *num_tiles = TSRI_COUNT(wgmma_tiles); return wgmma_tiles;
    case MATMUL_FP8: *num_tiles = TSRI_COUNT(fp8_tiles); return fp8_tiles;
    case MATMUL_TF32: *num_tiles = TSRI_COUNT(tf32_tiles); return tf32_tiles;
    case MATMUL_BF16X6: *num_tiles = TSRI_COUNT(bf16x6_tiles); return bf16x6_tiles;
    default: *num_tiles = TSRI_COUNT(fma_tiles); return fma_tiles;
    }
}

// The large tile of matmul_fma.cu is for fp32 only. 16-bit operands use cuda-fma only if they would have to be copied,
// and then they are small. By lists, it would spill on sm_80.
bool matmul_cuda_has_tile(enum matmul_cuda_kind kind, int tile, tsr_dtype dtype, bool is_listed) {
    return kind != MATMUL_FMA || (dtype == TSR_F32 && !is_listed) || fma_tiles[tile].block_m < 128;
}

int64_t matmul_cuda_most_of_sum(tsr_dtype c) {
    return c == TSR_F32 ? WGMMA_PROMOTE_F32 : c == TSR_BF16 ? WGMMA_PROMOTE_BF16 : WGMMA_PROMOTE;
}

bool matmul_cuda_swapped_has_parts(const struct matmul_cuda_tile *tile) {
    const int rows = tile->block_m;
    return tile->block_n == 128 && (rows <= 104 || MATMUL_SWAPPED_CHUNK(rows) < rows);
}

int matmul_cuda_swapped_lines(const struct matmul_cuda_tile *tile) {
    return tile->cluster > 1 ? MATMUL_SWAPPED_HALF(tile->block_m) : tile->block_m;
}

// ---- Operands ---------------------------------------------------------------------------------

static bool has_aligned_lines(const struct matmul_cuda_operand *o, const char *data,
                              int64_t element) {
    bool is_aligned = (uintptr_t)data % LINE_BYTES == 0 && o->line * element % LINE_BYTES == 0;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++)
        is_aligned = is_aligned && o->batch[i] * element % LINE_BYTES == 0;
    return is_aligned;
}

// An operand with lines along k, or along m and n. extent: its size along m or n; the steps are along both dimensions.
static struct matmul_cuda_operand as_lines(const struct matmul_problem *p,
                                           const struct matmul_matrix *t, bool is_mn,
                                           int64_t extent, int64_t step_mn, int64_t step_k) {
    struct matmul_cuda_operand o = {.is_mn = is_mn, .num_matrices = 1};
    int64_t element = (int64_t)tsr_dtype_bytes(t->dtype);
    const struct matmul_list *list = t == &p->a ? &p->groups.of_a : &p->groups.of_b;
    const bool is_listed = t != &p->b_up && matmul_is_listed(list);
    o.lines = is_listed ? list->num_lines : is_mn ? p->k : extent;
    o.width = is_mn ? extent : p->k;
    o.line = o.lines <= 1 ? 0 : is_mn ? step_k : step_mn;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) o.batch[i] = p->batch[i] > 1 ? t->batch[i] : 0;
    bool is_contiguous = (is_mn ? step_mn : step_k) == 1 || o.width <= 1;
    o.is_vector = is_contiguous && has_aligned_lines(&o, t->data, element);
    o.is_copied = !is_contiguous;
    return o;
}

// Lines of the copy are aligned; matrices that batches share stay shared.
static void copy_operand(const struct matmul_problem *p, struct matmul_cuda_operand *o,
                         int64_t element) {
    bool is_shared = o->batch[0] == 0 && o->batch[1] == 0 && o->batch[2] == 0;
    o->is_copied = o->is_vector = true;
    o->line = (int64_t)tsri_round_up((size_t)o->width, element == 1 ? LINE_BYTES : LINE_BYTES / 2);
    o->num_matrices = is_shared ? 1 : p->num_batches;
    int64_t stride = is_shared ? 0 : o->lines * o->line;
    for (int i = MATMUL_MAX_BATCH_DIMS - 1; i >= 0; stride *= p->batch[i--]) o->batch[i] = stride;
    o->bytes = tsri_round_up((size_t)(o->num_matrices * o->lines * o->line * element), 256);
}

// Turns an operand into its planes: see matmul_wgmma_params.h. k is padded to whole blocks in every plane; the planes
// follow each other along k.
static void take_planes(const struct matmul_problem *p, struct matmul_cuda_operand *o) {
    const int64_t k = (int64_t)tsri_round_up((size_t)p->k, UNIT_BYTES / 2) * MATMUL_PLANES;
    const bool is_shared = o->batch[0] == 0 && o->batch[1] == 0 && o->batch[2] == 0;
    o->is_copied = true;
    *(o->is_mn ? &o->lines : &o->width) = k;
    o->line = (int64_t)tsri_round_up((size_t)o->width, 8);
    o->num_matrices = is_shared ? 1 : p->num_batches;
    int64_t stride = is_shared ? 0 : o->lines * o->line;
    for (int i = MATMUL_MAX_BATCH_DIMS - 1; i >= 0; stride *= p->batch[i--]) o->batch[i] = stride;
    o->bytes = tsri_round_up((size_t)(o->num_matrices * o->lines * o->line) * 2, 256);
}

// Bytes of an element in a copy: b of 16 bits beside a of f32 is widened.
static int64_t copied_bytes(const struct matmul_problem *p, const struct matmul_matrix *t) {
    return tsri_dtype_bytes(matmul_has_narrow_b(p) ? TSR_F32 : t->dtype);
}

// like: an operand whose line direction this one must share.
static struct matmul_cuda_operand take(const struct matmul_problem *p,
                                       const struct matmul_matrix *t, int64_t extent,
                                       int64_t step_mn, int64_t step_k, enum matmul_cuda_kind kind,
                                       const struct matmul_cuda_operand *like) {
    const bool is_along_k = kind == MATMUL_FP8 || kind == MATMUL_TF32; // the only direction
    const bool needs_aligned = kind >= MATMUL_WGMMA || kind == MATMUL_MMA;
    struct matmul_cuda_operand o = {0};
    if (t->data == NULL) return o;
    bool is_mn = !is_along_k && (like != NULL ? like->is_mn : step_k != 1);
    bool is_given = like != NULL || is_along_k;
    if (p->groups.starts.data != NULL && (p->groups.are_depths || t == &p->a)) {
        is_mn = p->groups.are_depths; // a group's rows begin at any row, so they are whole lines
        is_given = true;
    }
    o = as_lines(p, t, is_mn, extent, step_mn, step_k);
    if (!is_given && !o.is_vector) { // both directions may be possible
        struct matmul_cuda_operand other = as_lines(p, t, !o.is_mn, extent, step_mn, step_k);
        if (other.is_vector || (o.is_copied && !other.is_copied)) o = other;
    }
    // A single line for all, or overlapping lines, have no tensor map.
    const bool has_map = is_along_k || kind == MATMUL_WGMMA;
    const bool overlap = has_map && o.lines > 1 && o.line < o.width;
    if (kind == MATMUL_BF16X6)
        take_planes(p, &o);
    else if (o.is_copied || (needs_aligned && !o.is_vector) || overlap ||
             (t != &p->a && matmul_has_narrow_b(p)))
        copy_operand(p, &o, copied_bytes(p, t));
    return o;
}

static int64_t partial_row_of(const struct matmul_problem *p) {
    return (int64_t)tsri_round_up((size_t)p->n, 8);
}

struct matmul_problem matmul_cuda_stack_of(const struct matmul_problem *p, int64_t num_splits,
                                           char *partial) {
    const int64_t k = p->k / num_splits, row = partial_row_of(p);
    return (struct matmul_problem){
        .m = p->m,
        .n = p->n,
        .k = k,
        .num_batches = num_splits,
        .batch = {1, 1, num_splits},
        .a = {p->a.data, p->a.dtype, p->a.row, p->a.col, {0, 0, k * p->a.col}},
        .b = {p->b.data, p->b.dtype, p->b.row, p->b.col, {0, 0, k * p->b.row}},
        .c = {partial, TSR_F32, row, 1, {0, 0, p->m * row}},
        .alpha = 1,
        .math = p->math,
    };
}

struct matmul_cuda_layout matmul_cuda_layout(const struct matmul_problem *p,
                                             enum matmul_cuda_kind kind, int tile,
                                             int64_t num_splits) {
    if (num_splits > 1 && (kind == MATMUL_TF32 || kind == MATMUL_BF16X6)) {
        const struct matmul_problem stack = matmul_cuda_stack_of(p, num_splits, NULL);
        struct matmul_cuda_layout l = matmul_cuda_layout(&stack, kind, tile, 1);
        l.num_splits = num_splits;
        l.workspace_bytes += (size_t)(num_splits * p->m * l.partial_row) * sizeof(float);
        return l;
    }
    int num_tiles;
    struct matmul_cuda_layout l = {.tile = &matmul_cuda_tiles(kind, &num_tiles)[tile]};
    bool is_wgmma = kind >= MATMUL_WGMMA, is_gated = p->b_up.data != NULL;
    const int64_t element = copied_bytes(p, &p->b);
    l.a = take(p, &p->a, p->m, p->a.row, p->a.col, kind, NULL);
    l.b = take(p, &p->b, p->n, p->b.col, p->b.row, kind, NULL);
    l.b_up = take(p, &p->b_up, p->n, p->b_up.col, p->b_up.row, kind, &l.b);
    if (is_gated && !is_wgmma && (l.b.line != l.b_up.line || l.b.is_copied != l.b_up.is_copied)) {
        copy_operand(p, &l.b, element); // kernels step through both equally
        copy_operand(p, &l.b_up, element);
    }
    const int64_t cluster = tsri_max(l.tile->cluster, 1), across = l.tile->is_swapped ? cluster : 1;
    l.tiles_m = tsri_ceil_div(p->m, l.tile->block_m * (cluster / across));
    l.tiles_n = tsri_ceil_div(p->n, (is_gated ? l.tile->block_n / 2 : l.tile->block_n) * across);
    int64_t k = tsri_max(tsri_ceil_div(p->k, num_splits), 1);
    l.k_of_split = (int64_t)tsri_round_up((size_t)k, (size_t)l.tile->block_k);
    l.num_splits = tsri_max(tsri_ceil_div(p->k, l.k_of_split), 1);
    l.num_tiles = l.tiles_m * l.tiles_n * p->num_batches * l.num_splits;
    if (matmul_has_packed_rows(p)) { // each group may end with a partial tile
        const int64_t block_m = l.tile->block_m * tsri_max(l.tile->cluster, 1);
        l.tiles_m = (p->m + p->num_batches * (block_m - 1)) / block_m;
        l.num_tiles = l.tiles_m * l.tiles_n;
    }
    const int64_t most =
        kind == MATMUL_WGMMA ? matmul_cuda_most_of_sum(p->c.dtype) : l.tile->promote;
    const int64_t num_parts = tsri_ceil_div(tsri_min(p->k, l.k_of_split), most);
    l.has_sums = num_parts > 1;
    l.blocks_of_part =
        (int)tsri_ceil_div(tsri_ceil_div(p->k, tsri_max(num_parts, 1)), l.tile->block_k);
    // Stages and sums; later, the rows that warps hand over reuse this memory.
    int64_t shared = l.tile->shared_bytes + (l.has_sums ? l.tile->sums_bytes : 0);
    int64_t staging = (int64_t)l.tile->block_m * l.tile->block_n / 64 * STAGING_ROW;
    l.shared_bytes = (int)(is_wgmma ? shared : tsri_max(shared, staging));
    if (kind == MATMUL_GEMV) { // a's part of k; sums of the block's warps
        int64_t rows = p->m == 1 ? 1 : MATMUL_GEMV_ROWS, warps = l.b.is_mn ? 8 : 1;
        l.shared_bytes = (int)(tsri_max(l.k_of_split, warps * l.tile->block_n) * rows * 4);
    }
    l.partial_row = partial_row_of(p);
    l.b_at = l.a.bytes;
    l.b_up_at = l.b_at + l.b.bytes;
    l.partial_at = l.workspace_bytes = l.b_up_at + l.b_up.bytes;
    if (l.num_splits > 1)
        l.workspace_bytes +=
            (size_t)(l.num_splits * p->num_batches * (is_gated ? 2 : 1) * p->m * l.partial_row) *
            sizeof(float);
    return l;
}
