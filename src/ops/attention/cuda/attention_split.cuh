// SPDX-License-Identifier: Apache-2.0
// Attention's two products of fp32 numbers on tensor cores: each number is split in two of 11 bits, each product in three
// (tf32.cuh). Tiles stay in fp32 in shared memory, and operands are split on their way into registers, four numbers a load.
// Storing the halves would double the reads of shared memory, which are scarcer than instructions.
//
// The order of columns in a product is free if both operands have the same order, so a lane takes adjacent columns. In scores,
// lane t of four has columns 8 t + 4 i to + 3 of 32, for two products. In values, a lane's pieces of 4 columns belong to four
// products, whose accumulators then hold 8 adjacent columns. Weights are operands as they lie: slots t and t + 4 of the depth are
// keys 2 t and 2 t + 1.
//
// Sums on tensor cores lose up to one unit at every step by truncation. So in scores the small products have their own
// accumulators, and sums of the big parts cover 64 columns; in values, sums cover one tile of keys. fp32 additions do the rest. A
// warp has 16 queries (UNITS is 1).
//
// A number that is not finite has no halves. If a result is not finite, it is computed again by multiply-adds, only with pairs
// that see each other.
#ifndef TSRI_ATTENTION_SPLIT_CUH
#define TSRI_ATTENTION_SPLIT_CUH

#include "cuda/device/tf32.cuh"
#include "ops/attention/cuda/attention_mma.cuh"

#define EACH_OF_FOUR(i) _Pragma("unroll") for (int i = 0; i < 4; i++)

// sum: of x times 0; it is NaN if some x is not finite, otherwise 0.
DEVICE int is_any_nonfinite(float sum) { return __any_sync(ALL_LANES, sum != 0); }

// ---- Scores -----------------------------------------------------------------------------------

// Address of the d-th of a lane's two pieces per 32 columns, from its first address.
#define COLUMNS(at, d, rows) (((at) ^ ((d) % 2 * 16)) + (d) / 2 * SLAB_BYTES(rows))

// For 16 queries from `row` of their tile on.
DEVICE void multiply_keys_by_fma(float (*s)[4], unsigned q_tile, int row, unsigned k_tile) {
    EACH_COLUMN_TILE(n) EACH_OF_FOUR(i) s[n][i] = 0;
#pragma unroll 1
    for (int piece = 0; piece < HEAD_DIM / 4; piece++) {
        float a[2][4], b[4];
        EACH_HALF(h) load_four(a[h], q_tile + piece_at(row + h * 8 + LANE / 4, piece, BLOCK_M));
        EACH_COLUMN_TILE(n) EACH_HALF(e) {
            load_four(b, k_tile + piece_at(n * 8 + LANE % 4 * 2 + e, piece, BLOCK_N));
            EACH_HALF(h) EACH_OF_FOUR(i) s[n][2 * h + e] += a[h][i] * b[i];
        }
    }
}

// s = q k^T for 16 queries from `row` of their tile on.
DEVICE void multiply_keys(float (*s)[4], unsigned q_tile, int row, unsigned k_tile) {
    unsigned lane = (LANE % 4 * 2 ^ LANE / 4) * 16 + LANE / 4 * 128;
    unsigned q_at = q_tile + row * 128 + lane, k_at = k_tile + lane;
    float small[BLOCK_N / 8][4], zero[4] = {0, 0, 0, 0};
    EACH_COLUMN_TILE(n) EACH_OF_FOUR(i) small[n][i] = 0;
#pragma unroll
    for (int columns = 0; columns < HEAD_DIM; columns += 64) {
        float big[BLOCK_N / 8][4];
        EACH_COLUMN_TILE(n) EACH_OF_FOUR(i) big[n][i] = 0;
#pragma unroll
        for (int d = columns / 16; d < columns / 16 + 4; d++) {
            struct tf32_operand a[2];
            load_rows_split(a, COLUMNS(q_at, d, BLOCK_M), 8 * 128);
            EACH_COLUMN_TILE(n) {
                struct tf32_pair b[4];
                load_four_split(b, COLUMNS(k_at, d, BLOCK_N) + n * 8 * 128);
                EACH_HALF(e) mma_split(big[n], small[n], &a[e], b[2 * e], b[2 * e + 1]);
            }
        }
        EACH_COLUMN_TILE(n)
        EACH_OF_FOUR(i) s[n][i] = columns == 0 ? big[n][i] : s[n][i] + big[n][i];
    }
    EACH_COLUMN_TILE(n) EACH_OF_FOUR(i) {
        s[n][i] += small[n][i];
        zero[i] += s[n][i] * 0.0f;
    }
    if (is_any_nonfinite(zero[0] + zero[1] + zero[2] + zero[3]))
        multiply_keys_by_fma(s, q_tile, row, k_tile);
}

