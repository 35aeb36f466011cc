// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) on Hopper for few tiles of c, for 16-bit dtypes and e4m3. Columns of b are the 64 rows of
// wgmma, and rows of a its columns, so that a few rows of a leave little of it idle. One warp makes the copy engine
// fill a ring of stages; each of one or two warpgroups multiplies 64 columns of b. k is split over the blocks of a
// cluster: each block receives some of the tile's rows from the others (matmul_split_sums.cuh) and adds them in the
// order of k. Or each block has its own tile, in adjacent rows and columns, and copies a share of what the blocks have
// in common to all of them, so that less is read from the second-level cache.
// Floor: 2 m n k FLOPs, a and b read once. Limit: what a tile takes in, at up to 110 bytes a ns into a multiprocessor (H200), and
// the start of a launch; with few rows beside a large b, reading b from memory. Figures: docs/kernels/matmul_cuda_split.md.
// The host defines
//     DTYPE, ROWS (16, 32, 48, 64, 72, 80, 96, 112, 128 or 144: rows of c of a tile), SLABS (1 or 2 slabs of 64 of k per stage),
//     SHARES (1: blocks of a cluster have a tile each and share their copies); and
//     FP8, or not: a and b are e4m3, with lines along k; DTYPE is that of c. Two of them count as one element of 16 bits in all
//     sizes, coordinates and maps below. Then IS_FAST (1: tensor cores sum a block's part of k; 0: sums of 256 are added in fp32)
#ifdef FP8
#define HAS_SCALES
#endif
#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma_columns.cuh"
#include "ops/matmul/cuda/matmul_epilogue.cuh"
#include "ops/matmul/cuda/split/matmul_split_params.h"

#if !defined(ROWS) || !defined(SLABS) || !defined(SHARES)
#error "ROWS, SLABS and SHARES are not all defined"
#endif

#define PASTE(x, y) x##y
#define TILES(rows) PASTE(WGMMA_TILES_, rows)
// HAS_PARTS: the bits depend on whether sums are cut into parts, on the number of splits, and on the slabs of a stage (parts
// begin at multiples of a stage).
#ifdef FP8
#define IS_FP8 1
#define IS_PROMOTED (!IS_FAST)
#define HAS_PARTS IS_PROMOTED
#define FP8_TILES(rows) PASTE(WGMMA_FP8_, rows)
#define PRODUCT(c, b, a, is_more, b_is_mn, a_is_mn) FP8_TILES(ROWS)("e4m3.e4m3", c, b, a, is_more)
#else
#define IS_FP8 0
#define IS_PROMOTED 0
#define HAS_PARTS (ROWS <= 64) // as in matmul_split_has_parts
#define PRODUCT(c, b, a, is_more, b_is_mn, a_is_mn) TILES(ROWS)(c, b, a, is_more, b_is_mn, a_is_mn)
#endif

enum {
    MAX_GROUPS = 2,
    UNIT = 64,
    PROMOTE = IS_FP8 ? MATMUL_SPLIT_PROMOTE_FP8 / 2 : MATMUL_SPLIT_PROMOTE,
    A_MAY_BE_MN = !IS_FP8 && ROWS % 64 == 0, // whole units of lines along m
    B_MAY_BE_MN = !IS_FP8,
    HOLD_NS = 500, // less than the time of a tile
    // Sums of 96 rows that are promoted take 110 registers, which suffice for two blocks; bounded, they spill.
    MOST_FOR_TWO = SHARES ? 72 : 96 - 16 * IS_PROMOTED,
    BLOCKS_OF_SM = ROWS <= MOST_FOR_TWO ? 2 : 1,
    UNIT_BYTES = MATMUL_SPLIT_UNIT,
    EIGHTS = ROWS / 8,
    STRIDE = MATMUL_SPLIT_STRIDE,
};

extern __shared__ __align__(1024) unsigned char shared[];

#include "ops/matmul/cuda/split/matmul_split_sums.cuh"

struct place {
    int row, col;     // in c
    int down, beside; // index among the blocks that share copies
    int part;         // part of k
    int first, count; // first column of k, number of blocks
    long long index[3];
};

DEVICE struct place find_place(const struct matmul_split_params *w) {
    const struct matmul_params *p = &w->matmul;
    unsigned number = cluster_register_number(), row = 0;
    struct place place;
    place.part = 0;
    place.down = place.beside = 0;
#if SHARES
    const int rank = __shfl_sync(0xffffffff, cluster_register_rank(), 0);
    place.down = rank & (w->share_m - 1), place.beside = rank >> w->share_m / 2; // share_m: 1, 2, 4
#else
    place.part = cluster_register_rank();
#endif
    place.first = matmul_split_first(w->k_least, w->k_more, place.part) * SLABS * UNIT;
    place.count = w->k_least + (place.part < w->k_more);
    if (w->tiles_m > 1) {
        const unsigned rows = (unsigned)w->tiles_m, next = number / rows;
        row = number - next * rows;
        number = next;
    }
    place.index[0] = place.index[1] = place.index[2] = 0;
    if (p->num_batches > 1) {
        const unsigned cols = (unsigned)w->tiles_n, batch = number / cols;
        number -= batch * cols;
        batch_index(place.index, p->batch, batch);
    }
#if SHARES
    row = row * w->share_m + place.down;
    number = number * w->share_n + place.beside;
#endif
    place.row = (int)row * ROWS;
    place.col = (int)number * w->tile.cols;
    return place;
}

