// SPDX-License-Identifier: Apache-2.0
// Cross-entropy kernels, compiled once per instruction set. Forward walks a row once, in blocks
// that stay in the first-level cache between two sweeps: the block's maximum, then its
// exponentials' sum; when a block raises the row's maximum, the sum so far is rescaled (Milakov and
// Gimelshein). Sums of blocks, the logarithm and the loss are in double: once per 2048 elements
// that costs nothing, and the error no longer grows with the vocabulary.
#include <math.h>

#include "cpu/simd.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

// Lanes times accumulators share a block's sum: at most 128 terms follow one another in fp32.
enum { UNROLL = 4, BLOCK = VL == 1 ? 512 : 2048 };

// One instantiation for each dtype, with the dtype a constant inside.
#define BY_DTYPE(name)                                                                             \
    static void name(const struct cross_entropy_problem *p, int64_t first, int64_t last,           \
                     float *scratch, bool is_streaming) {                                          \
        switch (p->logits.dtype) {                                                                 \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, scratch, is_streaming); break;          \
        case TSR_F16: name##_as(TSR_F16, p, first, last, scratch, is_streaming); break;            \
        default: name##_as(TSR_F32, p, first, last, scratch, is_streaming);                        \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

SIMD_INLINE float element(tsr_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TSR_BF16: return tsri_bf16_to_float(((const uint16_t *)x)[i]);
    case TSR_F16: return tsri_f16_to_float(((const uint16_t *)x)[i]);
    default: return ((const float *)x)[i];
    }
}

// ---- Sweeps over one block --------------------------------------------------------------------

// 0 in place of a maximum of -inf, so that a row of -inf has exponentials of 0 and not NaN.
SIMD_INLINE float finite_max(float max) { return max == -__builtin_inff() ? 0.0f : max; }

SIMD_INLINE float sweep_max(tsr_dtype dtype, const void *x, int64_t cols) {
    vf max[UNROLL];
    for (int u = 0; u < UNROLL; u++) max[u] = vf_set1(-__builtin_inff());
    int64_t i = 0;
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++) max[u] = vf_max(max[u], vf_load_as(dtype, x, i + u * VL));
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        max[0] = vf_max(max[0], vf_keep_n(vf_load_as_n(dtype, x, i, n), n, -__builtin_inff()));
    }
    return vf_hmax(vf_max(vf_max(max[0], max[1]), vf_max(max[2], max[3])));
}

// Sum of exp(x - max). With e not NULL the exponentials stay there. Prefetches `next` at the same
// pace.
SIMD_INLINE float sweep_exp(tsr_dtype dtype, const void *x, float row_max, float *e, int64_t cols,
                            const char *next) {
    vf max = vf_set1(finite_max(row_max)), sum[UNROLL], scale = vf_set1(SIMD_LOG2E);
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++) {
            int64_t at = i + u * VL;
            if (at * bytes % 64 == 0) __builtin_prefetch(next + at * bytes);
            vf value = vf_exp2_nonpositive((vf_load_as(dtype, x, at) - max) * scale);
            if (e != NULL) vf_store(e + at, value);
            sum[u] = sum[u] + value;
        }
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf value = vf_exp2_nonpositive((vf_load_as_n(dtype, x, i, n) - max) * scale);
        if (e != NULL) vf_store_n(e + i, value, n);
        sum[0] = sum[0] + vf_keep_n(value, n, 0.0f);
    }
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// weight times the sum of x, for label smoothing. weight is a power of two of at most 1 / cols of
// the row, so that no sum of finite logits overflows and weighting is exact; what is summed is the
// difference to `shift`, so that logits far from zero lose nothing.
SIMD_INLINE double sweep_sum(tsr_dtype dtype, const void *x, float shift, float weight,
                             int64_t cols) {
    float weighted_shift = finite_max(shift) * weight;
    vf sum[UNROLL], w = vf_set1(weight), s = vf_set1(-weighted_shift);
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++)
            sum[u] = sum[u] + vf_fma(vf_load_as(dtype, x, i + u * VL), w, s);
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        sum[0] = sum[0] + vf_keep_n(vf_fma(vf_load_as_n(dtype, x, i, n), w, s), n, 0.0f);
    }
    double total = (double)vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    return total + (double)cols * (double)weighted_shift;
}

static inline float power_of_two_below(int64_t cols) {
    float weight = 1;
    for (; cols > 1; cols = (cols + 1) / 2) weight /= 2;
    return weight;
}

// ---- Forward ----------------------------------------------------------------------------------

