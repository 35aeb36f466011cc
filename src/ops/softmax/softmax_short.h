// SPDX-License-Identifier: Apache-2.0
// The parts of softmax's kernels: exponentials, sweeps over a row, and rows too short for the three-row pipeline.
#ifndef TSRI_SOFTMAX_SHORT_H
#define TSRI_SOFTMAX_SHORT_H

#include "cpu/simd_pairs.h"
#include "ops/softmax/softmax_problem.h"

// Whether rows of at most one vector are processed one after the other. If a vector is a whole line, a partial store
// overlaps the next row, and the next load waits if both rows have the same offset within a page, as in large tensors.
enum { HAS_NARROW = VL < 16 };
enum { SHORT_COLS = 640, SHORT_FLOATS = 4096, SHORT_ROWS = 64 };
enum { UNROLL = 4 }; // independent accumulators: add and max have a latency of four cycles

// Prefetches a line into the first-level cache and, with non-temporal stores, much earlier into the second. Waiting for
// memory there does not occupy the few line buffers of the first level, which those stores need.
SIMD_INLINE void fetch(const char *at, enum softmax_memory memory) {
    enum { NEAR = 2 << 10, LEVEL_2 = 2 };
    if (memory == SOFTMAX_FETCHED) __builtin_prefetch(simd_far_line((uintptr_t)at), 0, LEVEL_2);
    __builtin_prefetch(at + NEAR);
}

// ---- Exponentials -----------------------------------------------------------------------------

// Replaces a maximum of -inf by 0, so that a row of -inf has exponentials of 0, not NaN.
SIMD_INLINE float finite_max(float max) { return max == -__builtin_inff() ? 0.0f : max; }

// For maxima below this magnitude, one FMA scales by log2 e and then subtracts the maximum. The product of maximum and
// log2 e, rounded once per row, is off by at most 2^0.1, a factor that all exponentials share and their sum cancels.
// One-lane builds may have no FMA.
SIMD_INLINE bool is_plain(float max) { return VL > 1 && max > -0x1p20f && max < 0x1p20f; }

// The row's maximum in the form that exp_of needs.
SIMD_INLINE vf shift_of(bool is_plain, float max) {
    return vf_set1(is_plain ? 0.0f - finite_max(max) * SIMD_LOG2E : finite_max(max));
}

SIMD_INLINE vf exp_of(tsr_dtype dtype, bool is_plain, vf x, vf shift) {
    vf log2e = vf_set1(SIMD_LOG2E), power = (x - shift) * log2e;
    if (is_plain) power = vf_fma(x, log2e, shift);
    return vf_exp2_flushed(dtype, power);
}

SIMD_INLINE float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }

// ---- Sweeps over one row ----------------------------------------------------------------------

// A row in progress: the pieces that a sweep processes one after the other share these sums.
struct running {
    vf lane[UNROLL];
};

SIMD_INLINE struct running running_at(float value) {
    struct running r;
    for (int u = 0; u < UNROLL; u++) r.lane[u] = vf_set1(value);
    return r;
}
SIMD_INLINE float max_of(struct running r) {
    return vf_hmax(vf_max(vf_max(r.lane[0], r.lane[1]), vf_max(r.lane[2], r.lane[3])));
}
SIMD_INLINE float sum_of(struct running r) {
    return vf_hsum((r.lane[0] + r.lane[1]) + (r.lane[2] + r.lane[3]));
}

// Columns [begin, end); here and below, begin is a multiple of PAIR.
SIMD_INLINE void sweep_max(tsr_dtype dtype, const char *x, int64_t begin, int64_t end,
                           struct running *max) {
    struct running m = *max;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = begin;
    for (; i + 2 * PAIR <= end; i += 2 * PAIR)
        for (int u = 0; u < UNROLL; u += 2) {
            int64_t at = i + u * VL;
            for (int64_t line = 0; line < PAIR * bytes; line += 64)
                if ((at * bytes + line) % 64 == 0) fetch(x + at * bytes + line, SOFTMAX_CACHED);
            struct vf_pair v = vf_load_pair(dtype, x, at);
            m.lane[u] = vf_max(m.lane[u], v.a);
            m.lane[u + 1] = vf_max(m.lane[u + 1], v.b);
        }
    for (; i < end; i += PAIR) {
        struct vf_pair v = i + PAIR <= end
                               ? vf_load_pair(dtype, x, i)
                               : vf_load_pair_n(dtype, x, i, end - i, -__builtin_inff());
        m.lane[0] = vf_max(m.lane[0], v.a);
        m.lane[1] = vf_max(m.lane[1], v.b);
    }
    *max = m;
}

