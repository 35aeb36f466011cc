// SPDX-License-Identifier: Apache-2.0
// Spans of activations, two vectors at a time (simd_pairs.h): smooth ones in 16 bits, and both gradients of gated ones.
#ifndef TSRI_ACTIVATION_PAIRS_H
#define TSRI_ACTIVATION_PAIRS_H

#include "cpu/cpu_isa.h"
#include "cpu/simd_activation.h"
#include "cpu/simd_pairs.h"

// dy act'(x) up. A factor of 1/2 in between, because |act'| may exceed 1 and the partial product must not overflow
// unless the whole product does.
SIMD_INLINE vf chain(vf dy, vf grad, vf up) {
    return dy * (grad * vf_set1(0.5f)) * up * vf_set1(2.0f);
}

// ---- Smooth activations in 16 bits, whose gate is up itself ------------------------------------------------------------

SIMD_INLINE bool is_smooth_in_16_bits(tsr_dtype dtype, tsr_activation kind) {
    return VL > 1 && dtype != TSR_F32 &&
           (kind == TSR_ACTIVATION_GELU || kind == TSR_ACTIVATION_GELU_TANH ||
            kind == TSR_ACTIVATION_SILU);
}

SIMD_INLINE void fetch_far(const char *x) { __builtin_prefetch(simd_far_line((uintptr_t)x), 0, 2); }

SIMD_INLINE struct vf_pair values_of(tsr_dtype dtype, tsr_activation kind, bool is_grad,
                                     struct vf_pair x) {
    if (is_grad)
        return (struct vf_pair){vf_activate_grad_for(dtype, kind, x.a),
                                vf_activate_grad_for(dtype, kind, x.b)};
    return (struct vf_pair){vf_activate_for(dtype, kind, x.a), vf_activate_for(dtype, kind, x.b)};
}

// out[i] = v factor[i]. Without a factor (NULL), halfway cases are rounded up, because a value lies halfway only by
// chance.
SIMD_INLINE void put_pair(tsr_dtype dtype, char *out, int64_t i, struct vf_pair v,
                          const char *factor, bool is_streaming) {
    bool is_up = factor == NULL;
    if (factor != NULL) {
        struct vf_pair f = vf_load_pair(dtype, factor, i);
        v.a = v.a * f.a, v.b = v.b * f.b;
    }
    if (is_streaming && is_up)
        vf_stream_pair_up(dtype, out, i, v);
    else if (is_streaming)
        vf_stream_pair(dtype, out, i, v);
    else if (is_up)
        vf_store_pair_up(dtype, out, i, v);
    else
        vf_store_pair(dtype, out, i, v);
}

// The same for the last n elements.
SIMD_INLINE void put_last(tsr_dtype dtype, char *out, int64_t i, struct vf_pair v,
                          const char *factor, int64_t n) {
    if (factor != NULL) {
        struct vf_pair f = vf_load_pair_n(dtype, factor, i, n, 0.0f);
        v.a = v.a * f.a, v.b = v.b * f.b;
        vf_store_pair_n(dtype, out, i, v, n);
    } else {
        vf_store_pair_up_n(dtype, out, i, v, n);
    }
}

// out = act(x) factor, or act'(x) factor; factor may be NULL. With non-temporal stores, out starts on a cache line, or
// n is less than a line.
SIMD_INLINE void pass_over(tsr_dtype dtype, tsr_activation kind, bool is_grad, const char *x,
                           const char *factor, char *out, int64_t n, bool is_streaming,
                           bool is_fetching) {
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) {
        if (is_fetching) {
            fetch_far(x + i * 2);
            if (factor != NULL) fetch_far(factor + i * 2);
        }
        struct vf_pair v = values_of(dtype, kind, is_grad, vf_load_pair(dtype, x, i));
        put_pair(dtype, out, i, v, factor, is_streaming);
    }
    if (i == n) return;
    struct vf_pair v = values_of(dtype, kind, is_grad, vf_load_pair_n(dtype, x, i, n - i, 0.0f));
    put_last(dtype, out, i, v, factor, n - i);
}

