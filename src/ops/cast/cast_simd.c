// SPDX-License-Identifier: Apache-2.0
// Cast kernels, compiled once per instruction set. Between f32, bf16 and f16 a vector goes straight
// through registers. Whatever has fp8 or f64 on one side goes through a block of floats in the
// first- level cache, with one plain loop per format that the compiler makes vectors of: each pair
// then costs two short loops, and six formats need twelve loops, not thirty.
#include "core/core_fp8.h"
#include "cpu/simd_elements.h"
#include "ops/cast/cast_problem.h"

enum { BLOCK = 512 };

SIMD_INLINE int64_t bytes_of(tsr_dtype dtype) {
    switch (dtype) {
    case TSR_F64: return 8;
    case TSR_F32: return 4;
    case TSR_BF16:
    case TSR_F16: return 2;
    default: return 1;
    }
}

// ---- Among f32, bf16 and f16 ------------------------------------------------------------------

SIMD_INLINE void cast_span(tsr_dtype from, tsr_dtype to, const void *x, void *y, int64_t length,
                           float factor, bool is_streaming) {
    vf scale = vf_set1(factor);
#define VALUE(access, i, n) (vf_get(access, from, x, i, n) * scale)
    SIMD_FOR_VALUES(to, y, length, is_streaming, VALUE);
#undef VALUE
}

SIMD_INLINE void cast_span_to(tsr_dtype to, tsr_dtype from, const void *x, void *y, int64_t length,
                              float factor, bool is_streaming) {
    switch (from) {
    case TSR_BF16: cast_span(TSR_BF16, to, x, y, length, factor, is_streaming); break;
    case TSR_F16: cast_span(TSR_F16, to, x, y, length, factor, is_streaming); break;
    default: cast_span(TSR_F32, to, x, y, length, factor, is_streaming);
    }
}

static void cast_vectors(tsr_dtype to, tsr_dtype from, const void *x, void *y, int64_t length,
                         float factor, bool is_streaming) {
    switch (to) {
    case TSR_BF16: cast_span_to(TSR_BF16, from, x, y, length, factor, is_streaming); break;
    case TSR_F16: cast_span_to(TSR_F16, from, x, y, length, factor, is_streaming); break;
    default: cast_span_to(TSR_F32, from, x, y, length, factor, is_streaming);
    }
}

// ---- With fp8 or f64 on one side ---------------------------------------------------------------

static void widen_e4m3(const uint8_t *x, float *block, int64_t n) {
    for (int64_t i = 0; i < n; i++) block[i] = tsri_e4m3_to_float(x[i]);
}
static void widen_e5m2(const uint8_t *x, float *block, int64_t n) {
    for (int64_t i = 0; i < n; i++) block[i] = tsri_e5m2_to_float(x[i]);
}
static void narrow_e4m3(const float *block, uint8_t *y, int64_t n, float scale) {
    for (int64_t i = 0; i < n; i++) y[i] = tsri_e4m3_of_float(block[i] * scale);
}
static void narrow_e5m2(const float *block, uint8_t *y, int64_t n, float scale) {
    for (int64_t i = 0; i < n; i++) y[i] = tsri_e5m2_of_float(block[i] * scale);
}

static void widen(tsr_dtype from, const void *x, float *block, int64_t n) {
    if (from == TSR_E4M3)
        widen_e4m3(x, block, n);
    else if (from == TSR_E5M2)
        widen_e5m2(x, block, n);
    else
        cast_vectors(TSR_F32, from, x, block, n, 1.0f, false);
}

static void narrow(tsr_dtype to, const float *block, void *y, int64_t n, float scale) {
    if (to == TSR_E4M3)
        narrow_e4m3(block, y, n, scale);
    else if (to == TSR_E5M2)
        narrow_e5m2(block, y, n, scale);
    else
        cast_vectors(to, TSR_F32, block, y, n, scale, false);
}

// From f64 to what is narrower than fp32 by way of a float rounded to odd: one rounding in effect.
static void narrow_f64(tsr_dtype to, const double *x, void *y, int64_t n, double scale) {
    float block[BLOCK], *out = y;
    double *wide = y;
    if (to == TSR_F64)
        for (int64_t i = 0; i < n; i++) wide[i] = x[i] * scale;
    else if (to == TSR_F32)
        for (int64_t i = 0; i < n; i++) out[i] = (float)(x[i] * scale);
    else {
        for (int64_t i = 0; i < n; i++) block[i] = tsri_odd_float_of_double(x[i] * scale);
        narrow(to, block, y, n, 1.0f);
    }
}

static void cast_blocks(tsr_dtype to, tsr_dtype from, const char *x, char *y, int64_t length,
                        float scale) {
    float block[BLOCK];
    for (int64_t i = 0; i < length; i += BLOCK) {
        int64_t n = length - i < BLOCK ? length - i : BLOCK;
        const void *in = x + i * bytes_of(from);
        void *out = y + i * bytes_of(to);
        if (from == TSR_F64) {
            narrow_f64(to, in, out, n, (double)scale);
            continue;
        }
        widen(from, in, block, n);
        if (to == TSR_F64) {
            double *wide = out;
            for (int64_t k = 0; k < n; k++) wide[k] = (double)block[k] * (double)scale;
        } else {
            narrow(to, block, out, n, scale);
        }
    }
}

// ---- Copies -----------------------------------------------------------------------------------

static void copy_bytes(const char *x, char *y, int64_t length, bool is_streaming) {
    int64_t i = 0;
    if (is_streaming) {
        int64_t vector = VL * 4, past = (int64_t)((uintptr_t)y % (uintptr_t)vector);
        i = past == 0 ? 0 : vector - past;
        if (i > length) i = length;
        memcpy(y, x, (size_t)i);
        for (; i + vector <= length; i += vector)
            vf_stream((float *)(void *)(y + i), vf_load((const float *)(const void *)(x + i)));
    }
    memcpy(y + i, x + i, (size_t)(length - i));
}

// ---- One piece --------------------------------------------------------------------------------

static bool is_vector_dtype(tsr_dtype dtype) {
    return dtype == TSR_F32 || dtype == TSR_BF16 || dtype == TSR_F16;
}

static void cast(const struct cast_problem *p, const struct tsri_piece *piece, bool is_streaming) {
    tsr_dtype from = p->x.dtype, to = p->y.dtype;
    int64_t length = piece->last_col - piece->first_col;
    bool is_streaming_copy = is_streaming && VL > 1; // a float may not hold any bits elsewhere
    for (int64_t row = piece->first_row; row < piece->last_row; row++) {
        const char *x = p->x.data + (row * p->x.stride + piece->first_col) * bytes_of(from);
        char *y = p->y.data + (row * p->y.stride + piece->first_col) * bytes_of(to);
        if (p->is_copy)
            copy_bytes(x, y, length * bytes_of(to), is_streaming_copy);
        else if (is_vector_dtype(from) && is_vector_dtype(to))
            cast_vectors(to, from, x, y, length, p->scale, is_streaming);
        else
            cast_blocks(to, from, x, y, length, p->scale);
    }
    if (is_streaming) vf_stream_fence();
}

const struct cast_kernels TSRI_KERNEL_TABLE(cast) = {.cast = cast};
