// SPDX-License-Identifier: Apache-2.0
// A token's logits on the CPU, and the exponentials of moe_route_score.h as vectors, with the same bits.
#ifndef TSRI_MOE_ROUTE_ROW_H
#define TSRI_MOE_ROUTE_ROW_H

#include "cpu/simd.h"
#include "ops/moe_route/moe_route_problem.h"
#include "ops/moe_route/moe_route_score.h"

// Arrays end with a multiple of MOE_NUM_SUMS elements, logits there with -inf.
struct row {
    float x[MOE_MAX_EXPERTS];
    int num, padded; // experts; with the rest of the last vectors
    float max;
    bool is_nan;      // a NaN, or with softmax a +inf: every weight is NaN
    bool is_infinite; // a +inf: no lse
};

SIMD_INLINE void read_row(tsr_dtype dtype, const struct moe_route_problem *p, int64_t t,
                          struct row *row) {
    const void *x = tsri_row(&p->logits, t);
    const float minus_inf = MOE_MINUS_INF;
    vf max = vf_set1(minus_inf);
    int nans = 0;
    row->num = moe_num_experts(p);
    row->padded = (int)tsri_round_up((size_t)row->num, MOE_NUM_SUMS);
    for (int i = 0; i < row->padded; i += VL) {
        const int n = row->num - i < VL ? row->num - i : VL;
        vf value = vf_set1(minus_inf);
        if (n == VL)
            value = vf_load_as(dtype, x, i);
        else if (n > 0)
            value = vf_keep_n(vf_load_as_n(dtype, x, i, n), n, minus_inf);
        vf_store(row->x + i, value);
        max = vf_max(max, value);
    }
    for (int i = 0; i < row->padded; i++) nans |= row->x[i] != row->x[i];
    row->max = vf_hmax(max);
    row->is_infinite = nans == 0 && row->max == -minus_inf;
    row->is_nan = nans != 0 || (row->is_infinite && p->scoring == TSR_MOE_SOFTMAX);
}

SIMD_INLINE vf exp_of(vf x) {
    const vf bounded = vf_max(vf_set1(MOE_LEAST), x); // MOE_LEAST for NaN
    const vf n = vf_round(bounded * vf_set1(MOE_LOG2E));
    const vf r = (bounded + n * vf_set1(MOE_LN2)) + n * vf_set1(MOE_LN2_REST);
    vf p = vf_set1(MOE_EXP_6) * r + vf_set1(MOE_EXP_5);
    p = p * r + vf_set1(MOE_EXP_4);
    p = p * r + vf_set1(MOE_EXP_3);
    p = p * r + vf_set1(MOE_EXP_2);
    p = p * r + vf_set1(MOE_EXP_1);
    p = p * r + vf_set1(MOE_EXP_0);
    return vf_select_lt(x, vf_set1(MOE_LEAST), vf_set1(0.0f), vf_scale2(p, n));
}

// e[i] = e^(x[i] - max), in a token with an expert that is not masked. Returns their sum.
SIMD_INLINE float exps_of(const struct row *row, float *e) {
    enum { NUM = MOE_NUM_SUMS / VL };
    float sums[MOE_NUM_SUMS];
    vf part[NUM], max = vf_set1(row->max);
    for (int j = 0; j < NUM; j++) part[j] = vf_set1(0.0f);
    for (int i = 0; i < row->padded; i += MOE_NUM_SUMS)
        for (int j = 0; j < NUM; j++) {
            const vf value = exp_of(vf_load(row->x + i + j * VL) - max);
            vf_store(e + i + j * VL, value);
            part[j] = part[j] + value;
        }
    for (int j = 0; j < NUM; j++) vf_store(sums + j * VL, part[j]);
    return moe_add_sums(sums);
}

// s[i] = sigmoid(x[i]). Returns their sum.
SIMD_INLINE float sigmoids_of(const struct row *row, float *s) {
    enum { NUM = MOE_NUM_SUMS / VL };
    float sums[MOE_NUM_SUMS];
    const vf zero = vf_set1(0.0f), one = vf_set1(1.0f);
    vf part[NUM];
    for (int j = 0; j < NUM; j++) part[j] = zero;
    for (int i = 0; i < row->padded; i += MOE_NUM_SUMS)
        for (int j = 0; j < NUM; j++) {
            const vf x = vf_load(row->x + i + j * VL), e = exp_of(zero - vf_abs(x));
            const vf value = vf_select_lt(x, zero, e, one) / (one + e);
            vf_store(s + i + j * VL, value);
            part[j] = part[j] + value;
        }
    for (int j = 0; j < NUM; j++) vf_store(sums + j * VL, part[j]);
    return moe_add_sums(sums);
}

// The sum of at most MOE_NUM_SUMS numbers, in the order of the sums over experts.
SIMD_INLINE float sum_of_few(const float *x, int count) {
    float sums[MOE_NUM_SUMS] = {0};
    for (int k = 0; k < count; k++) sums[k] = x[k];
    return moe_add_sums(sums);
}

#endif
