// SPDX-License-Identifier: Apache-2.0
// One step of AdamW on param, grad, m, v and perhaps master, all of (rows, cols), compiled once per instruction set.
// The dtypes and the presence of a master are constants inside the loops.
// Floor: each tensor read once and, but for grad, written once: 28 bytes an element in f32, 22 with bf16 param and grad, 28 of
// those with a master.
// Limit: memory; a square root and a division a vector hide behind it.
// Figures: docs/kernels/elementwise.md, on 16 threads docs/kernels/rows.md.
#include "cpu/simd_elements.h"
#include "ops/adamw/adamw_problem.h"

// The address of element (row, col).
SIMD_INLINE void *at(tsr_dtype dtype, const struct tsri_rows *t, int64_t row, int64_t col) {
    return t->data + (row * t->stride + col) * (dtype == TSR_F32 ? 4 : 2);
}

struct coefficients {
    vf grad_scale, beta1, rest1, beta2, rest2, rate, root_factor, eps, decay;
};

SIMD_INLINE struct coefficients coefficients_of(const struct adamw_problem *p) {
    return (struct coefficients){
        vf_set1((float)p->grad_scale),  vf_set1((float)p->beta1), vf_set1((float)p->rest1),
        vf_set1((float)p->beta2),       vf_set1((float)p->rest2), vf_set1((float)p->rate),
        vf_set1((float)p->root_factor), vf_set1((float)p->eps),   vf_set1((float)p->decay)};
}

// rest2 g^2, in an order that overflows only if the product does.
SIMD_INLINE vf next_v(const struct coefficients *k, vf v, vf g) {
    return vf_fma(k->beta2, v, (k->rest2 * g) * g);
}
SIMD_INLINE vf next_m(const struct coefficients *k, vf m, vf g) {
    return vf_fma(k->beta1, m, k->rest1 * g);
}
SIMD_INLINE vf root(const struct coefficients *k, vf v) {
    return vf_fma(vf_sqrt(v), k->root_factor, k->eps);
}
// The difference is rounded once.
SIMD_INLINE vf next_p(const struct coefficients *k, vf p, vf quotient) {
    return p - vf_fma(k->decay, p, quotient);
}

// With 16-bit elements, every second fetch repeats a line, which costs less than a test.
SIMD_INLINE void fetch_far(const void *x) { __builtin_prefetch(simd_far_line((uintptr_t)x), 0, 2); }

// ---- Fused ------------------------------------------------------------------------------------

SIMD_INLINE void step_span(tsr_dtype dtype, tsr_dtype grad_dtype, bool has_master,
                           const struct adamw_problem *problem, int64_t row, int64_t col,
                           int64_t length, bool is_streaming) {
    struct coefficients k = coefficients_of(problem);
    const void *grad = at(grad_dtype, &problem->grad, row, col);
    void *param = at(dtype, &problem->param, row, col);
    float *m = at(TSR_F32, &problem->m, row, col), *v = at(TSR_F32, &problem->v, row, col);
    float *master = has_master ? at(TSR_F32, &problem->master, row, col) : NULL;
    bool is_fetching = is_streaming && tsri_gains_from_far_lines();
    // Only a param with a master may use non-temporal stores: the other outputs were just read.
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        enum simd_access plain = access == SIMD_PART ? SIMD_PART : SIMD_WHOLE;                     \
        if (is_fetching) {                                                                         \
            fetch_far(m + (i));                                                                    \
            fetch_far(v + (i));                                                                    \
            fetch_far((char *)grad + (i) * (grad_dtype == TSR_F32 ? 4 : 2));                       \
            if (has_master) fetch_far(master + (i));                                               \
            if (!has_master) fetch_far((char *)param + (i) * (dtype == TSR_F32 ? 4 : 2));          \
        }                                                                                          \
        vf g = vf_get(access, grad_dtype, grad, i, n) * k.grad_scale;                              \
        vf new_m = next_m(&k, vf_get(access, TSR_F32, m, i, n), g);                                \
        vf new_v = next_v(&k, vf_get(access, TSR_F32, v, i, n), g);                                \
        vf p = vf_get(access, has_master ? TSR_F32 : dtype, has_master ? master : param, i, n);    \
        p = next_p(&k, p, k.rate * new_m / root(&k, new_v));                                       \
        vf_put(plain, TSR_F32, m, i, new_m, n);                                                    \
        vf_put(plain, TSR_F32, v, i, new_v, n);                                                    \
        if (has_master) vf_put(plain, TSR_F32, master, i, p, n);                                   \
        vf_put(has_master ? access : plain, dtype, param, i, p, n);                                \
    } while (0)
    SIMD_FOR_SPAN(length, simd_stream_head(dtype, param), is_streaming, STEP);
