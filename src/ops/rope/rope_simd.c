// SPDX-License-Identifier: Apache-2.0
// Rotary embedding, forward and backward, x (batch, seqlen, heads, head_dim), compiled once per instruction set. A head
// is loaded as the first and the second elements of its pairs (two halves, or one run that is deinterleaved), rotated
// by the token's cosines and sines, which stay in the first-level cache for all its heads, and stored at the same
// places in y. Heads are processed in memory order.
// Floor: x read once, y written once; 3 FLOPs an element.
// Limit: memory; on one thread, in bf16, the conversions.
// Figures: docs/kernels/rope.md, on 16 threads docs/kernels/rows.md.
#include "cpu/cpu_isa.h"
#include "cpu/simd_pairs.h"
#include "ops/rope/rope_problem.h"

// One instantiation per dtype, which is a constant inside. Not inlined, because each needs all registers.
#define BY_DTYPE(name)                                                                             \
    __attribute__((noinline)) static void name(const struct rope_problem *p, int64_t first,        \
                                               int64_t last, float *rotated, bool is_streaming) {  \
        switch (p->dtype) {                                                                        \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, rotated, is_streaming); break;          \
        case TSR_F16: name##_as(TSR_F16, p, first, last, rotated, is_streaming); break;            \
        default: name##_as(TSR_F32, p, first, last, rotated, is_streaming);                        \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

// ---- Pairs ------------------------------------------------------------------------------------

// n pairs (a, b) from pair i on, n <= VL, of a head with `half` pairs.
SIMD_INLINE void load_pairs(tsr_dtype dtype, const void *x, int64_t i, int64_t half,
                            bool is_interleaved, int64_t n, vf *a, vf *b) {
    if (!is_interleaved) {
        *a = n == VL ? vf_load_as(dtype, x, i) : vf_load_as_n(dtype, x, i, n);
        *b = n == VL ? vf_load_as(dtype, x, half + i) : vf_load_as_n(dtype, x, half + i, n);
    } else if (n == VL) {
        vf_unzip(vf_load_as(dtype, x, 2 * i), vf_load_as(dtype, x, 2 * i + VL), a, b);
    } else {
        int64_t in_low = 2 * n < VL ? 2 * n : VL;
        vf low = vf_load_as_n(dtype, x, 2 * i, in_low);
        vf high = 2 * n > VL ? vf_load_as_n(dtype, x, 2 * i + VL, 2 * n - VL) : vf_set1(0.0f);
        vf_unzip(low, high, a, b);
    }
}

SIMD_INLINE void store(tsr_dtype dtype, void *y, int64_t i, vf value, bool is_streaming) {
    if (is_streaming)
        vf_stream_as(dtype, y, i, value);
    else
        vf_store_as(dtype, y, i, value);
}

SIMD_INLINE void store_pairs(tsr_dtype dtype, void *y, int64_t i, int64_t half, bool is_interleaved,
                             int64_t n, vf a, vf b, bool is_streaming) {
    if (!is_interleaved && n == VL) {
        store(dtype, y, i, a, is_streaming);
        store(dtype, y, half + i, b, is_streaming);
    } else if (!is_interleaved) {
        vf_store_as_n(dtype, y, i, a, n);
        vf_store_as_n(dtype, y, half + i, b, n);
    } else {
        vf low, high;
        vf_zip(a, b, &low, &high);
        if (n == VL) {
            store(dtype, y, 2 * i, low, is_streaming);
            store(dtype, y, 2 * i + VL, high, is_streaming);
        } else {
            vf_store_as_n(dtype, y, 2 * i, low, 2 * n < VL ? 2 * n : VL);
            if (2 * n > VL) vf_store_as_n(dtype, y, 2 * i + VL, high, 2 * n - VL);
        }
    }
}

// ---- Fused ------------------------------------------------------------------------------------

// vf_load_pair itself deinterleaves bf16 pairs.
enum { HAS_SPLIT_PAIRS = VL == 8 };

SIMD_INLINE void turn_pairs(tsr_dtype dtype, const void *x, void *y, const float *cosine,
                            const float *sine, int64_t half, bool is_interleaved, float sign,
                            int64_t i, int64_t n, bool is_streaming) {
    vf a, b, c, s;
    if (n == VL && is_interleaved && HAS_SPLIT_PAIRS && vf_is_split(dtype)) {
        struct vf_pair v = vf_load_pair(dtype, x, 2 * i);
        c = vf_plain_nan(vf_load(cosine + i));
        s = vf_plain_nan(vf_load(sine + i)) * vf_set1(sign);
        v = (struct vf_pair){vf_fms(v.a, c, v.b * s), vf_fma(v.b, c, v.a * s)};
        if (is_streaming)
            vf_stream_pair(dtype, y, 2 * i, v);
        else
            vf_store_pair(dtype, y, 2 * i, v);
        return;
    }
    load_pairs(dtype, x, i, half, is_interleaved, n, &a, &b);
    c = n == VL ? vf_load(cosine + i) : vf_load_n(cosine + i, n);
    s = (n == VL ? vf_load(sine + i) : vf_load_n(sine + i, n)) * vf_set1(sign);
    store_pairs(dtype, y, i, half, is_interleaved, n, vf_fms(a, c, b * s), vf_fma(b, c, a * s),
                is_streaming);
}

// Two vectors of a and b from pair i on: whole lines of 16-bit elements, because half a line costs as much.
SIMD_INLINE void turn_lines(tsr_dtype dtype, const void *x, void *y, const float *cosine,
                            const float *sine, int64_t half, float sign, int64_t i) {
    vf a[2], b[2];
    for (int k = 0; k < 2; k++) {
        int64_t at = i + k * VL;
        vf c = vf_load(cosine + at), s = vf_load(sine + at) * vf_set1(sign);
        vf first = vf_load_as(dtype, x, at), second = vf_load_as(dtype, x, half + at);
        a[k] = vf_fms(first, c, second * s);
        b[k] = vf_fma(second, c, first * s);
    }
    vf_stream_two_as(dtype, y, i, a[0], a[1]);
    vf_stream_two_as(dtype, y, half + i, b[0], b[1]);
}

// On AMD's cores, a line that is written partly with non-temporal stores and partly without takes 0.1 to 0.3 us. So the
// unrotated rest uses non-temporal stores there, too.
#if defined(SIMD_HAS_STREAMED_BITS)
enum { STREAMS_REST = 1 };
#else
enum { STREAMS_REST = 0 };
#endif

// Whether vectors of y, or whole lines of two 16-bit vectors, have the alignment of a non-temporal store in every head.
// Both elements of an interleaved pair are in one run, which is as long as two halves.
SIMD_INLINE bool is_aligned_to(uintptr_t bytes, tsr_dtype dtype, const struct rope_problem *p) {
    int64_t elements = (int64_t)bytes / (dtype == TSR_F32 ? 4 : 2), half = p->rotary_dim / 2;
    bool is_whole = (uintptr_t)p->y.data % bytes == 0 &&
                    (p->is_interleaved ? half % VL == 0 && p->rotary_dim % elements == 0
                                       : half % elements == 0);
    for (int i = 0; i < 3; i++) is_whole &= p->y.stride[i] % elements == 0;
    return is_whole && (!STREAMS_REST || p->head_dim % elements == 0);
}

// Copies the part of a head that is not rotated.
SIMD_INLINE void copy_rest(tsr_dtype dtype, const struct rope_problem *p, const char *x, char *y,
                           bool is_streaming) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = p->rotary_dim;
#if defined(SIMD_HAS_STREAMED_BITS)
    for (; is_streaming && i + VL <= p->head_dim; i += VL)
        simd_stream_bits(y + i * bytes, x + i * bytes, VL * bytes);
#else
    (void)is_streaming;
#endif
    memcpy(y + i * bytes, x + i * bytes, (size_t)((p->head_dim - i) * bytes));
}

