// SPDX-License-Identifier: Apache-2.0
// c = a b with one matrix b per group of rows or, if groups cut k, the gradients of b, by Hopper's asynchronous
// products, for 16-bit dtypes. Works like matmul_wgmma_sm90.cu, but a block finds its tiles from the groups' offsets on
// the device. One warpgroup makes the copy engine fill a ring of up to STAGES tiles of a and b, 64 of k each; two others
// multiply, 64 of a tile's rows each. Blocks are persistent and take every num_blocks-th tile, so all find the same
// tiles without communication.
// Floor: 2 rows k n FLOPs, and b read once for each group that has rows.
// Limit: the card's power; where k is short, the epilogue, which no products hide.
// Figures: docs/kernels/matmul_grouped.md.
// The host defines
//     DTYPE, A_IS_MN, B_IS_MN (lines run along m, n instead of k; A_IS_MN: groups cut k, else m)
#include "ops/matmul/cuda/grouped/matmul_grouped_epilogue.cuh"
#include "ops/matmul/cuda/grouped/matmul_grouped_lists.cuh"

// ---- Copies -----------------------------------------------------------------------------------

// A unit of 64 lines. Of the last lines of a group that cuts k, only those pieces of 16 that it has.
DEVICE void load_unit(unsigned unit, const struct tensor_map *map, const struct tensor_map *cut_map,
                      const int at[5], int pieces, unsigned full) {
    if (pieces == MOST_STEPS) {
        tma_load(unit, map, at, full);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
        const int piece[5] = {at[0], at[1] + i * STEP_K, at[2], 0, 0};
        tma_load(unit + i * (STEP_K * 128), cut_map, piece, full);
    }
}

// Orders the copy engine's part of a stage: the operands without a list. Called by one thread.
DEVICE void load_stage(const struct matmul_grouped_params *w, const struct place *place, int k,
                       unsigned stage, unsigned full) {
    const struct matmul_params *p = &w->matmul;
    // The index of a's matrix and, if groups cut k, of b's.
    const int of_rows = p->groups.are_counts ? place->group : 0;
    const int has_a = w->matmul.groups.of_a.lines == 0, has_b = w->matmul.groups.of_b.lines == 0;
    const int pieces = A_IS_MN ? steps_of_block(place->first_k + place->size_k - k) : MOST_STEPS;
    barrier_expect(full, ((has_a ? UNITS_A : 0) + (has_b ? UNITS_B : 0)) * (STEP_K * 128) * pieces);
#pragma unroll
    for (int u = 0; u < UNITS_A; u++) {
        const int mn = place->row + u * UNIT;
        const int at[5] = {A_IS_MN ? mn : k, A_IS_MN ? k : mn, of_rows, 0, 0};
        if (has_a) load_unit(stage + u * UNIT_BYTES, &w->a, &w->cut_a, at, pieces, full);
    }
#pragma unroll
    for (int u = 0; u < UNITS_B; u++) {
        const int mn = place->col + matmul_wgmma_column(is_gated(p), u);
        const int at[5] = {B_IS_MN ? mn : k, B_IS_MN ? k : mn, A_IS_MN ? of_rows : place->group, 0,
                           0};
        const struct tensor_map *map = matmul_wgmma_is_of_up(is_gated(p), u) ? &w->b_up : &w->b;
        if (has_b) load_unit(stage + (UNITS_A + u) * UNIT_BYTES, map, &w->cut_b, at, pieces, full);
    }
}

// One warp, which only orders the copy engine's copies.
DEVICE void copy_tiles(const struct matmul_grouped_params *w, unsigned base, unsigned rows,
                       unsigned num_tiles) {
    const int is_elected = elect_one();
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < num_tiles; number += gridDim.x) {
        const struct place place = find_place(&w->matmul, number, rows);
#pragma unroll 1
        for (int done = 0; done < place.size_k; done += BLOCK_K) {
            const unsigned full = base + FULL_AT + 8 * ring.stage;
            barrier_wait(full + (EMPTY_AT - FULL_AT), ring.parity ^ 1);
            if (is_elected && !A_IS_MN && done == 0) give_place(&place, ring.stage);
            if (is_elected)
                load_stage(w, &place, place.first_k + done, base + ring.stage * STAGE_BYTES, full);
            ring_advance(&ring, w->stages);
        }
    }
}