#include "ops/matmul/cuda/split/matmul_split_copies.cuh"

// ---- Products ---------------------------------------------------------------------------------

// Synchronizes the multiplying warps.
DEVICE void meet(const struct matmul_split_params *w) {
    asm volatile("bar.sync 1, %0;" ::"r"(w->tile.groups * 128) : "memory");
}

// The line directions of b and a are part of the instruction, so a warpgroup's whole work is compiled for each
// combination, as constants.
DEVICE void product(float acc[EIGHTS][4], unsigned long long b, unsigned long long a, int b_is_mn,
                    int a_is_mn) {
    if (!a_is_mn) {
        if (b_is_mn)
            PRODUCT(acc, b, a, 1, 1, 0);
        else
            PRODUCT(acc, b, a, 1, 0, 0);
    } else {
        if (b_is_mn)
            PRODUCT(acc, b, a, 1, 1, 1);
        else
            PRODUCT(acc, b, a, 1, 0, 1);
    }
}

// The block to which a lane reports that its warp is done with a stage: first the blocks that copy to it the same
// columns of b, then the others with the same rows of a. Negative: none.
DEVICE int told_by(const struct matmul_split_params *w, const struct place *place, int lane) {
#if SHARES
    const int next = lane - w->share_m, other = next + (next >= place->beside);
    return next < 0             ? place->beside * w->share_m + lane
           : other < w->share_n ? other * w->share_m + place->down
                                : -1;
#else
    return -lane; // this block itself
#endif
}

DEVICE void release(unsigned empty, int told) {
    if (told < 0) return;
#if SHARES
    barrier_arrive_in(empty, told);
#else
    barrier_arrive(empty);
#endif
}

// acc = the products of `count` of the block's blocks of k, from number `first` on. The products of one stage run while
// those of the next are issued.
DEVICE void multiply_part(const struct matmul_split_params *w, const struct place *place,
                          struct ring *ring, float acc[EIGHTS][4], unsigned base, unsigned barriers,
                          int group, int lane, int first, int count, int b_is_mn, int a_is_mn) {
    const int stages = w->stages, slab_bytes = matmul_split_slab(&w->tile);
    const int b_bytes = w->tile.lines * 128, mine = group * w->tile.second * 128;
    const unsigned long long next = WGMMA_STEP(slab_bytes);
    int told = told_by(w, place, lane);
    if (SHARES) asm volatile("" : "+r"(told)); // computed once
    int before = -1;                           // a stage that a copier waits for
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
#pragma unroll 1
    for (int i = first; i < first + count; i++) {
        const unsigned stage = base + ring->stage * SLABS * slab_bytes;
        const unsigned long long b = wgmma_tile(stage + mine, 16),
                                 a = wgmma_tile(stage + b_bytes, a_is_mn ? UNIT_BYTES : 16);
        barrier_wait(barriers + 8 * ring->stage, ring->parity);
        WGMMA_BEGIN();
#pragma unroll
        for (int step = 0; step < SLABS * UNIT / 16; step++)
            product(acc, b + step / 4 * next + WGMMA_STEP(step % 4 * (b_is_mn ? 2048 : 32)),
                    a + step / 4 * next + WGMMA_STEP(step % 4 * (a_is_mn ? 2048 : 32)), b_is_mn,
                    a_is_mn);
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (before >= 0) release(barriers + 8 * (stages + before), told);
        before = i + stages < place->count ? ring->stage : -1;
        ring_advance(ring, stages);
    }
    WGMMA_WAIT(0);
    WGMMA_HOLD(acc, EIGHTS);
    if (before >= 0) release(barriers + 8 * (stages + before), told);
}

// A warpgroup's sums over the block's part of k. Tensor cores truncate, so sums of PROMOTE columns are added in fp32;
// tiles without parts have no more of k than that, or sums are fast.
DEVICE void multiply(float sum[EIGHTS][4], const struct matmul_split_params *w,
                     const struct place *place, unsigned base, unsigned barriers, int warp,
                     int lane, int b_is_mn, int a_is_mn) {
    const int group = warp / 4;
    struct ring ring = {0, 0};
#if HAS_PARTS
    enum { OF_PART = PROMOTE / (SLABS * UNIT) };
    // Of e4m3, parts are cut at multiples of PROMOTE columns of k, whatever the splits.
    int most = OF_PART - (IS_FP8 ? place->first / (SLABS * UNIT) % OF_PART : 0);
    float acc[EIGHTS][4];
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) sum[i / 4][i % 4] = 0;
#pragma unroll 1
    for (int first = 0; first < place->count; first += most, most = OF_PART) {
        const int left = place->count - first, count = left < most ? left : most;
        multiply_part(w, place, &ring, acc, base, barriers, group, lane, first, count, b_is_mn,
                      a_is_mn);
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) sum[i / 4][i % 4] += acc[i / 4][i % 4];
    }
