// SPDX-License-Identifier: Apache-2.0
// Blocks of 128 columns to fp8 with a scale, compiled once per instruction set. A block's values go to the first-level cache, with
// NaN for infinities; their largest magnitude gives the scale, and the second sweep converts. dtype, kind and gating are constants
// inside the loops.
// Floor: x and up read once, y and y_scale written once: 3.03 bytes an element of bf16, 5.03 with a gate.
// Limit: memory; on one core the arithmetic of the smooth activations and the conversion.
// Figures: docs/kernels/quantize.md.
#include "cpu/simd_activation.h"
#include "cpu/simd_elements.h"
#include "cpu/simd_to_fp8.h"
#include "ops/quantize/quantize_problem.h"

enum { BLOCK = QUANTIZE_BLOCK };

// Stores v of n columns and returns its largest finite magnitude. values has whole vectors.
SIMD_INLINE float values_as(tsr_dtype dtype, tsr_activation kind, const void *x, const void *up,
                            int64_t n, float values[BLOCK]) {
    const vf infinity = vf_set1(INFINITY), nan = vf_set1(NAN);
    vf most = vf_set1(0.0f);
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf v = vf_activate_for(dtype, kind, vf_get(access, dtype, x, i, n));                       \
        if (up != NULL) v = v * vf_gate(kind, vf_get(access, dtype, up, i, n));                    \
        const vf size = vf_abs(v);                                                                 \
        most = vf_max(most, vf_select_lt(size, infinity, size, vf_set1(0.0f)));                    \
        vf_store(values + (i), vf_select_lt(size, infinity, v, nan));                              \
    } while (0)
    SIMD_FOR_SPAN(n, 0, false, STEP);
#undef STEP
    return vf_hmax(most);
}

typedef float values_kernel(tsr_dtype dtype, const void *x, const void *up, int64_t n,
                            float values[BLOCK]);

#define VALUES_OF(name, kind)                                                                      \
    static float name(tsr_dtype dtype, const void *x, const void *up, int64_t n,                   \
                      float values[BLOCK]) {                                                       \
        switch (dtype) {                                                                           \
        case TSR_BF16: return GATED_OR_NOT(TSR_BF16, kind);                                        \
        case TSR_F16: return GATED_OR_NOT(TSR_F16, kind);                                          \
        default: return GATED_OR_NOT(TSR_F32, kind);                                               \
        }                                                                                          \
    }
#define GATED_OR_NOT(dtype, kind)                                                                  \
    (up != NULL ? values_as(dtype, kind, x, up, n, values)                                         \
                : values_as(dtype, kind, x, NULL, n, values))
VALUES_OF(values_none, TSR_ACTIVATION_NONE)
VALUES_OF(values_gelu, TSR_ACTIVATION_GELU)
VALUES_OF(values_gelu_tanh, TSR_ACTIVATION_GELU_TANH)
VALUES_OF(values_silu, TSR_ACTIVATION_SILU)
VALUES_OF(values_relu, TSR_ACTIVATION_RELU)
VALUES_OF(values_relu2, TSR_ACTIVATION_RELU2)
VALUES_OF(values_swiglu_clamped, TSR_ACTIVATION_SWIGLU_CLAMPED)
static values_kernel *const values_by_kind[TSR_ACTIVATION_COUNT] = {
    values_none, values_gelu,  values_gelu_tanh,     values_silu,
    values_relu, values_relu2, values_swiglu_clamped};

static void quantize_row(const struct quantize_problem *p, const struct tsri_piece *piece,
                         int64_t row) {
    _Alignas(64) float values[BLOCK];
    const int64_t source = quantize_source(p, row), bytes = tsri_dtype_bytes(p->x.dtype);
    const float largest = quantize_largest(p->y.dtype);
    const char *x = tsri_row(&p->x, source),
               *up = p->is_gated ? (const char *)tsri_row(&p->up, source) : NULL;
    uint8_t *y = tsri_row(&p->y, row);
    float *scale = tsri_row(&p->y_scale, row);
    for (int64_t col = piece->first_col; col < piece->last_col; col += BLOCK) {
        const int64_t n = tsri_min(piece->last_col - col, BLOCK);
        const float most = values_by_kind[p->kind](p->x.dtype, x + col * bytes,
                                                   up != NULL ? up + col * bytes : NULL, n, values);
        const float size = most > QUANTIZE_LEAST ? most : QUANTIZE_LEAST;
        if (p->y.dtype == TSR_E5M2)
            simd_floats_to_fp8(TSR_E5M2, values, y + col, n, largest / size);
        else
            simd_floats_to_fp8(TSR_E4M3, values, y + col, n, largest / size);
        scale[col / BLOCK] = size / largest;
    }
}

static void put_zeros(const struct quantize_problem *p, const struct tsri_piece *piece,
                      int64_t row) {
    uint8_t *y = tsri_row(&p->y, row);
    float *scale = tsri_row(&p->y_scale, row);
    memset(y + piece->first_col, 0, (size_t)(piece->last_col - piece->first_col));
    for (int64_t col = piece->first_col; col < piece->last_col; col += BLOCK)
        scale[col / BLOCK] = QUANTIZE_LEAST / quantize_largest(p->y.dtype);
}

static void quantize(const struct quantize_problem *p, const struct tsri_piece *piece) {
    for (int64_t row = piece->first_row; row < piece->last_row; row++)
        if (quantize_source(p, row) < 0)
            put_zeros(p, piece, row);
        else
            quantize_row(p, piece, row);
}

const struct quantize_kernels TSRI_KERNEL_TABLE(quantize) = {.quantize = quantize};
