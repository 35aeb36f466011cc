// SPDX-License-Identifier: Apache-2.0
// Blocks of 128 columns to fp8 with a scale, compiled once per instruction set. The values of some blocks go to the first-level
// cache, with NaN for infinities; each block's largest magnitude gives its scale. A second sweep converts, so that no conversion
// waits for the quotients. dtype, kind and gating are constants inside the loops.
// Floor: x and up read once, y and y_scale written once: 3.03 bytes an element of bf16, 5.03 with a gate.
// Limit: memory; on one core the arithmetic of the smooth activations and the conversion.
// Figures: docs/kernels/quantize.md.
#include "cpu/simd_activation.h"
#include "cpu/simd_elements.h"
#include "cpu/simd_to_fp8.h"
#include "ops/quantize/quantize_problem.h"

enum { BLOCK = QUANTIZE_BLOCK, AT_ONCE = 8 }; // columns of a block; blocks between the sweeps

// Infinities among the values of n columns become NaN. Returns the largest finite magnitude.
static __attribute__((noinline)) float remove_infinities(float values[BLOCK], int64_t n) {
    vf most = vf_set1(0.0f);
    for (int64_t i = 0; i < n; i += VL) {
        const vf v = vf_load(values + i), infinity = vf_set1(INFINITY);
        vf_store(values + i, vf_select_lt(vf_abs(v), infinity, v, vf_set1(NAN)));
        most = vf_max(vf_abs(vf_load(values + i)), most);
    }
    return vf_hmax(most);
}

// Stores v of n columns and returns its largest finite magnitude: vf_max(x, most) is most where x is NaN. values has whole vectors.
SIMD_INLINE float values_as(tsr_dtype dtype, tsr_activation kind, const void *x, const void *up,
                            int64_t n, float values[BLOCK]) {
    vf most = vf_set1(0.0f);
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf v = vf_activate_for(dtype, kind, vf_get(access, dtype, x, i, n));                       \
        if (up != NULL) v = v * vf_gate(kind, vf_get(access, dtype, up, i, n));                    \
        most = vf_max(vf_abs(v), most);                                                            \
        vf_store(values + (i), v);                                                                 \
    } while (0)
    SIMD_FOR_SPAN(n, 0, false, STEP);
#undef STEP
    const float largest = vf_hmax(most);
    return largest < INFINITY ? largest : remove_infinities(values, n);
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

// Columns [col, last) of a row of x and up, at most AT_ONCE blocks.
static void quantize_blocks(const struct quantize_problem *p, const char *x, const char *up,
                            int64_t row, int64_t col, int64_t last) {
    _Alignas(64) float values[AT_ONCE][BLOCK];
    const int64_t bytes = tsri_dtype_bytes(p->x.dtype), count = tsri_ceil_div(last - col, BLOCK);
    const float largest = quantize_largest(p->y.dtype);
    float *scale = (float *)tsri_row(&p->y_scale, row) + col / BLOCK;
    for (int64_t b = 0; b < count; b++) {
        const int64_t at = col + b * BLOCK, n = tsri_min(last - at, BLOCK);
        const float most = values_by_kind[p->kind](
            p->x.dtype, x + at * bytes, up != NULL ? up + at * bytes : NULL, n, values[b]);
        scale[b] = (most > QUANTIZE_LEAST ? most : QUANTIZE_LEAST) / largest;
    }
    for (int64_t b = 0; b < count; b++) {
        const int64_t at = col + b * BLOCK, n = tsri_min(last - at, BLOCK);
        uint8_t *y = (uint8_t *)tsri_row(&p->y, row) + at;
        if (p->y.dtype == TSR_E5M2)
            simd_floats_to_fp8(TSR_E5M2, values[b], y, n, 1.0f / scale[b]);
        else
            simd_floats_to_fp8(TSR_E4M3, values[b], y, n, 1.0f / scale[b]);
    }
}

static void quantize_row(const struct quantize_problem *p, const struct tsri_piece *piece,
                         int64_t row) {
    const int64_t source = quantize_source(p, row), step = AT_ONCE * BLOCK;
    const char *x = tsri_row(&p->x, source),
               *up = p->is_gated ? (const char *)tsri_row(&p->up, source) : NULL;
    for (int64_t col = piece->first_col; col < piece->last_col; col += step)
        quantize_blocks(p, x, up, row, col, tsri_min(col + step, piece->last_col));
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