SIMD_INLINE void turn_head(tsr_dtype dtype, const struct rope_problem *p, int64_t b, int64_t s,
                           int64_t h, bool is_interleaved, bool is_streaming) {
    int64_t half = p->rotary_dim / 2, position = rope_position(p, b, s), i = 0;
    const float *cosine = tsri_row(&p->cos, position), *sine = tsri_row(&p->sin, position);
    const char *x = rope_head(p, &p->x, b, s, h);
    char *y = rope_head(p, &p->y, b, s, h);
    float sign = p->is_backward ? -1.0f : 1.0f;
    if (VL == 16 && is_streaming && !is_interleaved && dtype != TSR_F32 &&
        is_aligned_to(64, dtype, p))
        for (; i + 2 * VL <= half; i += 2 * VL)
            turn_lines(dtype, x, y, cosine, sine, half, sign, i);
    for (; i + VL <= half; i += VL)
        turn_pairs(dtype, x, y, cosine, sine, half, is_interleaved, sign, i, VL, is_streaming);
    if (i < half)
        turn_pairs(dtype, x, y, cosine, sine, half, is_interleaved, sign, i, half - i,
                   is_streaming);
    if (p->rotary_dim < p->head_dim && x != y) copy_rest(dtype, p, x, y, is_streaming);
}