// log-sum-exp of a row; NaN where it holds NaN or +inf (then inf - inf is among the exponents).
SIMD_INLINE double row_lse(tsr_dtype dtype, const char *x, int64_t cols, double *mean) {
    float max = -__builtin_inff(), weight = mean != NULL ? power_of_two_below(cols) : 0;
    double sum = 0, weighted = 0;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
        const char *block = x + i * bytes;
        float block_max = sweep_max(dtype, block, n);
        if (block_max > max) {
            if (sum != 0) sum *= exp((double)max - (double)block_max);
            max = block_max;
        }
        if (mean != NULL) weighted += sweep_sum(dtype, block, max, weight, n);
        sum += (double)sweep_exp(dtype, block, max, NULL, n, block + n * bytes);
    }
    if (mean != NULL) *mean = weighted / ((double)weight * (double)cols);
    return sum == 0 ? -(double)__builtin_inff() : (double)max + log(sum);
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
    (void)scratch, (void)is_streaming;
    float *loss = p->loss, *lse_out = p->lse;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        bool is_ignored = cross_entropy_is_ignored(p, row);
        loss[row] = 0;
        if (is_ignored && lse_out == NULL) continue;
        double mean = 0;
        double lse = p->label_smoothing > 0 ? row_lse(dtype, x, p->logits.cols, &mean)
                                            : row_lse(dtype, x, p->logits.cols, NULL);
        if (lse_out != NULL) lse_out[row] = (float)lse;
        if (!is_ignored) {
            double target = (double)element(dtype, x, tsri_index_at(&p->targets, row));
            loss[row] = (float)row_loss(p, lse, target, mean);
        }
    }
}
BY_DTYPE(fused)

// ---- Backward ---------------------------------------------------------------------------------

// What a row's gradient is made of: dloss (exp(x - lse) - q), q = `other` but at the target.
struct gradient {
    vf lse, dloss, other;
};

// x - lse is positive where lse was rounded down (a little) or is not this row's (at will: 2^200 is
// inf).
SIMD_INLINE vf gradient_of(const struct gradient *g, vf x) {
    vf exponent = vf_min(vf_set1(200.0f), (x - g->lse) * vf_set1(SIMD_LOG2E));
    return g->dloss * (vf_exp2_nonpositive(exponent) - g->other);
}

SIMD_INLINE void gradient_row(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                              int64_t cols, bool is_streaming) {
    int64_t i = 0;
    if (is_streaming) {
        i = simd_stream_head(dtype, dx);
        if (i > cols) i = cols;
        vf_store_as_n(dtype, dx, 0, gradient_of(g, vf_load_as_n(dtype, x, 0, i)), i);
    }
    for (; i + VL <= cols; i += VL) {
        vf value = gradient_of(g, vf_load_as(dtype, x, i));
        if (is_streaming)
            vf_stream_as(dtype, dx, i, value);
        else
            vf_store_as(dtype, dx, i, value);
    }
    if (i < cols) {
        vf value = gradient_of(g, vf_load_as_n(dtype, x, i, cols - i));
        vf_store_as_n(dtype, dx, i, value, cols - i);
    }
}

SIMD_INLINE void fused_backward_as(tsr_dtype dtype, const struct cross_entropy_problem *p,
                                   int64_t first, int64_t last, float *scratch, bool is_streaming) {
    (void)scratch;
    const float *lse = p->lse, *dloss = p->dloss;
    int64_t cols = p->logits.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    double other = p->label_smoothing / (double)cols;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        char *dx = tsri_row(&p->dlogits, row);
        if (cross_entropy_is_ignored(p, row) || lse[row] == -__builtin_inff()) {
            memset(dx, 0, (size_t)(cols * bytes));
            continue;
        }
        struct gradient g = {vf_set1(lse[row]), vf_set1(dloss[row]), vf_set1((float)other)};
        int64_t target = tsri_index_at(&p->targets, row), after = target + 1;
        // The target's own element apart, between the rows' two parts: dx may be x.
        float at_target = element(dtype, x, target);
        gradient_row(dtype, &g, x, dx, target, is_streaming);
        gradient_row(dtype, &g, x + after * bytes, dx + after * bytes, cols - after, is_streaming);
        g.other = vf_set1((float)(1 - p->label_smoothing + other));
        vf_store_as_n(dtype, dx, target, gradient_of(&g, vf_set1(at_target)), 1);
    }
}
BY_DTYPE(fused_backward)

// ---- Unfused passes ---------------------------------------------------------------------------

