// SPDX-License-Identifier: Apache-2.0
// Matmul by Hopper's asynchronous products, for 16-bit dtypes: one warpgroup has the copy engine fill a ring of STAGES tiles of a
// and b, 64 columns of k each; two others multiply, each half of the tile's rows. A block takes tile after tile, and the
// ring runs on: the next tile's copies come while this one's products are finished. The host defines
//     DTYPE, BLOCK_M, BLOCK_N, STAGES, CLUSTER (1 or 2), A_IS_MN, B_IS_MN (lines run along m, n instead of k)
//
// Tiles in shared memory are units of 64 lines: of 64 rows (or columns of b) with 64 of k, or, where lines of the operand run
// along m or n, of 64 of k with 64 rows. Both are 8 KiB, copied by one order each; a unit of b belongs to b or to b_up.
// With CLUSTER 2 the two blocks' tiles lie one below the other: each copies half of the columns of b, for both.
//
// full[stage] is complete when the bytes of a stage are there, empty[stage] when every warp of every block that reads it is
// done with it. Sums of more than blocks_of_part blocks of k are cut into parts, which are added in fp32, since tensor
// cores cut off instead of rounding: a thread's are its own, in memory that stays in the second-level cache.
#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/matmul/matmul_epilogue.cuh"
#include "ops/matmul/matmul_wgmma_params.h"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(STAGES) || !defined(CLUSTER) ||             \
    !defined(A_IS_MN) || !defined(B_IS_MN)
#error "BLOCK_M, BLOCK_N, STAGES, CLUSTER, A_IS_MN and B_IS_MN are not all defined"
#endif

enum {
    GROUPS = 2, // warpgroups that multiply
    THREADS = 128 * (GROUPS + 1),
    WARPS = 4 * GROUPS,
    BLOCK_K = 64,
    UNIT = 64,
    UNIT_BYTES = UNIT * BLOCK_K * 2,
    UNITS_A = BLOCK_M / UNIT,
    UNITS_B = BLOCK_N / UNIT,
    UNITS_B_OF_BLOCK = UNITS_B / CLUSTER, // that a block copies
    STAGE_BYTES = (UNITS_A + UNITS_B) * UNIT_BYTES,
    TILES_M = UNITS_A / GROUPS, // of 64 rows, of a warpgroup
    EIGHTS = BLOCK_N / 8,
    STAGING_BYTES = 4096, // of a warp: two tiles of 16 rows of 128 bytes, or 8 rows of floats
    STAGING_AT = STAGES * STAGE_BYTES,
    FULL_AT = STAGING_AT + WARPS * STAGING_BYTES,
    EMPTY_AT = FULL_AT + 8 * STAGES,
};

extern __shared__ __align__(1024) unsigned char shared[];

struct place {
    int row, col; // of c
    long long batch, index[3];
};

DEVICE struct place find_place(const struct matmul_wgmma_params *w, unsigned number, int rank) {
    const struct matmul_params *p = &w->matmul;
    struct matmul_wgmma_place in_tiles = matmul_wgmma_place(
        number, (unsigned)p->tiles_m, (unsigned)p->tiles_n, (unsigned)p->group_m);
    struct place place;
    place.row = (int)(in_tiles.row * CLUSTER + rank) * BLOCK_M;
    place.col = (int)in_tiles.col * (is_gated(p) ? BLOCK_N / 2 : BLOCK_N);
    place.batch = in_tiles.batch;
    batch_index(place.index, p->batch, in_tiles.batch);
    return place;
}

// ---- Copies -----------------------------------------------------------------------------------

DEVICE void copy_tiles(const struct matmul_wgmma_params *w, unsigned base, int rank, int first,
                       int num_clusters) {
    const struct matmul_params *p = &w->matmul;
    struct ring ring = {0, 0};
    for (unsigned number = (unsigned)first; number < w->num_tiles;
         number += (unsigned)num_clusters) {
        const struct place place = find_place(w, number, rank);
        int of_batch[3], of_a[3], of_b[3], of_up[3];
#pragma unroll
        for (int i = 0; i < 3; i++) {
            of_batch[i] = (int)place.index[2 - i];
            of_a[i] = of_batch[i] * w->a_batch[2 - i];
            of_b[i] = of_batch[i] * w->b_batch[2 - i];
            of_up[i] = of_batch[i] * w->b_up_batch[2 - i];
        }
        for (int k = 0; k < (int)p->k; k += BLOCK_K) {
            const unsigned stage = base + ring.stage * STAGE_BYTES,
                           full = base + FULL_AT + 8 * ring.stage,
                           empty = base + EMPTY_AT + 8 * ring.stage;
            barrier_wait(empty, ring.parity ^ 1);
            barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (int u = 0; u < UNITS_A; u++) {
                int mn = place.row + u * UNIT;
                const int at[5] = {A_IS_MN ? mn : k, A_IS_MN ? k : mn, of_a[0], of_a[1], of_a[2]};
                tma_load(stage + u * UNIT_BYTES, &w->a, at, full);
            }
#pragma unroll
            for (int i = 0; i < UNITS_B_OF_BLOCK; i++) {
                int u = rank * UNITS_B_OF_BLOCK + i;
                int mn = place.col + matmul_wgmma_column(is_gated(p), u);
                int is_up = matmul_wgmma_is_of_up(is_gated(p), u);
                const int at[5] = {B_IS_MN ? mn : k, B_IS_MN ? k : mn, is_up ? of_up[0] : of_b[0],
                                   is_up ? of_up[1] : of_b[1], is_up ? of_up[2] : of_b[2]};
                unsigned to = stage + (UNITS_A + u) * UNIT_BYTES;
                const struct tensor_map *map = is_up ? &w->b_up : &w->b;
#if CLUSTER > 1
                tma_load_to_all(to, map, at, full, (1 << CLUSTER) - 1);
#else
                tma_load(to, map, at, full);
#endif
            }
            ring_advance(&ring, STAGES);
        }
    }
}

