// SPDX-License-Identifier: Apache-2.0
// c = a b with one matrix b per group of rows or, if groups cut k, the gradients of b, by Hopper's asynchronous
// products, for 16-bit dtypes. Works like matmul_wgmma_sm90.cu, but a block finds its tiles from the groups' offsets on
// the device. One warpgroup makes the copy engine fill a ring of STAGES tiles of a and b, 64 of k each; two others
// multiply, 64 of a tile's rows each. Blocks are persistent and take every num_blocks-th tile, so all find the same
// tiles without communication.
// Floor: 2 rows k n FLOPs, and b read once for each group that has rows.
// Limit: the card's power; where k is short, the epilogue, which no products hide.
// Figures: docs/kernels/matmul_grouped.md.
// The host defines
//     DTYPE, A_IS_MN, B_IS_MN (lines run along m, n instead of k; A_IS_MN: groups cut k, else m)
#include "ops/matmul/cuda/matmul_tiles.cuh"
#include "ops/matmul/matmul_grouped_params.h"

#if !defined(A_IS_MN) || !defined(B_IS_MN)
#error "A_IS_MN and B_IS_MN are not both defined"
#endif
#define BLOCK_M 128
#define BLOCK_N 256
#define BLOCK_K 64
#define STAGES 4
#define IN_TURNS 0
#define PICKED 4
#include "ops/matmul/cuda/matmul_staged.cuh"

// ---- Tiles ------------------------------------------------------------------------------------

// Boxes of the copy engine ignore groups. If groups cut m, rows after a group's end are multiplied but not stored: the
// 16 rows that contain the end are stored element by element. If groups cut k, lines after the end are set to zero in
// shared memory before the products, in both operands, because they may hold NaN.

struct place {
    int row, col, group; // in c: if all rows are in one matrix, row counts from its start
    int end_row;         // of c or of the group
    int first_k, size_k;
};

// The number of rows of tiles of all groups. The whole warp must call it.
DEVICE unsigned count_rows(const struct matmul_params *p) {
    unsigned rows = 0;
#pragma unroll 1
    for (int group = (int)threadIdx.x % 32; group < (int)p->num_batches; group += 32) {
        int first, end;
        group_rows(p, group, &first, &end);
        rows += (unsigned)(end - first + BLOCK_M - 1) / BLOCK_M;
    }
    return __reduce_add_sync(0xffffffff, rows);
}

// rows: rows of tiles, of all groups or, if they cut k, of one. The whole warp must call it.
DEVICE struct place find_place(const struct matmul_params *p, unsigned number, unsigned rows) {
    const struct matmul_wgmma_place in_tiles =
        matmul_wgmma_place(number, rows, (unsigned)p->tiles_n, (unsigned)p->group_m);
    struct place place;
    int row = (int)in_tiles.row, first, end;
    place.group = A_IS_MN ? (int)in_tiles.batch : find_group(p, &row, BLOCK_M);
    group_rows(p, place.group, &first, &end);
    place.row = row * BLOCK_M + (A_IS_MN ? 0 : first);
    place.col = (int)in_tiles.col * (is_gated(p) ? BLOCK_N / 2 : BLOCK_N);
    place.end_row = A_IS_MN ? (int)p->m : end;
    place.first_k = A_IS_MN ? first : 0;
    place.size_k = A_IS_MN ? end - first : (int)p->k;
    return place;
}

// ---- Copies -----------------------------------------------------------------------------------

DEVICE void copy_tiles(const struct matmul_grouped_params *w, unsigned base, unsigned rows,
                       unsigned num_tiles) {
    const struct matmul_params *p = &w->matmul;
    const int is_elected = elect_one();
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < num_tiles; number += gridDim.x) {
        const struct place place = find_place(p, number, rows);
        // The index of a's matrix and, if groups cut k, of b's.
        const int of_rows = p->groups.are_counts ? place.group : 0;
#pragma unroll 1
        for (int done = 0; done < place.size_k; done += BLOCK_K) {
            const unsigned stage = base + ring.stage * STAGE_BYTES,
                           full = base + FULL_AT + 8 * ring.stage;
            const int k = place.first_k + done;
            barrier_wait(full + (EMPTY_AT - FULL_AT), ring.parity ^ 1);
            if (is_elected) barrier_expect(full, STAGE_BYTES);
#pragma unroll
            for (int u = 0; u < UNITS_A; u++) {
                const int mn = place.row + u * UNIT;
                const int at[5] = {A_IS_MN ? mn : k, A_IS_MN ? k : mn, of_rows, 0, 0};
                if (is_elected) tma_load(stage + u * UNIT_BYTES, &w->a, at, full);
            }
#pragma unroll
            for (int u = 0; u < UNITS_B; u++) {
                const int mn = place.col + matmul_wgmma_column(is_gated(p), u);
                const int at[5] = {B_IS_MN ? mn : k, B_IS_MN ? k : mn,
                                   A_IS_MN ? of_rows : place.group, 0, 0};
                const struct tensor_map *map =
                    matmul_wgmma_is_of_up(is_gated(p), u) ? &w->b_up : &w->b;
                if (is_elected) tma_load(stage + (UNITS_A + u) * UNIT_BYTES, map, at, full);
            }
            ring_advance(&ring, STAGES);
        }
    }
}

