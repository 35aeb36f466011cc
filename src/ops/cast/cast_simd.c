// SPDX-License-Identifier: Apache-2.0
// y = x (scale), of (rows, cols), between any two float formats, compiled once per instruction set. Between f32, bf16
// and f16 vectors stay in registers, on AVX2 also from and to fp8. Other pairs with fp8 or f64 go through a block of
// floats in the first-level cache, with one plain loop per format that the compiler vectorizes. So each pair costs two
// short loops, and six formats need twelve loops instead of thirty.
// two short loops, and six formats need twelve loops, not thirty.
// Floor: x read once, y written once.
// Limit: memory, between f32, bf16 and f16.
// Figures: docs/kernels/elementwise.md, on 16 threads docs/kernels/rows.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_to_fp8.h"
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

// ---- Among f32, bf16 and f16, and from fp8 ----------------------------------------------------

// On AVX2 the compiler does not vectorize the fp8 loops below.
#if defined(TSRI_SIMD_AVX2)
enum { HAS_FP8_VECTORS = 1 };
#else
enum { HAS_FP8_VECTORS = 0 };
#endif

SIMD_INLINE vf get(enum simd_access access, tsr_dtype from, const void *x, int64_t i, int64_t n) {
    if (!simd_is_fp8(from)) return vf_get(access, from, x, i, n);
    return n < VL ? vf_load_wide_n(from, x, i, n) : vf_load_wide(from, x, i);
}

SIMD_INLINE void cast_span(tsr_dtype from, tsr_dtype to, const void *x, void *y, int64_t length,
                           float factor, bool is_streaming) {
    vf scale = vf_set1(factor);
#define VALUE(access, i, n) (get(access, from, x, i, n) * scale)
    SIMD_FOR_VALUES(to, y, length, is_streaming, VALUE);
#undef VALUE
}

SIMD_INLINE void cast_span_to(tsr_dtype to, tsr_dtype from, const void *x, void *y, int64_t length,
                              float factor, bool is_streaming) {
    switch (from) {
    case TSR_BF16: cast_span(TSR_BF16, to, x, y, length, factor, is_streaming); break;
    case TSR_F16: cast_span(TSR_F16, to, x, y, length, factor, is_streaming); break;
    case TSR_E4M3:
        if (HAS_FP8_VECTORS) cast_span(TSR_E4M3, to, x, y, length, factor, is_streaming);
        break;
    case TSR_E5M2:
        if (HAS_FP8_VECTORS) cast_span(TSR_E5M2, to, x, y, length, factor, is_streaming);
        break;
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

// ---- To fp8 -----------------------------------------------------------------------------------

#if defined(TSRI_SIMD_AVX2)
SIMD_INLINE void cast_to_fp8_from(tsr_dtype to, tsr_dtype from, const void *x, uint8_t *y,
                                  int64_t length, float factor, bool is_streaming) {
    switch (from) {
    case TSR_BF16: simd_to_fp8(to, TSR_BF16, x, y, length, factor, is_streaming); break;
    case TSR_F16: simd_to_fp8(to, TSR_F16, x, y, length, factor, is_streaming); break;
    default: simd_to_fp8(to, TSR_F32, x, y, length, factor, is_streaming);
    }
}

static void cast_to_8_bits(tsr_dtype to, tsr_dtype from, const void *x, void *y, int64_t length,
                           float factor, bool is_streaming) {
    if (to == TSR_E4M3)
        cast_to_fp8_from(TSR_E4M3, from, x, y, length, factor, is_streaming);
    else
        cast_to_fp8_from(TSR_E5M2, from, x, y, length, factor, is_streaming);
}
#else
// From a block of floats.
static void cast_to_8_bits(tsr_dtype to, tsr_dtype from, const void *x, void *y, int64_t length,
                           float factor, bool is_streaming) {
    (void)from, (void)is_streaming;
    if (to == TSR_E4M3)
        simd_floats_to_fp8(TSR_E4M3, x, y, length, factor);
    else
        simd_floats_to_fp8(TSR_E5M2, x, y, length, factor);
}
#endif

// ---- With fp8 or f64 on one side ---------------------------------------------------------------

static void widen_e4m3(const uint8_t *x, float *block, int64_t n) {
    for (int64_t i = 0; i < n; i++) block[i] = tsri_e4m3_to_float(x[i]);
}
static void widen_e5m2(const uint8_t *x, float *block, int64_t n) {
    for (int64_t i = 0; i < n; i++) block[i] = tsri_e5m2_to_float(x[i]);
}

static void widen(tsr_dtype from, const void *x, float *block, int64_t n) {
    if (HAS_FP8_VECTORS)
        cast_vectors(TSR_F32, from, x, block, n, 1.0f, false);
    else if (from == TSR_E4M3)
        widen_e4m3(x, block, n);
    else if (from == TSR_E5M2)
        widen_e5m2(x, block, n);
    else
        cast_vectors(TSR_F32, from, x, block, n, 1.0f, false);
}

static void narrow(tsr_dtype to, const float *block, void *y, int64_t n, float scale) {
    if (simd_is_fp8(to))
        cast_to_8_bits(to, TSR_F32, block, y, n, scale, false);
    else
        cast_vectors(to, TSR_F32, block, y, n, scale, false);
}

// From f64 to formats narrower than fp32 through a float that is rounded to odd, so the value is in effect rounded
// once.
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
    bool is_streaming_copy = is_streaming && VL > 1; // scalar floats may lose bits
    for (int64_t row = piece->first_row; row < piece->last_row; row++) {
        const char *x = tsri_element(&p->x, row, piece->first_col);
        char *y = tsri_element(&p->y, row, piece->first_col);
        if (p->is_copy)
            copy_bytes(x, y, length * bytes_of(to), is_streaming_copy);
        else if (HAS_FP8_VECTORS && is_vector_dtype(from) && simd_is_fp8(to))
            cast_to_8_bits(to, from, x, y, length, p->scale, is_streaming);
        else if ((is_vector_dtype(from) || (HAS_FP8_VECTORS && simd_is_fp8(from))) &&
                 is_vector_dtype(to))
            cast_vectors(to, from, x, y, length, p->scale, is_streaming);
        else
            cast_blocks(to, from, x, y, length, p->scale);
    }
    if (is_streaming) vf_stream_fence();
}

const struct cast_kernels TSRI_KERNEL_TABLE(cast) = {.cast = cast};
