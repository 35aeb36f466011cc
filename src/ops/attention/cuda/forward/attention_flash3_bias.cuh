// SPDX-License-Identifier: Apache-2.0
// flash3's softmax with a bias, and ALiBi with it. A tile of the bias is in shared memory before the scores are computed, in the
// layout of a product's tile: ldmatrix gives each thread the bias of its own scores.
//
// Scores and maxima are natural: a bias may be the lowest finite number, and times log2 e that is -inf. In bf16 one multiply-add
// still turns a score into its exponent, except in rows whose maximum is far from 0: there the rounding of the maximum times log2
// e would be a large factor of every weight.
#ifndef TSRI_ATTENTION_FLASH3_BIAS_CUH
#define TSRI_ATTENTION_FLASH3_BIAS_CUH

#include "ops/attention/cuda/attention_bias.cuh"

#define FAR 65536.0f
DEVICE int is_far(float max) { return fabsf(max) > FAR && max > -INFINITE; }

// s = scale s + bias, for 16 rows from `row` of the tile on. is_one: its first row serves all queries.
DEVICE void add_bias(float (*s)[4], unsigned tile, int row, float scale, int is_one) {
    const int lane = find_lane();
#if HAS_F32_BIAS
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = is_one ? 0 : row + h * 8 + lane / 4;
        EACH_COLUMN_TILE(n) {
            const unsigned piece = (unsigned)(n % 4 * 2 + lane % 4 / 2) ^ (unsigned)r % 8;
            float two[2];
            load_two_floats(two, tile + n / 4 * SLAB_BYTES(BLOCK_M) + r * 128 + piece * 16 +
                                     lane % 2 * 8);
            EACH_HALF(e) s[n][2 * h + e] = fmaf(s[n][2 * h + e], scale, two[e]);
        }
    }
#else
    const unsigned r = is_one ? 0 : row + lane % 16;
    const unsigned at = tile + r * 128;
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n += 2) {
        unsigned x[4];
        load_matrices(x, at + n / 8 * SLAB_BYTES(BLOCK_M) + (((n % 8 + lane / 16) ^ (r % 8)) * 16));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *to = s[n + i / 2] + i % 2 * 2;
            to[0] = fmaf(to[0], scale, low_of_pair(x[i]));
            to[1] = fmaf(to[1], scale, high_of_pair(x[i]));
        }
    }
#endif
}

// A maximum in log2, rounded the same in all tiles, however the compiler contracts sums.
DEVICE float in_log2(float max) { return __fmul_rn(max, LOG2_E); }

// Renews the maxima as renew_where does. Weights before and after have the same references.
DEVICE int renew_biased(const float top[2], float max[2], float sum[2], float alpha[2]) {
    const int is_higher =
        ((top[0] - max[0]) * LOG2_E > RENEW_AT) | ((top[1] - max[1]) * LOG2_E > RENEW_AT);
    if (!__any_sync(ALL_LANES, is_higher)) return 0;
    EACH_HALF(h) {
        const float next = fmaxf(top[h], max[h]);
        float shift =
            IS_EXACT || is_far(next) ? (max[h] - next) * LOG2_E : in_log2(max[h]) - in_log2(next);
        if (next == -INFINITE) shift = 0;
        alpha[h] = exp2_fast(shift);
        max[h] = next;
        sum[h] *= alpha[h];
    }
    return 1;
}

// Turns products of the task's tile of keys from j on, the num-th of the block, into weights. Returns whether the output is to be
// scaled by alpha.
DEVICE int weigh_biased(float (*s)[4], float max[2], float sum[2], float alpha[2],
                        const struct attention_flash3_params *a, const struct task *task, int warp,
                        int j, unsigned num) {
    const struct attention_params *p = &a->forward.p;
    const struct attention_task *t = &task->a;
    const unsigned base = shared_address(shared_tiles), stage = num % BIAS_STAGES;
    const float slope = task->slope;
    const int i = t->first + warp * 16;
    float top[2] = {-INFINITE, -INFINITE};
    barrier_wait(base + BIAS_FULL + 8 * stage, num / BIAS_STAGES % 2);
    add_bias(s, base + BIAS_AT + stage * BIAS_BYTES, warp * 16, p->softmax_scale,
             a->bias_rows == 1);
    __syncwarp();
    release(base + BIAS_EMPTY + 8 * stage);
    if (slope != 0) {
        const int lane = find_lane();
        EACH_HALF(h) {
            const float from = (float)(j + lane % 4 * 2 - t->s.shift - (i + lane / 4 + h * 8));
            EACH_COLUMN_TILE(n) EACH_HALF(e) {
                float *x = &s[n][2 * h + e];
                *x = fmaf(fabsf(from + (float)(n * 8 + e)), -slope, *x);
            }
        }
    }
    hide_scores(s, p, task, warp, j);
    EACH_HALF(h) {
        EACH_COLUMN_TILE(n) top[h] = fmaxf(top[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top[h] = max_of_four(top[h]);
    }
    const int is_renewed = renew_biased(top, max, sum, alpha);
    if (IS_EXACT) {
        weigh(s, max, sum, LOG2_E);
        return is_renewed;
    }
    const int far[2] = {is_far(max[0]), is_far(max[1])};
    if (__any_sync(ALL_LANES, far[0] | far[1])) {
        EACH_HALF(h) if (far[h]) {
            EACH_COLUMN_TILE(n) EACH_HALF(e) {
                float *x = &s[n][2 * h + e];
                *x = *x == -INFINITE ? *x : (*x - max[h]) * LOG2_E;
            }
        }
        else {
            const float zero = max[h] == -INFINITE ? 0 : in_log2(max[h]);
            EACH_COLUMN_TILE(n) EACH_HALF(e) {
                float *x = &s[n][2 * h + e];
                *x = fmaf(*x, LOG2_E, -zero);
            }
        }
        EACH_HALF(h) EACH_COLUMN_TILE(n) EACH_HALF(e) {
            float *x = &s[n][2 * h + e];
            *x = exp2_fast(*x);
            sum[h] += *x;
        }
        return is_renewed;
    }
    const float zero[2] = {in_log2(max[0]), in_log2(max[1])};
    weigh(s, zero, sum, LOG2_E);
    return is_renewed;
}

#endif