// e = exp(x - max) in the lanes of vf_load_pair, and the sum.
SIMD_INLINE void sweep_exp(tsr_dtype dtype, bool is_plain, const char *x, float row_max, float *e,
                           int64_t begin, int64_t end, struct running *sum) {
    vf shift = shift_of(is_plain, row_max);
    struct running s = *sum;
    int64_t i = begin;
    for (; i + 2 * PAIR <= end; i += 2 * PAIR)
        for (int u = 0; u < UNROLL; u += 2) {
            int64_t at = i + u * VL;
            struct vf_pair v = vf_load_pair(dtype, x, at);
            v.a = exp_of(dtype, is_plain, v.a, shift), v.b = exp_of(dtype, is_plain, v.b, shift);
            vf_store(e + at, v.a);
            vf_store(e + at + VL, v.b);
            s.lane[u] = s.lane[u] + v.a;
            s.lane[u + 1] = s.lane[u + 1] + v.b;
        }
    for (; i + PAIR <= end; i += PAIR) {
        struct vf_pair v = vf_load_pair(dtype, x, i);
        v.a = exp_of(dtype, is_plain, v.a, shift), v.b = exp_of(dtype, is_plain, v.b, shift);
        vf_store(e + i, v.a);
        vf_store(e + i + VL, v.b);
        s.lane[0] = s.lane[0] + v.a;
        s.lane[1] = s.lane[1] + v.b;
    }
    if (i < end) { // filled with the maximum, because underflow is slow
        struct vf_pair v = vf_load_pair_n(dtype, x, i, end - i, finite_max(row_max));
        v.a = exp_of(dtype, is_plain, v.a, shift);
        if (vf_is_split(dtype) || end - i > VL) v.b = exp_of(dtype, is_plain, v.b, shift);
        v = vf_keep_pair_n(dtype, v, end - i);
        vf_store(e + i, v.a);
        vf_store(e + i + VL, v.b);
        s.lane[0] = s.lane[0] + v.a;
        s.lane[1] = s.lane[1] + v.b;
    }
    *sum = s;
}

// y = e factor.
SIMD_INLINE void sweep_scale(tsr_dtype dtype, const float *e, float factor, void *y, int64_t begin,
                             int64_t end, bool is_streaming) {
    vf f = vf_set1(factor);
    int64_t i = begin;
    for (; i + PAIR <= end; i += PAIR) {
        struct vf_pair v = {vf_load(e + i) * f, vf_load(e + i + VL) * f};
        if (is_streaming)
            vf_stream_pair_up(dtype, y, i, v);
        else
            vf_store_pair_up(dtype, y, i, v);
    }
    if (i < end) {
        struct vf_pair v = {vf_load(e + i) * f, vf_load(e + i + VL) * f};
        if (is_streaming)
            vf_stream_last_up(dtype, y, i, v, end - i);
        else
            vf_store_pair_up_n(dtype, y, i, v, end - i);
    }
}

// ---- Rows of at most a vector -----------------------------------------------------------------

SIMD_INLINE void narrow_rows(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                             int64_t last) {
    int64_t cols = p->out.cols, from = p->in[0].stride, to = p->out.stride;
    const void *in = p->in[0].data;
    for (int64_t row = first; row < last; row++) {
        vf x = vf_load_as_n(dtype, in, row * from, cols);
        float max = vf_hmax(vf_keep_n(x, cols, -__builtin_inff()));
        bool plain = is_plain(max);
        vf e = vf_keep_n(exp_of(dtype, plain, x, shift_of(plain, max)), cols, 0.0f);
        vf_store_as_n(dtype, p->out.data, row * to, e * vf_set1(inverse(vf_hsum(e))), cols);
    }
}

