// SPDX-License-Identifier: Apache-2.0
// The SIMD vocabulary in plain C, with one lane, for every processor without a header of its own.
#ifndef TSRI_SIMD_SCALAR_H
#define TSRI_SIMD_SCALAR_H

#include <math.h>

enum { VL = 1 };
#define SIMD_SUFFIX scalar

typedef float vf;

static inline vf vf_set1(float x) { return x; }
static inline vf vf_load(const float *p) { return *p; }
static inline void vf_store(float *p, vf x) { *p = x; }
static inline vf vf_load_n(const float *p, int64_t n) { return n > 0 ? *p : 0.0f; }
static inline void vf_store_n(float *p, vf x, int64_t n) {
    if (n > 0) *p = x;
}
static inline vf vf_load_bf16(const uint16_t *p) { return tsri_bf16_to_float(*p); }
static inline vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
    return n > 0 ? vf_load_bf16(p) : 0.0f;
}
static inline void vf_store_bf16(uint16_t *p, vf x) { *p = tsri_bf16_of_float(x); }
static inline void vf_store_bf16_n(uint16_t *p, vf x, int64_t n) {
    if (n > 0) vf_store_bf16(p, x);
}
static inline vf vf_load_f16(const uint16_t *p) { return tsri_f16_to_float(*p); }
static inline vf vf_load_f16_n(const uint16_t *p, int64_t n) {
    return n > 0 ? vf_load_f16(p) : 0.0f;
}
static inline void vf_store_f16(uint16_t *p, vf x) { *p = tsri_f16_of_float(x); }
static inline void vf_store_f16_n(uint16_t *p, vf x, int64_t n) {
    if (n > 0) vf_store_f16(p, x);
}
static inline void vf_stream(float *p, vf x) { *p = x; }
static inline void vf_stream_bf16(uint16_t *p, vf x) { vf_store_bf16(p, x); }
static inline void vf_stream_f16(uint16_t *p, vf x) { vf_store_f16(p, x); }
static inline void vf_stream_fence(void) {}

// Fused if every processor of the architecture has FMA, else rounded twice, so that the bits do not depend on compiler
// flags.
#if defined(__aarch64__)
static inline vf vf_fma(vf a, vf b, vf c) { return __builtin_fmaf(a, b, c); }
static inline double simd_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline double simd_fma_f64(double a, double b, double c) { return a * b + c; }
#endif
static inline vf vf_fms(vf a, vf b, vf c) { return vf_fma(a, b, -c); }
static inline vf vf_fnma(vf a, vf b, vf c) { return vf_fma(-a, b, c); }
static inline float simd_fma(float a, float b, float c) { return vf_fma(a, b, c); }
static inline vf vf_max(vf a, vf b) { return a > b ? a : b; }
static inline vf vf_min(vf a, vf b) { return a < b ? a : b; }
static inline vf vf_abs(vf x) { return tsri_float_of_bits(tsri_bits_of_float(x) & 0x7fffffffu); }
static inline vf vf_max_abs(vf a, vf b) { return vf_max(a, vf_abs(b)); } // requires a >= 0
static inline vf vf_copysign(vf magnitude, vf sign) {
    return tsri_float_of_bits((tsri_bits_of_float(magnitude) & 0x7fffffffu) |
                              (tsri_bits_of_float(sign) & 0x80000000u));
}
static inline vf vf_sqrt(vf x) { return sqrtf(x); }
static inline vf vf_round(vf x) { return rintf(x); }
static inline vf vf_zero_below(vf y, vf x, float least) { return x < least ? 0.0f : y; }
static inline vf vf_select_lt(vf a, vf b, vf yes, vf no) { return a < b ? yes : no; }
static inline vf vf_keep_n(vf x, int64_t n, float fill) { return n > 0 ? x : fill; }
static inline float vf_hsum(vf x) { return x; }
static inline void vf_hsum4(const vf *r, float *out) {
    for (int i = 0; i < 4; i++) out[i] = r[i];
}
static inline float vf_hmax(vf x) { return x; }

// Transposes VL vectors, as rows of a VL x VL matrix, in place.
static inline void vf_transpose(vf *rows) { (void)rows; }

// Lane i is the lane sum of r[i], for VL vectors.
static inline vf vf_sums(const vf *r) { return *r; }
// Lane i is the largest lane of r[i], for VL vectors without NaN.
static inline vf vf_maxima(const vf *r) { return *r; }
// The lane sum of one vector, added in the order of vf_sums.
static inline float vf_sum_one(vf x) { return x; }

// x 2^n for integral n in [-252, 252], as two factors so that the result may be subnormal.
static inline vf vf_scale2(vf x, vf n) {
    if (!(n == n)) return n;
    int whole = (int)n, half = whole / 2;
    return x * tsri_float_of_bits((uint32_t)(half + 127) << 23) *
           tsri_float_of_bits((uint32_t)(whole - half + 127) << 23);
}

// Splits the lanes of a followed by b into even and odd ones; vf_zip is the inverse.
static inline void vf_unzip(vf a, vf b, vf *even, vf *odd) {
    *even = a;
    *odd = b;
}
static inline void vf_zip(vf even, vf odd, vf *a, vf *b) {
    *a = even;
    *b = odd;
}

#endif
