// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) for 16-bit dtypes like matmul_wgmma_sm90.cu, but columns of b are the 64 rows of wgmma and
// rows of a its columns. So a tile may have any multiple of eight rows of c, and few of them lie beyond m. Columns of c: 64
// of every 128 or 256 belong to a warpgroup. The two blocks of a cluster have tiles beside each other; each copies half of
// the rows of a, for both.
// Floor: 2 m n k FLOPs at 989 TFLOP/s (H200, bf16). Limit: the card's power, or what a multiprocessor takes in, 64 bytes a
// clock: 88 x 256 asks for all of them. Figures: docs/kernels/matmul_cuda_wgmma.md.
// wgmma's names below: its rows, BLOCK_M, are columns of b and c, its columns, BLOCK_N, rows of a and c; its a is b.
// The host defines
//     DTYPE (of c), BLOCK_M (128 or 256), BLOCK_N, STAGES, A_IS_MN (1: lines of b run along n); and
//     FP8, or not: a and b are e4m3; then IS_FAST (1: tensor cores sum all of k; 0: sums of 256 of k are added in fp32)
#ifdef FP8
#define HAS_SCALES
#define BLOCK_K 128
#else
#define IS_FAST 1
#define BLOCK_K 64
#endif
#define IN_TURNS 0
#define B_IS_MN 0
#define CHUNK MATMUL_SWAPPED_CHUNK(BLOCK_N) // rows of c that are staged at a time
#define STAGING_OF_BLOCK (2 * CHUNK * 128)  // 64 columns for each warpgroup
#include "cuda/device/wgmma_columns.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"
#define PASTE(x, y) x##y
#define TILES(rows) PASTE(WGMMA_TILES_, rows)
#ifdef FP8
#define FP8_TILES(rows) PASTE(WGMMA_FP8_, rows)
#define PRODUCT(c, a, b, is_more) FP8_TILES(BLOCK_N)("e4m3.e4m3", c, a, b, is_more)
#else
#define PRODUCT(c, a, b, is_more) TILES(BLOCK_N)(c, a, b, is_more, A_IS_MN, B_IS_MN)
#endif
#include "ops/matmul/cuda/matmul_columns.cuh"
#include "ops/matmul/cuda/matmul_products.cuh"

enum { OF_CHUNK = CHUNK / 8 };
static_assert(CHUNK % 8 == 0 && BLOCK_N % CHUNK == 0, "chunks are equal, and whole eights of rows");

struct place {
    int row, col; // in c
};

DEVICE struct place find_place(const struct matmul_wgmma_params *w, unsigned number, int rank) {
    const struct matmul_wgmma_place in_tiles =
        matmul_wgmma_place(number, (unsigned)w->matmul.tiles_m, (unsigned)w->matmul.tiles_n,
                           (unsigned)w->matmul.group_m);
    return {(int)in_tiles.row * BLOCK_N, (int)(in_tiles.col * w->cluster + rank) * BLOCK_M};
}

// Blocks of k; even if they are summed in pairs, because the copy engine fills up with zeros beyond k.
DEVICE int blocks_of(const struct matmul_wgmma_params *w) {
    const int count = ((int)w->matmul.k + BLOCK_K - 1) / BLOCK_K;
    return IS_FAST ? count : (count + 1) / 2 * 2;
}

// ---- Copies -----------------------------------------------------------------------------------

// One thread keeps the ring full; the whole warp runs the loop, so that the compiler can use uniform addresses.
DEVICE void copy_tiles(const struct matmul_wgmma_params *w, unsigned base, int rank, unsigned first,
                       unsigned step, int is_elected) {
    const int is_cluster = w->cluster > 1;
    const int end_k = blocks_of(w) * BLOCK_K;
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = first; number < w->num_tiles; number += step) {
        const struct place place = find_place(w, number, rank);
        // Lines beyond c's last row would cost the copy engine more time than others.
        const int is_last = w->last_rows > 0 && place.row + BLOCK_N > (int)w->matmul.m;
        const struct tensor_map *map_a = is_last ? &w->a_last : &w->a;
        const int lines = is_last ? w->last_rows : BLOCK_N;
        const int half = MATMUL_SWAPPED_HALF((lines + 7) / 8 * 8);
        const int share = rank * ((lines + 7) / 8 * 8 - half); // first line of this block's share
        const int bytes = UNITS_A * UNIT_BYTES + (is_cluster ? 2 * half : lines) * 128;
#pragma unroll 1
        for (int k = 0; k < end_k; k += BLOCK_K) {
            const unsigned stage = base + ring.stage * STAGE_BYTES,
                           full = base + FULL_AT + 8 * ring.stage;
            barrier_wait(full + (EMPTY_AT - FULL_AT), ring.parity ^ 1);
            if (is_elected) barrier_expect(full, bytes);
#pragma unroll
            for (int u = 0; u < UNITS_A; u++) {
                const int col = place.col + u * UNIT;
                const int at[5] = {A_IS_MN ? col : k, A_IS_MN ? k : col, 0, 0, 0};
                if (is_elected) tma_load(stage + u * UNIT_BYTES, &w->b, at, full);
            }
            const unsigned to = stage + UNITS_A * UNIT_BYTES;
            const int at[5] = {k, place.row + (is_cluster ? share : 0), 0, 0, 0};
            if (is_cluster) {
                if (is_elected) tma_load_to_all(to + share * 128, map_a, at, full, 3);
            } else {
                if (is_elected) tma_load(to, map_a, at, full);
            }
            ring_advance(&ring, STAGES);
        }
    }
}

