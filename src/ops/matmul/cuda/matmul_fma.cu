// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) by fused multiply-adds in fp32, for every dtype, layout and alignment. Widened tiles
// of a and b are in shared memory with lines along m and n, so that a thread reads its operands in fours; lines along k
// are transposed on the way. While a tile is multiplied, the next one is loaded into registers. A thread has 8 x 8 of
// c, or 4 x 8 of a small tile. A serial sum of many terms of one sign drifts, so sums of PROMOTE columns are added up
// in shared memory.
// Floor: 2 m n k FLOPs at the FMA rate, about 60 TFLOP/s (H200); few rows are filled up to a tile.
// Figures: docs/kernels/matmul_cuda.md.
// The host defines
//     DTYPE, BLOCK (tiles of BLOCK x BLOCK: 128 or 64), and FP8 if a and b are fp8: the formats are then parameters, DTYPE is
//     that of c, bias and residual, and elements are multiplied by their scales when they are widened; LISTED if groups cut k
//     and lines of a or b come by a list
#ifdef FP8
#define HAS_SCALES
#include "cuda/device/fp8.cuh"
#else
#include "cuda/device/numbers.cuh"
#endif
#include "ops/matmul/cuda/matmul_epilogue.cuh"

#ifndef BLOCK
#error "BLOCK is not defined: 128 or 64"
#endif

#define BLOCK_K 16
#define WARP_M (BLOCK == 128 ? 32 : 16)
#define WARPS_N (BLOCK / 64)
#define THREADS (BLOCK / WARP_M * WARPS_N * 32)
#define BLOCKS_PER_SM (BLOCK == 128 ? 2 : 4)
#define ROWS (WARP_M / 4) // per thread
#define COLUMNS 8
#define PROMOTE 512 // as in matmul_cuda_layout.c

#define TILE_FLOATS (BLOCK * BLOCK_K) // a thread has 8 of them

// ---- From memory through registers ----------------------------------------------------------------

// A thread's elements of an operand's tile: 8 adjacent ones of a line, in PARTS of 16 bytes (fp8: one part of 8).
#ifdef FP8
#define OPERAND_BYTES 1
#define OF_PART 8
#else
#define OPERAND_BYTES ELEMENT_BYTES
#define OF_PART GROUP
#endif
#define PARTS (8 / OF_PART)

struct loader {
    const char *from;
    int k, at; // of the first element in the tile: along k, and along m or n
    int count; // elements that exist
#ifdef LISTED
    int line; // of the current tile; -1: zeros. `from` is in line 0
#endif
#ifdef FP8
    const float *scale; // of this batch
    long long scale_mn, scale_k;
    long long first, first_k, end_k; // of the first element in the matrix; end of k
    int is_e5m2, is_of_b;
#endif
};

DEVICE void loader_start(struct loader *l, const struct matmul_params *p,
                         const struct matmul_operand *x, const struct matmul_operand *up,
                         const struct tile *t, int is_mn) {
    int pieces = is_mn ? BLOCK / 8 : BLOCK_K / 8;
    int line = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    long long first = up != 0 ? t->col : t->row, end = up != 0 ? p->n : t->end_row;
    l->k = is_mn ? line : piece * 8;
    l->at = is_mn ? piece * 8 : line;
    const struct matmul_operand *from = up != 0 && is_of_up(p, l->at) ? up : x;
    long long at = first + (up != 0 ? column_in_c(p, l->at) : l->at);
    long long left = end - at;
    l->count = left <= 0 ? 0 : is_mn && left < 8 ? (int)left : 8;
    if (!is_mn && up == 0 && left > 0 && p->groups.of_a.lines != 0)
        if ((at = line_of(&p->groups.of_a, at)) < 0) l->count = 0;
    if (left <= 0 || at < 0) at = 0;
#ifndef LISTED
    const long long k = t->first_k + l->k;
    at = is_mn ? k * from->line + at : at * from->line + k;
#endif
    l->from = (const char *)from->data + (batch_offset(from, t->index) + at) * OPERAND_BYTES;
#ifdef FP8
    const struct matmul_scale *scale = up == 0      ? &p->a_scale
                                       : from == up ? &p->b_up_scale
                                                    : &p->b_scale;
    l->scale = scale->data + t->index[0] * scale->batch[0] + t->index[1] * scale->batch[1] +
               t->index[2] * scale->batch[2];
    l->scale_mn = scale->mn;
    l->scale_k = scale->k;
    l->first = left <= 0 ? 0 : first + (up != 0 ? column_in_c(p, l->at) : l->at);
    l->first_k = k;
    l->end_k = t->end_k;
    l->is_of_b = up != 0;
    l->is_e5m2 = l->is_of_b ? p->b_is_e5m2 : p->a_is_e5m2;
#endif
}

