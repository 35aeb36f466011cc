// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient, (rows, cols), compiled once per instruction set. "fused" has three rows in flight: while it
// computes the exponentials of one row into fp32 scratch, it writes the previous row, whose sum is known, and reads the
// next row for its maximum, so that loads, stores and arithmetic overlap. "online" (Milakov and Gimelshein) computes
// maximum and sum in one sweep, for rows that do not stay in the cache.
// Floor: forward x read once, y written once, backward two reads and a write; an exponential and about ten operations an element.
// Limit: past the caches memory; in bf16 arithmetic takes as long.
// Figures: docs/kernels/softmax.md, on 16 threads docs/kernels/rows.md.
#include "ops/softmax/softmax_block.h"

// Memory reaches its full rate only with an even load: each step prefetches, computes and writes the same number of
// lines.
enum { GROUP_BYTES = 256 };

// One instantiation per dtype, which is a constant inside; each is a function of its own.
#define ONE(name, suffix, dtype)                                                                   \
    static __attribute__((noinline)) void name##suffix(                                            \
        const struct softmax_problem *p, int64_t first, int64_t last, float *scratch,              \
        enum softmax_memory memory) {                                                              \
        name##_as(dtype, p, first, last, scratch, memory);                                         \
    }
#define BY_DTYPE(name)                                                                             \
    ONE(name, _f32, TSR_F32)                                                                       \
    ONE(name, _f16, TSR_F16)                                                                       \
    ONE(name, _bf16, TSR_BF16)                                                                     \
    static void name(const struct softmax_problem *p, int64_t first, int64_t last, float *scratch, \
                     enum softmax_memory memory) {                                                 \
        tsr_dtype dtype = p->out.dtype;                                                            \
        softmax_kernel *one = dtype == TSR_BF16  ? name##_bf16                                     \
                              : dtype == TSR_F16 ? name##_f16                                      \
                                                 : name##_f32;                                     \
        one(p, first, last, scratch, memory);                                                      \
        if (memory != SOFTMAX_CACHED) vf_stream_fence();                                           \
    }

// ---- Forward ----------------------------------------------------------------------------------

// Works on three rows at once, in whole groups of columns: scales the previous row, whose exponentials are in e, into
// y; replaces them by those of x; finds the maximum of next. Returns the number of columns done.
SIMD_INLINE int64_t sweep_three(tsr_dtype dtype, const char *x, float row_max, const char *next,
                                float *e, float factor, char *y, int64_t cols, struct running *max,
                                struct running *sum, enum softmax_memory memory) {
    const int bytes = dtype == TSR_F32 ? 4 : 2, group = GROUP_BYTES / bytes;
    int64_t i = 0;
    if (group < UNROLL * VL) return 0;
    struct running m = *max, s = *sum;
    vf f = vf_set1(factor), shift = shift_of(true, row_max);
    for (; i + group <= cols; i += group) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < GROUP_BYTES; line += 64)
            fetch(next + i * bytes + line, memory);
            // Counts and lanes are compile-time constants, so the accumulators stay in registers.
#pragma GCC unroll 8
        for (int at = 0; at < group; at += PAIR) {
            struct vf_pair v = {vf_load(e + i + at) * f, vf_load(e + i + at + VL) * f};
            if (memory != SOFTMAX_CACHED)
                vf_stream_pair_up(dtype, y, i + at, v);
            else
                vf_store_pair_up(dtype, y, i + at, v);
        }
#pragma GCC unroll 4
        for (int at = 0; at < group; at += UNROLL * VL)
#pragma GCC unroll 2
            for (int u = 0; u < UNROLL; u += 2) {
                struct vf_pair v = vf_load_pair(dtype, next, i + at + u * VL);
                m.lane[u] = vf_max(m.lane[u], v.a);
                m.lane[u + 1] = vf_max(m.lane[u + 1], v.b);
            }
#pragma GCC unroll 4
        for (int at = 0; at < group; at += UNROLL * VL)
#pragma GCC unroll 2
            for (int u = 0; u < UNROLL; u += 2) {
                struct vf_pair v = vf_load_pair(dtype, x, i + at + u * VL);
                float *to = e + i + at + u * VL;
                v.a = exp_of(dtype, true, v.a, shift), v.b = exp_of(dtype, true, v.b, shift);
                vf_store(to, v.a);
                vf_store(to + VL, v.b);
                s.lane[u] = s.lane[u] + v.a;
                s.lane[u + 1] = s.lane[u + 1] + v.b;
            }
    }
    *max = m, *sum = s;
    return i;
}