// Prefetches into the second-level cache, because a head's run is too short for the hardware prefetcher.
SIMD_INLINE void fetch_head(tsr_dtype dtype, const struct rope_problem *p, int64_t b, int64_t s,
                            int64_t h) {
    const char *x = rope_head(p, &p->x, b, s, h);
    int64_t bytes = p->head_dim * (dtype == TSR_F32 ? 4 : 2);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(x + i, 0, 2);
}

// With non-temporal stores: prefetches lines of later heads, which are read in memory order.
SIMD_INLINE void fetch_far(tsr_dtype dtype, const struct rope_problem *p, int64_t b, int64_t s,
                           int64_t h) {
    uintptr_t x = (uintptr_t)rope_head(p, &p->x, b, s, h);
    int64_t bytes = p->head_dim * (dtype == TSR_F32 ? 4 : 2);
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(simd_far_line(x + (uintptr_t)i), 0, 2);
}

SIMD_INLINE void turn_tokens(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                             int64_t last, bool is_interleaved, bool is_streaming) {
    int64_t seqlen = p->seqlen, b = first / seqlen, s = first % seqlen;
    bool is_fetching = is_streaming && p->x.stride[2] == p->head_dim && tsri_gains_from_far_lines();
    for (int64_t t = first; t < last; b++, s = 0) { // tokens of one sequence
        int64_t end = last - t < seqlen - s ? s + last - t : seqlen;
        if (rope_is_heads_first(p)) {
            for (int64_t h = 0; h < p->num_heads; h++)
                for (int64_t i = s; i < end; i++) {
                    if (h + 1 < p->num_heads) fetch_head(dtype, p, b, i, h + 1);
                    turn_head(dtype, p, b, i, h, is_interleaved, is_streaming);
                }
        } else {
            for (int64_t i = s; i < end; i++)
                for (int64_t h = 0; h < p->num_heads; h++) {
                    if (is_fetching) fetch_far(dtype, p, b, i, h);
                    turn_head(dtype, p, b, i, h, is_interleaved, is_streaming);
                }
        }
        t += end - s;
    }
}

SIMD_INLINE void turn_in_order(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                               int64_t last, bool is_streaming) {
    if (p->is_interleaved)
        turn_tokens(dtype, p, first, last, true, is_streaming);
    else
        turn_tokens(dtype, p, first, last, false, is_streaming);
}

SIMD_INLINE void cached_as(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                           int64_t last, float *rotated, bool is_streaming) {
    (void)rotated, (void)is_streaming;
    turn_in_order(dtype, p, first, last, false);
}
SIMD_INLINE void streamed_as(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                             int64_t last, float *rotated, bool is_streaming) {
    (void)rotated, (void)is_streaming;
    turn_in_order(dtype, p, first, last, true);
}
BY_DTYPE(cached)
BY_DTYPE(streamed)

static void fused(const struct rope_problem *p, int64_t first, int64_t last, float *rotated,
                  bool is_streaming) {
    bool is_pair = HAS_SPLIT_PAIRS && p->is_interleaved && p->dtype == TSR_BF16;
    if (is_streaming && is_aligned_to(VL * (p->dtype == TSR_F32 || is_pair ? 4 : 2), p->dtype, p))
        streamed(p, first, last, rotated, true);
    else
        cached(p, first, last, rotated, false);
}

