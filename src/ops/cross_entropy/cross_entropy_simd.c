// SPDX-License-Identifier: Apache-2.0
// Cross-entropy, forward and backward, of logits (rows, classes), compiled once per instruction set. Forward sweeps a
// row once, block by block. Exponentials are relative to a shift that the row's first logits determine; 16-bit logits
// on AVX-512 need no shift as long as no sum leaves the range of floats. If a block's sum grows too large, which is
// rare, the sum so far is rescaled and the block is swept again (after Milakov and Gimelshein's online normalizer).
// Sums of blocks, the logarithm and the loss are in double: once per 2048 elements that costs nothing, and the error
// does not grow with the vocabulary.
// Floor: forward reads the logits once, backward reads and writes them once; an exponential an element.
// Limit: memory on many threads; in 16 bits on one thread the exponentials.
// Figures: docs/kernels/cross_entropy.md, on 16 threads docs/kernels/rows.md.
#include "cpu/simd_elements.h"
#include "ops/cross_entropy/cross_entropy_sums.h"

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

// A power of two between an eighth and a quarter of 1 / cols. So weighting is exact, and sums of differences of finite
// logits (up to twice the largest number) do not overflow.
static inline float weight_of(int64_t cols) {
    float weight = 0.25f;
    for (; cols > 1; cols = (cols + 1) / 2) weight /= 2;
    return weight;
}

// ---- Forward ----------------------------------------------------------------------------------

struct row_sums {
    double lse, mean;
};

static inline bool is_finite(float x) { return x - x == 0; }

// The largest sum of n exponentials for which the rounding of the largest exponent stays below the bound of lse, which
// grows with the root of n: 2^-21 for an exponent of 14, 2^-20 for 30.
static inline float largest_sum(int64_t n) { return n < 1024 ? 16.0f * (float)n : 0x1p30f; }

// Without a shift, blocks are summed until a sum is too large or NaN (from -inf), or the first block's sum is too
// small. From there on the shift is the logarithm of the sum so far. Without a sum, it is the maximum of the FEW next
// logits, or of their block if those are -inf: never far above the row's maximum, so sums do not vanish. A block whose
// sum reveals a logit far above the shift is swept again with its own maximum. If the row contains NaN or +inf, an
// exponent is inf - inf and lse is NaN.
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
        return (struct row_sums){only, only};
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
    struct row_sums sums = {.lse = (double)minus_inf,
                            .mean = has_mean ? weighted / ((double)weight * (double)cols) : 0};
    if (sum != 0) {
        // The logits that count exceed the shift by about as much as lse does.
        double per_unit = s.is_plain ? 1 : 1 - LN2 * LOG2E_EXCESS;
        sums.lse = shift_log(&s, (double)s.m) + log(sum) * per_unit;
    }
    return sums;
}

SIMD_INLINE double row_loss(const struct cross_entropy_problem *p, double lse, double target,
                            double mean) {
    if (lse == -(double)__builtin_inff()) return -lse;
    double loss = lse - target;
    if (p->label_smoothing > 0)
        loss = (1 - p->label_smoothing) * loss + p->label_smoothing * (lse - mean);
    return lse == lse ? loss : lse;
}

SIMD_INLINE void fused_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                          int64_t last, float *scratch, bool is_streaming) {
    (void)scratch;
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    float *loss = p->loss, *lse_out = p->lse;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        bool is_ignored = cross_entropy_is_ignored(p, row);
        loss[row] = 0;
        if (is_ignored && lse_out == NULL) continue;
        struct row_sums sums = p->label_smoothing > 0
                                   ? sum_row(dtype, x, p->logits.cols, true, is_fetching)
                                   : sum_row(dtype, x, p->logits.cols, false, is_fetching);
        if (lse_out != NULL) lse_out[row] = (float)sums.lse;
        if (!is_ignored) {
            double target = (double)element(dtype, x, tsri_index_at(&p->targets, row));
            loss[row] = (float)row_loss(p, sums.lse, target, sums.mean);
        }
    }
}
BY_DTYPE(fused)

// ---- Backward ---------------------------------------------------------------------------------

SIMD_INLINE struct vf_pair gradients_of(const struct gradient *g, struct vf_pair x, bool is_plain) {
    return (struct vf_pair){gradient_of(g, x.a, is_plain), gradient_of(g, x.b, is_plain)};
}

// 16-bit logits, two vectors at a time.
SIMD_INLINE void gradient_pairs(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                                int64_t cols, bool is_streaming, bool is_plain) {
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    int64_t i = 0, n = is_streaming ? simd_line_head(dtype, dx) : 0;
    if (n > cols) n = cols;
    while (i < cols) {
        if (n > 0) { // the head up to the first line, and the tail
            struct vf_pair part = vf_load_pair_n(dtype, x, i, n, 0.0f);
            vf_store_pair_n(dtype, dx, i, gradients_of(g, part, is_plain), n);
        }
        for (i += n; i + PAIR <= cols; i += PAIR) {
            if (is_fetching)
                __builtin_prefetch(simd_far_line((uintptr_t)x + (uintptr_t)i * 2), 0, 2);
            struct vf_pair value = gradients_of(g, vf_load_pair(dtype, x, i), is_plain);
            if (is_streaming)
                vf_stream_pair(dtype, dx, i, value);
            else
                vf_store_pair(dtype, dx, i, value);
        }
        n = cols - i;
    }
}

SIMD_INLINE void gradient_row_as(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                                 int64_t cols, bool is_streaming, bool is_plain) {
    if (VL > 1 && dtype != TSR_F32) {
        gradient_pairs(dtype, g, x, dx, cols, is_streaming, is_plain);
        return;
    }
#define VALUE(access, i, n) gradient_of(g, vf_get(access, dtype, x, i, n), is_plain)
    SIMD_FOR_VALUES(dtype, dx, cols, is_streaming, VALUE);
#undef VALUE
}