// ---- Products ---------------------------------------------------------------------------------

#if BLOCK_N == 256
#define PRODUCT WGMMA_TILES_256
#else
#define PRODUCT WGMMA_TILES_128
#endif
#define A_SLAB (A_IS_MN ? UNIT_BYTES : 16)
#define B_SLAB (B_IS_MN ? UNIT_BYTES : 16)
#define A_STEP (A_IS_MN ? 2048 : 32) // bytes of 16 of k
#define B_STEP (B_IS_MN ? 2048 : 32)

// This warp is done with a stage.
DEVICE void release(unsigned base, int stage, int lane) {
#if CLUSTER > 1
    if (lane < CLUSTER) barrier_arrive_in(base + EMPTY_AT + 8 * stage, lane);
#else
    if (lane == 0) barrier_arrive(base + EMPTY_AT + 8 * stage);
#endif
}

// acc = a b over the next num_blocks (at least 1) blocks of k. The products of one block are on their way while those of the
// next are ordered; a stage is free when the products after its own have been ordered and its own are complete.
DEVICE void multiply(float acc[TILES_M][EIGHTS][4], struct ring *ring, unsigned base,
                     unsigned first_unit, int num_blocks, int lane) {
    int before = 0;
#pragma unroll 1
    for (int block = 0; block < num_blocks; block++) {
        const unsigned stage = base + ring->stage * STAGE_BYTES;
        const unsigned long long a = wgmma_tile(stage + first_unit * UNIT_BYTES, A_SLAB),
                                 b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, B_SLAB);
        barrier_wait(base + FULL_AT + 8 * ring->stage, ring->parity);
        WGMMA_BEGIN();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 16; step++)
#pragma unroll
            for (int t = 0; t < TILES_M; t++)
                PRODUCT(acc[t], a + WGMMA_STEP(t * UNIT_BYTES + step * A_STEP),
                        b + WGMMA_STEP(step * B_STEP), block + step, A_IS_MN, B_IS_MN);
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (block > 0) release(base, before, lane);
        before = ring->stage;
        ring_advance(ring, STAGES);
    }
    WGMMA_WAIT(0);
#pragma unroll
    for (int t = 0; t < TILES_M; t++) WGMMA_HOLD(acc[t], EIGHTS);
    release(base, before, lane);
}

// The sums so far, of this thread: added to acc at the last part, taken from it at those before.
DEVICE void promote(const struct matmul_wgmma_params *w, float acc[TILES_M][EIGHTS][4],
                    int is_first, int is_last) {
    const int thread = threadIdx.x - 128;
    float4 *sums = (float4 *)w->sums + (long long)blockIdx.x * (BLOCK_M * BLOCK_N / 4) + thread;
#pragma unroll
    for (int t = 0; t < TILES_M; t++)
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            float *x = acc[t][i];
            float4 *sum = sums + (t * EIGHTS + i) * (128 * GROUPS);
            if (!is_first) {
                float4 y = *sum;
                x[0] += y.x;
                x[1] += y.y;
                x[2] += y.z;
                x[3] += y.w;
            }
            if (!is_last) *sum = make_float4(x[0], x[1], x[2], x[3]);
        }
}

DEVICE void multiply_parts(const struct matmul_wgmma_params *w, float acc[TILES_M][EIGHTS][4],
                           struct ring *ring, unsigned base, unsigned first_unit, int lane) {
    int blocks = ((int)w->matmul.k + BLOCK_K - 1) / BLOCK_K;
#pragma unroll 1
    for (int is_first = 1; blocks > 0; is_first = 0) {
        const int now = blocks < w->blocks_of_part ? blocks : w->blocks_of_part;
        blocks -= now;
        multiply(acc, ring, base, first_unit, now, lane);
        if (!is_first || blocks > 0) promote(w, acc, is_first, blocks == 0);
    }
}

// ---- From accumulators to c -----------------------------------------------------------------------

// Of the columns that a lane has of 64: what the bias adds.
DEVICE void load_bias(float add[8][2], const struct matmul_params *p, int col) {
    if (p->bias_is_f32) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int at = col + i / 2 * 8 + i % 2;
            add[i / 2][i % 2] = at < (int)p->n ? ((const float *)p->bias)[at] : 0;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int at = col + i / 2 * 8 + i % 2;
            add[i / 2][i % 2] = at < (int)p->n ? load(p->bias, at) : 0;
        }
    }
}