#undef STEP
}

// ---- Unfused passes ---------------------------------------------------------------------------
// Scratch 0: g, later the quotient; scratch 1: the square root.

SIMD_INLINE float *scratch_at(const struct adamw_problem *p, float *scratch, int copy, int64_t row,
                              int64_t col) {
    return scratch + (copy * p->m.rows + row) * p->m.cols + col;
}

SIMD_INLINE void scale_span(tsr_dtype grad_dtype, const struct adamw_problem *p, const void *grad,
                            float *g, int64_t length) {
    vf scale = vf_set1((float)p->grad_scale);
#define STEP(access, i, n)                                                                         \
    vf_put(access, TSR_F32, g, i, vf_get(access, grad_dtype, grad, i, n) * scale, n)
    SIMD_FOR_SPAN(length, 0, false, STEP);
#undef STEP
}

// out = FUNCTION(a, b) on floats; out may be a or b.
#define FLOAT_SPAN(name, FUNCTION)                                                                 \
    SIMD_INLINE void name(const struct adamw_problem *problem, const float *a, const float *b,     \
                          float *out, int64_t length) {                                            \
        struct coefficients k = coefficients_of(problem);                                          \
        for (int64_t i = 0; i < length; i += VL) {                                                 \
            int64_t n = length - i < VL ? length - i : VL;                                         \
            vf va = vf_load_n(a + i, n), vb = vf_load_n(b + i, n);                                 \
            vf_store_n(out + i, FUNCTION(&k, va, vb), n);                                          \
        }                                                                                          \
    }
SIMD_INLINE vf root_of_first(const struct coefficients *k, vf v, vf unused) {
    (void)unused;
    return root(k, v);
}
SIMD_INLINE vf quotient(const struct coefficients *k, vf m, vf denominator) {
    return k->rate * m / denominator;
}
FLOAT_SPAN(m_span, next_m)
FLOAT_SPAN(v_span, next_v)
FLOAT_SPAN(root_span, root_of_first)
FLOAT_SPAN(quotient_span, quotient)

SIMD_INLINE void update_span(tsr_dtype dtype, bool has_master, const struct adamw_problem *problem,
                             const float *change, float *master, void *param, int64_t length) {
    struct coefficients k = coefficients_of(problem);
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf p = vf_get(access, has_master ? TSR_F32 : dtype, has_master ? master : param, i, n);    \
        p = next_p(&k, p, vf_get(access, TSR_F32, change, i, n));                                  \
        if (has_master) vf_put(access, TSR_F32, master, i, p, n);                                  \
        vf_put(access, dtype, param, i, p, n);                                                     \
    } while (0)
    SIMD_FOR_SPAN(length, 0, false, STEP);
#undef STEP
}

// ---- Instantiations ---------------------------------------------------------------------------

#define KERNEL_ARGUMENTS                                                                           \
    const struct adamw_problem *p, const struct tsri_piece *piece, float *scratch, bool is_streaming

// Defines a kernel by a statement on row, col and length.
#define KERNEL(name, statement)                                                                    \
    static void name(KERNEL_ARGUMENTS) {                                                           \
        int64_t col = piece->first_col, length = piece->last_col - col;                            \
        (void)scratch, (void)is_streaming;                                                         \
        for (int64_t row = piece->first_row; row < piece->last_row; row++) statement;              \
    }