// ---- Products ---------------------------------------------------------------------------------

#define A_SLAB (A_IS_MN ? UNIT_BYTES : 16)
#define B_SLAB (B_IS_MN ? UNIT_BYTES : 16)
#define A_STEP (A_IS_MN ? 2048 : 32) // bytes per 16 of k
#define B_STEP (B_IS_MN ? 2048 : 32)

// Sets lines of k from `first` on to zero in every unit of a stage; these lines are rows of 128 bytes. Both groups do
// it together.
DEVICE void clear_lines(int stage, int first) {
    const int pieces = (BLOCK_K - first) * 8;
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
DEVICE void multiply(float acc[EIGHTS][4], struct ring *ring, unsigned base, unsigned first_unit,
                     int num_blocks, int rest, int lane) {
    int before = 0;
#pragma unroll 1
    for (int block = 0; block < num_blocks; block++) {
        const unsigned stage = base + ring->stage * STAGE_BYTES;
        const unsigned long long a = wgmma_tile(stage + first_unit * UNIT_BYTES, A_SLAB),
                                 b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, B_SLAB);
        barrier_wait(base + FULL_AT + 8 * ring->stage, ring->parity);
        if (A_IS_MN && block == num_blocks - 1 && rest < BLOCK_K) clear_lines(ring->stage, rest);
        WGMMA_BEGIN();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 16; step++)
            WGMMA_TILES_256(acc, a + WGMMA_STEP(step * A_STEP), b + WGMMA_STEP(step * B_STEP),
                            block + step, A_IS_MN, B_IS_MN);
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (block > 0 && lane == 0) barrier_arrive(base + EMPTY_AT + 8 * before);
        before = ring->stage;
        ring_advance(ring, STAGES);
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
        multiply(acc, ring, base, first_unit, now, blocks == 0 ? rest : BLOCK_K, lane);
        if (!is_first || blocks > 0) promote(w, acc, is_first, blocks == 0);
    }
}

// ---- From accumulators to c -----------------------------------------------------------------------

// Columns [32 quarter, + 32) of c in this warp's 16 rows, after the epilogue.
DEVICE void make_quarter(float v[4][4], const struct matmul_params *p, const struct place *place,
                         float alpha, float acc[TILES_M][EIGHTS][4], int quarter, int lane) {
    const int of_b = is_gated(p) ? quarter / 2 * 4 + quarter % 2 : quarter;
    float add[4][2] = {};
    const int col = place->col + quarter * 32 + lane % 4 * 2;
    if (p->bias != 0)
        load_bias(add, p->bias, place->group * p->groups.bias, p->bias_is_f32, col, (int)p->n);
    pick(v, acc, of_b, alpha, add);
    activate_all(v, p->activation, p->c_is_f32);
    if (!is_gated(p)) return;
    float up[4][4], add_up[4][2] = {};
    if (p->bias_up != 0)
        load_bias(add_up, p->bias_up, place->group * p->groups.bias_up, p->bias_up_is_f32, col,
                  (int)p->n);
    pick(up, acc, of_b + 2, alpha, add_up);
    gate_all(v, up, p->activation);
}

// Writes to a staged tile: columns of 16 bits from 32 * part on, or of fp32.
DEVICE void stage_quarter(float v[4][4], unsigned tile, int is_f32, int part, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (is_f32) {
            const int piece = i * 2 + lane % 4 / 2, at = lane % 2 * 8;
            store_pair(tile + matmul_wgmma_piece(lane / 4, piece) + at, v[i][0], v[i][1]);
            store_pair(tile + matmul_wgmma_piece(lane / 4 + 8, piece) + at, v[i][2], v[i][3]);
        } else if (i % 2 == 0) {
            stage_halves(tile + matmul_wgmma_piece(lane % 16, part * 4 + i + lane / 16), v + i);
        }
    }
}

// Stores a staged tile to c at (row, col) element by element, up to the group's last row.
DEVICE void store_elements(const struct matmul_params *p, const struct place *place, int matrix,
                           unsigned staging, int row, int col, int lane) {
    const unsigned char *tile = shared + (staging - shared_address(shared));
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
        const int r = row + i / 2, j = i % 2 * 32 + lane;
        if (r >= place->end_row || col + j >= p->n) continue;
        const long long at = matrix * p->c.batch[2] + r * p->c.line + (col + j);
        if (!p->c_is_f32) {
            ((unsigned short *)p->c.data)[at] =
                *(const unsigned short *)(tile + matmul_wgmma_piece(i / 2, j / 8) + j % 8 * 2);
        } else if (i % 2 == 0) {
            const float x = *(const float *)(tile + matmul_wgmma_piece(i / 2, j / 4) + j % 4 * 4);
            float *to = (float *)p->c.data + at;
            *to = p->is_accumulating ? *to + x : x;
        }
    }
    __syncwarp();
}

