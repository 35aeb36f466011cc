// SPDX-License-Identifier: Apache-2.0
// c (m x n, 16 bits) = a (m x k) b (k x n) of fp8 on Hopper, in the same way as matmul_wgmma_sm90.cu. One warpgroup
// makes the copy engine fill a ring of STAGES tiles of a and b, 128 of k each, with lines along k, the only direction
// that the fp8 instructions support. Two others multiply 64 rows by 256 columns each. The tiles of a cluster of two
// blocks are adjacent rows, and each block copies half of b's columns for both.
// Floor: 2 m n k FLOPs at 1,979 TFLOP/s (H200).
// Limit: the card's power; with scales of blocks also their loads and addresses between the products.
// Figures: docs/kernels/matmul_cuda_fp8.md.
// The host defines
//     DTYPE (of c, bias and residual, where they have 16 bits), A_FORMAT, B_FORMAT (5 is e4m3, 6 e5m2), and
//     IS_FAST: 1: tensor cores sum all of k; 0: sums of 256 of k are added in fp32, or sums of 128, times block scales
//     GROUPED: each group of rows has a matrix b of its own, and blocks find tiles from the groups' offsets, as in
//     matmul_grouped_sm90.cu: rows of a tile beyond its group's end are multiplied but not stored
#include "ops/matmul/cuda/fp8/matmul_fp8_block.cuh"
#if !IS_FAST
#include "ops/matmul/cuda/fp8/matmul_fp8_promoted.cuh"
#endif

// ---- Copies -----------------------------------------------------------------------------------

DEVICE void copy_tiles(const struct matmul_fp8_params *w, unsigned base, struct tiles tiles,
                       int rank, int cluster) {
    const struct matmul_params *p = &w->matmul;
    const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
    const int units = UNITS_B / cluster; // units of b that a block copies
    const int end_k = blocks_of(p) * BLOCK_K;
    const int is_elected = elect_one();
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = (unsigned)first; number < tiles.count; number += (unsigned)step) {
        const struct place place = find_place(w, number, tiles.rows, rank, cluster);
        const struct units_of_a units_a = units_of_a(w->last_rows, (int)p->m - place.row);
        int of_a[3], of_b[3], of_up[3];
#pragma unroll
        for (int i = 0; i < 3; i++) {
            int of_batch = (int)place.index[2 - i];
            of_a[i] = of_batch * w->a_batch[2 - i];
            of_b[i] = of_batch * w->b_batch[2 - i];
            of_up[i] = of_batch * w->b_up_batch[2 - i];
        }
#pragma unroll 1
        for (int k = 0; k < end_k; k += BLOCK_K) {
            const unsigned stage = base + ring.stage * STAGE_BYTES,
                           full = base + FULL_AT + 8 * ring.stage;
            barrier_wait(base + EMPTY_AT + 8 * ring.stage, ring.parity ^ 1);
            if (is_elected) barrier_expect(full, units_a.bytes);
#pragma unroll
            for (int u = 0; u < UNITS_A; u++) {
                const int at[5] = {k, place.row + u * UNIT, of_a[0], of_a[1], of_a[2]};
                const struct tensor_map *map = u < units_a.whole ? &w->a : &w->a_last;
                if (is_elected && (u < units_a.whole || (u == units_a.whole && units_a.lines > 0)))
                    tma_load(stage + u * UNIT_BYTES, map, at, full);
            }
#pragma unroll 1
            for (int u = rank * units; u < (rank + 1) * units; u++) {
                const int line = place.col + matmul_wgmma_column(is_gated(p), u);
                const int is_up = matmul_wgmma_is_of_up(is_gated(p), u);
                const int at[5] = {k, line, is_up ? of_up[0] : of_b[0], is_up ? of_up[1] : of_b[1],
                                   is_up ? of_up[2] : of_b[2]};
                const unsigned to = stage + (UNITS_A + u) * UNIT_BYTES;
                const struct tensor_map *map = is_up ? &w->b_up : &w->b;
                if (cluster > 1) {
                    if (is_elected) tma_load_to_all(to, map, at, full, (1 << cluster) - 1);
                } else {
                    if (is_elected) tma_load(to, map, at, full);
                }
            }
            ring_advance(&ring, STAGES);
        }
    }
}

// ---- From accumulators to c -----------------------------------------------------------------------

// What the bias adds to a lane's columns, out of 64. bias: where this group's begins.
DEVICE void load_bias(float add[8][2], const struct matmul_params *p, long long bias, int col) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int at = col + i / 2 * 8 + i % 2;
        add[i / 2][i % 2] = at < (int)p->n ? load_either(p->bias, bias + at, p->bias_is_f32) : 0;
    }
}

