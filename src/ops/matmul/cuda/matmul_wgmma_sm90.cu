// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) by Hopper's asynchronous products. One warpgroup makes the copy engine fill a ring of
// STAGES tiles of a and b, 128 bytes of k each; two others multiply. A block processes tile after tile without draining
// the ring: the next tile's copies arrive while this tile is finished. A unit of b belongs to b or to b_up. The two
// blocks of a cluster have tiles in adjacent rows; each copies half of the units of b, for both.
// Floor: 2 m n k FLOPs at 989 TFLOP/s (H200, bf16; tf32 494, planes 165). Limit: large products, the card's power; short k, the
// epilogue; few tiles, what a multiprocessor takes in. Figures: docs/kernels/matmul_cuda_wgmma.md, of f32 and planes
// docs/kernels/matmul_cuda_fp32.md. The host defines
//     DTYPE, BLOCK_M, BLOCK_N, STAGES, A_IS_MN, B_IS_MN, IN_TURNS (matmul_stages.cuh); of f32, both lines along k, 19 bits count;
//     PLANES, or not: a and b are bf16, three planes of numbers of fp32 (matmul_wgmma_params.h), one behind the other along k
//         in whole blocks; k is that of one plane
#include "ops/matmul/cuda/matmul_wgmma_epilogue.cuh"

// ---- Copies -----------------------------------------------------------------------------------

DEVICE int blocks_of(const struct matmul_wgmma_params *w) {
    return ((int)w->matmul.k + BLOCK_K - 1) / BLOCK_K;
}

// Where the next block of k is in a and in b.
struct depth {
    int a, b, pair, left; // left: blocks of this pair of planes
};

#ifdef PLANES
// In the first part, all pairs of planes except the last come at negative k, one after the other.
DEVICE int lead_of(const struct matmul_wgmma_params *w) {
    return (MATMUL_PLANE_PAIRS - 1) * blocks_of(w);
}

DEVICE void begin_pair(struct depth *at, const struct matmul_wgmma_params *w, int pair) {
    const int blocks = blocks_of(w);
    at->pair = pair;
    at->left = blocks;
    at->a = matmul_plane_of_a(pair) * (blocks * BLOCK_K);
    at->b = matmul_plane_of_b(pair) * (blocks * BLOCK_K);
}

DEVICE struct depth find_depth(const struct matmul_wgmma_params *w, int k) {
    struct depth at;
    begin_pair(&at, w, k < 0 ? 0 : MATMUL_PLANE_PAIRS - 1);
    if (k > 0) at.a += k, at.b += k;
    return at;
}

DEVICE void go_deeper(struct depth *at, const struct matmul_wgmma_params *w) {
    at->a += BLOCK_K;
    at->b += BLOCK_K;
    if (--at->left == 0) begin_pair(at, w, at->pair + 1);
}
#else
DEVICE int lead_of(const struct matmul_wgmma_params *) { return 0; }
DEVICE struct depth find_depth(const struct matmul_wgmma_params *, int k) { return {k, k, 0, 0}; }
DEVICE void go_deeper(struct depth *at, const struct matmul_wgmma_params *) {
    at->a += BLOCK_K;
    at->b += BLOCK_K;
}
#endif

// One thread keeps the ring full. Its work per stage must take less time than the products, so everything is computed
// before the loop. The whole warp runs the loop, so that the compiler can use uniform addresses. The two blocks of a
// cluster copy alternate units of b, for both.
DEVICE void copy_part(const struct matmul_wgmma_params *w, struct ring *ring, unsigned base,
                      int rank, const struct place place, int first_k, int end_k, int is_elected) {
    const int gated = is_gated(&w->matmul), is_cluster = w->cluster > 1;
    struct depth depth = find_depth(w, first_k);
    int of_a[3], of_b[3], of_up[3];
    const struct units_of_a units = units_of_a(w->last_rows, (int)w->matmul.m - place.row);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        of_a[i] = place.batch[i] * w->a_batch[2 - i];
        of_b[i] = place.batch[i] * w->b_batch[2 - i];
        of_up[i] = place.batch[i] * w->b_up_batch[2 - i];
    }
