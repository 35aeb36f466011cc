// SPDX-License-Identifier: Apache-2.0
// Products of backward's tiles of 16-bit rows by m16n8k16; the macros are those of attention_backward_flash2.cuh.
#ifndef TSRI_ATTENTION_BACKWARD_PRODUCTS_CUH
#define TSRI_ATTENTION_BACKWARD_PRODUCTS_CUH

// Weights of 16 passing rows as a operands. set_pair sets two of them, of adjacent columns.
typedef unsigned operands[GROUPS][4];
DEVICE void set_pair(unsigned a[4], int i, float low, float high) {
    a[i] = pair_of_floats(low, high);
}

// This lane's address for load_matrices in a tile of 16 rows and two pieces. Step s and n rows further is at (lane_at ^ s * 32) +
// n * ROW_BYTES, as steps of depth only flip bits that the swizzle flips too. The asm hides that the address is the same in every
// tile: otherwise the compiler would keep all steps' addresses in registers.
DEVICE unsigned lane_at(void) {
    int lane = thread_now() % 32;
    unsigned at = swizzled(lane & 15, lane >> 4, PIECES);
    asm volatile("" : "+r"(at));
    return at;
}

// Loads the a operands of this warp's rows of a tile, for one step of depth.
DEVICE void load_operands(unsigned a[GROUPS][4], unsigned owned, unsigned at, int step) {
    owned += thread_now() / 32 * (GROUPS * 16 * ROW_BYTES);
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
        load_matrices(a[m], owned + m * 16 * ROW_BYTES + (at ^ (step * 32)));
}

DEVICE void multiply_step(float scores[][4], const unsigned a[GROUPS][4], unsigned passing,
                          unsigned at, int step) {
    unsigned b[4];
#pragma unroll
    for (int n = 0; n < HALVES / 2; n++) {
        load_matrices(b, passing + n * 16 * ROW_BYTES + (at ^ (step * 32)));
#pragma unroll
        for (int m = 0; m < GROUPS; m++) {
            mma(scores[m * HALVES + 2 * n], a[m], b[0], b[2]);
            mma(scores[m * HALVES + 2 * n + 1], a[m], b[1], b[3]);
        }
    }
}

// scores[owned row][passing row] += owned . passing, over the columns. Tiles are given by their addresses.
DEVICE void multiply_rows(float scores[][4], unsigned owned, unsigned passing) {
    unsigned at = lane_at();
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned a[GROUPS][4];
        load_operands(a, owned, at, s);
        multiply_step(scores, a, passing, at, s);
    }
}

// acc[owned row][column] += weights[owned row][passing row] passing[passing row][column] over the nth 16 passing rows. weights:
// the a operands.
DEVICE void accumulate_step(float acc[][4], const operands weights, unsigned passing, unsigned at,
                            int n) {
    unsigned b[4];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        load_matrices_transposed(b, passing + n * 16 * ROW_BYTES + (at ^ (s * 32)));
#pragma unroll
        for (int m = 0; m < GROUPS; m++) {
            mma(acc[m * COLUMN_TILES + 2 * s], weights[m], b[0], b[1]);
            mma(acc[m * COLUMN_TILES + 2 * s + 1], weights[m], b[2], b[3]);
        }
    }
}

#define column_at lane_at // for accumulate_step

#endif
