// SPDX-License-Identifier: Apache-2.0
// Tiles of rows for backward on tensor cores, with FlashAttention-2's (arXiv:2307.08691) loops taken apart: the kernel of keys and
// the kernel of queries each compute the scores, so that every gradient has one owner and sums in one order, without atomics. A
// block owns rows, 16 or 32 a warp, and tiles of other rows pass by. Scores have the owned rows as rows. So a warp's scores,
// narrowed or split, are the a operand of the product that adds to its gradients, and never go through shared memory. The host
// defines
//     DTYPE, HEAD_DIM (64, 128 or 256, fp32 not 256: rows are filled up with zeros), HAS_FEATURES (1: softcap, bias, ALiBi,
//     dropout), NARROW (1: smaller tiles, attention_backward_params.h)
// and the includer IS_OF_KEYS.
//
// Numbers that are not finite, in rows that are summed over, would leak through weights of 0. So tiles in which some pairs do not
// see each other are searched for them: such numbers become 0, and their row's weights NaN where it is seen.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH2_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH2_CUH

#include "cuda/device/mma.cuh"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#if HEAD_DIM != 64 && HEAD_DIM != 128 && HEAD_DIM != 256
#error "HEAD_DIM is not defined: 64, 128 or 256"
#endif
#ifndef HAS_FEATURES
#error "HAS_FEATURES is not defined: 0 or 1"
#endif
#ifndef NARROW
#error "NARROW is not defined: 0 or 1"
#endif

#define IS_F32 (DTYPE == DTYPE_F32)
#if NARROW
#define GROUPS 1
#define THREADS (32 * FLASH2_NARROW_WARPS)
#define OWNED (16 * FLASH2_NARROW_WARPS)                            // rows that a block owns
#define PASSING FLASH2_NARROW_PASSING(IS_OF_KEYS, HEAD_DIM, IS_F32) // rows of a passing tile
#else
#define GROUPS FLASH2_GROUPS(IS_OF_KEYS, HEAD_DIM, IS_F32)
#define THREADS (32 * FLASH2_WARPS(HEAD_DIM, IS_F32))
#define OWNED FLASH2_OWNED(IS_OF_KEYS, HEAD_DIM, IS_F32)
#define PASSING FLASH2_PASSING(IS_OF_KEYS, HEAD_DIM, IS_F32)
#endif
#if DTYPE == DTYPE_F32
#define BLOCKS_PER_SM (HEAD_DIM != 64 ? 1 : IS_OF_KEYS || HAS_FEATURES ? 2 : 3)
#define ELEMENT float
#else
#define BLOCKS_PER_SM (HEAD_DIM == 256 ? 1 : 2)
#define ELEMENT unsigned short
#endif
#define PIECES (HEAD_DIM / GROUP) // of 16 bytes a row
#define ROW_BYTES (HEAD_DIM * ELEMENT_BYTES)
#define OWNED_BYTES (OWNED * ROW_BYTES)
#define PASSING_BYTES (PASSING * ROW_BYTES)
#define LOADED (THREADS / PIECES) // rows that a block copies at a time
#define STEPS (HEAD_DIM / 16)     // of depth
#define HALVES (PASSING / 8)      // b operands of a tile
#define NUM_SCORES (GROUPS * HALVES)
#define COLUMN_TILES (HEAD_DIM / 8)
#define NUM_SUMS (GROUPS * COLUMN_TILES)
// The row (of the owned rows) and column (of the tile) of a thread's score [n][at], in mma's layout.
#define SCORE_ROW(t, n, at) (((t) / 32 * GROUPS + (n) / HALVES) * 16 + (t) % 32 / 4 + (at) / 2 * 8)
#define SCORE_COLUMN(t, n, at) ((n) % HALVES * 8 + (t) % 4 * 2 + (at) % 2)

