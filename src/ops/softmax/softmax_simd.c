// SPDX-License-Identifier: Apache-2.0
// Softmax kernels, compiled once per instruction set. "fused" has three rows in flight: while it
// computes the exponentials of one, into fp32 scratch, it writes the row before, whose sum is known, and
// reads the row after for its maximum, so that loads, stores and arithmetic run side by side. "online"
// (Milakov and Gimelshein) folds maximum and sum into one sweep, for rows that do not stay in cache.
#include "cpu/simd_pairs.h"
#include "ops/softmax/softmax_problem.h"

// Memory works at its own pace only if it is asked evenly: a group of lines is fetched, as much is
// written, as much is computed.
enum { GROUP_BYTES = 256 };

// A line is fetched into the first level, and long before into the second, beside stores past the caches: what waits
// for memory there does not hold up the few line buffers of the first level, through which those stores go.
SIMD_INLINE void fetch(const char *at, bool is_streaming) {
    enum { NEAR = 2 << 10, LEVEL_2 = 2 };
    if (is_streaming) __builtin_prefetch(simd_far_line((uintptr_t)at), 0, LEVEL_2);
    __builtin_prefetch(at + NEAR);
}

enum { UNROLL = 4 }; // independent accumulators: add and max have a latency of four cycles

// One instantiation for each dtype, with the dtype a constant inside.
#define BY_DTYPE(name)                                                                             \
    static void name(const struct softmax_problem *p, int64_t first, int64_t last, float *scratch, \
                     bool is_streaming) {                                                          \
        switch (p->out.dtype) {                                                                    \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, scratch, is_streaming); break;          \
        case TSR_F16: name##_as(TSR_F16, p, first, last, scratch, is_streaming); break;            \
        default: name##_as(TSR_F32, p, first, last, scratch, is_streaming);                        \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

// ---- Sweeps over one row ----------------------------------------------------------------------

// 0 in place of a maximum of -inf, so that a row of -inf has exponentials of 0 and not NaN.
SIMD_INLINE float finite_max(float max) { return max == -__builtin_inff() ? 0.0f : max; }

// Below this magnitude a maximum may be taken off after the scaling by log2 e, in the same FMA: its product, rounded
// once for the whole row, is off by a factor that all exponentials share and their sum divides out, at most 2^0.1.
// One lane may have no FMA.
SIMD_INLINE bool is_plain(float max) { return VL > 1 && max > -0x1p20f && max < 0x1p20f; }

// The row's maximum as exp_of takes it.
SIMD_INLINE vf shift_of(bool is_plain, float max) {
    return vf_set1(is_plain ? 0.0f - finite_max(max) * SIMD_LOG2E : finite_max(max));
}

SIMD_INLINE vf exp_of(tsr_dtype dtype, bool is_plain, vf x, vf shift) {
    vf log2e = vf_set1(SIMD_LOG2E), power = (x - shift) * log2e;
    if (is_plain) power = vf_fma(x, log2e, shift);
#if defined(SIMD_HAS_FRACTION)
    return dtype == TSR_F32 ? vf_exp2(power) : vf_exp2_for_16_bits(power);
#else
    (void)dtype;
    return vf_exp2_nonpositive(power);
#endif
}

// A row on its way; the pieces of it that a sweep takes one after the other share these sums.
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

// Columns [begin, end); begin is a multiple of PAIR here and below.
SIMD_INLINE void sweep_max(tsr_dtype dtype, const char *x, int64_t begin, int64_t end,
                           struct running *max) {
    struct running m = *max;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = begin;
    for (; i + 2 * PAIR <= end; i += 2 * PAIR)
        for (int u = 0; u < UNROLL; u += 2) {
            int64_t at = i + u * VL;
            for (int64_t line = 0; line < PAIR * bytes; line += 64)
                if ((at * bytes + line) % 64 == 0) fetch(x + at * bytes + line, false);
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
    for (; i < end; i += PAIR) {
        struct vf_pair v = i + PAIR <= end
                               ? vf_load_pair(dtype, x, i)
                               : vf_load_pair_n(dtype, x, i, end - i, -__builtin_inff());
        v.a = exp_of(dtype, is_plain, v.a, shift), v.b = exp_of(dtype, is_plain, v.b, shift);
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
        vf_store_pair_up_n(dtype, y, i, v, end - i);
    }
}

SIMD_INLINE float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }

// ---- Forward ----------------------------------------------------------------------------------

// Three rows at once, whole groups of columns: scales the previous row, whose exponentials are in e,
// into y; replaces them by those of x; finds the maximum of next. Returns the columns done.
SIMD_INLINE int64_t sweep_three(tsr_dtype dtype, const char *x, float row_max, const char *next,
                                float *e, float factor, char *y, int64_t cols, struct running *max,
                                struct running *sum, bool is_streaming) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, group = GROUP_BYTES / bytes, i = 0;
    if (group < PAIR) return 0;
    struct running m = *max, s = *sum;
    vf f = vf_set1(factor), shift = shift_of(true, row_max);
    for (; i + group <= cols; i += group) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < GROUP_BYTES; line += 64)
            fetch(next + i * bytes + line, is_streaming);