DEVICE int matrix_of_c(const struct matmul_params *p, const struct place *place) {
    return A_IS_MN || p->groups.are_counts ? place->group : 0;
}

DEVICE float find_alpha(const struct matmul_grouped_params *w, int size_k) {
    const int most = w->blocks_of_part * BLOCK_K, k = size_k < most ? size_k : most;
    return w->matmul.c_is_f32 ? w->matmul.alpha : w->matmul.alpha * (1 + matmul_wgmma_drift(k) / 2);
}

// Stores 16 rows of c from `row` on, all of them the group's, as products times alpha in 16 bits: store_rows without
// its other cases.
DEVICE void store_products(const struct matmul_grouped_params *w, const struct place *place,
                           float (*acc)[4], unsigned staging, int row, int lane) {
    const float alpha = find_alpha(w, place->size_k);
    const int matrix = matrix_of_c(&w->matmul, place);
#pragma unroll
    for (int part = 0; part < EIGHTS / 8; part++) {
        const unsigned tile = staging + part % 2 * STAGED_BYTES;
        const int col = place->col + part * 64;
        if (col >= (int)w->matmul.n) break;
        if (part == 0 && elect_one()) TMA_STORES_READ(0);
        if (part > 1 && elect_one()) TMA_STORES_READ(1);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            float v[2][4];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j / 4][j % 4] = acc[part * 8 + i + j / 4][j % 4] * alpha;
            stage_halves(tile + matmul_wgmma_piece(lane % 16, i + lane / 16), v);
        }
        const int at[5] = {col, row, matrix, 0, 0};
        send_tile(tile, &w->c, at, 0);
    }
}

// Stores 16 rows of c from `row` on through two alternating tiles of 128 bytes per row: 64 columns of 16 bits, 32 of
// fp32. The copy engine stores them if all rows belong to the group.
DEVICE void store_rows(const struct matmul_grouped_params *w, const struct place *place,
                       float acc[TILES_M][EIGHTS][4], unsigned staging, int row, int is_whole,
                       int lane) {
    const struct matmul_params *p = &w->matmul;
    const int matrix = matrix_of_c(p, place);
    const int quarters = is_gated(p) ? 4 : 8, of_tile = p->c_is_f32 ? 1 : 2;
    const float alpha = find_alpha(w, place->size_k);
#pragma unroll 1
    for (int quarter = 0; quarter < quarters; quarter++) {
        const int col = place->col + quarter * 32, part = quarter % of_tile;
        const unsigned tile = staging + quarter / of_tile % 2 * STAGED_BYTES;
        if (part == 0 && col >= (int)p->n) break;
        float v[4][4];
        make_quarter(v, p, place, alpha, acc, quarter, lane);
        if (quarter == 0 && elect_one()) TMA_STORES_READ(0); // earlier rows ended with either tile
        if (part == 0 && elect_one()) TMA_STORES_READ(1);    // this tile's last store
        __syncwarp();
        stage_quarter(v, tile, p->c_is_f32, part, lane);
        if (part != of_tile - 1) continue;
        if (!is_whole) {
            store_elements(p, place, matrix, tile, row, col - part * 32, lane);
            continue;
        }
        const int at[5] = {col - part * 32, row, matrix, 0, 0};
        send_tile(tile, &w->c, at, p->is_accumulating);
    }
}

DEVICE void multiply_tiles(const struct matmul_grouped_params *w, unsigned base, int warp,
                           unsigned rows, unsigned num_tiles) {
    const int lane = threadIdx.x % 32, staging = STAGING_AT + warp * STAGING_BYTES;
    struct ring ring = {0, 0};
    float acc[TILES_M][EIGHTS][4] = {};
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < num_tiles; number += gridDim.x) {
        const int size_k = A_IS_MN ? find_place(&w->matmul, number, rows).size_k : (int)w->matmul.k;
        multiply_parts(w, acc[0], &ring, base, warp / 4, size_k, lane);
        const struct place place = find_place(&w->matmul, number, rows);
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
        tma_prefetch(&w.a);
        tma_prefetch(&w.b);
        if (is_gated(&w.matmul)) tma_prefetch(&w.b_up);
        if (w.has_c_map) tma_prefetch(&w.c);
        start_stages(base, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    wait_for_primary();
    start_dependents();
    const unsigned rows = A_IS_MN ? (unsigned)w.matmul.tiles_m : count_rows(&w.matmul);
    const unsigned num_tiles =
        rows * (unsigned)w.matmul.tiles_n * (A_IS_MN ? (unsigned)w.matmul.num_batches : 1);
    if (warp < 4) {
        TAKE_FEW_REGISTERS();
        if (warp == 0) copy_tiles(&w, base, rows, num_tiles);
    } else {
        TAKE_MANY_REGISTERS();
        multiply_tiles(&w, base, warp - 4, rows, num_tiles);
    }
}