// ---- From accumulators to c -----------------------------------------------------------------------

DEVICE void meet_group(const struct worker *me) {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + me->group) : "memory");
}

// Stages the eights of one chunk of rows, 16 columns for each warp, and stores it. alpha is 1 where it was applied.
DEVICE void store_chunk(const struct matmul_wgmma_params *w, const struct worker *me,
                        float (*acc)[4], float alpha, int row, int col) {
    const int lane = me->lane, piece = me->warp * 2 + lane / 8 % 2;
    const int is_storing = me->warp == 0 && elect_one();
    if (is_storing) TMA_STORES_READ(0); // the previous chunk
    meet_group(me);
#pragma unroll
    for (int i = 0; i < OF_CHUNK; i += 2) {
        unsigned x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *v = acc[i + j / 2 < OF_CHUNK ? i + j / 2 : i] + j % 2 * 2;
            x[j] = pair_of_floats(v[0] * alpha, v[1] * alpha);
        }
        const int r = i * 8 + lane / 16 * 8 + lane % 8;
        if (i + 1 < OF_CHUNK)
            store_matrices_transposed(me->staging + matmul_wgmma_piece(r, piece), x);
        else
            store_two_matrices_transposed(me->staging + matmul_wgmma_piece(i * 8 + lane % 8, piece),
                                          x);
    }
    tma_see_shared();
    meet_group(me);
    const int at[5] = {col, row, 0, 0, 0};
    if (is_storing && row < w->matmul.m && col < w->matmul.n) tma_store(me->staging, &w->c, at);
}

DEVICE void finish_tile(const struct matmul_wgmma_params *w, const struct place place,
                        const struct worker *me, float acc[TILES_M][EIGHTS][4],
                        const unsigned bias[TILES_M][2]) {
    const struct matmul_params *p = &w->matmul;
    const float alpha = factor(p, 0);
#pragma unroll
    for (int t = 0; t < TILES_M; t++) {
        const int col = place.col + (me->group * TILES_M + t) * UNIT;
#pragma unroll
        for (int i = 0; i < EIGHTS; i += OF_CHUNK) {
            const int is_plain = w->end == MATMUL_END_PLAIN;
            if (!is_plain) finish_columns(p, bias[t], acc[t] + i, alpha, OF_CHUNK, OF_CHUNK);
            store_chunk(w, me, acc[t] + i, is_plain ? alpha : 1, place.row + i * 8, col);
        }
    }
}

#if !IS_FAST
// acc = the sum of sums over pairs of blocks of k. While one warpgroup adds, the other may multiply.
DEVICE void multiply_promoted(float acc[TILES_M][EIGHTS][4], struct worker *me, int cluster,
                              int num_pairs) {
    float part[TILES_M][EIGHTS][4];
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[0][i / 4][i % 4] = 0;
#pragma unroll 1
    do {
        multiply(part, me, cluster, 2, 0);
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) acc[0][i / 4][i % 4] += part[0][i / 4][i % 4];
    } while (--num_pairs > 0);
}
static_assert(TILES_M == 1, "two sets of accumulators");
#endif

DEVICE void multiply_tiles(const struct matmul_wgmma_params *w, struct worker *me, unsigned first,
                           unsigned step) {
    float acc[TILES_M][EIGHTS][4] = {};
#pragma unroll 1
    for (unsigned number = first; number < w->num_tiles; number += step) {
        const struct place place = find_place(w, number, me->rank);
        unsigned bias[TILES_M][2];
#pragma unroll
        for (int t = 0; t < TILES_M; t++)
            fetch_columns(bias[t], &w->matmul, 0,
                          place.col + (me->group * TILES_M + t) * UNIT + me->warp * 16, me->lane);
#if IS_FAST
        multiply(acc, me, w->cluster, blocks_of(w), 0);
#else
        multiply_promoted(acc, me, w->cluster, blocks_of(w) / 2);
#endif
        finish_tile(w, place, me, acc, bias);
    }
    if (elect_one()) TMA_STORES_DONE();
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_swapped(const __grid_constant__ struct matmul_wgmma_params w) {
    const unsigned base = shared_address(shared);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const int cluster = w.cluster, rank = cluster > 1 ? cluster_register_rank() : 0;
    const unsigned first = blockIdx.x / cluster, step = gridDim.x / cluster;
    if (threadIdx.x == 0) {
        tma_prefetch(&w.a);
        tma_prefetch(&w.b);
        tma_prefetch(&w.c);
        start_stages(base, cluster, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (cluster > 1) cluster_barrier();
    if (!w.matmul.is_beside) wait_for_primary();
    start_dependents();
    if (warp < 4) {
        TAKE_FEW_REGISTERS();
        if (warp == 0) copy_tiles(&w, base, rank, first, step, elect_one());
    } else {
        TAKE_MANY_REGISTERS();
        struct worker me = {{0, 0},
                            base,
                            base + STAGING_AT + (warp / 4 - 1) * (CHUNK * 128),
                            0,
                            0,
                            (int)threadIdx.x % 32,
                            warp / 4 - 1,
                            warp % 4,
                            rank,
                            0};
        multiply_tiles(&w, &me, first, step);
    }
    if (w.matmul.is_beside) wait_for_primary();
    leave_cluster(cluster);
}
