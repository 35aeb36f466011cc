// SPDX-License-Identifier: Apache-2.0
// Matmul by fused multiply-adds in fp32, for every dtype, layout and alignment. The host defines
//     DTYPE, BLOCK (tiles of BLOCK x BLOCK: 128 or 64)
// Tiles of a and b, widened, lie in shared memory with their lines along m and n, so that a thread reads what it
// multiplies in fours; those that come along k are transposed on the way. While a tile is multiplied, the next one is
// on its way in registers. A thread has 8 x 8 of c (4 x 8 of a small tile), a warp 32 x 64.
//
// A serial sum of many terms of one sign drifts, so sums of PROMOTE columns are added up in shared memory.
#include "cuda/device/numbers.cuh"
#include "ops/matmul/matmul_epilogue.cuh"

#ifndef BLOCK
#error "BLOCK is not defined: 128 or 64"
#endif

#define BLOCK_K 16
#define WARP_M (BLOCK == 128 ? 32 : 16)
#define WARPS_N (BLOCK / 64)
#define THREADS (BLOCK / WARP_M * WARPS_N * 32)
#define BLOCKS_PER_SM (BLOCK == 128 ? 2 : 5)
#define ROWS (WARP_M / 4) // of a thread
#define PROMOTE 512       // as in matmul_cuda_plan.c

#define TILE_FLOATS (BLOCK * BLOCK_K)
#define WARPS (THREADS / 32)
#define STAGES_BYTES (4 * TILE_FLOATS * 4)
#define AREA_BYTES (STAGES_BYTES > WARPS * STAGING_BYTES ? STAGES_BYTES : WARPS * STAGING_BYTES)

// ---- From memory by way of registers --------------------------------------------------------------

// A thread's 8 neighbours of a tile of an operand, as they lie in memory.
struct item {
    uint4 raw[ELEMENT_BYTES / 2];
};

struct loader {
    const char *from;
    int k, at; // of the first element, in the tile: along k, and along m or n
    int count; // elements that there are
};

DEVICE void loader_start(struct loader *l, const struct matmul_params *p,
                         const struct matmul_operand *x, const struct matmul_operand *up,
                         const struct tile *t, long long first, long long end, int is_mn) {
    int pieces = is_mn ? BLOCK / 8 : BLOCK_K / 8, line = threadIdx.x / pieces;
    int piece = threadIdx.x % pieces;
    l->k = is_mn ? line : piece * 8;
    l->at = is_mn ? piece * 8 : line;
    const struct matmul_operand *from = up != 0 && is_of_up(p, l->at) ? up : x;
    long long at = first + (up != 0 ? column_in_c(p, l->at) : l->at), k = t->first_k + l->k;
    long long left = end - at;
    l->count = left <= 0 ? 0 : is_mn && left < 8 ? (int)left : 8;
    if (left <= 0) at = 0;
    at = is_mn ? k * from->line + at : at * from->line + k;
    l->from = (const char *)from->data + (batch_offset(from, t->index) + at) * ELEMENT_BYTES;
}

DEVICE struct item load_item(struct loader *l, const struct matmul_operand *x, int k_left,
                             int is_mn, int is_vector) {
    struct item it;
    int left = k_left - l->k, count = l->count;
    if (left <= 0) count = 0;
    if (!is_mn && left < count) count = left;
    if (is_vector && count == 8) {
#pragma unroll
        for (int i = 0; i < ELEMENT_BYTES / 2; i++) it.raw[i] = ((const uint4 *)l->from)[i];
    } else {
        unsigned word[2 * ELEMENT_BYTES];
#pragma unroll
        for (int i = 0; i < 2 * ELEMENT_BYTES; i++) word[i] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
#if DTYPE == DTYPE_F32
            if (i < count) word[i] = ((const unsigned *)l->from)[i];
#else
            if (i < count) word[i / 2] |= ((const unsigned short *)l->from)[i] << i % 2 * 16;
#endif
#pragma unroll
        for (int i = 0; i < ELEMENT_BYTES / 2; i++)
            it.raw[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
    }
    l->from += (is_mn ? x->line : 1) * (BLOCK_K * ELEMENT_BYTES);
    return it;
}

// Column `at` of line k of a tile: half of the lines are shifted by 16, so that two of them that lie 8 apart, as
// transposed neighbours do, are in different banks.
DEVICE int place(int k, int at) { return k * BLOCK + (at ^ (k >> 3 & 1) * 16); }

DEVICE void store_item(float *tile, const struct item *it, const struct loader *l, int is_mn) {
    float x[8];
#pragma unroll
    for (int i = 0; i < ELEMENT_BYTES / 2; i++) widen(it->raw[i], x + i * GROUP);
    if (is_mn) {
        float4 *to = (float4 *)(tile + place(l->k, l->at));
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) tile[place(l->k, l->at) + i * BLOCK] = x[i];
    }
}

