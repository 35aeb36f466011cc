// SPDX-License-Identifier: Apache-2.0
// The passes over a row of logits (rows, vocab), compiled once per instruction set: the largest of each group of tokens, and a
// group's weights. Weights are integers as floats, with the bits of sample_weight.h; a group's sum is exact in double in any
// order.
// Floor: the logits read twice, once for greedy rows.
// Limit: the second pass computes exponentials without FMA.
// Figures: docs/kernels/sample.md.
#include "cpu/simd_nan.h"
#include "ops/sample/sample_problem.h"

SIMD_INLINE vf bounded(vf x) { return vf_min(vf_set1(SAMPLE_LARGEST), x); } // NaN stays NaN

SIMD_INLINE vf load(tsr_dtype dtype, const void *x, int64_t i, int64_t n) {
    if (n >= VL) return vf_load_as(dtype, x, i);
    return vf_keep_n(vf_load_as_n(dtype, x, i, n), n, -__builtin_inff());
}

// ---- z ----------------------------------------------------------------------------------------

SIMD_INLINE void add_as(tsr_dtype dtype, const void *x, const float *bias, int64_t first,
                        int64_t last, float *z) {
    int64_t i = first;
    for (; i + VL <= last; i += VL) {
        vf value = vf_load_as(dtype, x, i);
        if (bias != NULL) value = value + vf_load(bias + i);
        vf_store(z + i - first, bounded(value));
    }
    if (i == last) return;
    vf value = vf_load_as_n(dtype, x, i, last - i);
    if (bias != NULL) value = value + vf_load_n(bias + i, last - i);
    vf_store_n(z + i - first, bounded(value), last - i);
}

static void add(tsr_dtype dtype, const void *x, const float *bias, int64_t first, int64_t last,
                float *z) {
    switch (dtype) {
    case TSR_BF16: add_as(TSR_BF16, x, bias, first, last, z); break;
    case TSR_F16: add_as(TSR_F16, x, bias, first, last, z); break;
    default: add_as(TSR_F32, x, bias, first, last, z);
    }
}

static void keys(tsr_dtype dtype, const void *x, int64_t first, int64_t last, uint32_t *key) {
    float z[SAMPLE_GROUP];
    add(dtype, x, NULL, first, last, z);
    for (int64_t i = 0; i < last - first; i++) key[i] = sample_key_of(z[i]);
}

// ---- Maxima -----------------------------------------------------------------------------------

SIMD_INLINE bool maxima_as(tsr_dtype dtype, const void *x, int64_t first, int64_t last,
                           float *max) {
    enum { AT_ONCE = 4 };
    simd_nans nans = simd_no_nans();
    for (int64_t group = first; group < last; group += SAMPLE_GROUP) {
        const int64_t end = group + SAMPLE_GROUP < last ? group + SAMPLE_GROUP : last;
        vf most[AT_ONCE];
        for (int u = 0; u < AT_ONCE; u++) most[u] = vf_set1(-__builtin_inff());
        int64_t i = group;
        for (; i + AT_ONCE * VL <= end; i += AT_ONCE * VL)
            for (int u = 0; u < AT_ONCE; u += 2) {
                const vf a = vf_load_as(dtype, x, i + u * VL);
                const vf b = vf_load_as(dtype, x, i + u * VL + VL);
                most[u] = vf_max(most[u], a);
                most[u + 1] = vf_max(most[u + 1], b);
                nans = simd_find_nans(nans, a, b);
            }
        for (; i < end; i += VL) {
            const vf a = load(dtype, x, i, end - i);
            most[0] = vf_max(most[0], a);
            nans = simd_find_nans(nans, a, a);
        }
        const vf all = vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3]));
        max[group / SAMPLE_GROUP] = vf_hmax(bounded(all));
    }
    return !simd_has_nan(nans);
}

static bool maxima(tsr_dtype dtype, const void *x, int64_t first, int64_t last, float *max) {
    switch (dtype) {
    case TSR_BF16: return maxima_as(TSR_BF16, x, first, last, max);
    case TSR_F16: return maxima_as(TSR_F16, x, first, last, max);
    default: return maxima_as(TSR_F32, x, first, last, max);
    }
}

// ---- Weights ----------------------------------------------------------------------------------

