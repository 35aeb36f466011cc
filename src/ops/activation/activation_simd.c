// SPDX-License-Identifier: Apache-2.0
// Activations forward and backward, y = act(x) (up), dx = dy act'(x) (up), dup = dy act(x), of (rows, cols), compiled
// once per instruction set. All inputs of a vector are loaded before any output is stored, so an output may be an
// input. dtype, kind and gating are constants inside the loops.
// Floor: inputs read once, outputs written once: in f32 8 bytes an element forward and 12 backward, gated 12 and 20, half of that
// in 16 bits.
// Limit: memory; on one core, with 16-bit tensors, the arithmetic of GELU and SiLU.
// Figures: docs/kernels/elementwise.md, on 16 threads docs/kernels/rows.md.
#include "cpu/simd_elements.h"
#include "ops/activation/activation_problem.h"
#include "ops/activation/activation_weighted.h"

// The address of element (row, col).
SIMD_INLINE void *at(tsr_dtype dtype, const struct tsri_rows *t, int64_t row, int64_t col) {
    return t->data + (row * t->stride + col) * (dtype == TSR_F32 ? 4 : 2);
}

// ---- Passes over a span -----------------------------------------------------------------------

SIMD_INLINE void act_span(tsr_dtype dtype, tsr_activation kind, bool is_grad, const void *x,
                          float *out, int64_t length) {
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf value = vf_get(access, dtype, x, i, n);                                                 \
        value = is_grad ? vf_activate_grad(kind, value) : vf_activate(kind, value);                \
        vf_put(access, TSR_F32, out, i, value, n);                                                 \
    } while (0)
    SIMD_FOR_SPAN(length, 0, false, STEP);
#undef STEP
}

// What a product multiplies a by: gate(up), dy gate(up) by chain(), dy gate'(up), dy, or nothing.
enum factors { BY_GATE, BY_CHAIN, BY_DY_AND_SLOPE, BY_DY, BY_NOTHING };

SIMD_INLINE void product_span(tsr_dtype dtype, tsr_activation kind, enum factors factors,
                              const float *a, const void *dy, const void *up, tsr_dtype out_dtype,
                              void *out, int64_t length, bool is_streaming) {
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf value = vf_load_n(a + (i), n);                                                          \
        if (factors == BY_GATE) value = value * vf_gate(kind, vf_get(access, dtype, up, i, n));    \
        if (factors == BY_CHAIN)                                                                   \
            value = chain(vf_get(access, dtype, dy, i, n), value,                                  \
                          vf_gate(kind, vf_get(access, dtype, up, i, n)));                         \
        if (factors == BY_DY || factors == BY_DY_AND_SLOPE)                                        \
            value = value * vf_get(access, dtype, dy, i, n);                                       \
        if (factors == BY_DY_AND_SLOPE)                                                            \
            value = value * vf_gate_grad(kind, vf_get(access, dtype, up, i, n));                   \
        vf_put(access, out_dtype, out, i, value, n);                                               \
    } while (0)
    SIMD_FOR_SPAN(length, simd_stream_head(out_dtype, out), is_streaming, STEP);
#undef STEP
}

// ---- Spans of one row -------------------------------------------------------------------------

SIMD_INLINE void forward_span(tsr_dtype dtype, tsr_activation kind, bool is_gated,
                              const struct activation_problem *p, int64_t row, int64_t col,
                              int64_t length, bool is_streaming) {
    const void *x = at(dtype, &p->x, row, col), *up = is_gated ? at(dtype, &p->up, row, col) : x;
    void *y = at(dtype, &p->y, row, col);
    if (is_smooth_in_16_bits(dtype, kind)) {
        smooth_span(dtype, kind, false, x, is_gated ? up : NULL, y, length, is_streaming);
        return;
    }
#define VALUE(access, i, n)                                                                        \
    (is_gated ? (vf)(vf_activate(kind, vf_get(access, dtype, x, i, n)) *                           \
                     vf_gate(kind, vf_get(access, dtype, up, i, n)))                               \
              : vf_activate(kind, vf_get(access, dtype, x, i, n)))
    SIMD_FOR_VALUES(dtype, y, length, is_streaming, VALUE);
#undef VALUE
}

SIMD_INLINE void backward_span(tsr_dtype dtype, tsr_activation kind, bool is_gated,
                               const struct activation_problem *p, int64_t row, int64_t col,
                               int64_t length, bool is_streaming) {
    const void *x = at(dtype, &p->x, row, col), *up = is_gated ? at(dtype, &p->up, row, col) : x;
    const void *dy = at(dtype, &p->dy, row, col);
    void *dx = at(dtype, &p->y, row, col), *dup = is_gated ? at(dtype, &p->dup, row, col) : dx;
    if (!is_gated && is_smooth_in_16_bits(dtype, kind)) {
        smooth_span(dtype, kind, true, x, dy, dx, length, is_streaming);
        return;
    }
    if (!is_gated) {
#define VALUE(access, i, n)                                                                        \
    (vf_get(access, dtype, dy, i, n) * vf_activate_grad(kind, vf_get(access, dtype, x, i, n)))
        SIMD_FOR_VALUES(dtype, dx, length, is_streaming, VALUE);
#undef VALUE
        return;
    }
    struct gated g = {x, up, dy, dx, dup};
    gated_span(dtype, kind, &g, length, is_streaming);
}

