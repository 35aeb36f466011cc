// SPDX-License-Identifier: Apache-2.0
// Cross-entropy kernels, compiled once per instruction set. Forward sweeps a row once, block by block: exponentials relative
// to a shift that the row's first logits set, or for 16-bit logits on AVX-512 to none as long as no sum leaves the range of
// floats. Where a block's sum outgrows that, which is rare, the sum so far is rescaled and the block swept again (after
// Milakov and Gimelshein's online normalizer). Sums of blocks, the logarithm and the loss are in double: once per 2048 elements
// that costs nothing, and the error does not grow with the vocabulary.
#include "cpu/simd_elements.h"
#include "ops/cross_entropy/cross_entropy_sums.h"

// ---- Forward ----------------------------------------------------------------------------------

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
        double lse = sums.shift + sums.log_sum;
        if (lse_out != NULL) lse_out[row] = (float)lse;
        if (!is_ignored) {
            double target = (double)element(dtype, x, tsri_index_at(&p->targets, row));
            loss[row] = (float)row_loss(p, lse, target, sums.mean);
        }
    }
}
BY_DTYPE(fused)

// ---- Backward ---------------------------------------------------------------------------------

SIMD_INLINE struct vf_pair gradients_of(const struct gradient *g, struct vf_pair x, bool is_plain) {
    return (struct vf_pair){gradient_of(g, x.a, is_plain), gradient_of(g, x.b, is_plain)};
}

// Of 16 bits, two vectors at a time.
SIMD_INLINE void gradient_pairs(tsr_dtype dtype, const struct gradient *g, const void *x, void *dx,
                                int64_t cols, bool is_streaming, bool is_plain) {
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    int64_t i = 0, n = is_streaming ? simd_line_head(dtype, dx) : 0;
    if (n > cols) n = cols;
    while (i < cols) {
        if (n > 0) { // up to the first line, and the last part
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

// A row of a few vectors, whose exponentials stay in registers while they are summed, the target's apart.
enum { NARROW = 4, NARROW_COLS = NARROW * VL };
SIMD_INLINE void narrow_row(tsr_dtype dtype, const struct cross_entropy_problem *p, float lse,
                            float dloss, int64_t target, const void *x, void *dx) {
    static const float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t cols = p->logits.cols, num = (cols + VL - 1) / VL;
    vf e[NARROW], lane[NARROW], zero = vf_set1(0.0f), half = vf_set1(0.5f);
    vf max = vf_set1(-__builtin_inff()), log2e = vf_set1(SIMD_LOG2E), others = zero, own = zero;
    for (int64_t v = 0; v < num; v++) {
        int64_t n = cols - v * VL < VL ? cols - v * VL : VL;
        e[v] = vf_keep_n(vf_load_as_n(dtype, x, v * VL, n), n, -__builtin_inff());
        max = vf_max(max, e[v]);
        lane[v] = vf_abs(vf_load(lanes) + vf_set1((float)(v * VL - target)));
    }
    max = vf_set1(vf_hmax(max));
    for (int64_t v = 0; v < num; v++) {
        e[v] = vf_exp2((e[v] - max) * log2e);
        others = others + vf_select_lt(lane[v], half, zero, e[v]);
        own = own + vf_select_lt(lane[v], half, e[v], zero);
    }
    float sum_others = vf_hsum(others), inverse = 1 / (sum_others + vf_hsum(own));
    double smoothing = p->label_smoothing, other = smoothing / (double)cols;
    if (lse != lse) inverse = __builtin_nanf("");
    if (dloss != dloss) dloss = __builtin_nanf("");
    vf at_target =
        vf_set1(target_gradient((double)dloss, (double)(sum_others * inverse), smoothing, other));
    for (int64_t v = 0; v < num; v++) {
        int64_t n = cols - v * VL < VL ? cols - v * VL : VL;
        vf value = vf_set1(dloss) * (e[v] * vf_set1(inverse) - vf_set1((float)other));
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
            memset(dx, 0, (size_t)(cols * bytes));
            continue;
        }
        int64_t target = tsri_index_at(&p->targets, row), after = target + 1;
        if (cols <= NARROW_COLS) {
            narrow_row(dtype, p, lse[row], dloss[row], target, x, dx);
            continue;
        }
        struct row_norm norm = norm_of_row(dtype, lse[row], x, cols, target, is_fetching);
        struct gradient g = gradient_with(norm.shift, norm.rest, dloss[row], other);
        // The target's own element apart, read first: dx may be x. Past the caches it stands between the row's two parts.
        vf at_target = vf_set1(element(dtype, x, target));
        if (is_streaming) {
            gradient_row(dtype, &g, x, dx, target, true);
            gradient_row(dtype, &g, x + after * bytes, dx + after * bytes, cols - after, true);
        } else {
            gradient_row(dtype, &g, x, dx, cols, false);
        }
        set_offset(&g, dloss[row], 1 - p->label_smoothing + other);
        at_target = gradient_of(&g, at_target, g.is_plain);
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
