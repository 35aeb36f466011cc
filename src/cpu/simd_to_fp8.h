// SPDX-License-Identifier: Apache-2.0
// Conversions to fp8, for kernels that write it: the arithmetic of core_fp8.h, which the compiler vectorizes except on AVX2. `to`
// and `from` are constants at each use.
#ifndef TSRI_SIMD_TO_FP8_H
#define TSRI_SIMD_TO_FP8_H

#include "cpu/simd_fp8.h"

#if defined(TSRI_SIMD_AVX2)
// The codes of eight floats, one per word, with the arithmetic of core_fp8.h.
SIMD_INLINE __m256i simd_fp8_codes(tsr_dtype to, vf x) {
    const int mantissa_bits = to == TSR_E4M3 ? 3 : 2, bias = to == TSR_E4M3 ? 7 : 15;
    const int largest = to == TSR_E4M3 ? 0x43e00000 : 0x47600000, shift = 23 - mantissa_bits;
    const int nan_code = to == TSR_E4M3 ? 0x7f : 0x7e;
    __m256i u = _mm256_castps_si256(x);
    __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i capped = _mm256_min_epi32(magnitude, _mm256_set1_epi32(largest));
    __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(capped, shift), _mm256_set1_epi32(1));
    __m256i normal = _mm256_add_epi32(_mm256_add_epi32(capped, is_odd),
                                      _mm256_set1_epi32((1 << (shift - 1)) - 1));
    normal = _mm256_sub_epi32(_mm256_srli_epi32(normal, shift),
                              _mm256_set1_epi32((127 - bias) << mantissa_bits));
    __m256i magic = _mm256_set1_epi32((127 + 23 + 1 - bias - mantissa_bits) << 23);
    vf stepped = _mm256_castsi256_ps(capped) + _mm256_castsi256_ps(magic);
    __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(stepped), magic);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((128 - bias) << 23), capped);
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i code = _mm256_blendv_epi8(normal, subnormal, is_small);
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(nan_code), is_nan);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(code, sign);
}

SIMD_INLINE uint8_t simd_fp8_code(tsr_dtype to, float x) {
    return to == TSR_E4M3 ? tsri_e4m3_of_float(x) : tsri_e5m2_of_float(x);
}

// y = x factor. 32 elements at a time, so that a store fills a register.
SIMD_INLINE void simd_to_fp8(tsr_dtype to, tsr_dtype from, const void *x, uint8_t *y,
                             int64_t length, float factor, bool is_streaming) {
    enum { STEP = 4 * VL };
    int64_t i = 0, head = is_streaming ? (int64_t)(-(uintptr_t)y % STEP) : 0;
    vf scale = vf_set1(factor);
    if (head > length) head = length;
    for (; i < length;) {
        int64_t n = i < head ? head - i : length - i;
        if (n < STEP) {
            float some[STEP];
            int64_t k = 0;
            for (; k + VL <= n; k += VL) vf_store(some + k, vf_load_as(from, x, i + k) * scale);
            if (k < n) vf_store_n(some + k, vf_load_as_n(from, x, i + k, n - k) * scale, n - k);
            for (k = 0; k < n; k++) y[i + k] = simd_fp8_code(to, some[k]);
            i += n;
            continue;
        }
        __m256i a = simd_fp8_codes(to, vf_load_as(from, x, i) * scale);
        __m256i b = simd_fp8_codes(to, vf_load_as(from, x, i + VL) * scale);
        __m256i c = simd_fp8_codes(to, vf_load_as(from, x, i + 2 * VL) * scale);
        __m256i d = simd_fp8_codes(to, vf_load_as(from, x, i + 3 * VL) * scale);
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        if (is_streaming)
            _mm256_stream_si256((__m256i *)(void *)(y + i), bytes);
        else
            _mm256_storeu_si256((__m256i *)(void *)(y + i), bytes);
        i += STEP;
    }
}

SIMD_INLINE void simd_floats_to_fp8(tsr_dtype to, const float *x, uint8_t *y, int64_t n,
                                    float factor) {
    simd_to_fp8(to, TSR_F32, x, y, n, factor, false);
}
#else
// y = x factor.
SIMD_INLINE void simd_floats_to_fp8(tsr_dtype to, const float *x, uint8_t *y, int64_t n,
                                    float factor) {
    if (to == TSR_E4M3)
        for (int64_t i = 0; i < n; i++) y[i] = tsri_e4m3_of_float(x[i] * factor);
    else
        for (int64_t i = 0; i < n; i++) y[i] = tsri_e5m2_of_float(x[i] * factor);
}
#endif

#endif
