// SPDX-License-Identifier: Apache-2.0
// The weighted sum of a token's rows and its gradients, compiled once per instruction set. Forward: some vectors of columns at a
// time in registers, through all rows in order. Backward: a token's gradient stays in the first-level cache while its rows pass.
// Floor: each row read once, forward each token written once; backward each row's gradient written once.
// Limit: memory.
// Figures: docs/kernels/moe.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_nan.h"
#include "ops/moe_combine/moe_combine_problem.h"

enum { BLOCK = 8 }; // vectors of columns at a time

// ---- Forward ----------------------------------------------------------------------------------

struct token {
    const int32_t *rows;
    const float *weights;
    const void *shared, *residual; // NULL: none
    float gate;
    bool is_residual_f32;
};

static struct token token_of(const struct moe_combine_problem *p, int64_t t) {
    double slope;
    struct token token = {.rows = tsri_row(&p->token_rows, t), .gate = 1};
    if (moe_is_given(&p->weights)) token.weights = tsri_row(&p->weights, t);
    if (moe_is_given(&p->shared)) token.shared = tsri_row(&p->shared, t);
    if (moe_is_given(&p->residual)) token.residual = tsri_row(&p->residual, t);
    if (moe_is_given(&p->shared_gate))
        token.gate =
            (float)moe_sigmoid_of((double)*(const float *)tsri_row(&p->shared_gate, t), &slope);
    token.is_residual_f32 = p->residual.dtype == TSR_F32;
    return token;
}

// The next token's rows begin anywhere in memory.
SIMD_INLINE void fetch_rows(const struct moe_combine_problem *p, int64_t t) {
    enum { LINE = 64, LINES = 4, MOST = 16 };
    const int32_t *rows = tsri_row(&p->token_rows, t);
    for (int64_t k = 0; k < p->top_k && k < MOST; k++)
        for (int i = 0; rows[k] >= 0 && i < LINES; i++)
            __builtin_prefetch((const char *)tsri_row(&p->rows, rows[k]) + i * LINE, 0, 2);
}

// Columns of a token from i on: `width` vectors, or with SIMD_PART the first n lanes of one.
SIMD_INLINE void sum_columns(tsr_dtype dtype, enum simd_access access,
                             const struct moe_combine_problem *p, const struct token *token,
                             int64_t i, int width, int64_t n, vf *sum) {
    for (int v = 0; v < width; v++) sum[v] = vf_set1(0.0f);
    for (int64_t k = 0; k < p->top_k; k++) {
        if (token->rows[k] < 0) continue;
        const void *row = tsri_row(&p->rows, token->rows[k]);
        const vf weight = vf_set1(token->weights != NULL ? token->weights[k] : 1.0f);
        for (int v = 0; v < width; v++)
            sum[v] = vf_fma(weight, vf_get(access, dtype, row, i + v * VL, n), sum[v]);
    }
    if (token->shared != NULL) {
        const vf gate = vf_set1(token->gate);
        for (int v = 0; v < width; v++)
            sum[v] = vf_fma(gate, vf_get(access, dtype, token->shared, i + v * VL, n), sum[v]);
    }
    if (token->residual != NULL && token->is_residual_f32)
        for (int v = 0; v < width; v++)
            sum[v] = sum[v] + vf_get(access, TSR_F32, token->residual, i + v * VL, n);
    else if (token->residual != NULL)
        for (int v = 0; v < width; v++)
            sum[v] = sum[v] + vf_get(access, dtype, token->residual, i + v * VL, n);
    for (int v = 0; v < width; v++) sum[v] = vf_one_nan(sum[v]);
}

SIMD_INLINE void sum_part(tsr_dtype dtype, const struct moe_combine_problem *p,
                          const struct token *token, int64_t i, int64_t n, void *y) {
    vf sum[1];
    sum_columns(dtype, SIMD_PART, p, token, i, 1, n, sum);
    vf_store_as_n(dtype, y, i, sum[0], n);
}

SIMD_INLINE void forward_as(tsr_dtype dtype, const struct moe_combine_problem *p, int64_t first,
                            int64_t last, bool is_streaming) {
    const int64_t cols = p->y.cols;
    for (int64_t t = first; t < last; t++) {
        const struct token token = token_of(p, t);
        void *y = tsri_row(&p->y, t);
        int64_t i = 0, head = is_streaming ? simd_line_head(dtype, y) : 0;
        if (t + 1 < last) fetch_rows(p, t + 1);
        if (head > cols) head = cols;
        for (; i < head; i += VL) sum_part(dtype, p, &token, i, head - i < VL ? head - i : VL, y);
        for (i = head; i + BLOCK * VL <= cols; i += BLOCK * VL) {
            vf sum[BLOCK];
            sum_columns(dtype, SIMD_WHOLE, p, &token, i, BLOCK, VL, sum);
            for (int v = 0; v < BLOCK; v += 2)
                if (is_streaming) {
                    vf_stream_two_as(dtype, y, i + v * VL, sum[v], sum[v + 1]);
                } else {
                    vf_store_as(dtype, y, i + v * VL, sum[v]);
                    vf_store_as(dtype, y, i + (v + 1) * VL, sum[v + 1]);
                }
        }
        for (; i + VL <= cols; i += VL) {
            vf sum[1];
            sum_columns(dtype, SIMD_WHOLE, p, &token, i, 1, VL, sum);
            vf_store_as(dtype, y, i, sum[0]);
        }
        if (i < cols) sum_part(dtype, p, &token, i, cols - i, y);
    }
    if (is_streaming) vf_stream_fence();
}

