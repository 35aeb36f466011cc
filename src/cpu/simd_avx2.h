// SPDX-License-Identifier: Apache-2.0
// The SIMD vocabulary on AVX2, FMA and F16C: eight lanes.
#ifndef TSRI_SIMD_AVX2_H
#define TSRI_SIMD_AVX2_H

#include <immintrin.h>

enum { VL = 8 };
#define SIMD_SUFFIX avx2

typedef __m256 vf;

// Lane masks for the first n lanes: eight ones, then eight zeros, read from 8 - n.
static const int32_t simd_ones_then_zeros[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
static inline __m256i simd_first_n(int64_t n) {
    return _mm256_loadu_si256((const __m256i *)(simd_ones_then_zeros + 8 - n));
}

static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_load_n(const float *p, int64_t n) {
    return _mm256_maskload_ps(p, simd_first_n(n));
}
static inline void vf_store_n(float *p, vf x, int64_t n) {
    _mm256_maskstore_ps(p, simd_first_n(n), x);
}

// AVX2 has no 16-bit masked loads. Tails are loaded as words of four, two and one elements; a buffer would stall the
// vector load until the partial stores are done.
static inline __m128i simd_load_16bit_n(const uint16_t *p, int64_t n) {
    if (n == 8) return _mm_loadu_si128((const __m128i *)p);
    uint64_t low, high = n & 1 ? p[n - 1] : 0;
    if (n & 2) {
        uint32_t two;
        memcpy(&two, p + (n & 4), sizeof two);
        high = high << 32 | two;
    }
    if ((n & 4) == 0) return _mm_cvtsi64_si128((int64_t)high);
    memcpy(&low, p, sizeof low);
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}
static inline void simd_store_16bit_n(uint16_t *p, __m128i x, int64_t n) {
    if (n == 8) {
        _mm_storeu_si128((__m128i *)p, x);
        return;
    }
    uint64_t left = (uint64_t)_mm_cvtsi128_si64(x);
    if (n & 4) {
        memcpy(p, &left, sizeof left);
        left = (uint64_t)_mm_extract_epi64(x, 1);
    }
    if (n & 2) {
        uint32_t two = (uint32_t)left;
        memcpy(p + (n & 4), &two, sizeof two);
        left >>= 32;
    }
    if (n & 1) p[n - 1] = (uint16_t)left;
}

static inline vf simd_widen_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
// Round to nearest even; a NaN keeps its sign and top bits and becomes quiet.
static inline __m128i simd_narrow_bf16(vf x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
static inline __m128i simd_narrow_f16(vf x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_load_bf16(const uint16_t *p) {
    return simd_widen_bf16(_mm_loadu_si128((const __m128i *)p));
}
static inline vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
    return simd_widen_bf16(simd_load_16bit_n(p, n));
}
static inline void vf_store_bf16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, simd_narrow_bf16(x));
}
static inline void vf_store_bf16_n(uint16_t *p, vf x, int64_t n) {
    simd_store_16bit_n(p, simd_narrow_bf16(x), n);
}
// Even elements in one vector and odd ones in the other (simd_pairs.h). Rounding as above, except for NaNs.
#define SIMD_HAS_PAIRS 1
static inline void simd_widen_pair(__m256i h, vf *even, vf *odd) {
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000)));
}
static inline __m256i simd_round_bf16(vf x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff)));
}
// The upper halves of `even` move below those of `odd`.
static inline __m256i simd_join_halves(__m256i even, __m256i odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}
static inline __m256i simd_narrow_pair(vf even, vf odd) {
    return simd_join_halves(simd_round_bf16(even), simd_round_bf16(odd));
}
// Rounds halfway cases up.
static inline __m256i simd_narrow_pair_up(vf even, vf odd) {
    __m256i half = _mm256_set1_epi32(0x8000);
    return simd_join_halves(_mm256_add_epi32(_mm256_castps_si256(even), half),
                            _mm256_add_epi32(_mm256_castps_si256(odd), half));
}
// Replaces a NaN by the default NaN, before simd_narrow_pair takes a value that does not come from bf16.
static inline vf simd_default_nan(vf x) {
    vf quiet = _mm256_set1_ps(__builtin_nanf(""));
    return _mm256_blendv_ps(x, quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
// Accumulates whether any vector so far holds a NaN: the lanes with one.
typedef vf simd_nans;
static inline simd_nans simd_no_nans(void) { return _mm256_setzero_ps(); }
static inline simd_nans simd_find_nans(simd_nans before, vf x, vf y) {
    return _mm256_or_ps(before, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
}
static inline bool simd_has_nan(simd_nans nans) { return _mm256_movemask_ps(nans) != 0; }
static inline __m256i simd_load_pair_n(const uint16_t *p, int64_t n) {
    if (n <= 8) return _mm256_set_m128i(_mm_setzero_si128(), simd_load_16bit_n(p, n));
    return _mm256_set_m128i(simd_load_16bit_n(p + 8, n - 8), _mm_loadu_si128((const __m128i *)p));
}
static inline void simd_store_pair_n(uint16_t *p, __m256i x, int64_t n) {
    __m128i low = _mm256_castsi256_si128(x);
    if (n <= 8) {
        simd_store_16bit_n(p, low, n);
    } else {
        _mm_storeu_si128((__m128i *)p, low);
        simd_store_16bit_n(p + 8, _mm256_extracti128_si256(x, 1), n - 8);
    }
}
static inline void vf_load_pair_bf16(const uint16_t *p, vf *even, vf *odd) {
    simd_widen_pair(_mm256_loadu_si256((const __m256i *)p), even, odd);
}
static inline void vf_load_pair_bf16_n(const uint16_t *p, int64_t n, vf *even, vf *odd) {
    simd_widen_pair(simd_load_pair_n(p, n), even, odd);
}
static inline void vf_store_pair_bf16(uint16_t *p, vf even, vf odd) {
    _mm256_storeu_si256((__m256i *)p, simd_narrow_pair(even, odd));
}
static inline void vf_store_pair_bf16_n(uint16_t *p, vf even, vf odd, int64_t n) {
    simd_store_pair_n(p, simd_narrow_pair(even, odd), n);
}
static inline void vf_stream_pair_bf16(uint16_t *p, vf even, vf odd) {
    _mm256_stream_si256((__m256i *)p, simd_narrow_pair(even, odd));
}
static inline void vf_store_pair_bf16_up(uint16_t *p, vf even, vf odd) {
    _mm256_storeu_si256((__m256i *)p, simd_narrow_pair_up(even, odd));
}
static inline void vf_store_pair_bf16_up_n(uint16_t *p, vf even, vf odd, int64_t n) {
    simd_store_pair_n(p, simd_narrow_pair_up(even, odd), n);
}
static inline void vf_stream_pair_bf16_up(uint16_t *p, vf even, vf odd) {
    _mm256_stream_si256((__m256i *)p, simd_narrow_pair_up(even, odd));
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf vf_load_f16_n(const uint16_t *p, int64_t n) {
    return _mm256_cvtph_ps(simd_load_16bit_n(p, n));
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, simd_narrow_f16(x));
}
static inline void vf_store_f16_n(uint16_t *p, vf x, int64_t n) {
    simd_store_16bit_n(p, simd_narrow_f16(x), n);
}
static inline void vf_stream(float *p, vf x) { _mm256_stream_ps(p, x); }
static inline void vf_stream_bf16(uint16_t *p, vf x) {
    _mm_stream_si128((__m128i *)p, simd_narrow_bf16(x));
}
static inline void vf_stream_f16(uint16_t *p, vf x) {
    _mm_stream_si128((__m128i *)p, simd_narrow_f16(x));
}
// Two vectors as one non-temporal store.
#define SIMD_HAS_LINES 1
static inline void simd_stream_line(uint16_t *p, __m128i low, __m128i high) {
    _mm256_stream_si256((__m256i *)p, _mm256_set_m128i(high, low));
}
static inline void vf_stream_line_bf16(uint16_t *p, vf a, vf b) {
    simd_stream_line(p, simd_narrow_bf16(a), simd_narrow_bf16(b));
}
static inline void vf_stream_line_f16(uint16_t *p, vf a, vf b) {
    simd_stream_line(p, simd_narrow_f16(a), simd_narrow_f16(b));
}
// A non-temporal store of 16 or 32 raw bytes, aligned to their number.
#define SIMD_HAS_STREAMED_BITS 1
static inline void simd_stream_bits(void *to, const void *from, int64_t bytes) {
    if (bytes == 32)
        _mm256_stream_si256(to, _mm256_loadu_si256(from));
    else
        _mm_stream_si128(to, _mm_loadu_si128(from));
}
static inline void vf_stream_fence(void) { _mm_sfence(); }

static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }   // a b + c
static inline vf vf_fms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }   // a b - c
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); } // c - a b
static inline float simd_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double simd_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
// Like maxps: returns the second operand if either is NaN.
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_max_abs(vf a, vf b) { // requires a >= 0
    return _mm256_max_ps(a, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b));
}
static inline vf vf_abs(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
static inline vf vf_copysign(vf magnitude, vf sign) {
    vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
static inline vf vf_sqrt(vf x) { return _mm256_sqrt_ps(x); }
static inline vf vf_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_select_lt(vf a, vf b, vf yes, vf no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline vf vf_keep_n(vf x, int64_t n, float fill) {
    return _mm256_blendv_ps(_mm256_set1_ps(fill), x, _mm256_castsi256_ps(simd_first_n(n)));
}
static inline float vf_hsum(vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// The lane sums of four vectors.
static inline void vf_hsum4(const vf *r, float *out) {
    vf a = _mm256_unpacklo_ps(r[0], r[1]) + _mm256_unpackhi_ps(r[0], r[1]);
    vf b = _mm256_unpacklo_ps(r[2], r[3]) + _mm256_unpackhi_ps(r[2], r[3]);
    vf s = _mm256_shuffle_ps(a, b, 0x44) + _mm256_shuffle_ps(a, b, 0xee);
    _mm_storeu_ps(out, _mm256_castps256_ps128(s) + _mm256_extractf128_ps(s, 1));
}
static inline float vf_hmax(vf x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// Transposes VL vectors, as rows of a VL x VL matrix, in place: pairs, then quads within a 128-bit lane, then lanes.
static inline void vf_transpose(vf *r) {
    vf t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        vf low = r[i], high = r[i + 4];
        r[i] = _mm256_permute2f128_ps(low, high, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

// x 2^n for integral n in [-252, 252], as two factors so that the result may be subnormal. n is NaN only if x is NaN.
static inline vf vf_scale2(vf x, vf n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    __m256i bias = _mm256_set1_epi32(127), rest = _mm256_sub_epi32(whole, half);
    vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, a), b);
}

// x 2^n for t = n + 0x1.8p23, whose low bits are n. The result must be a normal number.
#define SIMD_HAS_SHIFTED_SCALE 1
static inline vf vf_scale2_shifted(vf x, vf t) {
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), n));
}

// y, or 0 if x < least.
static inline vf vf_zero_below(vf y, vf x, float least) {
    return _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(least), _CMP_NLT_UQ));
}

