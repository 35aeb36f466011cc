// SPDX-License-Identifier: Apache-2.0
// flash3's weights relative to the maxima so far.
#ifndef TSRI_ATTENTION_FLASH3_WEIGHTS_CUH
#define TSRI_ATTENTION_FLASH3_WEIGHTS_CUH

// Heads above 128 gain nothing. A reference that ALiBi moves exceeds f16.
#define LAGS (HEAD_DIM <= 128 && (TERMS == 0 || ((TERMS & ~2) == 1 && !IS_EXACT)))

#if LAGS
// Maxima are not computed for each tile. Weights are relative to the maxima so far, and the sum of a lane's weights of a row shows
// whether these were too low. Then, rarely, the warp computes its scores again, from tiles that are kept until then, and renews
// the maxima. Up to the limit a weight is finite in f16. bf16 has fp32's exponents, so any reference works that is at most 18
// below the scores (34 with ALiBi, whose references follow its slope), as long as weighted values are finite: up to 1e28 (1e21).
#define MOST_WEIGHTS (IS_EXACT ? 8192.0f : TERMS ? 1e15f : 1e8f)
#define LEAST_WEIGHTS 1e-15f

// Whether all rows of the warp that exist have a maximum.
DEVICE int has_maxima(const float max[2]) {
    return __all_sync(ALL_LANES, max[0] > -INFINITE && max[1] > -INFINITE);
}

// s = q k^T for the warp's rows, with hidden keys at -inf.
DEVICE void multiply_again(float (*s)[4], const struct attention_params *p, const struct task *task,
                           int warp, int j, unsigned q_tile, unsigned k_tile) {
    const int lane = find_lane();
    const unsigned q_at = q_tile + piece_at(warp * 16 + lane % 16, lane / 16, BLOCK_M),
                   k_at = k_tile + piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, BLOCK_N);
    EACH_COLUMN_TILE(n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 1
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        const unsigned turn = (unsigned)d % 4 * 32;
        unsigned a[4], b[4];
        load_matrices(a, (q_at ^ turn) + d / 4 * SLAB_BYTES(BLOCK_M));
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n += 2) {
            load_matrices(b, (k_at ^ turn) + d / 4 * SLAB_BYTES(BLOCK_N) + n * 8 * 128);
            mma(s[n], a, b[0], b[1]);
            mma(s[n + 1], a, b[2], b[3]);
        }
    }
    __syncwarp(); // one lane releases the stage for all
    hide_scores(s, p, task, warp, j);
}

// Turns scores into weights relative to the maxima so far. False: some are too large.
DEVICE int weigh_by_maxima(float (*s)[4], const float max[2], float sum[2], float scale_log2) {
    float more[2] = {0, 0};
    weigh(s, max, more, scale_log2);
    if (__any_sync(ALL_LANES, more[0] > MOST_WEIGHTS || more[1] > MOST_WEIGHTS)) return 0;
    EACH_HALF(h) sum[h] += more[h];
    return 1;
}

// Rows without a maximum get the largest score of their first and last eight keys, which is as good as a maximum so far. False:
// some row sees none of these.
DEVICE int guess_maxima(const float (*s)[4], float max[2], float scale_log2) {
    EACH_HALF(h) {
        const float *first = s[0] + 2 * h, *last = s[BLOCK_N / 8 - 1] + 2 * h;
        const float top = max_of_four(fmaxf(fmaxf(first[0], first[1]), fmaxf(last[0], last[1])));
        if (max[h] == -INFINITE) max[h] = IS_EXACT ? top : top * scale_log2;
    }
    return has_maxima(max);
}
#endif

// What is known about a tile of scores before they exist: each instruction between scores and weights costs time.
struct forecast {
    int has_hidden, has_maxima; // some are hidden; all rows have a maximum
#if LAGS && TERMS
    int is_sloped, is_moved; // ALiBi with maxima so far; these move
    float step, zero, top;   // for weigh_sloped
#endif
};

#if TERMS == 0 || HAS_BIAS || !LAGS
DEVICE struct forecast foresee(const float max[2], const float sum[2], float alpha[2],
                               const struct attention_flash3_params *a, const struct task *task,
                               int warp, int j) {
    (void)sum, (void)alpha, (void)a;
    const struct seen *seen = &task->by_group[warp / 4];
    struct forecast f = {j + BLOCK_N > seen->end || j < seen->begin, 0};
#if LAGS
    f.has_maxima = has_maxima(max);
#else
    (void)max;
#endif
    return f;
}
#endif

#endif
