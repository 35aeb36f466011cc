// SPDX-License-Identifier: Apache-2.0
// Cross-entropy kernels, compiled once per instruction set. Forward sweeps a row once, block by block:
// exponentials relative to a shift that earlier blocks set, and the block's maximum beside them, which
// runs on other ports. When the maximum outgrows the shift, which is rare, the sum so far is rescaled
// and the block swept again (after Milakov and Gimelshein's online normalizer). Sums of blocks, the
// logarithm and the loss are in double: once per 2048 elements that costs nothing, and the error does
// not grow with the vocabulary.
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

// ---- Exponents --------------------------------------------------------------------------------
// e^x = 2^(x L - c) e^(ln2 (c - x eta)), L the float next to log2 e and eta = L - log2 e. With c = m L
// rounded to float, the exponent takes one FMA, whose rounding is all that differs between elements;
// the second factor is put right in double once a row, with x ~ m for the elements that count.

#define LN2 0.693147180559945309
#define LOG2E_EXCESS ((double)SIMD_LOG2E - 1.44269504088896340736)

// Beyond this the rounding of m L is no small power of two: such rows, and those of +inf, take x - m. So
// does the scalar build, whose vf_fma may round twice.
static const float LARGEST_SHIFT = VL > 1 ? 1e6f : 0.0f;

struct shift {
    vf log2e, minus_c, minus_m;
    float c, m;
    bool is_plain; // x - m, then times L
};

static inline struct shift shift_of(float m) {
    struct shift s = {.m = m == -__builtin_inff() ? 0.0f
                                                  : m}; // for a row of -inf: exponents of -inf
    s.is_plain = !(s.m < LARGEST_SHIFT && s.m > -LARGEST_SHIFT);
    s.c = s.is_plain ? 0 : s.m * SIMD_LOG2E;
    s.log2e = vf_set1(SIMD_LOG2E), s.minus_c = vf_set1(-s.c), s.minus_m = vf_set1(-s.m);
    return s;
}

SIMD_INLINE vf exponent(const struct shift *s, vf x, bool is_plain) {
    if (is_plain) return (x + s->minus_m) * s->log2e;
    return vf_fma(x, s->log2e, s->minus_c);
}

// ln of what a sum of 2^exponent lacks to a sum of e^x, where x ~ max counts most.
static inline double shift_log(const struct shift *s, double max) {
    return s->is_plain ? (double)s->m : LN2 * ((double)s->c - max * LOG2E_EXCESS);
}

// ---- Sweeps over one block --------------------------------------------------------------------

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

// What one sweep over a block gives.
struct sums {
    float max, exp, weighted; // weighted: of weight (x - m), for label smoothing
};

// With e not NULL the exponentials stay there. Prefetches AHEAD bytes ahead.
SIMD_INLINE struct sums sweep_as(tsr_dtype dtype, const void *x, int64_t cols,
                                 const struct shift *s, bool is_plain, bool has_mean, float weight,
                                 float *e) {
    enum { AHEAD = 4096 };
    vf max[UNROLL], sum[UNROLL], mean[UNROLL], w = vf_set1(weight);
    vf weighted_shift = vf_set1(-s->m * weight);
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = 0;
    for (int u = 0; u < UNROLL; u++) {
        max[u] = vf_set1(-__builtin_inff());
        sum[u] = mean[u] = vf_set1(0.0f);
    }
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++) {
            int64_t at = i + u * VL;
            if (at * bytes % 64 == 0) __builtin_prefetch((const char *)x + at * bytes + AHEAD);
            vf value = vf_load_as(dtype, x, at);
            max[u] = vf_max(max[u], value);
            if (has_mean) mean[u] = mean[u] + vf_fma(value, w, weighted_shift);
            value = vf_exp2(exponent(s, value, is_plain));
            if (e != NULL) vf_store(e + at, value);
            sum[u] = sum[u] + value;
        }
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf value = vf_load_as_n(dtype, x, i, n);
        max[0] = vf_max(max[0], vf_keep_n(value, n, -__builtin_inff()));
        if (has_mean) mean[0] = mean[0] + vf_keep_n(vf_fma(value, w, weighted_shift), n, 0.0f);
        value = vf_exp2(exponent(s, value, is_plain));
        if (e != NULL) vf_store_n(e + i, value, n);
        sum[0] = sum[0] + vf_keep_n(value, n, 0.0f);
    }
    return (struct sums){vf_hmax(vf_max(vf_max(max[0], max[1]), vf_max(max[2], max[3]))),
                         vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3])),
                         has_mean ? vf_hsum((mean[0] + mean[1]) + (mean[2] + mean[3])) : 0.0f};
}

