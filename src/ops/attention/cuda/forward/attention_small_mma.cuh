// SPDX-License-Identifier: Apache-2.0
// A warp's pass over few keys with the tensor cores' m16n8k16: 16 queries, with all scores in registers. The includer defines the
// macros of attention_mma.cuh, BLOCK_M as the rows of the tile of queries, and
//     MOST_STEPS (of 16 keys)
#ifndef TSRI_ATTENTION_SMALL_MMA_CUH
#define TSRI_ATTENTION_SMALL_MMA_CUH

#include "ops/attention/cuda/forward/attention_small.cuh"
#include "ops/attention/cuda/forward/attention_small_tiles.cuh"

// Scores of 16 queries and 16 steps keys; -inf for keys that are not seen or do not exist. steps is a constant.
DEVICE void multiply_scores(float (*s)[4], int steps, unsigned q_at, unsigned k_at, int rows,
                            int dims) {
#pragma unroll
    for (int n = 0; n < 2 * steps; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    EACH_STEP(d, dims) {
        unsigned a[4], b[MOST_STEPS][4];
        load_matrices(a, SLAB_COLUMNS(q_at, d, SLAB_BYTES(BLOCK_M)));
#pragma unroll
        for (int n = 0; n < steps; n++)
            load_matrices(b[n], SLAB_COLUMNS(k_at, d, SLAB_BYTES(rows)) + n * BLOCK_N * 128);
#pragma unroll
        for (int n = 0; n < steps; n++) {
            mma(s[2 * n], a, b[n][0], b[n][1]);
            mma(s[2 * n + 1], a, b[n][2], b[n][3]);
        }
    }
}

DEVICE void multiply_values(float (*o)[4], const float (*s)[4], int steps, unsigned v_at, int rows,
                            int dims) {
#pragma unroll
    for (int n = 0; n < steps; n++) {
        unsigned a[4];
        pack_weights(a, s + 2 * n);
        EACH_STEP(d, dims) {
            unsigned b[4];
            load_matrices_transposed(b,
                                     SLAB_COLUMNS(v_at, d, SLAB_BYTES(rows)) + n * BLOCK_N * 128);
            mma(o[2 * d], a, b[0], b[1]);
            mma(o[2 * d + 1], a, b[2], b[3]);
        }
    }
}

// Turns a warp's scores into weights.
DEVICE void weigh_all(float (*s)[4], int steps, float max[2], float sum[2], float scale_log2) {
    float top[2], unused[2];
    int is_higher = 0;
    EACH_HALF(h) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = s[i / 2][2 * h + i % 2];
#pragma unroll
        for (int i = 4; i < 4 * steps; i++)
            four[i % 4] = fmaxf(four[i % 4], s[i / 2][2 * h + i % 2]);
        top[h] = max_of_four(fmaxf(fmaxf(four[0], four[1]), fmaxf(four[2], four[3])));
        if (!IS_EXACT) top[h] *= scale_log2;
        is_higher |= IS_ABOVE(top[h], max[h]);
    }
    renew_where(is_higher, top, max, sum, unused, scale_log2);
    weigh_some(s, max, sum, scale_log2, 0, 2 * steps);
}

#endif