// Stores 16 rows of c from `row` on, times a factor, with the bias, by the copy engine: 64 columns at a time, through
// two alternating tiles.
DEVICE void store_rows(const struct matmul_fp8_params *w, const struct place *place,
                       float acc[EIGHTS][4], unsigned staging, int row, int lane) {
    const struct matmul_params *p = &w->matmul;
    const float alpha = factor(p, 0);
#pragma unroll
    for (int part = 0; part < EIGHTS / 8; part++) {
        const unsigned tile = staging + part % 2 * STAGED_BYTES;
        const int col = place->col + part * 64;
        if (col >= (int)p->n) break;
        float add[8][2] = {};
        if (p->bias != 0) load_bias(add, p, place->index[2] * p->groups.bias, col + lane % 4 * 2);
        if (part == 0 && elect_one())
            TMA_STORES_READ(0); // the previous rows may have ended with either tile
        if (part > 1 && elect_one()) TMA_STORES_READ(1); // the last store of this tile
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            float v[2][4];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j / 4][j % 4] =
                    fmaf(acc[part * 8 + i + j / 4][j % 4], alpha, add[i + j / 4][j % 2]);
            stage_halves(tile + matmul_wgmma_piece(lane % 16, i + lane / 16), v);
        }
#ifdef GROUPED
        const int at[5] = {col, row, p->groups.are_counts ? (int)place->batch : 0, 0, 0};
#else
        const int at[5] = {col, row, (int)place->index[2], (int)place->index[1],
                           (int)place->index[0]};
#endif
        send_tile(tile, &w->c, at, 0);
    }
}

// Eight columns of accumulators belong to unit n / 8 of a tile. The epilogue takes 64 at a time, in its own order: with
// a gate, 32 of b and the matching 32 of b_up. Returns which eight is number i (0 to 7) of its part `part`.
DEVICE int eight_of(int is_gated, int part, int i) {
    return is_gated ? part / 2 * 16 + i / 4 * 8 + part % 2 * 4 + i % 4 : part * 8 + i;
}

// The same with the complete epilogue, 8 rows and 64 columns at a time.
DEVICE void finish_rows(const struct matmul_fp8_params *w, const struct place *place,
                        float acc[EIGHTS][4], float *staging, int row, int lane) {
    const struct matmul_params *p = &w->matmul;
    struct tile tile = {place->row, place->col, place->end_row, 0, 0, 0, place->batch};
    float *mine = staging + lane / 4 * STAGING_STRIDE + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 3; i++) tile.index[i] = place->index[i];
    if (elect_one())
        TMA_STORES_READ(0); // a whole box before may still be on its way out of this memory
    __syncwarp();
#pragma unroll 1
    for (int turn = 0; turn < EIGHTS / 4; turn++) {
        // The code has one epilogue for all turns; only the copies below have constant accumulators, one copy for each
        // turn.
#pragma unroll
        for (int now = 0; now < EIGHTS / 4; now++) {
            if (now != turn) continue;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float *gated = acc[eight_of(1, now / 2, i)] + now % 2 * 2,
                            *plain = acc[eight_of(0, now / 2, i)] + now % 2 * 2;
                *(float2 *)(mine + i * 8) =
                    is_gated(p) ? make_float2(gated[0], gated[1]) : make_float2(plain[0], plain[1]);
            }
        }
        __syncwarp();
        emit_rows(p, &tile, staging, lane, 8, row + turn % 2 * 8, turn / 2 * 64);
        __syncwarp();
    }
}

DEVICE void multiply_tiles(const struct matmul_fp8_params *w, unsigned base, int warp,
                           struct tiles tiles, int rank, int cluster) {
    const struct matmul_params *p = &w->matmul;
    const int lane = threadIdx.x % 32, staging = STAGING_AT + warp * STAGING_BYTES;
    const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
    const int num_blocks = blocks_of(p);
    struct worker me = {};
    float acc[TILES_M][EIGHTS][4] = {};
    me.base = base;
    me.lane = lane;
    me.group = warp / 4;
    me.warp = warp % 4;
#pragma unroll 1
    for (unsigned number = (unsigned)first; number < tiles.count; number += (unsigned)step) {
#if IS_FAST
        multiply(acc, &me, cluster, num_blocks, 0);
#else
        if (p->is_block_scaled)
            multiply_scaled(acc[0], &me, num_blocks, cluster, w, number, tiles.rows, rank);
        else
            multiply_promoted(acc[0], &me, num_blocks, cluster, p);
#endif
        const struct place place = find_place(w, number, tiles.rows, rank, cluster);
        const int row = place.row + me.group * UNIT + me.warp * 16;
        if (row >= place.end_row) continue;
        if (w->has_c_map && may_store_box(&place, row))
            store_rows(w, &place, acc[0], base + staging, row, lane);
        else
            finish_rows(w, &place, acc[0], (float *)(shared + staging), row, lane);
    }
    if (elect_one()) TMA_STORES_DONE();
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_fp8(const __grid_constant__ struct matmul_fp8_params w) {
    const unsigned base = shared_address(shared);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const int cluster = cluster_register_size(), rank = cluster_register_rank();
    if (threadIdx.x == 0) {
        tma_prefetch(&w.a);
        tma_prefetch(&w.b);
        if (is_gated(&w.matmul)) tma_prefetch(&w.b_up);
        if (w.has_c_map) tma_prefetch(&w.c);
        start_stages(base, cluster, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (cluster > 1) cluster_barrier();
    wait_for_primary();
    start_dependents();
    const struct tiles tiles = find_tiles(&w);
    if (warp < 4) {
        TAKE_FEW_REGISTERS();
        if (warp == 0) copy_tiles(&w, base, tiles, rank, cluster);
    } else {
        TAKE_MANY_REGISTERS();
        multiply_tiles(&w, base, warp - 4, tiles, rank, cluster);
    }
    leave_cluster(cluster);
}