SIMD_INLINE void fused_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                          int64_t last, float *scratch, enum softmax_memory memory) {
    int64_t cols = p->out.cols, bytes = dtype == TSR_F32 ? 4 : 2;
    bool is_streaming = memory != SOFTMAX_CACHED;
    float row_max = 0, factor = 0;
    if (cols > 0 && cols <= VL && HAS_NARROW) {
        narrow_rows(dtype, p, first, last);
        return;
    }
    if (cols > 0 && cols <= SHORT_COLS && (!is_streaming || cols <= VL)) {
        short_rows(dtype, p, first, last);
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
            i = sweep_three(dtype, x, row_max, next, scratch, factor, y, cols, &max, &sum, memory);
        if (y != NULL) sweep_scale(dtype, scratch, factor, y, i, cols, is_streaming);
        if (x != NULL && plain) sweep_exp(dtype, true, x, row_max, scratch, i, cols, &sum);
        if (x != NULL && !plain) sweep_exp(dtype, false, x, row_max, scratch, i, cols, &sum);
        if (next != NULL) sweep_max(dtype, next, i, cols, &max);
        row_max = max_of(max);
        factor = inverse(sum_of(sum));
    }
}
BY_DTYPE(fused)

// Each lane keeps its own maximum and sum. When a block raises the maximum, the sum so far is rescaled.
SIMD_INLINE void online_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                           int64_t last, float *scratch, enum softmax_memory memory) {
    (void)scratch;
    enum { BLOCK = 2048 };
    bool is_streaming = memory != SOFTMAX_CACHED;
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

SIMD_INLINE void combine_row(tsr_dtype dtype, const char *y, const char *dy, float row_sum,
                             char *dx, int64_t cols, enum softmax_memory memory) {
    if (row_sum != row_sum) { // a NaN sum makes the whole row NaN
        simd_fill_nan(dtype, dx, cols);
        return;
    }
    vf sum = vf_set1(row_sum);
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    bool is_streaming = memory != SOFTMAX_CACHED;
    int64_t i = 0, head = is_streaming ? simd_line_head(dtype, dx) : 0;
    if (head > cols) head = cols;
    if (head > 0) {
        struct vf_pair value = combine(vf_load_pair_n(dtype, y, 0, head, 0.0f),
                                       vf_load_pair_n(dtype, dy, 0, head, 0.0f), sum);
        vf_store_pair_n(dtype, dx, 0, value, head);
        i = head;
    }
    for (; i + PAIR <= cols; i += PAIR) {
        for (int64_t line = 0; is_streaming && line < PAIR * bytes; line += 64)
            if (PAIR * bytes >= 64 || (i - head) * bytes % 64 == 0) {
                fetch(y + i * bytes + line, memory);
                fetch(dy + i * bytes + line, memory);
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
        if (is_streaming && dtype == TSR_F32)
            vf_stream_last_up(dtype, dx, i, value, cols - i);
        else
            vf_store_pair_n(dtype, dx, i, value, cols - i);
    }
}

// Adds y dy from column i on to the sums so far.
SIMD_INLINE float dot_rest(tsr_dtype dtype, const char *y, const char *dy, int64_t i, int64_t cols,
                           struct running so_far) {
    vf *sum = so_far.lane;
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

SIMD_INLINE float dot_row(tsr_dtype dtype, const char *y, const char *dy, int64_t cols) {
    return dot_rest(dtype, y, dy, 0, cols, running_at(0));
}

// Writes a row's gradient with non-temporal stores and meanwhile sums the next row, so that the load on memory is as
// even as in sweep_three. dx must be vf_is_aligned.
SIMD_INLINE float combine_with_next(tsr_dtype dtype, const char *y, const char *dy, float row_sum,
                                    char *dx, const char *next_y, const char *next_dy, int64_t cols,
                                    enum softmax_memory memory) {
    const int bytes = dtype == TSR_F32 ? 4 : 2, group = GROUP_BYTES / bytes;
    struct running s = running_at(0);
    vf sum = vf_set1(row_sum);
    int64_t i = 0;
    for (; group >= UNROLL * VL && i + group <= cols; i += group) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < GROUP_BYTES; line += 64) {
            fetch(next_y + i * bytes + line, memory);
            fetch(next_dy + i * bytes + line, memory);
        }
#pragma GCC unroll 8
        for (int at = 0; at < group; at += PAIR)
            vf_stream_pair(
                dtype, dx, i + at,
                combine(vf_load_pair(dtype, y, i + at), vf_load_pair(dtype, dy, i + at), sum));
#pragma GCC unroll 4
        for (int at = 0; at < group; at += UNROLL * VL)
#pragma GCC unroll 2
            for (int u = 0; u < UNROLL; u += 2) {
                struct vf_pair a = vf_load_pair(dtype, next_y, i + at + u * VL);
                struct vf_pair b = vf_load_pair(dtype, next_dy, i + at + u * VL);
                s.lane[u] = vf_fma(a.a, b.a, s.lane[u]);
                s.lane[u + 1] = vf_fma(a.b, b.b, s.lane[u + 1]);
            }
    }
    combine_row(dtype, y + i * bytes, dy + i * bytes, row_sum, dx + i * bytes, cols - i, memory);
    return dot_rest(dtype, next_y, next_dy, i, cols, s);
}

SIMD_INLINE void fused_backward_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                                   int64_t last, float *scratch, enum softmax_memory memory) {
    (void)scratch;
    int64_t cols = p->out.cols;
    if (cols > 0 && (cols == VL || (cols < VL && HAS_NARROW))) {
        narrow_backward(dtype, p, first, last);
        return;
    }
    if (cols > 0 && cols <= BLOCK_COLS && VL > 1) {
        block_backward(dtype, p, first, last, memory != SOFTMAX_CACHED);
        return;
    }
    if (cols <= SHORT_COLS && memory == SOFTMAX_CACHED) {
        // sums of a block of rows first: see HAS_NARROW
        for (int64_t row = first; row < last; row += SHORT_ROWS) {
            int64_t rows = last - row < SHORT_ROWS ? last - row : SHORT_ROWS;
            float sums[SHORT_ROWS];
            for (int64_t r = 0; r < rows; r++)
                sums[r] = dot_row(dtype, tsri_row(&p->in[0], row + r), tsri_row(&p->in[1], row + r),
                                  cols);
            for (int64_t r = 0; r < rows; r++)
                combine_row(dtype, tsri_row(&p->in[0], row + r), tsri_row(&p->in[1], row + r),
                            sums[r], tsri_row(&p->out, row + r), cols, SOFTMAX_CACHED);
        }
        return;
    }
    float next_sum = 0;
    bool has_sum = false;
    for (int64_t row = first; row < last; row++) {
        const char *y = tsri_row(&p->in[0], row), *dy = tsri_row(&p->in[1], row);
        float sum = has_sum ? next_sum : dot_row(dtype, y, dy, cols);
        char *dx = tsri_row(&p->out, row);
        has_sum = memory != SOFTMAX_CACHED && row + 1 < last && vf_is_aligned(dx) && sum == sum;
        if (has_sum) {
            const char *next_y = tsri_row(&p->in[0], row + 1);
            const char *next_dy = tsri_row(&p->in[1], row + 1);
            if (memory == SOFTMAX_FETCHED)
                next_sum = combine_with_next(dtype, y, dy, sum, dx, next_y, next_dy, cols,
                                             SOFTMAX_FETCHED);
            else
                next_sum = combine_with_next(dtype, y, dy, sum, dx, next_y, next_dy, cols,
                                             SOFTMAX_STREAMED);
            continue;
        }
        if (memory == SOFTMAX_FETCHED)
            combine_row(dtype, y, dy, sum, dx, cols, SOFTMAX_FETCHED);
        else if (memory == SOFTMAX_STREAMED)
            combine_row(dtype, y, dy, sum, dx, cols, SOFTMAX_STREAMED);
        else
            combine_row(dtype, y, dy, sum, dx, cols, SOFTMAX_CACHED);
    }
}
BY_DTYPE(fused_backward)

const struct softmax_kernels TSRI_KERNEL_TABLE(softmax) = {
    .fused = fused,
    .online = online,
    .fused_backward = fused_backward,
};