SIMD_INLINE struct sums sweep(tsr_dtype dtype, const void *x, int64_t cols, const struct shift *s,
                              bool has_mean, float weight) {
    return s->is_plain ? sweep_as(dtype, x, cols, s, true, has_mean, weight, NULL)
                       : sweep_as(dtype, x, cols, s, false, has_mean, weight, NULL);
}

// A power of two of at most 1 / cols and more than half of it: weighting is exact, and no sum of finite
// logits overflows.
static inline float weight_of(int64_t cols) {
    float weight = 1;
    for (; cols > 1; cols = (cols + 1) / 2) weight /= 2;
    return weight;
}

// ---- Forward ----------------------------------------------------------------------------------

struct row_sums {
    double lse, mean;
};

// A block is swept with the shift of an earlier one, and again with a new shift only where it holds a
// logit so much larger that the exponents' rounding would show (SLACK powers of two). lse is NaN
// where the row holds NaN or +inf: then inf - inf is among the exponents.
SIMD_INLINE struct row_sums sum_row(tsr_dtype dtype, const char *x, int64_t cols, bool has_mean) {
    const float minus_inf = -__builtin_inff(), SLACK = 4;
    float max = minus_inf, weight = has_mean ? weight_of(cols) : 0;
    double sum = 0, weighted = 0;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    struct shift s = shift_of(minus_inf);
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
        const char *block = x + i * bytes;
        if (max == minus_inf) s = shift_of(max = sweep_max(dtype, block, n));
        struct sums part = sweep(dtype, block, n, &s, has_mean, weight);
        if (part.max > max) max = part.max;
        if ((max - s.m) * SIMD_LOG2E > SLACK) {
            struct shift old = s;
            s = shift_of(max);
            if (sum != 0) sum *= exp(shift_log(&old, (double)max) - shift_log(&s, (double)max));
            part = sweep(dtype, block, n, &s, has_mean, weight);
        }
        sum += (double)part.exp;
        if (has_mean) weighted += (double)part.weighted + (double)n * (double)(s.m * weight);
    }
    return (struct row_sums){.lse = sum == 0 ? (double)minus_inf
                                             : shift_log(&s, (double)max) + log(sum),
                             .mean = has_mean ? weighted / ((double)weight * (double)cols) : 0};
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
        struct row_sums sums = p->label_smoothing > 0 ? sum_row(dtype, x, p->logits.cols, true)
                                                      : sum_row(dtype, x, p->logits.cols, false);
        if (lse_out != NULL) lse_out[row] = (float)sums.lse;
        if (!is_ignored) {
            double target = (double)element(dtype, x, tsri_index_at(&p->targets, row));
            loss[row] = (float)row_loss(p, sums.lse, target, sums.mean);
        }
    }
}
BY_DTYPE(fused)

// ---- Backward ---------------------------------------------------------------------------------

// What a row's gradient is made of: dloss (e^(x - lse) - q), q = `other` but at the target. Not plain:
// factor 2^exponent - offset, with factor = dloss e^(shift_log - lse) and offset = dloss q.
struct gradient {
    struct shift shift;
    vf factor, offset;
    bool is_plain;
};

SIMD_INLINE struct gradient gradient_with(float lse, float dloss, double q) {
    struct gradient g = {.shift = shift_of(lse)};
    double factor = (double)dloss * exp(shift_log(&g.shift, (double)lse) - (double)lse);
    double offset = (double)dloss * q;
    g.is_plain = g.shift.is_plain || !(factor > -1e38 && factor < 1e38);
    g.factor = vf_set1(g.is_plain ? dloss : (float)factor);
    g.offset = vf_set1(g.is_plain ? (float)q : (float)offset);
    return g;
}

