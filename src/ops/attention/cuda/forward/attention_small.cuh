// SPDX-License-Identifier: Apache-2.0
// What the kernels of few keys share. A query must not touch the NaN of a value that it does not see, not even times 0. So if
// there are such pairs, a warp checks its output: a value that is not finite shows there, in some row. Then the warp computes the
// sums again by FMAs, only over what is seen. The includer defines the macros of attention_mma.cuh.
#ifndef TSRI_ATTENTION_SMALL_CUH
#define TSRI_ATTENTION_SMALL_CUH

#include "ops/attention/cuda/attention_mma.cuh"

// The same for all lanes.
DEVICE int is_output_finite(float (*o)[4]) {
    float zero[2] = {0, 0};
    EACH_DIM_TILE(n) EACH_HALF(e) {
        zero[e] = fmaf(o[n][e], 0.0f, zero[e]);
        zero[e] = fmaf(o[n][2 + e], 0.0f, zero[e]);
    }
    return !__any_sync(ALL_LANES, zero[0] + zero[1] != 0);
}

// o += weights v for 16 queries from i on and 16 steps keys from j on, which start at `key` of a tile of `rows`. steps is a
// constant.
DEVICE void add_what_is_seen(float (*o)[4], const unsigned (*weights)[4], int steps,
                             const struct attention_params *p, const struct attention_sequence *s,
                             int i, int j, unsigned v_tile, int key, int rows) {
    const int lane = LANE;
#pragma unroll 1
    for (int n = 0; n < 16 * steps; n++) EACH_HALF(h) {
            const int query = i + h * 8 + lane / 4;
            unsigned pair = 0;
#pragma unroll
            for (int m = 0; m < 2 * steps; m++)
                pair |= weights[m / 2][m % 2 * 2 + h] & (m == n / 8 ? ~0u : 0u);
            pair = __shfl_sync(ALL_LANES, pair, lane / 4 * 4 + n % 8 / 2);
            const float weight = float_of_half(n % 2 ? pair >> 16 : pair & 0xffff);
            if (j + n < attention_first_key(p, s, query) || j + n >= attention_end_key(p, s, query))
                continue;
            EACH_DIM_TILE(d) {
                const unsigned two = load_pair(v_tile + piece_at(key + n, d, rows) + lane % 4 * 4);
                o[d][2 * h] += weight * float_of_half(two & 0xffff);
                o[d][2 * h + 1] += weight * float_of_half(two >> 16);
            }
        }
}
DEVICE void sum_what_is_seen(float (*o)[4], const unsigned (*weights)[4], int steps,
                             const struct attention_params *p, const struct attention_sequence *s,
                             int i, int j, unsigned v_tile, int key, int rows) {
    start_output(o);
    add_what_is_seen(o, weights, steps, p, s, i, j, v_tile, key, rows);
}

#endif