#pragma unroll 1
    for (int k = first_k; k < end_k; k += BLOCK_K) {
        const unsigned stage = base + ring->stage * STAGE_BYTES,
                       full = base + FULL_AT + 8 * ring->stage;
        barrier_wait(full + (EMPTY_AT - FULL_AT), ring->parity ^ 1);
        if (is_elected) barrier_expect(full, units.bytes);
#pragma unroll
        for (int u = 0; u < UNITS_A; u++) {
            const int mn = place.row + u * UNIT;
            const int at[5] = {A_IS_MN ? mn : depth.a, A_IS_MN ? depth.a : mn, of_a[0], of_a[1],
                               of_a[2]};
            const struct tensor_map *map = u < units.whole ? &w->a : &w->a_last;
            if (is_elected && (u < units.whole || (u == units.whole && units.lines > 0)))
                tma_load(stage + u * UNIT_BYTES, map, at, full);
        }
#pragma unroll
        for (int u = 0; u < UNITS_B; u++) {
            const int is_up = matmul_wgmma_is_of_up(gated, u);
            const int mn = place.col + matmul_wgmma_column(gated, u);
            const int at[5] = {B_IS_MN ? mn : depth.b, B_IS_MN ? depth.b : mn,
                               is_up ? of_up[0] : of_b[0], is_up ? of_up[1] : of_b[1],
                               is_up ? of_up[2] : of_b[2]};
            const unsigned to = stage + (UNITS_A + u) * UNIT_BYTES;
            const struct tensor_map *map = is_up ? &w->b_up : &w->b;
            if (!is_cluster) {
                if (is_elected) tma_load(to, map, at, full);
            } else if (u % 2 == rank) {
                if (is_elected) tma_load_to_all(to, map, at, full, 3);
            }
        }
        go_deeper(&depth, w);
        ring_advance(ring, STAGES);
    }
}

// In the order of the products: tile after tile; or, if groups alternate, a part of k of each of two tiles.
DEVICE void copy_tiles(const struct matmul_wgmma_params *w, unsigned base, int rank, int first,
                       int num_clusters, int is_elected) {
    const int k = (int)w->matmul.k, k_of_part = w->blocks_of_part * BLOCK_K;
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = (unsigned)first; number < w->num_tiles;
         number += (unsigned)num_clusters * AT_ONCE)
#pragma unroll 1
        for (int part_k = 0; part_k < k; part_k += k_of_part)
#pragma unroll 1
            for (int turn = 0; turn < AT_ONCE; turn++) {
                const unsigned tile = number + turn * num_clusters;
                if (tile >= w->num_tiles) break;
                const int end_k = part_k + k_of_part < k ? part_k + k_of_part : k;
                const int first_k = part_k == 0 ? -lead_of(w) * BLOCK_K : part_k;
                copy_part(w, &ring, base, rank, find_place(w, tile, rank), first_k, end_k,
                          is_elected);
            }
}

// ---- Products ---------------------------------------------------------------------------------

// This thread's sums so far: the last part adds them to acc, earlier parts store acc in them. All loads come before the
// first store, so that they overlap.
DEVICE void promote(const struct matmul_wgmma_params *w, float acc[TILES_M][EIGHTS][4],
                    int is_first, int is_last) {
    const int thread = threadIdx.x - 128;
    float4 *sums =
        (float4 *)w->sums + (long long)blockIdx.x * (TILES_M * EIGHTS * 128 * GROUPS) + thread;
    if (!is_first) {
#pragma unroll
        for (int i = 0; i < TILES_M * EIGHTS; i++) {
            float *x = acc[i / EIGHTS][i % EIGHTS];
            const float4 y = sums[i * (128 * GROUPS)];
            x[0] += y.x;
            x[1] += y.y;
            x[2] += y.z;
            x[3] += y.w;
        }
    }
    if (is_last) return;
#pragma unroll
    for (int i = 0; i < TILES_M * EIGHTS; i++) {
        const float *x = acc[i / EIGHTS][i % EIGHTS];
        sums[i * (128 * GROUPS)] = make_float4(x[0], x[1], x[2], x[3]);
    }
}

