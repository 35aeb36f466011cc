// SPDX-License-Identifier: Apache-2.0
// Attention's two products of 16-bit numbers by m16n8k16 (mma.cuh), for UNITS times 16 queries of a warp, from `row` of their tile
// on.
#ifndef TSRI_ATTENTION_PRODUCTS_CUH
#define TSRI_ATTENTION_PRODUCTS_CUH

#include "ops/attention/cuda/attention_mma.cuh"

// Address of the d-th 16 columns of a tile, from a lane's first address: pieces advance by exclusive or within 64 columns.
#define COLUMNS(at, d, rows) (((at) ^ ((d) % 4 * 32)) + (d) / 4 * SLAB_BYTES(rows))

// s = q k^T.
DEVICE void multiply_keys(float (*s)[BLOCK_N / 8][4], unsigned q_at, unsigned k_at) {
    EACH_UNIT(u) EACH_COLUMN_TILE(n) s[u][n][0] = s[u][n][1] = s[u][n][2] = s[u][n][3] = 0;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned a[UNITS][4], b[4];
        EACH_UNIT(u) load_matrices(a[u], COLUMNS(q_at, d, BLOCK_M) + u * 16 * 128);
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n += 2) {
            load_matrices(b, COLUMNS(k_at, d, BLOCK_N) + n * 8 * 128);
            EACH_UNIT(u) {
                mma(s[u][n], a[u], b[0], b[1]);
                mma(s[u][n + 1], a[u], b[2], b[3]);
            }
        }
    }
}

// o += weights v.
DEVICE void multiply_values(float (*o)[HEAD_DIM / 8][4], float (*s)[BLOCK_N / 8][4],
                            unsigned v_at) {
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n += 2) {
        unsigned a[UNITS][4], b[4];
        EACH_UNIT(u) pack_weights(a[u], s[u] + n);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            load_matrices_transposed(b, COLUMNS(v_at, d, BLOCK_N) + n * 8 * 128);
            EACH_UNIT(u) {
                mma(o[u][2 * d], a[u], b[0], b[1]);
                mma(o[u][2 * d + 1], a[u], b[2], b[3]);
            }
        }
    }
}

#endif