#pragma GCC unroll 4
        for (int64_t at = i; at < i + group; at += PAIR) {
            struct vf_pair v = {vf_load(e + at) * f, vf_load(e + at + VL) * f};
            if (is_streaming)
                vf_stream_pair_up(dtype, y, at, v);
            else
                vf_store_pair_up(dtype, y, at, v);
        }
#pragma GCC unroll 4
        for (int64_t u = 0; u < group / VL; u += 2) {
            struct vf_pair v = vf_load_pair(dtype, next, i + u * VL);
            m.lane[u % UNROLL] = vf_max(m.lane[u % UNROLL], v.a);
            m.lane[u % UNROLL + 1] = vf_max(m.lane[u % UNROLL + 1], v.b);
        }
#pragma GCC unroll 4
        for (int64_t u = 0; u < group / VL; u += 2) {
            int64_t at = i + u * VL;
            struct vf_pair v = vf_load_pair(dtype, x, at);
            v.a = exp_of(dtype, true, v.a, shift), v.b = exp_of(dtype, true, v.b, shift);
            vf_store(e + at, v.a);
            vf_store(e + at + VL, v.b);
            s.lane[u % UNROLL] = s.lane[u % UNROLL] + v.a;
            s.lane[u % UNROLL + 1] = s.lane[u % UNROLL + 1] + v.b;
        }
    }
    *max = m, *sum = s;
    return i;
}

// Rows of at most a vector stay in a register.
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

SIMD_INLINE void fused_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                          int64_t last, float *scratch, bool is_streaming) {
    int64_t cols = p->out.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    float row_max = 0, factor = 0;
    if (cols > 0 && cols <= VL) {
        narrow_rows(dtype, p, first, last);
        return;
    }
    for (int64_t row = first - 1; row <= last; row++) {
        const char *x = row >= first && row < last ? tsri_row(&p->in[0], row) : NULL;
        const char *next = row + 1 < last ? tsri_row(&p->in[0], row + 1) : NULL;
        char *y = row > first ? tsri_row(&p->out, row - 1) : NULL;
        if (y != NULL && is_streaming && !vf_is_aligned(y)) {
            sweep_scale(dtype, scratch, factor, scratch, 0, cols, false);
            stream_bytes((const char *)scratch, y, cols * bytes);
            y = NULL;
        }
        struct running max = running_at(-__builtin_inff()), sum = running_at(0);
        bool plain = is_plain(row_max);
        int64_t i = 0;
        if (plain && y != NULL && x != NULL && next != NULL)
            i = sweep_three(dtype, x, row_max, next, scratch, factor, y, cols, &max, &sum,
                            is_streaming);
        if (y != NULL) sweep_scale(dtype, scratch, factor, y, i, cols, is_streaming);
        if (x != NULL && plain) sweep_exp(dtype, true, x, row_max, scratch, i, cols, &sum);
        if (x != NULL && !plain) sweep_exp(dtype, false, x, row_max, scratch, i, cols, &sum);
        if (next != NULL) sweep_max(dtype, next, i, cols, &max);
        row_max = max_of(max);
        factor = inverse(sum_of(sum));
    }
}
BY_DTYPE(fused)

// Each lane keeps its own max and sum; when a block raises the max, the sum so far is rescaled.
SIMD_INLINE void online_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                           int64_t last, float *scratch, bool is_streaming) {
    (void)scratch;
    enum { BLOCK = 2048 };
    int64_t cols = p->out.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    for (int64_t row = first; row < last; row++) {
        const char *x = tsri_row(&p->in[0], row);
        char *y = tsri_row(&p->out, row);
        bool is_direct = !is_streaming || vf_is_aligned(y);
        float max = -__builtin_inff(), sum = 0, e[BLOCK];
        for (int64_t i = 0; i < cols; i += BLOCK) {
            int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
            struct running of_block = running_at(-__builtin_inff());
            sweep_max(dtype, x + i * bytes, 0, n, &of_block);
            float block_max = max_of(of_block), old = max;
            if (block_max > max) max = block_max;
            of_block = running_at(0);
            sweep_exp(dtype, false, x + i * bytes, max, e, 0, n, &of_block);
            float rescale[VL];
            vf_store(rescale,
                     exp_of(dtype, false, vf_set1(finite_max(old)), vf_set1(finite_max(max))));
            sum = sum_of(of_block) + (old == max || sum == 0 ? sum : sum * rescale[0]);
        }
        float factor = inverse(sum);
        for (int64_t i = 0; i < cols; i += BLOCK) {
            int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
            struct running unused = running_at(0);
            sweep_exp(dtype, false, x + i * bytes, max, e, 0, n, &unused);
            sweep_scale(dtype, e, factor, is_direct ? (void *)(y + i * bytes) : e, 0, n,
                        is_streaming && is_direct);
            if (!is_direct) stream_bytes((const char *)e, y + i * bytes, n * bytes);
        }
    }
}
BY_DTYPE(online)