#else
    multiply_part(w, place, &ring, sum, base, barriers, group, lane, 0, place->count, b_is_mn,
                  a_is_mn);
#endif
}

// Starts loading the tensors' scales before the products; multiplied at once, they would be waited for.
DEVICE void fetch_scales(float scales[2], const struct matmul_params *p) {
#if IS_FP8
    scales[0] = p->a_scale.data != 0 ? *p->a_scale.data : 1;
    scales[1] = p->b_scale.data != 0 ? *p->b_scale.data : 1;
#endif
}

// The work of a block without a tile. Blocks of the next kernel start while this kernel runs, each where a block of the
// previous kernel has ended. A multiprocessor without a block of this kernel would get two of them and take twice the
// time.
DEVICE void hold_place(void) {
    start_dependents();
    if (threadIdx.x >= 32) return;
    wait_for_primary();
    __nanosleep(HOLD_NS);
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(MAX_GROUPS * 128 + 32, BLOCKS_OF_SM)
    matmul_split(const __grid_constant__ struct matmul_split_params w) {
    const unsigned base = shared_address(shared);
    const int is_split = !SHARES && w.num_splits > 1;
    const int received = matmul_split_received(&w.tile, w.stages), groups = w.tile.groups;
    const unsigned barriers = base + matmul_split_barriers(&w.tile, w.stages, w.num_splits);
    const unsigned arrived = barriers + 16 * w.stages;
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (cluster_register_number() >= w.num_tiles) {
        hold_place();
        return;
    }
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < w.stages; stage++) {
            barrier_start(barriers + 8 * stage, 1);
            barrier_start(barriers + 8 * (w.stages + stage),
                          4 * groups * (SHARES ? w.share_m + w.share_n - 1 : 1));
        }
        barrier_start(arrived, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (SHARES || is_split) cluster_arrive();
    if (!w.matmul.is_followed) start_dependents();
    const struct place place = find_place(&w);
    struct eights mine = {0, EIGHTS}; // the eights of the tile that this block finishes
    if (is_split) {
        mine.first = EIGHTS * place.part / w.num_splits;
        mine.count = EIGHTS * (place.part + 1) / w.num_splits - mine.first;
        if (threadIdx.x == 0)
            barrier_expect(arrived, groups * (w.num_splits - 1) * mine.count * OF_EIGHT);
    }
    if (warp == 4 * groups) {
        const int is_elected = elect_one();
        prefetch_tiles(&w, &place, is_elected);
        __syncwarp();
        copy_tiles(&w, &place, base, barriers, is_elected);
        __syncwarp();
        if (is_split) cluster_wait();
        if (w.matmul.is_beside) wait_for_primary();
        return;
    }
    float acc[EIGHTS][4];
    unsigned bias[2];
    if (SHARES) cluster_wait();
    if (!w.matmul.is_beside) wait_for_primary();
    if (w.matmul.is_followed) start_dependents();
    float scales[2];
    fetch_scales(scales, &w.matmul);
    fetch_columns(bias, &w.matmul, place.index[2] * w.matmul.groups.bias, place.col + warp * 16,
                  lane);
#define MULTIPLY(b_is_mn, a_is_mn)                                                                 \
    multiply(acc, &w, &place, base, barriers, warp, lane, b_is_mn, a_is_mn)
    if (A_MAY_BE_MN && w.matmul.a_is_mn) {
        if (B_MAY_BE_MN && w.matmul.b_is_mn)
            MULTIPLY(B_MAY_BE_MN, A_MAY_BE_MN);
        else
            MULTIPLY(0, A_MAY_BE_MN);
    } else {
        if (B_MAY_BE_MN && w.matmul.b_is_mn)
            MULTIPLY(B_MAY_BE_MN, 0);
        else
            MULTIPLY(0, 0);
    }
    if (is_split) {
        cluster_wait(); // the other blocks have started
        const unsigned at = base + received;
        switch (w.num_splits) {
        case 2: exchange_parts(acc, place.part, at, arrived, warp / 4, 2); break;
        case 3: exchange_parts(acc, place.part, at, arrived, warp / 4, 3); break;
        case 4: exchange_parts(acc, place.part, at, arrived, warp / 4, 4); break;
        default: exchange_parts(acc, place.part, at, arrived, warp / 4, 8);
        }
        __syncwarp();
    }
    const int row = place.row + mine.first * 8;
    meet(&w); // all warps are done with the stages
    if (w.is_short) {
        float alpha = w.matmul.alpha;
        if (IS_FP8) alpha = alpha * scales[0] * scales[1]; // as factor()
        if (w.matmul.bias != 0 || w.matmul.activation != ACTIVATION_NONE) {
            finish_columns(&w.matmul, bias, acc, alpha, EIGHTS, mine.count);
            alpha = 1;
        }
        store_halves(&w, place.index, row, place.col, acc, alpha, mine.count, warp, lane);
        return;
    }
    stage_floats(acc, mine.count, warp, lane);
    meet(&w);
    finish_floats(&w, place.index, row, place.col, mine.count);
}