// A whole row: piece->first_col is 0.
SIMD_INLINE void weighted_span(tsr_dtype dtype, tsr_activation kind,
                               const struct activation_problem *p, int64_t row, bool is_streaming) {
    struct weighted g = {at(dtype, &p->x, row, 0),
                         NULL,
                         at(dtype, &p->dy, row, 0),
                         at(dtype, &p->y, row, 0),
                         NULL,
                         NULL,
                         vf_set1(1.0f)};
    if (p->is_gated) g.up = at(dtype, &p->up, row, 0), g.dup = at(dtype, &p->dup, row, 0);
    if (p->weighted_y.dtype != TSR_DTYPE_NONE) g.y = at(dtype, &p->weighted_y, row, 0);
    if (p->row_weights.dtype != TSR_DTYPE_NONE)
        g.weight = vf_one_nan(vf_set1(*(const float *)at(TSR_F32, &p->row_weights, row, 0)));
    const float sum = weighted_row(dtype, kind, &g, p->y.cols, is_streaming);
    if (p->drow_weights.dtype != TSR_DTYPE_NONE)
        *(float *)at(TSR_F32, &p->drow_weights, row, 0) = sum;
}

// ---- Unfused passes ---------------------------------------------------------------------------
// first and second: scratch with act(x) or act'(x), and in backward act(x).

SIMD_INLINE float *scratch_at(const struct activation_problem *p, float *scratch, int copy,
                              int64_t row, int64_t col) {
    return scratch + (copy * p->y.rows + row) * p->y.cols + col;
}

// ---- Instantiations ---------------------------------------------------------------------------

#define KERNEL_ARGUMENTS                                                                           \
    const struct activation_problem *p, const struct tsri_piece *piece, float *scratch,            \
        bool is_streaming

// Defines a kernel by a statement on (dtype, row), with dtype a constant.
#define BY_DTYPE(name, statement)                                                                  \
    SIMD_INLINE void name##_as(tsr_dtype dtype, KERNEL_ARGUMENTS) {                                \
        int64_t col = piece->first_col, length = piece->last_col - col;                            \
        (void)scratch, (void)is_streaming;                                                         \
        for (int64_t row = piece->first_row; row < piece->last_row; row++) statement;              \
    }                                                                                              \
    static void name(KERNEL_ARGUMENTS) {                                                           \
        switch (p->y.dtype) {                                                                      \
        case TSR_BF16: name##_as(TSR_BF16, p, piece, scratch, is_streaming); break;                \
        case TSR_F16: name##_as(TSR_F16, p, piece, scratch, is_streaming); break;                  \
        default: name##_as(TSR_F32, p, piece, scratch, is_streaming);                              \
        }                                                                                          \
        if (is_streaming) vf_stream_fence();                                                       \
    }