// ---- Backward ---------------------------------------------------------------------------------

SIMD_INLINE struct vf_pair combine(struct vf_pair y, struct vf_pair dy, vf sum) {
    return (struct vf_pair){y.a * (dy.a - sum), y.b * (dy.b - sum)};
}

SIMD_INLINE void combine_row(tsr_dtype dtype, const char *y, const char *dy, float row_sum,
                             char *dx, int64_t cols, bool is_streaming) {
    vf sum = vf_set1(row_sum);
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    int64_t i = 0, head = is_streaming ? simd_line_head(dtype, dx) : 0;
    if (head > cols) head = cols;
    if (head > 0) {
        struct vf_pair value = combine(vf_load_pair_n(dtype, y, 0, head, 0.0f),
                                       vf_load_pair_n(dtype, dy, 0, head, 0.0f), sum);
        vf_store_pair_n(dtype, dx, 0, value, head);
        i = head;
    }
    for (; i + PAIR <= cols; i += PAIR) {
        for (int64_t line = 0; is_streaming && line < PAIR * bytes; line += 64) {
            fetch(y + i * bytes + line, true);
            fetch(dy + i * bytes + line, true);
        }
        struct vf_pair value = combine(vf_load_pair(dtype, y, i), vf_load_pair(dtype, dy, i), sum);
        if (is_streaming)
            vf_stream_pair(dtype, dx, i, value);
        else
            vf_store_pair(dtype, dx, i, value);
    }
    if (i < cols) {
        struct vf_pair value = combine(vf_load_pair_n(dtype, y, i, cols - i, 0.0f),
                                       vf_load_pair_n(dtype, dy, i, cols - i, 0.0f), sum);
        vf_store_pair_n(dtype, dx, i, value, cols - i);
    }
}

SIMD_INLINE float dot_row(tsr_dtype dtype, const char *y, const char *dy, int64_t cols) {
    vf sum[UNROLL];
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            struct vf_pair a = vf_load_pair(dtype, y, i + u * VL);
            struct vf_pair b = vf_load_pair(dtype, dy, i + u * VL);
            sum[u] = vf_fma(a.a, b.a, sum[u]);
            sum[u + 1] = vf_fma(a.b, b.b, sum[u + 1]);
        }
    for (; i < cols; i += PAIR) {
        int64_t n = cols - i < PAIR ? cols - i : PAIR;
        struct vf_pair a =
            n == PAIR ? vf_load_pair(dtype, y, i) : vf_load_pair_n(dtype, y, i, n, 0.0f);
        struct vf_pair b =
            n == PAIR ? vf_load_pair(dtype, dy, i) : vf_load_pair_n(dtype, dy, i, n, 0.0f);
        sum[0] = vf_fma(a.a, b.a, sum[0]);
        sum[1] = vf_fma(a.b, b.b, sum[1]);
    }
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
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

SIMD_INLINE void fused_backward_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                                   int64_t last, float *scratch, bool is_streaming) {
    (void)scratch;
    int64_t cols = p->out.cols;
    if (cols > 0 && cols <= VL) {
        narrow_backward(dtype, p, first, last);
        return;
    }
    for (int64_t row = first; row < last; row++) {
        const char *y = tsri_row(&p->in[0], row), *dy = tsri_row(&p->in[1], row);
        float sum = dot_row(dtype, y, dy, cols);
        char *dx = tsri_row(&p->out, row);
        if (is_streaming)
            combine_row(dtype, y, dy, sum, dx, cols, true);
        else
            combine_row(dtype, y, dy, sum, dx, cols, false);
    }
}
BY_DTYPE(fused_backward)

const struct softmax_kernels TSRI_KERNEL_TABLE(softmax) = {
    .fused = fused,
    .online = online,
    .fused_backward = fused_backward,
};