// sample_weight.
SIMD_INLINE vf weight_of(vf z, vf max, vf scale) {
    const vf x = vf_max(vf_set1(SAMPLE_LEAST), (z - max) * scale);
#if defined(SIMD_HAS_SHIFTED_SCALE)
    const vf shift = vf_set1(SAMPLE_SHIFT), t = x + shift, n = t - shift;
#else
    const vf n = vf_round(x);
#endif
    const vf f = x - n;
    vf p = vf_set1(SAMPLE_EXP2_5) * f + vf_set1(SAMPLE_EXP2_4);
    p = p * f + vf_set1(SAMPLE_EXP2_3);
    p = p * f + vf_set1(SAMPLE_EXP2_2);
    p = p * f + vf_set1(SAMPLE_EXP2_1);
    p = p * f + vf_set1(SAMPLE_EXP2_0);
#if defined(SIMD_HAS_SHIFTED_SCALE)
    return vf_round(vf_scale2_shifted(p, t));
#else
    return vf_round(vf_scale2(p, n + vf_set1(SAMPLE_LOG2_ONE)));
#endif
}

// What a pass needs, as vectors.
struct pass {
    vf max, scale, least, least_weight;
};

// Weights of [first, last), and whole vectors of them into w. is_least: tokens equal to `least` remain.
SIMD_INLINE void weigh_run(tsr_dtype dtype, const void *x, int64_t first, int64_t last,
                           const struct pass *pass, bool has_filter, bool is_least, float *w,
                           vf *kept) {
    const vf zero = vf_set1(0.0f), one = vf_set1(1.0f);
    for (int64_t i = first; i < last; i += VL) {
        const vf z = bounded(load(dtype, x, i, last - i));
        vf weight = weight_of(z, pass->max, pass->scale);
        if (has_filter) {
            vf is_left = is_least ? vf_select_lt(z, pass->least, zero, one)
                                  : vf_select_lt(pass->least, z, one, zero);
            is_left = vf_select_lt(weight, pass->least_weight, zero, is_left);
            if (last - i < VL) is_left = vf_keep_n(is_left, last - i, 0.0f);
            weight = weight * is_left;
            *kept = *kept + is_left;
        }
        vf_store(w + (i - first), weight);
    }
}

SIMD_INLINE uint64_t weigh_as(tsr_dtype dtype, const void *x, int64_t first, int64_t last,
                              float max, float scale, const struct sample_filter *filter, float *w,
                              int64_t *kept) {
    enum { SUMS = 16 };
    const struct pass pass = {vf_set1(max), vf_set1(scale), vf_set1(filter->least),
                              vf_set1(filter->least_weight)};
    const bool has_filter =
        filter->least > -__builtin_inff() || filter->least_weight > 0 || kept != NULL;
    vf count = vf_set1(0.0f);
    if (!has_filter) {
        weigh_run(dtype, x, first, last, &pass, false, false, w, &count);
    } else {
        int64_t middle = filter->last + 1 < last ? filter->last + 1 : last;
        if (middle < first) middle = first;
        weigh_run(dtype, x, first, middle, &pass, true, true, w, &count);
        weigh_run(dtype, x, middle, last, &pass, true, false, w + (middle - first), &count);
        if (kept != NULL) *kept += (int64_t)vf_hsum(count);
    }
    double sums[SUMS] = {0};
    int64_t n = last - first;
    for (; n % SUMS != 0; n++) w[n] = 0;
    for (int64_t i = 0; i < n; i += SUMS)
        for (int j = 0; j < SUMS; j++) sums[j] += (double)w[i + j];
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return (uint64_t)sums[0];
}

static uint64_t weigh(tsr_dtype dtype, const void *x, int64_t first, int64_t last, float max,
                      float scale, const struct sample_filter *filter, float *w, int64_t *kept) {
    switch (dtype) {
    case TSR_BF16: return weigh_as(TSR_BF16, x, first, last, max, scale, filter, w, kept);
    case TSR_F16: return weigh_as(TSR_F16, x, first, last, max, scale, filter, w, kept);
    default: return weigh_as(TSR_F32, x, first, last, max, scale, filter, w, kept);
    }
}

const struct sample_kernels TSRI_KERNEL_TABLE(sample) = {add, keys, maxima, weigh};