#define STEP_KERNELS(name, dtype, grad_dtype)                                                      \
    KERNEL(name, step_span(dtype, grad_dtype, false, p, row, col, length, is_streaming))           \
    KERNEL(name##_master, step_span(dtype, grad_dtype, true, p, row, col, length, is_streaming))
STEP_KERNELS(step_f32, TSR_F32, TSR_F32)
STEP_KERNELS(step_bf16, TSR_BF16, TSR_BF16)
STEP_KERNELS(step_bf16_f32, TSR_BF16, TSR_F32)
STEP_KERNELS(step_f16, TSR_F16, TSR_F16)
STEP_KERNELS(step_f16_f32, TSR_F16, TSR_F32)

static void step(KERNEL_ARGUMENTS) {
    static adamw_kernel *const by_case[][2] = {{step_f32, step_f32_master},
                                               {step_bf16, step_bf16_master},
                                               {step_bf16_f32, step_bf16_f32_master},
                                               {step_f16, step_f16_master},
                                               {step_f16_f32, step_f16_f32_master}};
    int mixed = p->grad.dtype == TSR_F32;
    int which = p->param.dtype == TSR_BF16 ? 1 + mixed : p->param.dtype == TSR_F16 ? 3 + mixed : 0;
    by_case[which][p->has_master](p, piece, scratch, is_streaming);
    if (is_streaming) vf_stream_fence();
}

#define SCRATCH(copy) scratch_at(p, scratch, copy, row, col)
#define AT(view, dtype) at(dtype, &p->view, row, col)

SIMD_INLINE void scale_row(const struct adamw_problem *p, float *scratch, int64_t row, int64_t col,
                           int64_t length) {
    switch (p->grad.dtype) {
    case TSR_BF16: scale_span(TSR_BF16, p, AT(grad, TSR_BF16), SCRATCH(0), length); break;
    case TSR_F16: scale_span(TSR_F16, p, AT(grad, TSR_F16), SCRATCH(0), length); break;
    default: scale_span(TSR_F32, p, AT(grad, TSR_F32), SCRATCH(0), length);
    }
}

SIMD_INLINE void update_as(tsr_dtype dtype, const struct adamw_problem *p, float *scratch,
                           int64_t row, int64_t col, int64_t length) {
    if (p->has_master)
        update_span(dtype, true, p, SCRATCH(0), AT(master, TSR_F32), AT(param, dtype), length);
    else
        update_span(dtype, false, p, SCRATCH(0), NULL, AT(param, dtype), length);
}

SIMD_INLINE void update_row(const struct adamw_problem *p, float *scratch, int64_t row, int64_t col,
                            int64_t length) {
    switch (p->param.dtype) {
    case TSR_BF16: update_as(TSR_BF16, p, scratch, row, col, length); break;
    case TSR_F16: update_as(TSR_F16, p, scratch, row, col, length); break;
    default: update_as(TSR_F32, p, scratch, row, col, length);
    }
}

KERNEL(scale_pass, scale_row(p, scratch, row, col, length))
KERNEL(m_pass, m_span(p, AT(m, TSR_F32), SCRATCH(0), AT(m, TSR_F32), length))
KERNEL(v_pass, v_span(p, AT(v, TSR_F32), SCRATCH(0), AT(v, TSR_F32), length))
KERNEL(root_pass, root_span(p, AT(v, TSR_F32), AT(v, TSR_F32), SCRATCH(1), length))
KERNEL(quotient_pass, quotient_span(p, AT(m, TSR_F32), SCRATCH(1), SCRATCH(0), length))
KERNEL(update_pass, update_row(p, scratch, row, col, length))

const struct adamw_kernels TSRI_KERNEL_TABLE(adamw) = {
    .step = step,
    .scale_pass = scale_pass,
    .m_pass = m_pass,
    .v_pass = v_pass,
    .root_pass = root_pass,
    .quotient_pass = quotient_pass,
    .update_pass = update_pass,
};