// y, or x if x is NaN.
static inline vf vf_or_nan(vf y, vf x) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// Lane i is the lane sum of r[i], for VL vectors.
static inline vf vf_sums(const vf *r) {
    vf t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] =
            _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]) + _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        u[i] = _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44) +
               _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee);
    return _mm256_permute2f128_ps(u[0], u[1], 0x20) + _mm256_permute2f128_ps(u[0], u[1], 0x31);
}

// Lane i is the largest lane of r[i], for VL vectors without NaN.
static inline vf vf_maxima(const vf *r) {
    vf t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = vf_max(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                      _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = vf_max(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                      _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return vf_max(_mm256_permute2f128_ps(u[0], u[1], 0x20),
                  _mm256_permute2f128_ps(u[0], u[1], 0x31));
}

// The lane sum of one vector, added in the order of vf_sums.
static inline float vf_sum_one(vf x) {
    x = x + _mm256_shuffle_ps(x, x, 0x4e);
    x = x + _mm256_shuffle_ps(x, x, 0xb1);
    return _mm256_cvtss_f32(x) + _mm_cvtss_f32(_mm256_extractf128_ps(x, 1));
}

// Splits the lanes of a followed by b into even and odd ones; vf_zip is the inverse.
static inline void vf_unzip(vf a, vf b, vf *even, vf *odd) {
    vf low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}
static inline void vf_zip(vf even, vf odd, vf *a, vf *b) {
    vf low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

// Interleaves pairs of lanes (64 bits) of x, y and z: x0 y0 z0 x1 ..., three vectors.
static inline void vf_zip_pairs(vf x, vf y, vf z, vf *out) {
    __m256d a = _mm256_castps_pd(x), b = _mm256_castps_pd(y), c = _mm256_castps_pd(z);
    __m256d ab = _mm256_blend_pd(_mm256_permute4x64_pd(a, 0x40), _mm256_permute4x64_pd(b, 0x00), 2);
    __m256d bc = _mm256_blend_pd(_mm256_permute4x64_pd(b, 0x81), _mm256_permute4x64_pd(c, 0x04), 2);
    __m256d ca = _mm256_blend_pd(_mm256_permute4x64_pd(c, 0xc2), _mm256_permute4x64_pd(a, 0x0c), 2);
    out[0] = _mm256_castpd_ps(_mm256_blend_pd(ab, _mm256_permute4x64_pd(c, 0x00), 4));
    out[1] = _mm256_castpd_ps(_mm256_blend_pd(bc, _mm256_permute4x64_pd(a, 0x20), 4));
    out[2] = _mm256_castpd_ps(_mm256_blend_pd(ca, _mm256_permute4x64_pd(b, 0x30), 4));
}

#endif