#ifdef LISTED
// Finds the thread's line of the tile that begins at first_k, with k_left lines to go.
DEVICE void loader_find(struct loader *l, const struct matmul_list_params *list, long long first_k,
                        int k_left) {
    l->line = l->k < k_left ? line_of(list, first_k + l->k) : -1;
}
#endif

DEVICE uint4 load_part(const struct loader *l, const struct matmul_operand *x, int part, int k_left,
                       int is_mn, int is_vector) {
    int left = k_left - l->k, count = l->count;
    if (left <= 0) count = 0;
#ifdef LISTED
    if (l->line < 0) count = 0;
#endif
    if (!is_mn && left < count) count = left;
    count -= part * OF_PART;
    const char *from = l->from + part * 16;
#ifdef LISTED
    from += l->line * x->line * OPERAND_BYTES;
#else
    (void)x;
#endif
#ifdef FP8
    unsigned both[2] = {0, 0};
    if (is_vector && count >= OF_PART) {
        const uint2 raw = *(const uint2 *)from;
        return make_uint4(raw.x, raw.y, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < OF_PART; i++)
        if (i < count) both[i / 4] |= (unsigned)((const unsigned char *)from)[i] << i % 4 * 8;
    return make_uint4(both[0], both[1], 0, 0);
#else
    if (is_vector && count >= GROUP) return *(const uint4 *)from;
    unsigned word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < GROUP; i++)
#if DTYPE == DTYPE_F32
        if (i < count) word[i] = ((const unsigned *)from)[i];
#else
        if (i < count) word[i / 2] |= ((const unsigned short *)from)[i] << i % 2 * 16;
#endif
    return make_uint4(word[0], word[1], word[2], word[3]);
#endif
}

#ifdef FP8
// Eight elements, times their block scales if there are any. k: steps that the loader has moved along k.
DEVICE void widen_fp8(float x[OF_PART], uint4 raw, const struct loader *l, int k, int is_mn,
                      int is_block_scaled) {
    const unsigned word[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < OF_PART; i += 2) {
        const unsigned pair = word[i / 4] >> i % 4 * 8 & 0xffff;
        if (l->is_e5m2)
            floats_of_e5m2(x + i, pair);
        else
            floats_of_e4m3(x + i, pair);
    }
    if (!is_block_scaled || l->count == 0 || l->first_k + k >= l->end_k) return;
    const float *scale = l->scale + (l->first_k + k) / 128 * l->scale_k;
#pragma unroll
    for (int i = 0; i < OF_PART; i++) {
        const long long line = l->first + (is_mn && i < l->count ? i : 0);
        x[i] *= scale[(l->is_of_b ? line / 128 : line) * l->scale_mn];
    }
}
#endif

// Column `at` of line k of a tile. Half of the lines are shifted by 16, so that lines 8 apart, which neighbours of a
// transposed operand use, are in different banks.
DEVICE int place(int k, int at) { return k * BLOCK + (at ^ (k >> 3 & 1) * 16); }

