// SPDX-License-Identifier: Apache-2.0
// Vectors of any dtype up to f32, including fp8, for the few kernels that take fp8. dtype is a constant at each use.
#ifndef TSRI_SIMD_FP8_H
#define TSRI_SIMD_FP8_H

#include "core/core_fp8.h"
#include "cpu/simd.h"

SIMD_INLINE bool simd_is_fp8(tsr_dtype dtype) { return dtype == TSR_E4M3 || dtype == TSR_E5M2; }
SIMD_INLINE int64_t simd_bytes(tsr_dtype dtype) {
    return dtype == TSR_F32 ? 4 : simd_is_fp8(dtype) ? 1 : 2;
}

// The same arithmetic as core_fp8.h.
#if defined(TSRI_SIMD_SCALAR)
SIMD_INLINE vf vf_load_fp8(tsr_dtype dtype, const uint8_t *from) {
    return dtype == TSR_E4M3 ? tsri_e4m3_to_float(*from) : tsri_e5m2_to_float(*from);
}
#elif defined(TSRI_SIMD_AVX512)
// gcc 12 would widen the bytes through memory.
SIMD_INLINE vf vf_load_fp8(tsr_dtype dtype, const uint8_t *from) {
    const bool is_e4m3 = dtype == TSR_E4M3;
    const int shift = is_e4m3 ? 20 : 21, largest = is_e4m3 ? 0x7e << 20 : 0x7b << 21;
    __m512i raw = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)); // the sign in place
    __m512i size =
        _mm512_and_si512(_mm512_slli_epi32(raw, (unsigned)shift), _mm512_set1_epi32(0x7f << shift));
    vf x = _mm512_castsi512_ps(size) * vf_set1(is_e4m3 ? 0x1p120f : 0x1p112f);
    __m512i special = _mm512_set1_epi32(0x7fc00000);
    if (!is_e4m3)
        special = _mm512_or_si512(_mm512_and_si512(size, _mm512_set1_epi32(3 << shift)),
                                  _mm512_set1_epi32(0x7f800000));
    x = _mm512_mask_blend_ps(_mm512_cmpgt_epu32_mask(size, _mm512_set1_epi32(largest)), x,
                             _mm512_castsi512_ps(special));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), raw, _mm512_set1_epi32(INT32_MIN), 0xf8));
}
#else
typedef uint8_t vf_bytes __attribute__((vector_size(VL)));
typedef uint32_t vf_words __attribute__((vector_size(VL * 4)));

SIMD_INLINE vf vf_load_fp8(tsr_dtype dtype, const uint8_t *from) {
    bool is_e4m3 = dtype == TSR_E4M3;
    vf_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
#if defined(TSRI_SIMD_AVX2) // gcc 12 would widen each half separately, through memory
    vf_words raw = (vf_words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    vf_words raw = __builtin_convertvector(bytes, vf_words);
#endif
    vf_words code = raw & 0x7f;
    vf size = (vf)(code << (is_e4m3 ? 20 : 21)) * vf_set1(is_e4m3 ? 0x1p120f : 0x1p112f);
    vf_words is_special = (vf_words)(code >= (is_e4m3 ? 0x7fu : 0x7cu));
    vf_words special = is_e4m3 ? (code & 0) | 0x7fc00000u : (code & 3) << 21 | 0x7f800000u;
    vf_words bits = (is_special & special) | (~is_special & (vf_words)size);
    return (vf)(bits | (raw & 0x80) << 24);
}
#endif

SIMD_INLINE vf vf_load_wide(tsr_dtype dtype, const void *base, int64_t i) {
    if (simd_is_fp8(dtype)) return vf_load_fp8(dtype, (const uint8_t *)base + i);
    return vf_load_as(dtype, base, i);
}

SIMD_INLINE vf vf_load_wide_n(tsr_dtype dtype, const void *base, int64_t i, int64_t n) {
    uint8_t some[VL] = {0};
    if (!simd_is_fp8(dtype)) return vf_load_as_n(dtype, base, i, n);
    for (int64_t lane = 0; lane < n; lane++) some[lane] = ((const uint8_t *)base)[i + lane];
    return vf_load_wide(dtype, some, 0);
}

#endif
