// SPDX-License-Identifier: Apache-2.0
// The baselines of cross-entropy, logits (rows, classes), compiled once per instruction set: passes over the whole
// tensor, each like one operator of a chain, with the tensor in memory between them.
// Floor: that of cross_entropy_simd.c.
// Limit: each pass reads and writes the tensor again.
// Figures: docs/kernels/cross_entropy.md (unfused).
#include "ops/cross_entropy/cross_entropy_sums.h"

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

// e = exp(x - row maximum).
SIMD_INLINE void exp_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                             int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        float *e = row_scratch(p, scratch, row);
        struct shift s = shift_of(simd_max_of(dtype, x, p->logits.cols));
        sweep_as(dtype, x, p->logits.cols, &s, PLAIN, false, 0, e, false);
    }
}
BY_DTYPE(exp_pass)

// e becomes x - lse; lse is stored.
SIMD_INLINE void log_pass_as(tsr_dtype dtype, const struct cross_entropy_problem *p, int64_t first,
                             int64_t last, float *scratch, bool is_streaming) {
    (void)is_streaming;
    int64_t cols = p->logits.cols;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->logits, row);
        float *e = row_scratch(p, scratch, row);
        double max = (double)simd_max_of(dtype, x, cols), sum = 0;
        for (int64_t i = 0; i < cols; i += BLOCK) {
            int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
            sum += (double)sum_block(e + i, n);
        }
        double lse = sum == 0 ? -(double)__builtin_inff() : max + log(sum);
        // The log-probabilities of a row of -inf are -inf, not -inf + inf.
        vf log_sum = vf_set1(sum == 0 ? 0 : (float)log(sum)), m = vf_set1(shift_of((float)max).m);
        for (int64_t j = 0; j < cols; j += VL) {
            int64_t n = cols - j < VL ? cols - j : VL;
            vf_store_n(e + j, (vf_load_as_n(dtype, x, j, n) - m) - log_sum, n);
        }
        if (p->lse != NULL) ((float *)p->lse)[row] = (float)lse;
    }
}
BY_DTYPE(log_pass)

// Picks the target's entry and, with label smoothing, the row's mean.
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
            if (cols > 0) memset(dx, 0, (size_t)(cols * bytes));
            continue;
        }
        float dloss = ((const float *)p->dloss)[row];
        int64_t target = tsri_index_at(&p->targets, row);
        struct row_norm norm = {.scale = 1};
        if (!is_lse_enough(dtype, lse, element(dtype, x, target)))
            norm = sum_others(dtype, x, cols, target, lse, false);
        struct gradient g = gradient_with(lse, norm.scale, dloss, 0);
        vf scale = vf_set1(g.is_plain ? 1.0f : dloss);
        const float *q = row_scratch(p, scratch, row);
        for (int64_t i = 0; i < cols; i += VL) {
            int64_t n = cols - i < VL ? cols - i : VL;
            vf x_n = vf_load_as_n(dtype, x, i, n), q_n = vf_load_n(q + i, n);
            g.offset = q_n * scale;
            vf_store_as_n(dtype, dx, i, gradient_of(&g, x_n, g.is_plain), n);
        }
        float at_target = target_gradient((double)dloss, norm.others, p->label_smoothing,
                                          p->label_smoothing / (double)cols);
        if (norm.has_others) vf_store_as_n(dtype, dx, target, vf_set1(at_target), 1);
    }
}
BY_DTYPE(subtract_pass)

const struct cross_entropy_unfused_kernels TSRI_KERNEL_TABLE(cross_entropy_unfused) = {
    .exp_pass = exp_pass,
    .log_pass = log_pass,
    .pick_pass = pick_pass,
    .target_pass = target_pass,
    .subtract_pass = subtract_pass,
};
