// SPDX-License-Identifier: Apache-2.0
// A row's normalization in backward on CPUs: the lse of forward, or a recomputed sum if the rounding of lse lost too
// much.
#ifndef TSRI_CROSS_ENTROPY_SUMS_H
#define TSRI_CROSS_ENTROPY_SUMS_H

#include "ops/cross_entropy/cross_entropy_exponents.h"
#include "ops/cross_entropy/cross_entropy_lse_params.h"

SIMD_INLINE float element(tsr_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TSR_BF16: return tsri_bf16_to_float(((const uint16_t *)x)[i]);
    case TSR_F16: return tsri_f16_to_float(((const uint16_t *)x)[i]);
    default: return ((const float *)x)[i];
    }
}

// p = scale e^(x - lse), with the given lse; and the probability of all classes except the target, if it was summed.
struct row_norm {
    double scale, others;
    bool has_others;
};

SIMD_INLINE bool is_lse_enough(tsr_dtype dtype, float lse, float x_target) {
    return CROSS_ENTROPY_LSE_IS_ENOUGH(dtype == TSR_F32, __builtin_fabsf(lse), lse - x_target);
}

// Relative to lse, which is close enough to the exact value to be a shift. The target's exponential is kept apart from
// the others' sum, so nothing cancels.
SIMD_INLINE struct row_norm sum_others_as(tsr_dtype dtype, const char *x, int64_t cols,
                                          int64_t target, float lse, bool is_fetching) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    double others = 0, at_target = (double)element(dtype, x, target) - (double)lse;
    struct shift s = shift_of(lse);
    for (int64_t i = 0, end = target; i < cols; i = end + 1, end = cols)
        for (; i < end; i += BLOCK) {
            int64_t n = end - i < BLOCK ? end - i : BLOCK;
            if (s.is_plain)
                others +=
                    (double)sweep_as(dtype, x + i * bytes, n, &s, PLAIN, false, 0, NULL, false).exp;
            else
                others += (double)sweep_as(dtype, x + i * bytes, n, &s, SHIFTED, false, 0, NULL,
                                           is_fetching)
                              .exp;
        }
    others *= exp(shift_log(&s, (double)lse) - (double)lse);
    double scale = 1 / (others + exp(at_target));
    return (struct row_norm){scale, others * scale, true};
}

static __attribute__((noinline)) struct row_norm sum_others(tsr_dtype dtype, const char *x,
                                                            int64_t cols, int64_t target, float lse,
                                                            bool is_fetching) {
    switch (dtype) {
    case TSR_BF16: return sum_others_as(TSR_BF16, x, cols, target, lse, is_fetching);
    case TSR_F16: return sum_others_as(TSR_F16, x, cols, target, lse, is_fetching);
    default: return sum_others_as(TSR_F32, x, cols, target, lse, is_fetching);
    }
}

// The target's gradient dloss (p - q) = dloss ((1 - others) - (1 - label_smoothing + other)).
static inline float target_gradient(double dloss, double others, double label_smoothing,
                                    double other) {
    return (float)(dloss * (label_smoothing - other - others));
}

#endif