// Reads threadIdx.x again: values derived from it early would take registers through the loops before.
DEVICE int thread_now(void) {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// ---- Between memory and shared memory ---------------------------------------------------------

// A piece of a row at any address; its columns from `left` on are zero.
DEVICE uint4 gather_piece(const ELEMENT *from, int left) {
    unsigned words[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
#if DTYPE == DTYPE_F32
        words[c] = c < left ? __float_as_uint(from[c]) : 0u;
#else
        words[c] = (2 * c < left ? from[2 * c] : 0u) |
                   (2 * c + 1 < left ? (unsigned)from[2 * c + 1] << 16 : 0u);
#endif
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Offset from the piece `at` of one row to that of the row n LOADED rows further. The swizzle repeats after eight rows; narrow
// tiles of wide rows are loaded four rows at a time.
#if NARROW
#define ROWS_ON(at, n)                                                                             \
    ((n) * (LOADED * ROW_BYTES) + ((n)*LOADED % 8 == 0 ? 0 : (at) % 128 >= 64 ? -64 : 64))
#else
#define ROWS_ON(at, n) n *(LOADED * ROW_BYTES)
#endif

// Loads rows [first, first + rows) of a head whose row 0 is at `at`; zeros from row `end` on and beyond `dims` columns.
DEVICE void load_tile(unsigned char *tile, const void *data, long long at, long long stride,
                      int first, int rows, int end, int dims, int is_vector) {
    int thread = thread_now(), piece = thread % PIECES, row = thread / PIECES;
    int left = dims - GROUP * piece;
    left = left < 0 ? 0 : left > GROUP ? GROUP : left;
    const ELEMENT *from =
        (const ELEMENT *)data + at + (first + row) * stride + (left > 0 ? GROUP * piece : 0);
    tile += swizzled(row, piece, PIECES); // the same piece of later rows is whole rows further
    row = end - first - row;
    if (is_vector) {
        unsigned shared = shared_address(tile);
#pragma unroll
        for (int n = 0; n < rows / LOADED; n++) {
            int is_there = row > n * LOADED;
            copy_async(shared + ROWS_ON(shared, n), is_there ? (const void *)from : data,
                       is_there ? ELEMENT_BYTES * left : 0);
            from += stride * LOADED;
        }
        return;
    }
#pragma unroll 1
    for (int n = 0; n < rows / LOADED; n++) {
        *(uint4 *)(tile + ROWS_ON((unsigned long long)tile, n)) =
            gather_piece(from, row > n * LOADED ? left : 0);
        from += stride * LOADED;
    }
}

// Stores this warp's rows of an accumulator through its own shared memory: rows [first, ...) of a head, below `end`. Rows from
// `seen` on are 0.
DEVICE void store_rows(float acc[][4], float scale, unsigned char *shared, void *data, long long at,
                       long long stride, int first, int seen, int end, int dims, int is_vector) {
    int thread = thread_now(), warp_row = thread / 32 * GROUPS * 16, lane = thread % 32;
#if DTYPE == DTYPE_F32
#pragma unroll
    for (int n = 0; n < NUM_SUMS; n += 4) // eight adjacent columns of 32 (split.cuh)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int row = warp_row + n / COLUMN_TILES * 16 + lane / 4 + c / 2 * 8;
            float4 four = make_float4(0, 0, 0, 0);
            if (first + row < seen)
                four = make_float4(acc[n][c] * scale, acc[n + 1][c] * scale, acc[n + 2][c] * scale,
                                   acc[n + 3][c] * scale);
            *(float4 *)(shared +
                        swizzled(row, n % COLUMN_TILES * 2 + lane % 4 * 2 + c % 2, PIECES)) = four;
        }
#else
#pragma unroll
    for (int n = 0; n < NUM_SUMS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = warp_row + n / PIECES * 16 + lane / 4 + 8 * half;
            unsigned pair = pair_of_floats(acc[n][2 * half] * scale, acc[n][2 * half + 1] * scale);
            *(unsigned *)(shared + swizzled(row, n % PIECES, PIECES) + lane % 4 * 4) =
                first + row < seen ? pair : 0;
        }
#endif
    __syncwarp();
#pragma unroll 1
    for (int n = lane; n < GROUPS * 16 * PIECES; n += 32) {
        int row = warp_row + n / PIECES, col = n % PIECES * GROUP;
        if (first + row >= end || col >= dims) continue;
        const unsigned char *from = shared + swizzled(row, n % PIECES, PIECES);
        ELEMENT *to = (ELEMENT *)data + at + (first + row) * stride + col;
        if (is_vector && col + GROUP <= dims)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int c = 0; c < GROUP && col + c < dims; c++) to[c] = ((const ELEMENT *)from)[c];
    }
}

// ---- Numbers that are not finite --------------------------------------------------------------

DEVICE int has_nonfinite(uint4 raw) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    const unsigned mask = DTYPE == DTYPE_F32    ? 0x7f800000u
                          : DTYPE == DTYPE_BF16 ? 0x7f80u
                                                : 0x7c00u;
    int found = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        found |= (words[i] & mask) == mask || (!IS_F32 && (words[i] >> 16 & mask) == mask);
    return found;
}

DEVICE int search_tile(const unsigned char *tile) {
    int found = 0;
#pragma unroll 4
    for (int n = threadIdx.x; n < PASSING * PIECES; n += THREADS)
        found |= has_nonfinite(((const uint4 *)tile)[n]);
    return found;
}

// Sets such pieces to 0, and mark[row] to NaN.
DEVICE void clean_tile(unsigned char *tile, float *mark) {
#pragma unroll 1
    for (int n = threadIdx.x; n < PASSING * PIECES; n += THREADS)
        if (has_nonfinite(((const uint4 *)tile)[n])) {
            ((uint4 *)tile)[n] = make_uint4(0, 0, 0, 0);
            mark[n / PIECES] = NOT_A_NUMBER;
        }
}

#if DTYPE == DTYPE_F32
#include "ops/attention/cuda/backward/attention_backward_split.cuh"
#else
#include "ops/attention/cuda/backward/attention_backward_products.cuh"
#endif

// ---- Scores beside the registers --------------------------------------------------------------

// Each thread's own scores, THREADS floats apart.
DEVICE void keep_scores(float *shared, const float scores[][4]) {
#pragma unroll
    for (int n = 0; n < NUM_SCORES * 4; n++) shared[n * THREADS] = scores[n / 4][n % 4];
}
// Reads the a operands of the nth 16 passing rows from there.
DEVICE void take_weights(const float *shared, int n, operands weights) {
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = shared + ((m * HALVES + 2 * n) * 4 + 2 * i) * THREADS;
            set_pair(weights[m], i, from[0], from[THREADS]);
        }
}

#endif