// Multiplies over all of k for this group's tile. Sums of more than blocks_of_part blocks of k are cut into parts,
// which are added in fp32, because tensor cores truncate. Each thread has its own sums, in memory that stays in the
// second-level cache.
//
// If groups alternate, they change tiles of a pair after each part of k. has_other: the first group's pair has a second
// tile; has_next: another pair follows.
DEVICE void multiply_parts(const struct matmul_wgmma_params *w, float acc[TILES_M][EIGHTS][4],
                           struct worker *me, int is_first_pair, int has_other, int has_next) {
    const int num_blocks = blocks_of(w);
#pragma unroll 1
    for (int block = 0; block < num_blocks; block += w->blocks_of_part) {
        const int left = num_blocks - block, is_first = block == 0;
        const int is_last = left <= w->blocks_of_part;
        const int now = (is_last ? left : w->blocks_of_part) + (is_first ? lead_of(w) : 0);
        int gives_turn = 0;
        if (IN_TURNS && me->group == 0) {
            gives_turn = has_other;
            if (is_first ? !is_first_pair : has_other) wait_for_turn(0);
        } else if (IN_TURNS) {
            gives_turn = !is_last || has_next;
            ring_skip(&me->ring, now, STAGES);
            wait_for_turn(1);
        }
        multiply(acc, me, w->cluster, now, gives_turn);
        if (IN_TURNS && me->group == 0 && has_other) ring_skip(&me->ring, now, STAGES);
        if (!is_first || !is_last) promote(w, acc, is_first, is_last);
    }
}

// ---- The kernel -------------------------------------------------------------------------------

DEVICE void multiply_tiles(const struct matmul_wgmma_params *w, struct worker *me, int first,
                           int num_clusters) {
    float acc[TILES_M][EIGHTS][4] = {};
    const unsigned step = (unsigned)num_clusters * AT_ONCE;
#pragma unroll 1
    for (unsigned pair = (unsigned)first; pair < w->num_tiles; pair += step) {
        const unsigned number = IN_TURNS ? pair + me->group * num_clusters : pair;
        if (number >= w->num_tiles) break;
        if (w->has_residual_map) begin_residuals(w, number, me);
        const struct place place = find_place(w, number, me->rank);
        unsigned bias[OF_LANE];
        fetch_bias(bias, w, &place, me);
        multiply_parts(w, acc, me, pair == (unsigned)first,
                       pair + (unsigned)num_clusters < w->num_tiles, pair + step < w->num_tiles);
#if !IS_F32
        if (w->end == MATMUL_END_PLAIN) {
            store_tiles(w, &place, me, acc, 1, ACTIVATION_NONE);
            continue;
        }
#endif
        if (w->matmul.bias != 0 || w->end == MATMUL_END_ACTIVATED) give_bias(bias, w, me);
#if !IS_F32
        if (w->end == MATMUL_END_ACTIVATED) {
            finish_activated(w, &place, me, acc);
            continue;
        }
#endif
        finish_chunks(w, &place, me, acc);
    }
    if (elect_one()) TMA_STORES_DONE();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ struct matmul_wgmma_params w) {
    const unsigned base = shared_address(shared);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const int cluster = w.cluster, rank = cluster > 1 ? cluster_register_rank() : 0;
    const int first = blockIdx.x / cluster, num_clusters = gridDim.x / cluster;
    if (threadIdx.x == 0) {
        tma_prefetch(&w.a);
        tma_prefetch(&w.b);
        if (is_gated(&w.matmul)) tma_prefetch(&w.b_up);
        if (w.has_c_map) tma_prefetch(&w.c);
        if (w.has_residual_map) tma_prefetch(&w.residual);
        start_stages(base, cluster, 1);
        for (int i = 0; i < 2 * WARPS; i++) barrier_start(base + RESIDUAL_AT + 8 * i, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (cluster > 1) cluster_barrier();
    if (!w.matmul.is_beside) wait_for_primary();
    start_dependents();
    if (warp < 4) {
        TAKE_FEW_REGISTERS();
        if (warp == 0) copy_tiles(&w, base, rank, first, num_clusters, elect_one());
    } else {
        TAKE_MANY_REGISTERS();
        struct worker me = {{0, 0},
                            base,
                            base + STAGING_AT + (warp - 4) * STAGING_BYTES,
                            base + RESIDUAL_AT + (warp - 4) * 16,
                            0,
                            (int)threadIdx.x % 32,
                            warp / 4 - 1,
                            warp % 4,
                            rank,
                            0};
        multiply_tiles(&w, &me, first, num_clusters);
    }
    if (w.matmul.is_beside) wait_for_primary();
    leave_cluster(cluster);
}