// ---- Unfused passes ---------------------------------------------------------------------------

// (a, b) -> (-b, a), in fp32, stored in `rotated`.
SIMD_INLINE void rotate_half_pass_as(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                                     int64_t last, float *rotated, bool is_streaming) {
    (void)is_streaming;
    int64_t half = p->rotary_dim / 2;
    for (int64_t t = first; t < last; t++)
        for (int64_t h = 0; h < p->num_heads; h++) {
            const void *x = rope_head(p, &p->x, t / p->seqlen, t % p->seqlen, h);
            float *r = rotated + (t * p->num_heads + h) * p->rotary_dim;
            for (int64_t i = 0; i < half; i += VL) {
                int64_t n = half - i < VL ? half - i : VL;
                vf a, b;
                load_pairs(dtype, x, i, half, p->is_interleaved, n, &a, &b);
                store_pairs(TSR_F32, r, i, half, p->is_interleaved, n, vf_set1(-0.0f) - b, a,
                            false);
            }
        }
}
BY_DTYPE(rotate_half_pass)

// y = x cos + rotated sin.
SIMD_INLINE void multiply_add_pass_as(tsr_dtype dtype, const struct rope_problem *p, int64_t first,
                                      int64_t last, float *rotated, bool is_streaming) {
    (void)is_streaming;
    int64_t half = p->rotary_dim / 2, bytes = dtype == TSR_F32 ? 4 : 2;
    vf sign = vf_set1(p->is_backward ? -1.0f : 1.0f);
    for (int64_t t = first; t < last; t++) {
        int64_t position = rope_position(p, t / p->seqlen, t % p->seqlen);
        const float *cosine = tsri_row(&p->cos, position), *sine = tsri_row(&p->sin, position);
        for (int64_t h = 0; h < p->num_heads; h++) {
            const char *x = rope_head(p, &p->x, t / p->seqlen, t % p->seqlen, h);
            char *y = rope_head(p, &p->y, t / p->seqlen, t % p->seqlen, h);
            const float *r = rotated + (t * p->num_heads + h) * p->rotary_dim;
            for (int64_t i = 0; i < half; i += VL) {
                int64_t n = half - i < VL ? half - i : VL;
                vf a, b, ra, rb, c = vf_load_n(cosine + i, n), s = vf_load_n(sine + i, n) * sign;
                load_pairs(dtype, x, i, half, p->is_interleaved, n, &a, &b);
                load_pairs(TSR_F32, r, i, half, p->is_interleaved, n, &ra, &rb);
                store_pairs(dtype, y, i, half, p->is_interleaved, n, vf_fma(a, c, ra * s),
                            vf_fma(b, c, rb * s), false);
            }
            if (p->rotary_dim < p->head_dim && x != y)
                memcpy(y + p->rotary_dim * bytes, x + p->rotary_dim * bytes,
                       (size_t)((p->head_dim - p->rotary_dim) * bytes));
        }
    }
}
BY_DTYPE(multiply_add_pass)

// ---- Tables -----------------------------------------------------------------------------------

static void table(const struct rope_table_problem *p, int64_t first, int64_t last,
                  double *restrict c, double *restrict s, const double *restrict step_c,
                  const double *restrict step_s) {
    int64_t half = p->cos.cols;
    for (int64_t position = first; position < last; position++) {
        float *restrict cosine = tsri_row(&p->cos, position);
        float *restrict sine = tsri_row(&p->sin, position);
        for (int64_t i = 0; i < half; i++) {
            double now_c = c[i], now_s = s[i];
            cosine[i] = (float)now_c;
            sine[i] = (float)now_s;
            c[i] = simd_fma_f64(now_c, step_c[i], -(now_s * step_s[i]));
            s[i] = simd_fma_f64(now_s, step_c[i], now_c * step_s[i]);
        }
    }
}

const struct rope_kernels TSRI_KERNEL_TABLE(rope) = {
    .fused = fused,
    .rotate_half_pass = rotate_half_pass,
    .multiply_add_pass = multiply_add_pass,
    .table = table,
};
