// SPDX-License-Identifier: Apache-2.0
// Backward of rows that have weights: all outputs and the row's sum in one pass, two vectors at a time (simd_pairs.h).
// Each lane adds its columns in blocks of BLOCK_PAIRS pairs, then the blocks' sums, and the lanes add at the end. So the
// order depends on the columns alone, not on addresses or stores.
#ifndef TSRI_ACTIVATION_WEIGHTED_H
#define TSRI_ACTIVATION_WEIGHTED_H

#include "cpu/simd_nan.h"
#include "ops/activation/activation_pairs.h"

// An absent tensor is NULL.
struct weighted {
    const char *x, *up, *dy;
    char *dx, *dup, *y;
    vf weight;
};
struct weighted_gradients {
    struct vf_pair dx, dup, y;
};

// Adds dy act(x) up to *sum. n: PAIR for a whole pair; columns beyond n add 0.
SIMD_INLINE struct weighted_gradients weighted_gradients(tsr_dtype dtype, tsr_activation kind,
                                                         const struct weighted *g, int64_t i,
                                                         int64_t n, struct vf_pair *sum) {
#define LOAD(base)                                                                                 \
    (n == PAIR ? vf_load_pair(dtype, base, i) : vf_load_pair_n(dtype, base, i, n, 0.0f))
    struct vf_pair dy = LOAD(g->dy), x = LOAD(g->x), value, grad, scaled;
    struct weighted_gradients out;
    value.a = vf_activate_with_grad_for(dtype, kind, x.a, &grad.a);
    value.b = vf_activate_with_grad_for(dtype, kind, x.b, &grad.b);
    scaled = (struct vf_pair){g->weight * dy.a, g->weight * dy.b};
    out.dup = (struct vf_pair){scaled.a * value.a, scaled.b * value.b};
    out.y = value;
    if (g->up != NULL) {
        struct vf_pair up = LOAD(g->up), gate = {vf_gate(kind, up.a), vf_gate(kind, up.b)};
        out.dx.a = chain(scaled.a, grad.a, gate.a);
        out.dx.b = chain(scaled.b, grad.b, gate.b);
        out.y = (struct vf_pair){value.a * gate.a, value.b * gate.b};
        if (kind == TSR_ACTIVATION_SWIGLU_CLAMPED) {
            out.dup.a = out.dup.a * vf_gate_grad(kind, up.a);
            out.dup.b = out.dup.b * vf_gate_grad(kind, up.b);
        }
    } else {
        out.dx = (struct vf_pair){scaled.a * grad.a, scaled.b * grad.b};
    }
#undef LOAD
    sum->a = vf_fma(dy.a, out.y.a, sum->a);
    sum->b = vf_fma(dy.b, out.y.b, sum->b);
    out.y = (struct vf_pair){g->weight * out.y.a, g->weight * out.y.b};
    return out;
}

SIMD_INLINE void weighted_part(tsr_dtype dtype, tsr_activation kind, const struct weighted *g,
                               int64_t i, int64_t n, struct vf_pair *sum) {
    struct weighted_gradients out = weighted_gradients(dtype, kind, g, i, n, sum);
    vf_store_pair_n(dtype, g->dx, i, out.dx, n);
    if (g->dup != NULL) vf_store_pair_n(dtype, g->dup, i, out.dup, n);
    if (g->y != NULL) vf_store_pair_n(dtype, g->y, i, out.y, n);
}

SIMD_INLINE void weighted_pair(tsr_dtype dtype, tsr_activation kind, const struct weighted *g,
                               int64_t i, struct vf_pair *sum) {
    struct weighted_gradients out = weighted_gradients(dtype, kind, g, i, PAIR, sum);
    vf_store_pair(dtype, g->dx, i, out.dx);
    if (g->dup != NULL) vf_store_pair(dtype, g->dup, i, out.dup);
    if (g->y != NULL) vf_store_pair(dtype, g->y, i, out.y);
}

// The same with non-temporal stores: a whole line of one output, then one of the next (gated_lines).
SIMD_INLINE void weighted_lines(tsr_dtype dtype, tsr_activation kind, const struct weighted *g,
                                int64_t i, struct vf_pair *sum) {
    const int bytes = dtype == TSR_F32 ? 4 : 2, pairs = PAIR * bytes < 64 ? 2 : 1;
    struct weighted_gradients out[2];
    for (int k = 0; k < pairs; k++)
        out[k] = weighted_gradients(dtype, kind, g, i + k * PAIR, PAIR, sum);
    for (int k = 0; k < pairs; k++) vf_stream_pair(dtype, g->dx, i + k * PAIR, out[k].dx);
    for (int k = 0; k < pairs && g->dup != NULL; k++)
        vf_stream_pair(dtype, g->dup, i + k * PAIR, out[k].dup);
    for (int k = 0; k < pairs && g->y != NULL; k++)
        vf_stream_pair(dtype, g->y, i + k * PAIR, out[k].y);
}

// Returns the sum of dy act(x) up. Rows whose outputs do not begin at lines have ordinary stores.
SIMD_INLINE float weighted_row(tsr_dtype dtype, tsr_activation kind, const struct weighted *g,
                               int64_t cols, bool is_streaming) {
    enum { BLOCK_PAIRS = 64 };
    const int bytes = dtype == TSR_F32 ? 4 : 2;
    const int64_t line = (PAIR * bytes < 64 ? 2 : 1) * PAIR;
    const uintptr_t past = ((uintptr_t)g->dx | (uintptr_t)g->dup | (uintptr_t)g->y) % 64;
    const vf zero = vf_set1(0.0f);
    struct vf_pair total = {zero, zero};
    for (int64_t i = 0; i < cols;) {
        const int64_t end = cols - i < BLOCK_PAIRS * PAIR ? cols : i + BLOCK_PAIRS * PAIR;
        struct vf_pair sum = {zero, zero};
        if (is_streaming && past == 0)
            for (; i + line <= end; i += line) weighted_lines(dtype, kind, g, i, &sum);
        for (; i + PAIR <= end; i += PAIR) weighted_pair(dtype, kind, g, i, &sum);
        if (i < end) weighted_part(dtype, kind, g, i, end - i, &sum), i = end;
        total.a += sum.a, total.b += sum.b;
    }
    return vf_sum_one(vf_one_nan(total.a + total.b));
}

#endif