// ---- Backward ---------------------------------------------------------------------------------

// to = factor dy.
SIMD_INLINE void scale_row(tsr_dtype dtype, float factor, const void *dy, void *to, int64_t cols,
                           bool is_streaming) {
    const vf by = vf_set1(factor);
#define VALUE(access, i, n)                                                                        \
    vf_one_nan(by *vf_get((access) == SIMD_PART ? SIMD_PART : SIMD_WHOLE, dtype, dy, i, n))
    SIMD_FOR_VALUES(dtype, to, cols, is_streaming, VALUE);
#undef VALUE
}

// <a, b>: sums of up to 64 products a lane, then the sum of these, so that errors grow slowly.
SIMD_INLINE float dot(tsr_dtype dtype, const void *a, const void *b, int64_t cols) {
    enum { SUMS = 4, STEP = SUMS * VL, SPAN = 64 * STEP };
    vf all[SUMS], sum[SUMS];
    int64_t i = 0;
    for (int s = 0; s < SUMS; s++) all[s] = vf_set1(0.0f);
    while (i + STEP <= cols) {
        const int64_t end = cols - i < SPAN ? cols : i + SPAN;
        for (int s = 0; s < SUMS; s++) sum[s] = vf_set1(0.0f);
        for (; i + STEP <= end; i += STEP)
            for (int s = 0; s < SUMS; s++)
                sum[s] = vf_fma(vf_load_as(dtype, a, i + s * VL), vf_load_as(dtype, b, i + s * VL),
                                sum[s]);
        for (int s = 0; s < SUMS; s++) all[s] = all[s] + sum[s];
    }
    for (; i < cols; i += VL) {
        const int64_t n = cols - i < VL ? cols - i : VL;
        all[0] = vf_fma(vf_load_as_n(dtype, a, i, n), vf_load_as_n(dtype, b, i, n), all[0]);
    }
    const float result = vf_hsum((all[0] + all[1]) + (all[2] + all[3]));
    return result == result ? result : -__builtin_nanf("");
}

SIMD_INLINE void backward_as(tsr_dtype dtype, const struct moe_combine_problem *p, int64_t first,
                             int64_t last, const int64_t *owners, bool is_streaming) {
    const int64_t cols = p->y.cols, top_k = moe_has_row_gradients(p) ? p->top_k : 0;
    for (int64_t t = first; t < last; t++) {
        const void *dy = tsri_row(&p->y, t);
        const int32_t *rows = top_k > 0 ? tsri_row(&p->token_rows, t) : NULL;
        const float *weights = moe_is_given(&p->weights) ? tsri_row(&p->weights, t) : NULL;
        float *dweights = moe_is_given(&p->dweights) ? tsri_row(&p->dweights, t) : NULL;
        double slope = 0, gate = 1;
        for (int64_t k = 0; k < top_k; k++) {
            const int32_t row = rows[k];
            if (dweights != NULL)
                dweights[k] = row >= 0 ? dot(dtype, dy, tsri_row(&p->rows, row), cols) : 0;
            if (!moe_is_given(&p->drows) || row < 0) continue;
            if (owners == NULL || owners[row] == t * top_k + k)
                scale_row(dtype, weights != NULL ? weights[k] : 1.0f, dy, tsri_row(&p->drows, row),
                          cols, is_streaming);
        }
        if (moe_is_given(&p->shared_gate))
            gate = moe_sigmoid_of((double)*(const float *)tsri_row(&p->shared_gate, t), &slope);
        if (moe_is_given(&p->dshared_gate)) {
            const double product = (double)dot(dtype, dy, tsri_row(&p->shared, t), cols) * slope;
            *(float *)tsri_row(&p->dshared_gate, t) =
                product == product ? (float)product : -__builtin_nanf("");
        }
        if (moe_is_given(&p->dshared)) // last, as it may be dy
            scale_row(dtype, (float)gate, dy, tsri_row(&p->dshared, t), cols, false);
    }
    if (is_streaming) vf_stream_fence();
}

// ---- By dtype -----------------------------------------------------------------------------------

#define BY_DTYPE(call, ...)                                                                        \
    switch (p->y.dtype) {                                                                          \
    case TSR_BF16: call(TSR_BF16, __VA_ARGS__); break;                                             \
    case TSR_F16: call(TSR_F16, __VA_ARGS__); break;                                               \
    default: call(TSR_F32, __VA_ARGS__);                                                           \
    }

static void forward(const struct moe_combine_problem *p, int64_t first, int64_t last,
                    bool is_streaming) {
    BY_DTYPE(forward_as, p, first, last, is_streaming)
}

static void backward(const struct moe_combine_problem *p, int64_t first, int64_t last,
                     const int64_t *owners, bool is_streaming) {
    BY_DTYPE(backward_as, p, first, last, owners, is_streaming)
}

const struct moe_combine_kernels TSRI_KERNEL_TABLE(moe_combine) = {
    .forward = forward,
    .backward = backward,
};
