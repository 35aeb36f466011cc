// SPDX-License-Identifier: Apache-2.0
// The baselines of softmax, (rows, cols), compiled once per instruction set: passes over the whole tensor, each like
// one element-wise operator or one reduction.
// Floor: that of softmax_simd.c.
// Limit: memory, which three passes use.
// Figures: docs/kernels/softmax.md (unfused).
#include "cpu/simd.h"
#include "ops/softmax/softmax_problem.h"

enum { UNROLL = 4 }; // independent accumulators: add and max have a latency of four cycles

// One instantiation per dtype, which is a constant inside.
#define BY_DTYPE(name)                                                                             \
    static void name(const struct softmax_problem *p, int64_t first, int64_t last, float *scratch, \
                     enum softmax_memory memory) {                                                 \
        bool is_streaming = memory != SOFTMAX_CACHED;                                              \
        switch (p->out.dtype) {                                                                    \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, scratch, is_streaming); break;          \
        case TSR_F16: name##_as(TSR_F16, p, first, last, scratch, is_streaming); break;            \
        default: name##_as(TSR_F32, p, first, last, scratch, is_streaming);                        \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

// ---- Rows ----------------------------------------------------------------------

// Replaces a maximum of -inf by 0, so that a row of -inf has exponentials of 0, not NaN.
SIMD_INLINE float finite_max(float max) { return max == -__builtin_inff() ? 0.0f : max; }

SIMD_INLINE vf exp_of(vf x, vf max) { return vf_exp2_nonpositive((x - max) * vf_set1(SIMD_LOG2E)); }

// e = exp(x - max); returns their sum.
SIMD_INLINE float sweep_exp(tsr_dtype dtype, const void *x, float row_max, float *e, int64_t cols) {
    vf max = vf_set1(finite_max(row_max)), sum[UNROLL];
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= cols; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u++) {
            int64_t at = i + u * VL;
            vf value = exp_of(vf_load_as(dtype, x, at), max);
            vf_store(e + at, value);
            sum[u] = sum[u] + value;
        }
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf value = exp_of(vf_load_as_n(dtype, x, i, n), max);
        vf_store_n(e + i, value, n);
        sum[0] = sum[0] + vf_keep_n(value, n, 0.0f);
    }
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// y = e factor. Non-temporal stores need whole aligned vectors, so the ends use ordinary stores.
SIMD_INLINE void sweep_scale(tsr_dtype dtype, const float *e, float factor, void *y, int64_t cols,
                             bool is_streaming) {
    vf f = vf_set1(factor);
    int64_t i = 0;
    if (is_streaming) {
        int64_t head = simd_stream_head(dtype, y);
        if (head > cols) head = cols;
        vf_store_as_n(dtype, y, 0, vf_load_n(e, head) * f, head);
        for (i = head; i + VL <= cols; i += VL) vf_stream_as(dtype, y, i, vf_load(e + i) * f);
    } else {
        for (; i + VL <= cols; i += VL) vf_store_as(dtype, y, i, vf_load(e + i) * f);
    }
    if (i < cols) vf_store_as_n(dtype, y, i, vf_load_n(e + i, cols - i) * f, cols - i);
}

SIMD_INLINE void combine_row(tsr_dtype dtype, const void *y, const void *dy, float row_sum,
                             void *dx, int64_t cols, bool is_streaming) {
    vf sum = vf_set1(row_sum);
    int64_t i = 0, head = is_streaming ? simd_stream_head(dtype, dx) : 0;
    if (head > cols) head = cols;
    if (head > 0) {
        vf value = vf_load_as_n(dtype, y, 0, head) * (vf_load_as_n(dtype, dy, 0, head) - sum);
        vf_store_as_n(dtype, dx, 0, value, head);
        i = head;
    }
    for (; i + VL <= cols; i += VL) {
        vf value = vf_load_as(dtype, y, i) * (vf_load_as(dtype, dy, i) - sum);
        if (is_streaming)
            vf_stream_as(dtype, dx, i, value);
        else
            vf_store_as(dtype, dx, i, value);
    }
    if (i < cols) {
        int64_t n = cols - i;
        vf value = vf_load_as_n(dtype, y, i, n) * (vf_load_as_n(dtype, dy, i, n) - sum);
        vf_store_as_n(dtype, dx, i, value, n);
    }
}

// ---- Passes --------------------------------------------------------------------------------

SIMD_INLINE float *row_scratch(const struct softmax_problem *p, float *scratch, int64_t row) {
    return scratch + row * p->out.cols;
}
SIMD_INLINE float *row_value(const struct softmax_problem *p, float *scratch, int64_t row) {
    return scratch + p->out.rows * p->out.cols + row;
}

#define UNFUSED_PASS(name, statement)                                                              \
    SIMD_INLINE void name##_as(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,    \
                               int64_t last, float *scratch, bool is_streaming) {                  \
        (void)dtype, (void)is_streaming;                                                           \
        int64_t cols = p->out.cols;                                                                \
        for (int64_t row = first; row < last; row++) {                                             \
            const void *in = tsri_row(&p->in[0], row);                                             \
            float *e = row_scratch(p, scratch, row), *value = row_value(p, scratch, row);          \
            (void)in, (void)cols;                                                                  \
            statement;                                                                             \
        }                                                                                          \
    }                                                                                              \
    BY_DTYPE(name)

UNFUSED_PASS(max_pass, *value = simd_max_of(dtype, in, cols); (void)e)
UNFUSED_PASS(exp_sum_pass, *value = sweep_exp(dtype, in, *value, e, cols))
UNFUSED_PASS(divide_pass, sweep_scale(dtype, e, *value == 0 ? 0 : 1 / *value,
                                      tsri_row(&p->out, row), cols, is_streaming))

SIMD_INLINE void product_row(tsr_dtype dtype, const void *y, const void *dy, float *product,
                             int64_t cols) {
    for (int64_t i = 0; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf_store_n(product + i, vf_load_as_n(dtype, y, i, n) * vf_load_as_n(dtype, dy, i, n), n);
    }
}

SIMD_INLINE float sum_row(const float *e, int64_t cols) {
    vf sum = vf_set1(0.0f);
    for (int64_t i = 0; i < cols; i += VL)
        sum = sum + vf_load_n(e + i, cols - i < VL ? cols - i : VL);
    return vf_hsum(sum);
}

UNFUSED_PASS(product_pass, product_row(dtype, in, tsri_row(&p->in[1], row), e, cols); (void)value)
UNFUSED_PASS(sum_pass, *value = sum_row(e, cols))
UNFUSED_PASS(combine_pass, combine_row(dtype, in, tsri_row(&p->in[1], row), *value,
                                       tsri_row(&p->out, row), cols, is_streaming);
             (void)e)

const struct softmax_unfused_kernels TSRI_KERNEL_TABLE(softmax_unfused) = {
    .max_pass = max_pass,
    .exp_sum_pass = exp_sum_pass,
    .divide_pass = divide_pass,
    .product_pass = product_pass,
    .sum_pass = sum_pass,
    .combine_pass = combine_pass,
};