SIMD_INLINE vf gradient_of(const struct gradient *g, vf x, bool is_plain) {
    if (is_plain) return g->factor * (vf_exp2(exponent(&g->shift, x, true)) - g->offset);
    return vf_exp2(exponent(&g->shift, x, false)) * g->factor - g->offset;
}

SIMD_INLINE void gradient_row_as(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                                 int64_t cols, bool is_streaming, bool is_plain) {
    int64_t i = 0;
    if (is_streaming) {
        i = simd_stream_head(dtype, dx);
        if (i > cols) i = cols;
        vf_store_as_n(dtype, dx, 0, gradient_of(g, vf_load_as_n(dtype, x, 0, i), is_plain), i);
    }
    for (; i + VL <= cols; i += VL) {
        vf value = gradient_of(g, vf_load_as(dtype, x, i), is_plain);
        if (is_streaming)
            vf_stream_as(dtype, dx, i, value);
        else
            vf_store_as(dtype, dx, i, value);
    }
    if (i < cols) {
        vf value = gradient_of(g, vf_load_as_n(dtype, x, i, cols - i), is_plain);
        vf_store_as_n(dtype, dx, i, value, cols - i);
    }
}

SIMD_INLINE void gradient_row(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                              int64_t cols, bool is_streaming) {
    if (g->is_plain)
        gradient_row_as(dtype, g, x, dx, cols, is_streaming, true);
    else
        gradient_row_as(dtype, g, x, dx, cols, is_streaming, false);
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
        struct gradient g = gradient_with(lse[row], dloss[row], other);
        int64_t target = tsri_index_at(&p->targets, row), after = target + 1;
        // The target's own element apart, between the row's two parts: dx may be x.
        vf at_target = vf_set1(element(dtype, x, target));
        gradient_row(dtype, &g, x, dx, target, is_streaming);
        gradient_row(dtype, &g, x + after * bytes, dx + after * bytes, cols - after, is_streaming);
        g = gradient_with(lse[row], dloss[row], 1 - p->label_smoothing + other);
        vf_store_as_n(dtype, dx, target, gradient_of(&g, at_target, g.is_plain), 1);
    }
}
BY_DTYPE(fused_backward)

// ---- Unfused passes ---------------------------------------------------------------------------

SIMD_INLINE float *row_scratch(const struct cross_entropy_problem *p, float *scratch, int64_t row) {
    return scratch + row * p->logits.cols;
}

SIMD_INLINE float sum_block(const float *e, int64_t n) {
    vf sum[UNROLL];
    int64_t i = 0;
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++) sum[u] = sum[u] + vf_load(e + i + u * VL);
    for (; i < n; i += VL) sum[0] = sum[0] + vf_load_n(e + i, n - i < VL ? n - i : VL);
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// e = exp(x - max of the row).
SIMD_INLINE void exp_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                             int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        float *e = row_scratch(p, scratch, row);
        struct shift s = shift_of(sweep_max(dtype, x, p->logits.cols));
        sweep_as(dtype, x, p->logits.cols, &s, true, false, 0, e);
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
            sum += (double)sum_block(e + i, n);
        }
        double lse = sum == 0 ? -(double)__builtin_inff() : max + log(sum);
        // A row of -inf has log-probabilities of -inf, not of -inf + inf.
        vf log_sum = vf_set1(sum == 0 ? 0 : (float)log(sum)), m = vf_set1(shift_of((float)max).m);
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
        for (int64_t i = 0; p->label_smoothing > 0 && i < cols; i += BLOCK)
            sum += (double)sum_block(log_p + i, cols - i < BLOCK ? cols - i : BLOCK);
        if (p->label_smoothing > 0)
            picked = (1 - p->label_smoothing) * picked - p->label_smoothing * (sum / (double)cols);
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
        struct gradient g = gradient_with(lse, ((const float *)p->dloss)[row], 0);
        vf scale = vf_set1(g.is_plain ? 1.0f : ((const float *)p->dloss)[row]);
        const float *q = row_scratch(p, scratch, row);
        for (int64_t i = 0; i < cols; i += VL) {
            int64_t n = cols - i < VL ? cols - i : VL;
            vf x_n = vf_load_as_n(dtype, x, i, n), q_n = vf_load_n(q + i, n);
            g.offset = q_n * scale;
            vf_store_as_n(dtype, dx, i, gradient_of(&g, x_n, g.is_plain), n);
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
