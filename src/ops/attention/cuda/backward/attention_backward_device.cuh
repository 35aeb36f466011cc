// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention's backward share, for one dtype or for all. Kernels for all dtypes define ANY_DTYPE instead of
// DTYPE: numbers then have their dtype at run time. That costs one more branch, which all threads take alike, and one kernel
// serves three dtypes.
#ifndef TSRI_ATTENTION_BACKWARD_DEVICE_CUH
#define TSRI_ATTENTION_BACKWARD_DEVICE_CUH

#ifdef ANY_DTYPE
#define DTYPE 2
#include "cuda/device/any_dtype.cuh"
#define load_either load_any // bias, slopes, sinks: is_f32 holds the dtype
#endif
#include "ops/attention/cuda/attention_device.cuh"
#include "ops/attention/cuda/backward/attention_backward_params.h"

#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// Index of row 0 of a sequence and a head in lse and delta. Packed sequences do not overlap: each starts one group of rows later
// for each sequence before it.
DEVICE long long statistics_at(const struct attention_backward_params *b,
                               const struct attention_sequence *s, int batch, int head) {
    long long unit = ATTENTION_STATISTIC_ROWS;
    if (b->p.is_packed) return head * b->statistic_rows + (s->q_first / unit + batch) * unit;
    return ((long long)batch * b->p.num_heads_q + head) * b->statistic_rows;
}

// Whether any lse_low is not 0: a flag behind the last one.
DEVICE float *has_lse_low(const struct attention_backward_params *b) {
    return b->lse_low + b->num_statistics;
}
DEVICE float lse_low_at(const struct attention_backward_params *b, long long at) {
    return b->lse_low != 0 ? b->lse_low[at] : 0.0f;
}

// A weight and the gradient of its score; 0 for pairs that do not see each other.
struct attention_pair {
    float weight, grad; // after dropout; with softcap's slope, without softmax_scale
};

// From s = q k and dp = dout v of a pair that sees each other, with all features.
DEVICE struct attention_pair attention_pair_of(const struct attention_params *p,
                                               const struct attention_query *q, int j, float s,
                                               float dp, float lse, float lse_low, float delta,
                                               float keep, int is_before_cap) {
    float tangent, score = attention_score(p, q, j, s * p->softmax_scale, &tangent);
    float weight = exp2_fast(fmaf(score - lse, LOG2_E, -lse_low));
    float grad = weight * ((keep == 0 ? 0.0f : dp * keep) - delta);
    if (lse == INFINITE) weight = grad = 0;
    struct attention_pair pair = {weight * keep, is_before_cap ? grad : grad * tangent};
    return pair;
}

#endif