// ---- Values -----------------------------------------------------------------------------------

// sum = weights v for 32 columns: the queries from i on, and those keys from j on that they see.
DEVICE void multiply_values_by_fma(float (*sum)[4], const float (*s)[4],
                                   const struct attention_params *p,
                                   const struct attention_sequence *sequence, int i, int j,
                                   unsigned v_tile, int slab) {
    int begin[2], end[2];
    EACH_HALF(h) {
        int query = i + h * 8 + LANE / 4;
        begin[h] = attention_first_key(p, sequence, query) - j;
        end[h] = attention_end_key(p, sequence, query) - j;
    }
    EACH_OF_FOUR(n) EACH_OF_FOUR(c) sum[n][c] = 0;
#pragma unroll 1
    for (int of_tile = 0; of_tile < 8; of_tile++) EACH_COLUMN_TILE(n) {
            int key = n * 8 + of_tile;
            float v[2][4], weight[2];
            EACH_HALF(e)
            load_four(v[e], v_tile + piece_at(key, slab * 8 + LANE % 4 * 2 + e, BLOCK_N));
            EACH_HALF(h) {
                weight[h] = __shfl_sync(ALL_LANES, of_tile % 2 ? s[n][2 * h + 1] : s[n][2 * h],
                                        LANE / 4 * 4 + of_tile / 2);
                if (key < begin[h] || key >= end[h]) continue;
                EACH_HALF(e) EACH_OF_FOUR(c) sum[c][2 * h + e] += weight[h] * v[e][c];
            }
        }
}

// Slabs of 32 columns whose sums a warp has at a time. With HEAD_DIM 64 registers suffice for all in one run of code, with
// separate sums for the small products, as there are 64 keys.
#define SLABS (HEAD_DIM == 64 ? 2 : 1)
#define EACH_SLAB(i) _Pragma("unroll") for (int i = 0; i < SLABS; i++)

// o += weights v for queries from i on and keys from j on.
DEVICE void multiply_values(float (*o)[4], const float (*s)[4], const struct attention_params *p,
                            const struct attention_sequence *sequence, int i, int j,
                            unsigned v_tile) {
    // Keys 2 t of this lane. Keys 2 t + 1 are one row further, in the other of two pieces.
    unsigned v_at = v_tile + LANE % 4 * 2 * 128 + (LANE / 4 ^ LANE % 4 * 2) * 16;
#pragma unroll
    for (int first = 0; first < HEAD_DIM / 32; first += SLABS) {
        float sum[SLABS][4][4], small[SLABS][4][4], zero[4] = {0, 0, 0, 0};
        EACH_SLAB(slab) EACH_OF_FOUR(n) EACH_OF_FOUR(c) sum[slab][n][c] = small[slab][n][c] = 0;
        EACH_COLUMN_TILE(n) {
            struct tf32_operand a;
            split_operand(&a, s[n][0], s[n][2], s[n][1], s[n][3]);
            EACH_SLAB(slab) {
                struct tf32_pair b[2][4];
                EACH_HALF(e)
                load_four_split(b[e], (v_at ^ e * (128 + 16)) +
                                          (first + slab) * SLAB_BYTES(BLOCK_N) + n * 8 * 128);
                EACH_OF_FOUR(c)
                mma_split(sum[slab][c], SLABS > 1 ? small[slab][c] : sum[slab][c], &a, b[0][c],
                          b[1][c]);
            }
        }
        EACH_SLAB(slab) EACH_OF_FOUR(n) EACH_OF_FOUR(c) {
            if (SLABS > 1) sum[slab][n][c] += small[slab][n][c];
            zero[c] += sum[slab][n][c] * 0.0f;
        }
        if (is_any_nonfinite(zero[0] + zero[1] + zero[2] + zero[3])) {
            EACH_SLAB(slab)
            multiply_values_by_fma(sum[slab], s, p, sequence, i, j, v_tile, first + slab);
        }
        EACH_SLAB(slab)
        EACH_OF_FOUR(n) EACH_OF_FOUR(c) o[(first + slab) * 4 + n][c] += sum[slab][n][c];
    }
}

#endif