SIMD_INLINE float *row_scratch(const struct cross_entropy_problem *p, float *scratch, int64_t row) {
    return scratch + row * p->logits.cols;
}

// e = exp(x - max of the row).
SIMD_INLINE void exp_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                             int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        float max = sweep_max(dtype, x, p->logits.cols);
        sweep_exp(dtype, x, max, row_scratch(p, scratch, row), p->logits.cols, x);
    }
}
BY_DTYPE(exp_pass)

// e becomes x - lse; lse goes out.
SIMD_INLINE void log_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                             int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    int64_t cols = p->logits.cols;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        float *e = row_scratch(p, scratch, row);
        double max = (double)sweep_max(dtype, x, cols), sum = 0;
        for (int64_t i = 0; i < cols; i += BLOCK) {
            int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
            sum += sweep_sum(TSR_F32, e + i, 0, 1, n);
        }
        double lse = sum == 0 ? -(double)__builtin_inff() : max + log(sum);
        // A row of -inf has log-probabilities of -inf, not of -inf + inf.
        vf log_sum = vf_set1(sum == 0 ? 0 : (float)log(sum)), m = vf_set1(finite_max((float)max));
        for (int64_t j = 0; j < cols; j += VL) {
            int64_t n = cols - j < VL ? cols - j : VL;
            vf_store_n(e + j, (vf_load_as_n(dtype, x, j, n) - m) - log_sum, n);
        }
        if (p->lse != NULL) ((float *)p->lse)[row] = (float)lse;
    }
}
BY_DTYPE(log_pass)

// The target's entry, and the row's mean with label smoothing.
SIMD_INLINE void pick_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                              int64_t last, float *scratch, bool is_streaming) {
    (void)dtype, (void)is_streaming;
    int64_t cols = p->logits.cols;
    for (int64_t row = first; row < last; row++) {
        const float *log_p = row_scratch(p, scratch, row);
        float *loss = (float *)p->loss + row;
        *loss = 0;
        if (cross_entropy_is_ignored(p, row)) continue;
        double sum = 0, picked = -(double)log_p[tsri_index_at(&p->targets, row)];
        float weight = power_of_two_below(cols);
        for (int64_t i = 0; p->label_smoothing > 0 && i < cols; i += BLOCK)
            sum += sweep_sum(TSR_F32, log_p + i, 0, weight, cols - i < BLOCK ? cols - i : BLOCK);
        if (p->label_smoothing > 0)
            picked = (1 - p->label_smoothing) * picked -
                     p->label_smoothing * (sum / ((double)weight * (double)cols));
        *loss = (float)picked;
    }
}
BY_DTYPE(pick_pass)

// The target distribution q.
SIMD_INLINE void target_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p,
                                int64_t first, int64_t last, float *scratch, bool is_streaming) {
    (void)dtype, (void)is_streaming;
    int64_t cols = p->logits.cols;
    double other = p->label_smoothing / (double)cols;
    for (int64_t row = first; row < last; row++) {
        float *q = row_scratch(p, scratch, row);
        for (int64_t i = 0; i < cols; i++) q[i] = (float)other;
        if (!cross_entropy_is_ignored(p, row))
            q[tsri_index_at(&p->targets, row)] = (float)(1 - p->label_smoothing + other);
    }
}
BY_DTYPE(target_pass)

// dlogits = dloss (softmax - q).
SIMD_INLINE void subtract_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p,
                                  int64_t first, int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    int64_t cols = p->logits.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        char *dx = tsri_row(&p->dlogits, row);
        float lse = ((const float *)p->lse)[row];
        if (cross_entropy_is_ignored(p, row) || lse == -__builtin_inff()) {
            memset(dx, 0, (size_t)(cols * bytes));
            continue;
        }
        struct gradient g = {vf_set1(lse), vf_set1(((const float *)p->dloss)[row]), vf_set1(0)};
        const float *q = row_scratch(p, scratch, row);
        for (int64_t i = 0; i < cols; i += VL) {
            int64_t n = cols - i < VL ? cols - i : VL;
            g.other = vf_load_n(q + i, n);
            vf_store_as_n(dtype, dx, i, gradient_of(&g, vf_load_as_n(dtype, x, i, n)), n);
        }
    }
}
BY_DTYPE(subtract_pass)

const struct cross_entropy_kernels TSRI_KERNEL_TABLE(cross_entropy) = {
    .fused = fused,
    .fused_backward = fused_backward,
    .exp_pass = exp_pass,
    .log_pass = log_pass,
    .pick_pass = pick_pass,
    .target_pass = target_pass,
    .subtract_pass = subtract_pass,
};
