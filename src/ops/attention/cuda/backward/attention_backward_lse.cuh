// SPDX-License-Identifier: Apache-2.0
// Sums of exponentials of a row's scores if its lse is too large for the digits of one f32: lse becomes the largest score, lse_low
// the logarithm of the sum relative to it, in log2.
#ifndef TSRI_ATTENTION_BACKWARD_LSE_CUH
#define TSRI_ATTENTION_BACKWARD_LSE_CUH

#include "ops/attention/attention_lse_params.h"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

DEVICE int is_coarse(float lse, int is_f32) {
    return fabsf(lse) >= ATTENTION_LEAST_COARSE(is_f32) && fabsf(lse) < INFINITE;
}

struct row_sum {
    float max, sum; // sum: relative to the largest score so far
};
DEVICE void add_score(struct row_sum *to, float max, float sum) {
    if (max == -INFINITE) return;
    const float top = fmaxf(to->max, max);
    const float before = to->max == -INFINITE ? 0 : to->sum * exp2_fast((to->max - top) * LOG2_E);
    to->sum = fmaf(sum, exp2_fast((max - top) * LOG2_E), before);
    to->max = top;
}
// Adds up the sums of adjacent lanes that share a row; their number is a power of two.
DEVICE void add_lanes(struct row_sum *row, int lanes) {
    for (int far = lanes / 2; far > 0; far /= 2) {
        const float max = __shfl_xor_sync(0xffffffffu, row->max, far);
        const float sum = __shfl_xor_sync(0xffffffffu, row->sum, far);
        add_score(row, max, sum);
    }
}
// Stores the sum as the statistic at `at`. If rounding does not explain the difference to the given lse, that lse is kept.
DEVICE void set_lse(const struct attention_backward_params *b, struct row_sum row, int batch,
                    int head, long long at) {
    const struct attention_params *p = &b->p;
    if (p->sinks.data != 0) add_score(&row, attention_sink_at(p, batch, head), 1);
    const float low = logf(row.sum), lse = b->lse[at];
    if (!(fabsf(row.max - lse + low) <= ATTENTION_LSE_ROUNDING * fabsf(lse))) return;
    b->lse[at] = row.max;
    b->lse_low[at] = low * LOG2_E;
    *has_lse_low(b) = 1;
}

#endif