SIMD_INLINE void gradient_row(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                              int64_t cols, bool is_streaming) {
    if (g->is_plain)
        gradient_row_as(dtype, g, x, dx, cols, is_streaming, true);
    else
        gradient_row_as(dtype, g, x, dx, cols, is_streaming, false);
}

// A row of a few vectors, including the target.
enum { NARROW = 4, NARROW_COLS = NARROW * VL };
SIMD_INLINE void narrow_row(tsr_dtype dtype, float lse, float dloss, int64_t target, double q_other,
                            double q_target, const void *x, void *dx, int64_t cols) {
    static const float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct gradient g = gradient_with(lse, 1, dloss, q_other);
    vf other = g.offset, half = vf_set1(0.5f), lane = vf_load(lanes) - vf_set1((float)target);
    set_offset(&g, dloss, q_target);
    vf of_target = g.offset;
    for (int64_t i = 0; i < cols; i += VL, lane = lane + vf_set1(VL)) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf value = n == VL ? vf_load_as(dtype, x, i) : vf_load_as_n(dtype, x, i, n);
        g.offset = vf_select_lt(vf_abs(lane), half, of_target, other);
        value = g.is_plain ? gradient_of(&g, value, true) : gradient_of(&g, value, false);
        if (n == VL)
            vf_store_as(dtype, dx, i, value);
        else
            vf_store_as_n(dtype, dx, i, value, n);
    }
}

// The same with a recomputed sum; the exponentials stay in registers.
SIMD_INLINE void narrow_row_anew(tsr_dtype dtype, const struct cross_entropy_problem *p, float lse,
                                 float dloss, int64_t target, const void *x, void *dx) {
    static const float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t cols = p->logits.cols, num = (cols + VL - 1) / VL;
    vf e[NARROW], lane[NARROW], zero = vf_set1(0.0f), half = vf_set1(0.5f);
    vf log2e = vf_set1(SIMD_LOG2E), others = zero, own = zero;
    for (int64_t v = 0; v < num; v++) {
        int64_t n = cols - v * VL < VL ? cols - v * VL : VL;
        e[v] = vf_keep_n(vf_load_as_n(dtype, x, v * VL, n), n, -__builtin_inff());
        e[v] = vf_exp2((e[v] - vf_set1(lse)) * log2e);
        lane[v] = vf_abs(vf_load(lanes) + vf_set1((float)(v * VL - target)));
        others = others + vf_select_lt(lane[v], half, zero, e[v]);
        own = own + vf_select_lt(lane[v], half, e[v], zero);
    }
    double smoothing = p->label_smoothing, other = smoothing / (double)cols;
    float sum = vf_hsum(others), scale = 1 / (sum + vf_hsum(own));
    vf at_target = vf_set1(target_gradient((double)dloss, (double)(sum * scale), smoothing, other));
    for (int64_t v = 0; v < num; v++) {
        int64_t n = cols - v * VL < VL ? cols - v * VL : VL;
        vf value = vf_set1(dloss) * vf_fms(e[v], vf_set1(scale), vf_set1((float)other));
        vf_store_as_n(dtype, dx, v * VL, vf_select_lt(lane[v], half, at_target, value), n);
    }
}

SIMD_INLINE void fused_backward_as(tsr_dtype dtype, const struct cross_entropy_problem *p,
                                   int64_t first, int64_t last, float *scratch, bool is_streaming) {
    (void)scratch;
    const float *lse = p->lse, *dloss = p->dloss;
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    int64_t cols = p->logits.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    double other = p->label_smoothing / (double)cols;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        char *dx = tsri_row(&p->dlogits, row);
        if (cross_entropy_is_ignored(p, row) || lse[row] == -__builtin_inff()) {
            if (cols > 0) memset(dx, 0, (size_t)(cols * bytes));
            continue;
        }
        int64_t target = tsri_index_at(&p->targets, row), after = target + 1;
        float x_target = element(dtype, x, target);
        bool is_enough = is_lse_enough(dtype, lse[row], x_target);
        double q_target = 1 - p->label_smoothing + other;
        if (cols <= NARROW_COLS) {
            if (is_enough)
                narrow_row(dtype, lse[row], dloss[row], target, other, q_target, x, dx, cols);
            else
                narrow_row_anew(dtype, p, lse[row], dloss[row], target, x, dx);
            continue;
        }
        struct row_norm norm = {.scale = 1};
        if (!is_enough) norm = sum_others(dtype, x, cols, target, lse[row], is_fetching);
        struct gradient g = gradient_with(lse[row], norm.scale, dloss[row], other);
        // The target's element is computed separately, from its value read earlier, because dx may be x. With
        // non-temporal stores it lies between the row's two parts.
        if (is_streaming) {
            gradient_row(dtype, &g, x, dx, target, true);
            gradient_row(dtype, &g, x + after * bytes, dx + after * bytes, cols - after, true);
        } else {
            gradient_row(dtype, &g, x, dx, cols, false);
        }
        set_offset(&g, dloss[row], q_target);
        vf at_target = gradient_of(&g, vf_set1(x_target), g.is_plain);
        if (norm.has_others)
            at_target = vf_set1(
                target_gradient((double)dloss[row], norm.others, p->label_smoothing, other));
        vf_store_as_n(dtype, dx, target, at_target, 1);
    }
}
BY_DTYPE(fused_backward)

const struct cross_entropy_kernels TSRI_KERNEL_TABLE(cross_entropy) = {
    .fused = fused,
    .fused_backward = fused_backward,
};