// 16 rows of c from `row` on, times alpha, with the bias, by the copy engine: 64 columns at a time through either of two tiles.
DEVICE void store_rows(const struct matmul_wgmma_params *w, const struct place *place,
                       float (*acc)[4], unsigned staging, int row, int lane) {
    const struct matmul_params *p = &w->matmul;
#pragma unroll
    for (int part = 0; part < EIGHTS / 8; part++) {
        const unsigned tile = staging + part % 2 * (STAGING_BYTES / 2);
        const int col = place->col + part * 64;
        if (col >= (int)p->n) break;
        float add[8][2] = {};
        if (p->bias != 0) load_bias(add, p, col + lane % 4 * 2);
        if (lane == 0 && part == 0)
            TMA_STORES_READ(0); // the rows before may have ended with either tile
        if (lane == 0 && part > 1) TMA_STORES_READ(1); // this tile's last one
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            unsigned x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *c = acc[part * 8 + i + j / 2] + j % 2 * 2, *plus = add[i + j / 2];
                x[j] = pair_of_floats(fmaf(c[0], p->alpha, plus[0]), fmaf(c[1], p->alpha, plus[1]));
            }
            store_matrices(tile + matmul_wgmma_piece(lane % 16, i + lane / 16), x);
        }
        tma_see_shared();
        __syncwarp();
        if (lane == 0) {
            const int at[5] = {col, row, (int)place->index[2], (int)place->index[1],
                               (int)place->index[0]};
            tma_store(tile, &w->c, at);
        }
    }
}

// The same with the whole epilogue, 8 rows and 64 columns at a time.
DEVICE void finish_rows(const struct matmul_wgmma_params *w, const struct place *place,
                        float (*acc)[4], float *staging, int row, int lane) {
    const struct matmul_params *p = &w->matmul;
    struct tile tile = {place->row, place->col, p->m};
    float *mine = staging + lane / 4 * STAGING_STRIDE + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 3; i++) tile.index[i] = place->index[i];
#pragma unroll 1
    for (int turn = 0; turn < EIGHTS / 4; turn++) {
        // One epilogue in the code for all turns: which accumulators are this turn's is a constant where they are written.
#pragma unroll
        for (int now = 0; now < EIGHTS / 4; now++) {
            if (now != turn) continue;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float *gated = acc[matmul_wgmma_eight(1, now / 2, i)] + now % 2 * 2,
                            *plain = acc[matmul_wgmma_eight(0, now / 2, i)] + now % 2 * 2;
                *(float2 *)(mine + i * 8) =
                    is_gated(p) ? make_float2(gated[0], gated[1]) : make_float2(plain[0], plain[1]);
            }
        }
        __syncwarp();
        emit_rows(p, &tile, staging, lane, 8, row + turn % 2 * 8, turn / 2 * 64);
        __syncwarp();
    }
}

DEVICE void multiply_tiles(const struct matmul_wgmma_params *w, unsigned base, int warp, int rank,
                           int first, int num_clusters) {
    const int lane = threadIdx.x % 32, staging = STAGING_AT + warp * STAGING_BYTES;
    const int first_unit = warp / 4 * TILES_M;
    struct ring ring = {0, 0};
    float acc[TILES_M][EIGHTS][4] = {};
#pragma unroll 1
    for (unsigned number = (unsigned)first; number < w->num_tiles;
         number += (unsigned)num_clusters) {
        multiply_parts(w, acc, &ring, base, first_unit, lane);
        const struct place place = find_place(w, number, rank);
#pragma unroll
        for (int t = 0; t < TILES_M; t++) {
            const int row = place.row + (first_unit + t) * UNIT + warp % 4 * 16;
            if (row >= w->matmul.m) continue;
            if (w->has_c_map)
                store_rows(w, &place, acc[t], base + staging, row, lane);
            else
                finish_rows(w, &place, acc[t], (float *)(shared + staging), row, lane);
        }
    }
    if (lane == 0) TMA_STORES_DONE();
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ struct matmul_wgmma_params w) {
    const unsigned base = shared_address(shared);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const int rank = CLUSTER > 1 ? cluster_register_rank() : 0;
    const int first = blockIdx.x / CLUSTER, num_clusters = gridDim.x / CLUSTER;
    if (threadIdx.x == 0) {
        tma_prefetch(&w.a);
        tma_prefetch(&w.b);
        if (is_gated(&w.matmul)) tma_prefetch(&w.b_up);
        if (w.has_c_map) tma_prefetch(&w.c);
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_start(base + FULL_AT + 8 * stage, 1);
            barrier_start(base + EMPTY_AT + 8 * stage, WARPS * CLUSTER);
        }
        barrier_publish_starts();
    }
    __syncthreads();
    if (CLUSTER > 1) cluster_barrier();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) copy_tiles(&w, base, rank, first, num_clusters);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles(&w, base, warp - 4, rank, first, num_clusters);
    }
    if (CLUSTER > 1) { // copies and arrivals of the other block may be on their way here
        __syncwarp();
        cluster_barrier();
    }
}