SIMD_INLINE void one_pass(tsr_dtype dtype, tsr_activation kind, bool is_grad, const char *x,
                          const char *factor, char *out, int64_t length, bool is_streaming) {
    enum { BYTES = 2 };
    int64_t head = is_streaming ? simd_line_head(dtype, out) : 0;
    if (head > length) head = length;
    if (head > 0) pass_over(dtype, kind, is_grad, x, factor, out, head, false, false);
    x += head * BYTES, out += head * BYTES, length -= head;
    if (factor != NULL) factor += head * BYTES;
    if (is_streaming && tsri_gains_from_far_lines())
        pass_over(dtype, kind, is_grad, x, factor, out, length, true, true);
    else if (is_streaming)
        pass_over(dtype, kind, is_grad, x, factor, out, length, true, false);
    else
        pass_over(dtype, kind, is_grad, x, factor, out, length, false, false);
}

// On AVX2, a smooth function and its rounding form a long dependency chain, and too few vectors are in flight. So each
// gets its own pass over a block in the first-level cache.
enum { BLOCK = 4096 };

// Stores act(x) or act'(x) as floats in the order of vf_load_pair; the last pair is written whole.
SIMD_INLINE void values_pass(tsr_dtype dtype, tsr_activation kind, bool is_grad, const char *x,
                             float *values, int64_t n, bool is_fetching) {
    for (int64_t i = 0; i < n; i += PAIR) {
        if (is_fetching) fetch_far(x + i * 2);
        struct vf_pair v =
            i + PAIR <= n ? vf_load_pair(dtype, x, i) : vf_load_pair_n(dtype, x, i, n - i, 0.0f);
        v = values_of(dtype, kind, is_grad, v);
        vf_store_pair(TSR_F32, values, i, v);
    }
}

// out = values factor, rounded as in pass_over. With is_streaming, out starts on a cache line, or n is less than a
// line.
SIMD_INLINE void product_pass(tsr_dtype dtype, const float *values, const char *factor, char *out,
                              int64_t n, bool is_streaming) {
    bool is_fetching = is_streaming && factor != NULL && tsri_gains_from_far_lines();
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) {
        struct vf_pair v = vf_load_pair(TSR_F32, values, i);
        if (is_fetching) fetch_far(factor + i * 2);
        put_pair(dtype, out, i, v, factor, is_streaming);
    }
    if (i == n) return;
    struct vf_pair v = vf_load_pair(TSR_F32, values, i);
    put_last(dtype, out, i, v, factor, n - i);
}

// Not inlined, because the registers cannot hold the constants of both passes together.
#define PRODUCT_PASS(name, dtype)                                                                  \
    static __attribute__((noinline)) void name(const float *values, const char *factor, char *out, \
                                               int64_t n, bool is_streaming) {                     \
        product_pass(dtype, values, factor, out, n, is_streaming);                                 \
    }
PRODUCT_PASS(product_pass_bf16, TSR_BF16)
PRODUCT_PASS(product_pass_f16, TSR_F16)

// With non-temporal stores, every block but the first starts on a cache line of out.
SIMD_INLINE void two_passes(tsr_dtype dtype, tsr_activation kind, bool is_grad, const char *x,
                            const char *factor, char *out, int64_t length, bool is_streaming) {
    enum { BYTES = 2 };
    float values[BLOCK] __attribute__((aligned(64)));
    int64_t head = is_streaming ? simd_line_head(dtype, out) : 0;
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    for (int64_t i = 0, n; i < length; i += n) {
        n = i == 0 && head > 0 ? head : BLOCK;
        if (n > length - i) n = length - i;
        if (is_fetching)
            values_pass(dtype, kind, is_grad, x + i * BYTES, values, n, true);
        else
            values_pass(dtype, kind, is_grad, x + i * BYTES, values, n, false);
        (dtype == TSR_BF16 ? product_pass_bf16 : product_pass_f16)(
            values, factor != NULL ? factor + i * BYTES : NULL, out + i * BYTES, n, is_streaming);
    }
}

SIMD_INLINE void smooth_span(tsr_dtype dtype, tsr_activation kind, bool is_grad, const char *x,
                             const char *factor, char *out, int64_t length, bool is_streaming) {
    if (VL == 16)
        one_pass(dtype, kind, is_grad, x, factor, out, length, is_streaming);
    else
        two_passes(dtype, kind, is_grad, x, factor, out, length, is_streaming);
}

// ---- Gated gradients --------------------------------------------------------------------------

struct gated {
    const char *x, *up, *dy;
    char *dx, *dup;
};
struct gradients {
    struct vf_pair dx, dup;
};