SIMD_INLINE void narrow_backward(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                                 int64_t last) {
    int64_t cols = p->out.cols;
    for (int64_t row = first; row < last; row++) {
        vf y = vf_load_as_n(dtype, p->in[0].data, row * p->in[0].stride, cols);
        vf dy = vf_load_as_n(dtype, p->in[1].data, row * p->in[1].stride, cols);
        vf sum = vf_set1(vf_hsum(y * dy));
        vf_store_as_n(dtype, p->out.data, row * p->out.stride, y * (dy - sum), cols);
    }
}

// ---- Rows of a few vectors --------------------------------------------------------------------

// For rows that are even shorter than the pipeline needs. A block of rows goes through three sweeps, each over all its
// rows, so that their reductions overlap while the exponentials stay in the first-level cache. Vector by vector, but
// with the same sums in the same order.
SIMD_INLINE vf short_exp_at(tsr_dtype dtype, bool is_plain, const char *x, int64_t i, int64_t n,
                            vf shift, float *e) {
    vf value = n == VL ? vf_load_as(dtype, x, i) : vf_load_as_n(dtype, x, i, n);
    value = exp_of(dtype, is_plain, value, shift);
    if (n < VL) value = vf_keep_n(value, n, 0.0f);
    vf_store(e + i, value);
    return value;
}

// 16-bit rows use pairs of vectors, which share one load and one conversion; a row of one vector has no pair.
SIMD_INLINE bool has_pairs(tsr_dtype dtype, int64_t cols) {
    return vf_is_split(dtype) && cols > VL;
}

SIMD_INLINE float short_exp(tsr_dtype dtype, bool is_plain, const char *x, float row_max, float *e,
                            int64_t cols) {
    if (has_pairs(dtype, cols)) {
        struct running all = running_at(0);
        sweep_exp(dtype, is_plain, x, row_max, e, 0, cols, &all);
        return sum_of(all);
    }
    vf shift = shift_of(is_plain, row_max), sum[UNROLL];
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
#define ADD(u, n) sum[u] = sum[u] + short_exp_at(dtype, is_plain, x, i, n, shift, e), i += (n)
    while (i + UNROLL * VL <= cols) {
        ADD(0, VL);
        ADD(1, VL);
        ADD(2, VL);
        ADD(3, VL);
    }
    if (i + PAIR <= cols) {
        ADD(0, VL);
        ADD(1, VL);
    }
    if (i + VL <= cols) {
        ADD(0, VL);
        if (i < cols) ADD(1, cols - i);
    } else if (i < cols) {
        ADD(0, cols - i);
    }
#undef ADD
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

SIMD_INLINE void short_scale(tsr_dtype dtype, const float *e, float factor, void *y, int64_t cols) {
    if (has_pairs(dtype, cols)) {
        sweep_scale(dtype, e, factor, y, 0, cols, false);
        return;
    }
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VL <= cols; i += VL) vf_store_as(dtype, y, i, vf_load(e + i) * f);
    if (i < cols) vf_store_as_n(dtype, y, i, vf_load(e + i) * f, cols - i);
}

SIMD_INLINE void short_rows(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                            int64_t last) {
    int64_t cols = p->out.cols, padded = (cols + PAIR - 1) / PAIR * PAIR;
    int64_t block = SHORT_FLOATS / padded < SHORT_ROWS ? SHORT_FLOATS / padded : SHORT_ROWS;
    float e[SHORT_FLOATS] __attribute__((aligned(64))), of_row[SHORT_ROWS];
    for (int64_t row = first; row < last; row += block) {
        int64_t rows = last - row < block ? last - row : block;
        for (int64_t r = 0; r < rows; r++)
            of_row[r] = simd_max_of(dtype, tsri_row(&p->in[0], row + r), cols);
        for (int64_t r = 0; r < rows; r++) {
            const char *x = tsri_row(&p->in[0], row + r);
            float sum = is_plain(of_row[r])
                            ? short_exp(dtype, true, x, of_row[r], e + r * padded, cols)
                            : short_exp(dtype, false, x, of_row[r], e + r * padded, cols);
            of_row[r] = inverse(sum);
        }
        for (int64_t r = 0; r < rows; r++)
            short_scale(dtype, e + r * padded, of_row[r], tsri_row(&p->out, row + r), cols);
    }
}

#endif