// The same for each kind and gating, as constants.
#define BY_KIND(name, CALL)                                                                        \
    BY_DTYPE(name##_none, CALL(TSR_ACTIVATION_NONE))                                               \
    BY_DTYPE(name##_gelu, CALL(TSR_ACTIVATION_GELU))                                               \
    BY_DTYPE(name##_gelu_tanh, CALL(TSR_ACTIVATION_GELU_TANH))                                     \
    BY_DTYPE(name##_silu, CALL(TSR_ACTIVATION_SILU))                                               \
    BY_DTYPE(name##_relu, CALL(TSR_ACTIVATION_RELU))                                               \
    BY_DTYPE(name##_relu2, CALL(TSR_ACTIVATION_RELU2))                                             \
    BY_DTYPE(name##_swiglu_clamped, CALL(TSR_ACTIVATION_SWIGLU_CLAMPED))                           \
    static activation_kernel *const name##_by_kind[TSR_ACTIVATION_COUNT] = {                       \
        name##_none, name##_gelu,  name##_gelu_tanh,     name##_silu,                              \
        name##_relu, name##_relu2, name##_swiglu_clamped}

#define FORWARD(kind) forward_span(dtype, kind, false, p, row, col, length, is_streaming)
#define FORWARD_GATED(kind) forward_span(dtype, kind, true, p, row, col, length, is_streaming)
#define BACKWARD(kind) backward_span(dtype, kind, false, p, row, col, length, is_streaming)
#define BACKWARD_GATED(kind) backward_span(dtype, kind, true, p, row, col, length, is_streaming)
BY_KIND(forward_plain, FORWARD);
BY_KIND(forward_gated, FORWARD_GATED);
BY_KIND(backward_plain, BACKWARD);
BY_KIND(backward_gated, BACKWARD_GATED);

#define WEIGHTED(kind) ((void)col, (void)length, weighted_span(dtype, kind, p, row, is_streaming))
BY_KIND(weighted, WEIGHTED);

#define ACT_SPAN(kind, is_grad, copy)                                                              \
    act_span(dtype, kind, is_grad, at(dtype, &p->x, row, col),                                     \
             scratch_at(p, scratch, copy, row, col), length)
#define ACT(kind) ACT_SPAN(kind, false, 0)
#define ACT_SECOND(kind) ACT_SPAN(kind, false, 1)
#define GRAD(kind) ACT_SPAN(kind, true, 0)
BY_KIND(act, ACT);
BY_KIND(act_second, ACT_SECOND);
BY_KIND(grad, GRAD);

static void forward(KERNEL_ARGUMENTS) {
    (p->is_gated ? forward_gated_by_kind : forward_plain_by_kind)[p->kind](p, piece, scratch,
                                                                           is_streaming);
}
static void backward(KERNEL_ARGUMENTS) {
    (p->is_gated ? backward_gated_by_kind : backward_plain_by_kind)[p->kind](p, piece, scratch,
                                                                             is_streaming);
}
static void weighted(KERNEL_ARGUMENTS) {
    weighted_by_kind[p->kind](p, piece, scratch, is_streaming);
}
static void act_pass(KERNEL_ARGUMENTS) { act_by_kind[p->kind](p, piece, scratch, is_streaming); }
static void act_second_pass(KERNEL_ARGUMENTS) {
    act_second_by_kind[p->kind](p, piece, scratch, is_streaming);
}
static void grad_pass(KERNEL_ARGUMENTS) { grad_by_kind[p->kind](p, piece, scratch, is_streaming); }

// Of SWIGLU_CLAMPED; every other kind has the gate of NONE.
#define PRODUCT_AS(kind, copy, factors, out_dtype, out, streaming)                                 \
    product_span(dtype, kind, factors, scratch_at(p, scratch, copy, row, col),                     \
                 factors > BY_GATE && factors < BY_NOTHING ? at(dtype, &p->dy, row, col) : NULL,   \
                 factors < BY_DY ? at(dtype, &p->up, row, col) : NULL, out_dtype, out, length,     \
                 streaming)
#define PRODUCT(copy, factors, out_dtype, out, streaming)                                          \
    do {                                                                                           \
        if (p->kind == TSR_ACTIVATION_SWIGLU_CLAMPED)                                              \
            PRODUCT_AS(TSR_ACTIVATION_SWIGLU_CLAMPED, copy, factors, out_dtype, out, streaming);   \
        else                                                                                       \
            PRODUCT_AS(TSR_ACTIVATION_NONE, copy, factors, out_dtype, out, streaming);             \
    } while (0)
#define SCRATCH(copy) scratch_at(p, scratch, copy, row, col)
#define CHAIN(factors) PRODUCT(0, factors, TSR_F32, SCRATCH(0), false)
#define CHAIN_UP(factors) PRODUCT(1, factors, TSR_F32, SCRATCH(1), false)
BY_DTYPE(multiply_pass, PRODUCT(0, BY_GATE, dtype, at(dtype, &p->y, row, col), is_streaming))
BY_DTYPE(round_pass, PRODUCT(0, BY_NOTHING, dtype, at(dtype, &p->y, row, col), is_streaming))
BY_DTYPE(chain_gated_pass, CHAIN(BY_CHAIN))
BY_DTYPE(chain_plain_pass, CHAIN(BY_DY))
BY_DTYPE(chain_up_clamped_pass, CHAIN_UP(BY_DY_AND_SLOPE))
BY_DTYPE(chain_up_plain_pass, CHAIN_UP(BY_DY))
BY_DTYPE(round_dx_pass, PRODUCT(0, BY_NOTHING, dtype, at(dtype, &p->y, row, col), is_streaming))
BY_DTYPE(round_dup_pass, PRODUCT(1, BY_NOTHING, dtype, at(dtype, &p->dup, row, col), is_streaming))
static void chain_pass(KERNEL_ARGUMENTS) {
    (p->is_gated ? chain_gated_pass : chain_plain_pass)(p, piece, scratch, is_streaming);
}
static void chain_up_pass(KERNEL_ARGUMENTS) {
    (p->kind == TSR_ACTIVATION_SWIGLU_CLAMPED ? chain_up_clamped_pass : chain_up_plain_pass)(
        p, piece, scratch, is_streaming);
}

const struct activation_kernels TSRI_KERNEL_TABLE(activation) = {
    .forward = forward,
    .backward = backward,
    .weighted = weighted,
    .act_pass = act_pass,
    .multiply_pass = multiply_pass,
    .round_pass = round_pass,
    .grad_pass = grad_pass,
    .chain_pass = chain_pass,
    .round_dx_pass = round_dx_pass,
    .act_second_pass = act_second_pass,
    .chain_up_pass = chain_up_pass,
    .round_dup_pass = round_dup_pass,
};