DEVICE void store_part(float *tile, uint4 raw, const struct loader *l, int part, int is_mn, int k,
                       int is_block_scaled) {
    float x[OF_PART];
#ifdef FP8
    widen_fp8(x, raw, l, k, is_mn, is_block_scaled);
#else
    widen(raw, x);
#endif
    if (is_mn) {
#pragma unroll
        for (int i = 0; i < OF_PART; i += 4)
            *(float4 *)(tile + place(l->k, l->at) + part * OF_PART + i) =
                make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < OF_PART; i++)
            tile[place(l->k, l->at) + (part * OF_PART + i) * BLOCK] = x[i];
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

// acc += `steps` columns of a, from `first` on, times the same rows of b.
#define MULTIPLY(first, steps)                                                                     \
    _Pragma("unroll") for (int k = first; k < (first) + (steps); k++) {                            \
        float x[ROWS], y[COLUMNS];                                                                 \
        _Pragma("unroll") for (int i = 0; i < ROWS; i += 4)                                        \
            load_four(x + i, now + place(k, warp_row + i * 4 + row));                              \
        _Pragma("unroll") for (int j = 0; j < COLUMNS; j += 4)                                     \
            load_four(y + j, now + TILE_FLOATS + place(k, warp_col + j * 8 + col));                \
        _Pragma("unroll") for (int i = 0; i < ROWS; i++)                                           \
            _Pragma("unroll") for (int j = 0; j < COLUMNS; j++) acc[i][j] += x[i] * y[j];          \
    }
#ifdef LISTED
#define A_IS_MN 1
#define B_IS_MN 1
#else
#define A_IS_MN p.a_is_mn
#define B_IS_MN p.b_is_mn
#endif
#define LOAD_A(part) load_part(&a, &p.a, part, k_left, A_IS_MN, p.a_is_vector)
#define LOAD_B(part) load_part(&b, &p.b, part, k_left, B_IS_MN, p.b_is_vector)
#define STORE_A(to, part, raw, k) store_part(to, raw, &a, part, A_IS_MN, k, p.is_block_scaled)
#define STORE_B(to, part, raw, k)                                                                  \
    store_part((to) + TILE_FLOATS, raw, &b, part, B_IS_MN, k, p.is_block_scaled)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_fma(const __grid_constant__ struct matmul_params p) {
    extern __shared__ float4 shared[];
    float *const tiles = (float *)shared;
    float *const sums = tiles + 4 * TILE_FLOATS + threadIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WARP_M, warp_col = warp % WARPS_N * 64;
    const int row = lane / 8 * 4, col = lane % 8 * 4; // within the warp's part

    __shared__ struct tile t; // in registers, it would take space from the products
    if (threadIdx.x < 32) {
        const struct tile found = find_tile(&p, p.first_tile + blockIdx.x, BLOCK, BLOCK);
        if (threadIdx.x == 0) t = found;
    }
    __syncthreads();
    if (t.row >= t.end_row) return;
    struct loader a, b;
    loader_start(&a, &p, &p.a, 0, &t, A_IS_MN);
    loader_start(&b, &p, &p.b, &p.b_up, &t, B_IS_MN);
    int k_left = (int)(t.end_k - t.first_k), num_k = (k_left + BLOCK_K - 1) / BLOCK_K;
#ifdef LISTED
    loader_find(&a, &p.groups.of_a, t.first_k, k_left);
    loader_find(&b, &p.groups.of_b, t.first_k, k_left);
#endif
    float acc[ROWS][COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; i++) acc[i / COLUMNS][i % COLUMNS] = 0;

#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        STORE_A(tiles, part, LOAD_A(part), 0);
        STORE_B(tiles, part, LOAD_B(part), 0);
    }
    __syncthreads();
#pragma unroll 1
    for (int tile = 0; tile < num_k; tile++) {
        const float *now = tiles + tile % 2 * (2 * TILE_FLOATS);
        float *after = tiles + (tile + 1) % 2 * (2 * TILE_FLOATS);
        k_left -= BLOCK_K;
#ifdef LISTED
        loader_find(&a, &p.groups.of_a, t.end_k - k_left, k_left);
        loader_find(&b, &p.groups.of_b, t.end_k - k_left, k_left);
#else
        a.from += (p.a_is_mn ? p.a.line : 1) * (BLOCK_K * OPERAND_BYTES);
        b.from += (p.b_is_mn ? p.b.line : 1) * (BLOCK_K * OPERAND_BYTES);
#endif
        // The next tile of a is loaded during the first half of the steps, that of b during the second, part by part:
        // all at once would take too many registers.
        const int steps = BLOCK_K / 2 / PARTS;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint4 next = LOAD_A(part);
            MULTIPLY(part * steps, steps)
            STORE_A(after, part, next, (tile + 1) * BLOCK_K);
        }
#if __CUDA_ARCH__ >= 900
#pragma unroll
#else
#pragma unroll 1 // unrolled, it spills there
#endif
        for (int part = 0; part < PARTS; part++) {
            uint4 next = LOAD_B(part);
            MULTIPLY(BLOCK_K / 2 + part * steps, steps)
            STORE_B(after, part, next, (tile + 1) * BLOCK_K);
        }
        int done = (tile + 1) * BLOCK_K;
        if (p.has_sums && done % PROMOTE == 0 && tile + 1 < num_k) {
            bool is_first = done == PROMOTE;
#pragma unroll
            for (int i = 0; i < ROWS * COLUMNS; i++) {
                float *one = &acc[i / COLUMNS][i % COLUMNS];
                sums[i * THREADS] = is_first ? *one : sums[i * THREADS] + *one;
                *one = 0;
            }
        }
        __syncthreads();
    }
    if (p.has_sums && num_k > PROMOTE / BLOCK_K) {
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS; i++) acc[i / COLUMNS][i % COLUMNS] += sums[i * THREADS];
    }

    __syncthreads(); // shared memory is free for the epilogue
    const int thread = thread_again(), own = thread % 32, from = thread / 32;
    float *staging = tiles + from * STAGING_FLOATS(WARP_M);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float *to = staging + (i / 4 * 16 + own / 8 * 4 + i % 4) * STAGING_STRIDE + own % 8 * 4;
        *(float4 *)to = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        *(float4 *)(to + 32) = make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
    }
    __syncwarp();
    emit_rows(&p, &t, staging, own, WARP_M, t.row + from / WARPS_N * WARP_M, from % WARPS_N * 64);
}
