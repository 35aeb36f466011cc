// SPDX-License-Identifier: Apache-2.0
// Products of backward's tiles of fp32 rows on tensor cores, with each number split (tf32.cuh). The macros are those of
// attention_backward_flash2.cuh. Lanes share columns, and sums are cut, as in attention_split.cuh.
#ifndef TSRI_ATTENTION_BACKWARD_SPLIT_CUH
#define TSRI_ATTENTION_BACKWARD_SPLIT_CUH

#include "cuda/device/tf32.cuh"

// Weights of 16 passing rows. set_pair sets two of them, of adjacent columns; i counts as in a operands of m16n8k16.
typedef float operands[GROUPS][8];
DEVICE void set_pair(float a[8], int i, float low, float high) {
    a[2 * i] = low;
    a[2 * i + 1] = high;
}

#define EACH_GROUP(m) _Pragma("unroll") for (int m = 0; m < GROUPS; m++)
#define EACH_HALF(n) _Pragma("unroll") for (int n = 0; n < HALVES; n++)
#define EACH_OF(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)

// Address of a lane's first piece of four columns, in row lane / 4; the others are at (lane_at ^ PIECE_STEP(s)). The asm hides
// that it is the same in every tile: otherwise the compiler would keep all addresses in registers.
#define PIECE_STEP(s) (((s) / 2 * 8 + (s) % 2) * 16)
DEVICE unsigned lane_at(void) {
    int lane = thread_now() % 32;
    unsigned at = swizzled(lane / 4, lane % 4 * 2, PIECES);
    asm volatile("" : "+r"(at));
    return at;
}

// The same for rows 2 t, whose columns are the product's columns; row 2 t + 1 is at (column_at ^ (ROW_BYTES + 16)).
DEVICE unsigned column_at(void) {
    int lane = thread_now() % 32;
    unsigned at = swizzled(lane % 4 * 2, lane / 4, PIECES);
    asm volatile("" : "+r"(at));
    return at;
}

// scores[owned row][passing row] += owned . passing, over the columns. Tiles are given by their addresses.
DEVICE void multiply_rows(float scores[][4], unsigned owned, unsigned passing) {
    unsigned at = lane_at();
    float small[NUM_SCORES][4];
    owned += thread_now() / 32 * (GROUPS * 16 * ROW_BYTES);
    EACH_OF(n, NUM_SCORES) EACH_OF(c, 4) small[n][c] = 0;
    EACH_OF(columns, HEAD_DIM / 64) {
        float big[NUM_SCORES][4];
        EACH_OF(n, NUM_SCORES) EACH_OF(c, 4) big[n][c] = 0;
        EACH_OF(s, 4) {
            unsigned here = at ^ PIECE_STEP(columns * 4 + s);
            struct tf32_operand a[GROUPS][2];
            EACH_GROUP(m) load_rows_split(a[m], owned + m * 16 * ROW_BYTES + here, 8 * ROW_BYTES);
            EACH_HALF(n) {
                struct tf32_pair b[4];
                load_four_split(b, passing + n * 8 * ROW_BYTES + here);
                EACH_OF(e, 2) EACH_GROUP(m) {
                    mma_split(big[m * HALVES + n], small[m * HALVES + n], &a[m][e], b[2 * e],
                              b[2 * e + 1]);
                }
            }
        }
        EACH_OF(n, NUM_SCORES) EACH_OF(c, 4) scores[n][c] += big[n][c];
    }
    EACH_OF(n, NUM_SCORES) EACH_OF(c, 4) scores[n][c] += small[n][c];
}

// acc[owned row][column] += weights[owned row][passing row] passing[passing row][column] over the nth 16 passing rows.
DEVICE void accumulate_step(float acc[][4], const operands weights, unsigned passing, unsigned at,
                            int n) {
    struct tf32_operand a[GROUPS][2];
    passing += n * 16 * ROW_BYTES;
    EACH_GROUP(m) EACH_OF(half, 2) {
        const float *x = weights[m] + 4 * half;
        split_operand(&a[m][half], x[0], x[2], x[1], x[3]);
    }
    EACH_OF(slab, HEAD_DIM / 32) {
        float sum[GROUPS][4][4];
        EACH_GROUP(m) EACH_OF(c, 4) EACH_OF(i, 4) sum[m][c][i] = 0;
        EACH_OF(half, 2) {
            struct tf32_pair b[2][4];
            EACH_OF(e, 2)
            load_four_split(b[e], passing + half * 8 * ROW_BYTES +
                                      ((at ^ e * (ROW_BYTES + 16)) + slab * 128));
            EACH_OF(c, 4) EACH_GROUP(m) {
                mma_split(sum[m][c], sum[m][c], &a[m][half], b[0][c], b[1][c]);
            }
        }
        EACH_GROUP(m)
        EACH_OF(c, 4) EACH_OF(i, 4) acc[m * COLUMN_TILES + slab * 4 + c][i] += sum[m][c][i];
    }
}

#endif