// A warpgroup, whose threads copy the rows of operands with lists.
DEVICE void copy_listed_tiles(const struct matmul_grouped_params *w, unsigned base, unsigned rows,
                              unsigned num_tiles) {
    const struct matmul_params *p = &w->matmul;
    const int is_first = threadIdx.x < 32, is_elected = elect_one();
    struct ring ring = {0, 0};
    struct unreported last = {-1};
    int lines[A_IS_MN ? 2 : UNITS_A][ROUNDS]; // of both operands' k, or of a's units
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < num_tiles; number += gridDim.x) {
        const struct place place = find_place(p, number, rows);
        const int end = place.first_k + place.size_k;
#pragma unroll
        for (int u = 0; u < UNITS_A; u++)
            if (!A_IS_MN)
                load_rows(lines[u], &w->matmul.groups.of_a, place.row + u * UNIT, place.end_row);
#pragma unroll 1
        for (int k = place.first_k; k < end; k += BLOCK_K) {
            const unsigned stage = base + ring.stage * STAGE_BYTES,
                           full = base + FULL_AT + 8 * ring.stage;
            if (A_IS_MN && w->matmul.groups.of_a.lines != 0)
                load_rows(lines[0], &w->matmul.groups.of_a, k, end);
            if (A_IS_MN && w->matmul.groups.of_b.lines != 0)
                load_rows(lines[A_IS_MN], &w->matmul.groups.of_b, k, end);
            barrier_wait(full + (EMPTY_AT - FULL_AT), ring.parity ^ 1);
            if (is_first && is_elected && !A_IS_MN && k == 0) give_place(&place, ring.stage);
            if (is_first && is_elected) load_stage(w, &place, k, stage, full);
#pragma unroll
            for (int u = 0; u < UNITS_A; u++)
                if (w->matmul.groups.of_a.lines != 0)
                    copy_rows(stage + u * UNIT_BYTES, &w->matmul.a, lines[A_IS_MN ? 0 : u],
                              A_IS_MN ? place.row + u * UNIT : k, (int)(A_IS_MN ? p->m : p->k));
#pragma unroll
            for (int u = 0; u < UNITS_B; u++)
                if (A_IS_MN && w->matmul.groups.of_b.lines != 0)
                    copy_rows(stage + (UNITS_A + u) * UNIT_BYTES, &w->matmul.b, lines[A_IS_MN],
                              place.col + u * UNIT, (int)p->n);
            end_copies(&last, base, ring.stage);
            ring_advance(&ring, w->stages);
        }
    }
    end_all_copies(&last, base);
}

DEVICE int has_lists(const struct matmul_grouped_params *w) {
    return w->matmul.groups.of_a.lines != 0 || w->matmul.groups.of_b.lines != 0;
}

// ---- Products ---------------------------------------------------------------------------------

#define A_SLAB (A_IS_MN ? UNIT_BYTES : 16)
#define B_SLAB (B_IS_MN ? UNIT_BYTES : 16)
#define A_STEP (A_IS_MN ? 2048 : 32) // bytes per 16 of k
#define B_STEP (B_IS_MN ? 2048 : 32)

// Sets lines of k from `first` to the end of its step to zero in every unit of a stage; these lines are rows of 128 bytes. Both
// groups do it together.
DEVICE void clear_lines(int stage, int first) {
    const int pieces = (STEP_K - first % STEP_K) * 8;
    uint4 *const units = (uint4 *)(shared + stage * STAGE_BYTES);
#pragma unroll 1
    for (int i = threadIdx.x - 128; i < (UNITS_A + UNITS_B) * pieces; i += 128 * GROUPS) {
        const int unit = i / pieces;
        units[unit * (UNIT_BYTES / 16) + first * 8 + (i - unit * pieces)] = make_uint4(0, 0, 0, 0);
    }
    tma_see_shared();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

// acc = a b over the next num_blocks (at least 1) blocks of k; of the last block, `rest` lines belong to the group. The
// products of one block run while those of the next are issued. A stage is free when the next stage's products have
// been issued and its own are complete.
DEVICE void multiply(float acc[EIGHTS][4], struct ring *ring, int stages, unsigned base,
                     unsigned first_unit, int num_blocks, int rest, int lane) {
    int before = 0;
#pragma unroll 1
    for (int block = 0; block < num_blocks; block++) {
        const unsigned stage = base + ring->stage * STAGE_BYTES;
        const unsigned long long a = wgmma_tile(stage + first_unit * UNIT_BYTES, A_SLAB),
                                 b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, B_SLAB);
        barrier_wait(base + FULL_AT + 8 * ring->stage, ring->parity);
        const int steps = A_IS_MN && block == num_blocks - 1 ? steps_of_block(rest) : MOST_STEPS;
        if (A_IS_MN && block == num_blocks - 1 && rest % STEP_K != 0)
            clear_lines(ring->stage, rest);
        if (A_IS_MN && steps < MOST_STEPS) {
#pragma unroll 1
            for (int step = 0; step < steps; step++) {
                WGMMA_BEGIN();
                WGMMA_TILES_256(acc, a + WGMMA_STEP(step * A_STEP), b + WGMMA_STEP(step * B_STEP),
                                block + step, A_IS_MN, B_IS_MN);
            }
        } else {
            WGMMA_BEGIN();
#pragma unroll
            for (int step = 0; step < MOST_STEPS; step++)
                WGMMA_TILES_256(acc, a + WGMMA_STEP(step * A_STEP), b + WGMMA_STEP(step * B_STEP),
                                block + step, A_IS_MN, B_IS_MN);
        }
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (block > 0 && lane == 0) barrier_arrive(base + EMPTY_AT + 8 * before);
        before = ring->stage;
        ring_advance(ring, stages);
    }
    WGMMA_WAIT(0);
    WGMMA_HOLD(acc, EIGHTS);
    if (lane == 0) barrier_arrive(base + EMPTY_AT + 8 * before);
}