// n: PAIR for a whole pair.
SIMD_INLINE struct gradients gated_gradients(tsr_dtype dtype, tsr_activation kind,
                                             const struct gated *g, int64_t i, int64_t n) {
#define LOAD(base)                                                                                 \
    (n == PAIR ? vf_load_pair(dtype, base, i) : vf_load_pair_n(dtype, base, i, n, 0.0f))
    struct vf_pair dy = LOAD(g->dy), up = LOAD(g->up), x = LOAD(g->x), grad, value;
#undef LOAD
    value.a = vf_activate_with_grad_for(dtype, kind, x.a, &grad.a);
    value.b = vf_activate_with_grad_for(dtype, kind, x.b, &grad.b);
    if (kind == TSR_ACTIVATION_SWIGLU_CLAMPED) {
        value.a = value.a * vf_gate_grad(kind, up.a), up.a = vf_gate(kind, up.a);
        value.b = value.b * vf_gate_grad(kind, up.b), up.b = vf_gate(kind, up.b);
    }
    return (struct gradients){{chain(dy.a, grad.a, up.a), chain(dy.b, grad.b, up.b)},
                              {dy.a * value.a, dy.b * value.b}};
}

SIMD_INLINE void gated_part(tsr_dtype dtype, tsr_activation kind, const struct gated *g, int64_t i,
                            int64_t n) {
    struct gradients out = gated_gradients(dtype, kind, g, i, n);
    vf_store_pair_n(dtype, g->dx, i, out.dx, n);
    vf_store_pair_n(dtype, g->dup, i, out.dup, n);
}

SIMD_INLINE void gated_pair(tsr_dtype dtype, tsr_activation kind, const struct gated *g,
                            int64_t i) {
    struct gradients out = gated_gradients(dtype, kind, g, i, PAIR);
    vf_store_pair(dtype, g->dx, i, out.dx);
    vf_store_pair(dtype, g->dup, i, out.dup);
}

// With non-temporal stores, writes a whole line of one output, then one of the other: AMD's cores write partial lines
// if two lines fill alternately.
SIMD_INLINE void gated_lines(tsr_dtype dtype, tsr_activation kind, const struct gated *g, int64_t i,
                             bool is_fetching) {
    const int bytes = dtype == TSR_F32 ? 4 : 2, pairs = PAIR * bytes < 64 ? 2 : 1;
    struct gradients out[2];
    for (int64_t line = 0; is_fetching && line < pairs * PAIR * bytes; line += 64) {
        fetch_far(g->x + i * bytes + line);
        fetch_far(g->up + i * bytes + line);
        fetch_far(g->dy + i * bytes + line);
    }
    for (int k = 0; k < pairs; k++) out[k] = gated_gradients(dtype, kind, g, i + k * PAIR, PAIR);
    for (int k = 0; k < pairs; k++) vf_stream_pair(dtype, g->dx, i + k * PAIR, out[k].dx);
    for (int k = 0; k < pairs; k++) vf_stream_pair(dtype, g->dup, i + k * PAIR, out[k].dup);
}

// Both gradients of a gated activation, two vectors at a time.
SIMD_INLINE void gated_span(tsr_dtype dtype, tsr_activation kind, const struct gated *g,
                            int64_t length, bool is_streaming) {
    const int bytes = dtype == TSR_F32 ? 4 : 2, pairs = PAIR * bytes < 64 ? 2 : 1;
    uintptr_t past = (uintptr_t)g->dx % 64;
    int64_t i = 0;
    if (is_streaming && past == (uintptr_t)g->dup % 64) { // same position within a line
        int64_t head = past == 0 ? 0 : (int64_t)(64 - past) / bytes;
        bool is_fetching = tsri_gains_from_far_lines();
        if (head > length) head = length;
        for (; i + PAIR <= head; i += PAIR) gated_pair(dtype, kind, g, i);
        if (i < head) gated_part(dtype, kind, g, i, head - i);
        for (i = head; i + pairs * PAIR <= length; i += pairs * PAIR)
            gated_lines(dtype, kind, g, i, is_fetching);
    }
    for (; i + PAIR <= length; i += PAIR) gated_pair(dtype, kind, g, i);
    if (i < length) gated_part(dtype, kind, g, i, length - i);
}

#endif