// ---- The kernel -------------------------------------------------------------------------------

DEVICE void load_four(float x[4], const float *from) {
    float4 four = *(const float4 *)from;
    x[0] = four.x;
    x[1] = four.y;
    x[2] = four.z;
    x[3] = four.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_fma(const struct matmul_params p) {
    extern __shared__ float4 shared[];
    float *const tiles = (float *)shared;
    float *const sums = tiles + AREA_BYTES / 4 + threadIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WARP_M, warp_col = warp % WARPS_N * 64;
    const int row = lane / 8 * 4, col = lane % 8 * 4; // in the warp's

    for (long long number = blockIdx.x; number < p.num_tiles; number += gridDim.x) {
        struct tile t = find_tile(&p, number, BLOCK, BLOCK);
        struct loader a, b;
        loader_start(&a, &p, &p.a, 0, &t, t.row, p.m, p.a_is_mn);
        loader_start(&b, &p, &p.b, &p.b_up, &t, t.col, p.n, p.b_is_mn);
        int k_left = (int)(t.end_k - t.first_k), num_k = (k_left + BLOCK_K - 1) / BLOCK_K;
        float acc[ROWS][8];
#pragma unroll
        for (int i = 0; i < ROWS * 8; i++) acc[i / 8][i % 8] = 0;

        struct item next_a = load_item(&a, &p.a, k_left, p.a_is_mn, p.a_is_vector);
        struct item next_b = load_item(&b, &p.b, k_left, p.b_is_mn, p.b_is_vector);
        store_item(tiles, &next_a, &a, p.a_is_mn);
        store_item(tiles + TILE_FLOATS, &next_b, &b, p.b_is_mn);
        __syncthreads();
#pragma unroll 1
        for (int tile = 0; tile < num_k; tile++) {
            const float *now = tiles + tile % 2 * (2 * TILE_FLOATS);
            float *next = tiles + (tile + 1) % 2 * (2 * TILE_FLOATS);
            k_left -= BLOCK_K;
            next_a = load_item(&a, &p.a, k_left, p.a_is_mn, p.a_is_vector);
            next_b = load_item(&b, &p.b, k_left, p.b_is_mn, p.b_is_vector);
#pragma unroll
            for (int k = 0; k < BLOCK_K; k++) {
                float x[ROWS], y[8];
#pragma unroll
                for (int i = 0; i < ROWS; i += 4)
                    load_four(x + i, now + place(k, warp_row + i * 4 + row));
                load_four(y, now + TILE_FLOATS + place(k, warp_col + col));
                load_four(y + 4, now + TILE_FLOATS + place(k, warp_col + 32 + col));
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) acc[i][j] += x[i] * y[j];
            }
            store_item(next, &next_a, &a, p.a_is_mn);
            store_item(next + TILE_FLOATS, &next_b, &b, p.b_is_mn);
            int done = (tile + 1) * BLOCK_K;
            if (p.has_sums && done % PROMOTE == 0 && tile + 1 < num_k) {
                bool is_first = done == PROMOTE;
#pragma unroll
                for (int i = 0; i < ROWS * 8; i++) {
                    float *one = &acc[i / 8][i % 8];
                    sums[i * THREADS] = is_first ? *one : sums[i * THREADS] + *one;
                    *one = 0;
                }
            }
            __syncthreads();
        }
        if (p.has_sums && num_k > PROMOTE / BLOCK_K) {
#pragma unroll
            for (int i = 0; i < ROWS * 8; i++) acc[i / 8][i % 8] += sums[i * THREADS];
        }

        t = find_tile(&p, forgotten(number), BLOCK, BLOCK);
        __syncthreads(); // without columns of k, a store was the last
        float *staging = tiles + warp * (STAGING_BYTES / 4);
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j % 4 == 0)
#pragma unroll
                    for (int r = 0; r < 4; r++)
                        *(float4 *)(staging + (row + r) * STAGING_STRIDE + col + j * 8) =
                            make_float4(acc[i + r][j], acc[i + r][j + 1], acc[i + r][j + 2],
                                        acc[i + r][j + 3]);
            __syncwarp();
            emit_rows(&p, &t, staging, t.row + warp_row + i * 4, warp_col);
            __syncwarp();
        }
        __syncthreads(); // before the next tile's stores
    }
}