// This thread's sums so far: the last part adds them to acc, earlier parts store acc in them.
DEVICE void promote(const struct matmul_grouped_params *w, float acc[EIGHTS][4], int is_first,
                    int is_last) {
    float4 *sums =
        (float4 *)w->sums + (long long)blockIdx.x * (BLOCK_M * BLOCK_N / 4) + (threadIdx.x - 128);
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        float *x = acc[i];
        float4 *sum = sums + i * (128 * GROUPS);
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

// Multiplies over all size_k columns of k; an empty group gives 0.
DEVICE void multiply_parts(const struct matmul_grouped_params *w, float acc[EIGHTS][4],
                           struct ring *ring, unsigned base, unsigned first_unit, int size_k,
                           int lane) {
    const int rest = size_k % BLOCK_K == 0 ? BLOCK_K : size_k % BLOCK_K;
    int blocks = (size_k + BLOCK_K - 1) / BLOCK_K;
    if (A_IS_MN && blocks == 0) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
    }
#pragma unroll 1
    for (int is_first = 1; blocks > 0; is_first = 0) {
        const int now = blocks < w->blocks_of_part ? blocks : w->blocks_of_part;
        blocks -= now;
        multiply(acc, ring, w->stages, base, first_unit, now, blocks == 0 ? rest : BLOCK_K, lane);
        if (!is_first || blocks > 0) promote(w, acc, is_first, blocks == 0);
    }
}

DEVICE void multiply_tiles(const struct matmul_grouped_params *w, unsigned base, int warp,
                           unsigned rows, unsigned num_tiles) {
    const int lane = threadIdx.x % 32, staging = staging_of_warp(w, warp);
    struct ring ring = {0, 0};
    float acc[TILES_M][EIGHTS][4] = {};
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < num_tiles; number += gridDim.x) {
        const struct place place =
            A_IS_MN ? find_place(&w->matmul, number, rows) : take_place(&w->matmul, &ring, base);
        multiply_parts(w, acc[0], &ring, base, warp / 4, place.size_k, lane);
        const int row = place.row + warp * 16;
        if (row >= place.end_row) continue;
        const int is_whole = w->has_c_map && (A_IS_MN || row + 16 <= place.end_row);
        if (is_whole && w->is_plain)
            store_products(w, &place, acc[0], base + staging, row, lane);
        else
            store_rows(w, &place, acc, base + staging, row, is_whole, lane);
    }
    if (elect_one()) TMA_STORES_DONE();
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_grouped(const __grid_constant__ struct matmul_grouped_params w) {
    const unsigned base = shared_address(shared);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        if (w.matmul.groups.of_a.lines == 0) tma_prefetch(&w.a);
        if (w.matmul.groups.of_b.lines == 0) tma_prefetch(&w.b);
        if (is_gated(&w.matmul)) tma_prefetch(&w.b_up);
        if (w.has_c_map) tma_prefetch(&w.c);
        start_stages(base, 1, has_lists(&w) ? 5 : 1); // of load_stage, and of each warp that copies
        barrier_publish_starts();
    }
    __syncthreads();
    wait_for_primary();
    start_dependents();
    const unsigned rows =
        A_IS_MN ? (unsigned)w.matmul.tiles_m : count_rows_of_tiles(&w.matmul, BLOCK_M);
    const unsigned num_tiles =
        rows * (unsigned)w.matmul.tiles_n * (A_IS_MN ? (unsigned)w.matmul.num_batches : 1);
    if (warp < 4) {
        TAKE_SOME_REGISTERS();
        if (has_lists(&w))
            copy_listed_tiles(&w, base, rows, num_tiles);
        else if (warp == 0)
            copy_tiles(&w, base, rows, num_tiles);
    } else {
        TAKE_MOST_REGISTERS();
        multiply_tiles(&w, base, warp - 4, rows, num_tiles);
    }
}
