// SPDX-License-Identifier: Apache-2.0
// The sums of exponentials that cross-entropy's kernels for CPUs take of a row: its log-sum-exp forward, and backward where the
// one that forward gave has lost in rounding what counts.
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

SIMD_INLINE struct sums sweep(tsr_dtype dtype, const void *x, int64_t cols, const struct shift *s,
                              bool has_mean, float weight, bool is_fetching) {
    if (s->is_plain) return sweep_as(dtype, x, cols, s, PLAIN, has_mean, weight, NULL, false);
    if (is_fetching) return sweep_as(dtype, x, cols, s, SHIFTED, has_mean, weight, NULL, true);
    return sweep_as(dtype, x, cols, s, SHIFTED, has_mean, weight, NULL, false);
}

SIMD_INLINE float sum_unshifted(tsr_dtype dtype, const void *x, int64_t cols, bool is_fetching) {
    if (is_fetching) return sweep_as(dtype, x, cols, NULL, UNSHIFTED, false, 0, NULL, true).exp;
    return sweep_as(dtype, x, cols, NULL, UNSHIFTED, false, 0, NULL, false).exp;
}

// A power of two of at most a quarter of 1 / cols and more than an eighth: weighting is exact, and no sum of differences of
// finite logits overflows, which are up to twice the largest number.
static inline float weight_of(int64_t cols) {
    float weight = 0.25f;
    for (; cols > 1; cols = (cols + 1) / 2) weight /= 2;
    return weight;
}

// ---- Sums of a row ----------------------------------------------------------------------------

// lse = shift + log_sum, apart because a large shift leaves no digits for the other.
struct row_sums {
    double shift, log_sum, mean;
};

static inline bool is_finite(float x) { return x - x == 0; }

// What a sum of n exponentials may be without the largest exponent's rounding showing beside the bound of lse, which grows
// with the root of n: 2^-21 for an exponent of 14, 2^-20 for one of 30.
static inline float largest_sum(int64_t n) { return n < 1024 ? 16.0f * (float)n : 0x1p30f; }

// Without a shift a row's blocks are summed up to the first one whose sum is too large, or NaN as -inf makes it; the first
// block's may not be too small either. From there on the shift is the logarithm of the sum so far if there is one, and else the
// largest of the FEW next logits, or of their block where those are -inf, so never far above the row's maximum: sums do not
// vanish. A block whose sum shows a logit far above the shift is swept again with its own maximum. lse is NaN where the row
// holds NaN or +inf: then inf - inf is among the exponents.
SIMD_INLINE struct row_sums sum_row(tsr_dtype dtype, const char *x, int64_t cols, bool has_mean,
                                    bool is_fetching) {
    enum { FEW = 64 };
    const float minus_inf = -__builtin_inff();
    float max = minus_inf, weight = has_mean ? weight_of(cols) : 0;
    double sum = 0, weighted = 0;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    struct shift s = shift_of(minus_inf);
    bool is_shifted = !SIMD_ADDS_EXP || has_mean || dtype == TSR_F32;
    if (cols == 1 && is_finite(element(dtype, x, 0))) {
        double only = (double)element(dtype, x, 0);
        return (struct row_sums){only, 0, only};
    }
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
        const char *block = x + i * bytes;
        if (!is_shifted) {
            float exps = sum_unshifted(dtype, block, n, is_fetching);
            is_shifted = !(exps < 0x1p100f && (exps > 0x1p-100f || i > 0));
            if (!is_shifted) {
                sum += (double)exps;
                continue;
            }
            if (i > 0) {
                struct shift none = s;
                s = shift_of(max = (float)log(sum));
                sum *= exp(shift_log(&none, (double)max) - shift_log(&s, (double)max));
            }
        }
        if (max == minus_inf) {
            max = simd_max_of(dtype, block, n < FEW ? n : FEW);
            if (max == minus_inf) max = simd_max_of(dtype, block, n);
            s = shift_of(max);
        }
        struct sums part = sweep(dtype, block, n, &s, has_mean, weight, is_fetching);
        if (!(part.exp <= largest_sum(n))) {
            struct shift old = s;
            s = shift_of(max = simd_max_of(dtype, block, n));
            if (sum != 0) sum *= exp(shift_log(&old, (double)max) - shift_log(&s, (double)max));
            part = sweep(dtype, block, n, &s, has_mean, weight, false);
        }
        sum += (double)part.exp;
        if (has_mean) weighted += (double)part.weighted + (double)n * (double)(s.m * weight);
    }
    struct row_sums sums = {.shift = (double)minus_inf,
                            .mean = has_mean ? weighted / ((double)weight * (double)cols) : 0};
    if (sum != 0) {
        // The logits that count are as far above the shift as lse, or a little less.
        double per_unit = s.is_plain ? 1 : 1 - LN2 * LOG2E_EXCESS;
        sums.shift = shift_log(&s, (double)s.m);
        sums.log_sum = log(sum) * per_unit;
    }
    return sums;
}

// ---- Of a row backward ------------------------------------------------------------------------

// The row's log-sum-exp, shift + rest, and what all classes but the target have of the probability.
struct row_norm {
    float shift;
    bool has_others;
    double rest, others;
};

// The target's exponential apart from the others' sum: nothing is subtracted.
SIMD_INLINE struct row_norm sum_others_as(tsr_dtype dtype, const char *x, int64_t cols,
                                          int64_t target, bool is_fetching) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, from = 0, to = target;
    double x_target = (double)element(dtype, x, target), max = x_target, others = 0;
    struct row_sums part[2];
    for (int k = 0; k < 2; k++, from = target + 1, to = cols) {
        part[k] = sum_row(dtype, x + from * bytes, to - from, false, is_fetching);
        if (part[k].shift > max) max = part[k].shift;
    }
    for (int k = 0; k < 2; k++) others += exp(part[k].shift - max + part[k].log_sum);
    double sum = others + exp(x_target - max);
    struct row_norm norm = {.has_others = true, .others = others / sum};
    // Past LARGEST_SHIFT neighbours of a float are too far apart; there max is one.
    norm.shift = (float)(fabs(max) < (double)LARGEST_SHIFT ? max + log(sum) : max);
    norm.rest = max - (double)norm.shift + log(sum);
    return norm;
}

static __attribute__((noinline)) struct row_norm
sum_others(tsr_dtype dtype, const char *x, int64_t cols, int64_t target, bool is_fetching) {
    switch (dtype) {
    case TSR_BF16: return sum_others_as(TSR_BF16, x, cols, target, is_fetching);
    case TSR_F16: return sum_others_as(TSR_F16, x, cols, target, is_fetching);
    default: return sum_others_as(TSR_F32, x, cols, target, is_fetching);
    }
}

SIMD_INLINE struct row_norm norm_of_row(tsr_dtype dtype, float lse, const char *x, int64_t cols,
                                        int64_t target, bool is_fetching) {
    float below = lse - element(dtype, x, target);
    if (CROSS_ENTROPY_LSE_IS_ENOUGH(dtype == TSR_F32, __builtin_fabsf(lse), below))
        return (struct row_norm){.shift = lse};
    return sum_others(dtype, x, cols, target, is_fetching);
}

// dloss (p - q) of the target, (1 - others) - (1 - label_smoothing + other).
static inline float target_gradient(double dloss, double others, double label_smoothing,
                                    double other) {
    return (float)(dloss * (label_smoothing - other - others));
}

#endif
