// SPDX-License-Identifier: Apache-2.0
// The SIMD vocabulary on AVX-512 F, BW, DQ and VL: sixteen lanes.
#ifndef TSRI_SIMD_AVX512_H
#define TSRI_SIMD_AVX512_H

#include <immintrin.h>

enum { VL = 16 };
#define SIMD_SUFFIX avx512

typedef __m512 vf;

static inline __mmask16 simd_first_n(int64_t n) { return (__mmask16)((1u << n) - 1u); }

static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_load_n(const float *p, int64_t n) {
    return _mm512_maskz_loadu_ps(simd_first_n(n), p);
}
static inline void vf_store_n(float *p, vf x, int64_t n) {
    _mm512_mask_storeu_ps(p, simd_first_n(n), x);
}

static inline vf simd_widen_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
// Rounds to nearest even: adds 0x7fff, or 0x8000 if the kept part is odd. A NaN keeps its sign and top bits and becomes
// quiet (fixupimm: code 2 for both kinds of NaN). Then the upper 16 bits of each lane are packed.
static inline __m256i simd_narrow_bf16(vf x) {
    const __m512i high = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29,
                                          27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i u = _mm512_castps_si512(x), rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    __mmask16 is_odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    rounded = _mm512_mask_add_epi32(rounded, is_odd, u, _mm512_set1_epi32(0x8000));
    vf quiet = _mm512_fixupimm_ps(_mm512_castsi512_ps(rounded), x, _mm512_set1_epi32(0x22), 0);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(high, _mm512_castps_si512(quiet)));
}
static inline __m256i simd_narrow_f16(vf x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_load_bf16(const uint16_t *p) {
    return simd_widen_bf16(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
    return simd_widen_bf16(_mm256_maskz_loadu_epi16(simd_first_n(n), p));
}
static inline void vf_store_bf16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, simd_narrow_bf16(x));
}
static inline void vf_store_bf16_n(uint16_t *p, vf x, int64_t n) {
    _mm256_mask_storeu_epi16(p, simd_first_n(n), simd_narrow_bf16(x));
}
// Even elements in one vector and odd ones in the other (simd_pairs.h). Rounding as above, except for NaNs.
#define SIMD_HAS_PAIRS 1
static inline void simd_widen_pair(__m512i h, vf *even, vf *odd) {
#if defined(__AVX512F__)   // not with emulated AVX-512
    __asm__("" : "+v"(h)); // one load; gcc would make two memory operands, slow across lines
#endif
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(h, _mm512_set1_epi32((int)0xffff0000)));
}
static inline __m512i simd_round_bf16(vf x) {
    __m512i u = _mm512_castps_si512(x), rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    __mmask16 is_odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(rounded, is_odd, u, _mm512_set1_epi32(0x8000));
}
// The upper halves of `even` move below those of `odd`.
static inline __m512i simd_join_halves(__m512i even, __m512i odd) {
    __m512i upper = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, upper);
}
static inline __m512i simd_narrow_pair(vf even, vf odd) {
    return simd_join_halves(simd_round_bf16(even), simd_round_bf16(odd));
}
// Rounds halfway cases up.
static inline __m512i simd_narrow_pair_up(vf even, vf odd) {
    __m512i half = _mm512_set1_epi32(0x8000);
    return simd_join_halves(_mm512_add_epi32(_mm512_castps_si512(even), half),
                            _mm512_add_epi32(_mm512_castps_si512(odd), half));
}
static inline __mmask32 simd_first_n_of_pair(int64_t n) { return (__mmask32)((1ull << n) - 1u); }
// Replaces a NaN by the default NaN (fixupimm, code 3), before simd_narrow_pair takes a value that does not come from
// bf16.
static inline vf simd_default_nan(vf x) {
    return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(0x33), 0);
}
// Accumulates whether any vector so far holds a NaN: the lanes without one.
typedef __mmask16 simd_nans;
static inline simd_nans simd_no_nans(void) { return 0xffff; }
static inline simd_nans simd_find_nans(simd_nans before, vf x, vf y) {
    return _mm512_mask_cmp_ps_mask(before, x, y, _CMP_ORD_Q);
}
static inline bool simd_has_nan(simd_nans nans) { return nans != 0xffff; }
static inline void vf_load_pair_bf16(const uint16_t *p, vf *even, vf *odd) {
    simd_widen_pair(_mm512_loadu_si512(p), even, odd);
}
static inline void vf_load_pair_bf16_n(const uint16_t *p, int64_t n, vf *even, vf *odd) {
    simd_widen_pair(_mm512_maskz_loadu_epi16(simd_first_n_of_pair(n), p), even, odd);
}
static inline void vf_store_pair_bf16(uint16_t *p, vf even, vf odd) {
    _mm512_storeu_si512(p, simd_narrow_pair(even, odd));
}
static inline void vf_store_pair_bf16_n(uint16_t *p, vf even, vf odd, int64_t n) {
    _mm512_mask_storeu_epi16(p, simd_first_n_of_pair(n), simd_narrow_pair(even, odd));
}
static inline void vf_stream_pair_bf16(uint16_t *p, vf even, vf odd) {
    _mm512_stream_si512((void *)p, simd_narrow_pair(even, odd));
}
static inline void vf_store_pair_bf16_up(uint16_t *p, vf even, vf odd) {
    _mm512_storeu_si512(p, simd_narrow_pair_up(even, odd));
}
static inline void vf_store_pair_bf16_up_n(uint16_t *p, vf even, vf odd, int64_t n) {
    _mm512_mask_storeu_epi16(p, simd_first_n_of_pair(n), simd_narrow_pair_up(even, odd));
}
static inline void vf_stream_pair_bf16_up(uint16_t *p, vf even, vf odd) {
    _mm512_stream_si512((void *)p, simd_narrow_pair_up(even, odd));
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf vf_load_f16_n(const uint16_t *p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(simd_first_n(n), p));
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, simd_narrow_f16(x));
}
static inline void vf_store_f16_n(uint16_t *p, vf x, int64_t n) {
    _mm256_mask_storeu_epi16(p, simd_first_n(n), simd_narrow_f16(x));
}
static inline void vf_stream(float *p, vf x) { _mm512_stream_ps(p, x); }
static inline void vf_stream_bf16(uint16_t *p, vf x) {
    _mm256_stream_si256((__m256i *)p, simd_narrow_bf16(x));
}
static inline void vf_stream_f16(uint16_t *p, vf x) {
    _mm256_stream_si256((__m256i *)p, simd_narrow_f16(x));
}
// A non-temporal store of half a line costs at least as much as one of a whole line, so two vectors make one store.
#define SIMD_HAS_LINES 1
static inline void simd_stream_line(uint16_t *p, __m256i low, __m256i high) {
    _mm512_stream_si512((void *)p, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
static inline void vf_stream_line_bf16(uint16_t *p, vf a, vf b) {
    simd_stream_line(p, simd_narrow_bf16(a), simd_narrow_bf16(b));
}
static inline void vf_stream_line_f16(uint16_t *p, vf a, vf b) {
    simd_stream_line(p, simd_narrow_f16(a), simd_narrow_f16(b));
}
static inline void vf_stream_fence(void) { _mm_sfence(); }

static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   // a b + c
static inline vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }   // a b - c
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } // c - a b
static inline float simd_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double simd_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
// Like maxps: returns the second operand if either is NaN.
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
// min(|x|, limit) for limit >= 0; limit if x is NaN.
#define SIMD_HAS_MIN_ABS 1
static inline vf vf_min_abs(vf x, vf limit) { return _mm512_range_ps(x, limit, 0xa); }
static inline vf vf_max_abs(vf a, vf b) { return _mm512_range_ps(a, b, 0xb); } // requires a >= 0
static inline vf vf_abs(vf x) { return _mm512_abs_ps(x); }
static inline vf vf_copysign(vf magnitude, vf sign) {
    vf bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}
static inline vf vf_sqrt(vf x) { return _mm512_sqrt_ps(x); }
// 1 / x with relative error 2^-14, for normal x and 1 / x; a division takes eight times as long.
#define SIMD_HAS_INVERSE 1
static inline vf vf_inverse(vf x) { return _mm512_rcp14_ps(x); }
static inline vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_select_lt(vf a, vf b, vf yes, vf no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
static inline vf vf_keep_n(vf x, int64_t n, float fill) {
    return _mm512_mask_blend_ps(simd_first_n(n), _mm512_set1_ps(fill), x);
}
// Adds halves, quarters, pairs: the reductions of different compilers have different orders.
static inline float vf_hsum(vf x) {
    __m256 h = _mm256_add_ps(_mm512_extractf32x8_ps(x, 1), _mm512_castps512_ps256(x));
    __m128 q = _mm_add_ps(_mm256_extractf128_ps(h, 1), _mm256_castps256_ps128(h));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
// The lane sums of four vectors.
static inline void vf_hsum4(const vf *r, float *out) {
    vf a = _mm512_unpacklo_ps(r[0], r[1]) + _mm512_unpackhi_ps(r[0], r[1]);
    vf b = _mm512_unpacklo_ps(r[2], r[3]) + _mm512_unpackhi_ps(r[2], r[3]);
    vf s = _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xee);
    s = s + _mm512_shuffle_f32x4(s, s, 0x4e);
    s = s + _mm512_shuffle_f32x4(s, s, 0xb1);
    _mm_storeu_ps(out, _mm512_castps512_ps128(s));
}
static inline float vf_hmax(vf x) {
    __m256 h = _mm256_max_ps(_mm512_extractf32x8_ps(x, 1), _mm512_castps512_ps256(x));
    __m128 q = _mm_max_ps(_mm256_extractf128_ps(h, 1), _mm256_castps256_ps128(h));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Indices for _mm512_permutex2var_epi16 that interleave the first 16 elements of two vectors. Plus 16: the last 16
// elements.
static inline __m512i simd_first_pairs(void) {
    return _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                            6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
}

// Transposes four vectors, as rows of a 4 x 4 matrix in each 128-bit lane, in place: pairs, then quads.
static inline void vf_transpose_quarters(vf *r) {
    vf low = _mm512_unpacklo_ps(r[0], r[1]), high = _mm512_unpackhi_ps(r[0], r[1]);
    vf next_low = _mm512_unpacklo_ps(r[2], r[3]), next_high = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(low, next_low, 0x44);
    r[1] = _mm512_shuffle_ps(low, next_low, 0xee);
    r[2] = _mm512_shuffle_ps(high, next_high, 0x44);
    r[3] = _mm512_shuffle_ps(high, next_high, 0xee);
}

// Transposes VL vectors, as rows of a VL x VL matrix, in place: within 128-bit lanes, then the 4 x 4 lanes.
static inline void vf_transpose(vf *r) {
    for (int i = 0; i < 16; i += 4) vf_transpose_quarters(r + i);
    for (int i = 0; i < 4; i++) {
        vf even_low = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        vf odd_low = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        vf even_high = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        vf odd_high = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}

// Lane i is the lane sum of r[i], for VL vectors: pairs, quads, then the 128-bit lanes.
static inline vf vf_sums(const vf *r) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] =
            _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]) + _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    for (int i = 0; i < 4; i++)
        u[i] = _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44) +
               _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee);
    for (int i = 0; i < 2; i++)
        t[i] = _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88) +
               _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd);
    return _mm512_shuffle_f32x4(t[0], t[1], 0x88) + _mm512_shuffle_f32x4(t[0], t[1], 0xdd);
}

// Lane i is the largest lane of r[i], for VL vectors without NaN.
static inline vf vf_maxima(const vf *r) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = vf_max(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                      _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        u[i] = vf_max(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                      _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        t[i] = vf_max(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return vf_max(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
}

// The lane sum of one vector, added in the order of vf_sums.
static inline float vf_sum_one(vf x) {
    x = x + _mm512_shuffle_ps(x, x, 0x4e);
    x = x + _mm512_shuffle_ps(x, x, 0xb1);
    x = x + _mm512_shuffle_f32x4(x, x, 0xb1);
    return _mm512_cvtss_f32(x + _mm512_shuffle_f32x4(x, x, 0x4e));
}

// x 2^n for integral n.
static inline vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }

// x 2^floor(n) for x from 1 to 2, and 0 for n below -126: a subnormal result, and every sum or product with it, would
// take a hundred times as long. NaN stays NaN.
static inline vf vf_scale2_flushed(vf x, vf n) {
    __mmask16 is_normal = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(is_normal, x, n);
}

// Splits the lanes of a followed by b into even and odd ones; vf_zip is the inverse.
static inline void vf_unzip(vf a, vf b, vf *even, vf *odd) {
    __m512i lane = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, lane, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(lane, _mm512_set1_epi32(1)), b);
}
static inline void vf_zip(vf even, vf odd, vf *a, vf *b) {
    __m512i lane = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, lane, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(lane, _mm512_set1_epi32(8)), odd);
}

// Interleaves pairs of lanes (64 bits) of x, y and z: x0 y0 z0 x1 ..., three vectors.
static inline void vf_zip_pairs(vf x, vf y, vf z, vf *out) {
    static const struct {
        long long xy[8], z[8];
        __mmask8 is_z;
    } order[3] = {{{0, 8, 0, 1, 9, 0, 2, 10}, {0, 0, 0, 0, 0, 1, 0, 0}, 0x24},
                  {{0, 3, 11, 0, 4, 12, 0, 5}, {2, 0, 0, 3, 0, 0, 4, 0}, 0x49},
                  {{13, 0, 6, 14, 0, 7, 15, 0}, {0, 5, 0, 0, 6, 0, 0, 7}, 0x92}};
    for (int i = 0; i < 3; i++) {
        __m512d xy = _mm512_permutex2var_pd(_mm512_castps_pd(x), _mm512_loadu_si512(order[i].xy),
                                            _mm512_castps_pd(y));
        out[i] = _mm512_castpd_ps(_mm512_mask_permutexvar_pd(
            xy, order[i].is_z, _mm512_loadu_si512(order[i].z), _mm512_castps_pd(z)));
    }
}

// x - floor(x), 0 for infinities. This is the whole range reduction of 2^x, because vf_scale2 takes the floor of its
// exponent itself.
#define SIMD_HAS_FRACTION 1
static inline vf vf_fraction(vf x) { return _mm512_reduce_ps(x, 0x09); }

// sum + 2^x, within 1.4 ulp of 2^x, for the same x as vf_exp2. 2^x is a table's 2^(i/32) times a minimax polynomial of
// degree 2 on [0, 1/32) with p(0) = 1. A sum that is rounded down has floor(32 x), the table's index, in its low bits.
// 8 operations per vector.
#define SIMD_HAS_EXP2_TABLE 1
static inline vf simd_add_exp2(vf sum, vf x) {
    const vf low =
        _mm512_setr_ps(1.000000000e+00f, 1.021897197e+00f, 1.044273853e+00f, 1.067140460e+00f,
                       1.090507746e+00f, 1.114386797e+00f, 1.138788700e+00f, 1.163724899e+00f,
                       1.189207196e+00f, 1.215247393e+00f, 1.241857886e+00f, 1.269051075e+00f,
                       1.296839595e+00f, 1.325236678e+00f, 1.354255676e+00f, 1.383909941e+00f);
    const vf high =
        _mm512_setr_ps(1.414213657e+00f, 1.445180893e+00f, 1.476826191e+00f, 1.509164453e+00f,
                       1.542210937e+00f, 1.575980902e+00f, 1.610490441e+00f, 1.645755529e+00f,
                       1.681792974e+00f, 1.718619347e+00f, 1.756252289e+00f, 1.794709206e+00f,
                       1.834008217e+00f, 1.874167681e+00f, 1.915206671e+00f, 1.957144260e+00f);
    vf down = _mm512_add_round_ps(x, _mm512_set1_ps(0x1.8p18f),
                                  _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf f = _mm512_reduce_ps(x, 0x59); // x - floor(32 x) / 32
    vf root = _mm512_permutex2var_ps(low, _mm512_castps_si512(down), high);
    vf p = vf_fma(f, vf_set1(2.428406e-01f), vf_set1(6.9311655e-01f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_fma(p, vf_scale2_flushed(root, x), sum);
}

// sum + 2^(x L), L the float closest to log2 e, within 5.6 * 2^-24 of 2^(x L); NaN for x = -inf. A sum rounds 32 x L to
// n. A parabola has its vertex at g = x L - n/32 + 46/32 = 0, so that 2^(x L - n/32) is a constant times (g^2 + d), to
// 2^-22.9. The table's 2^((n mod 32)/32) contain that constant and the 46/32 that the scale's exponent lacks. 7
// operations per vector.
static inline vf simd_add_exp(vf sum, vf x) {
    const vf low =
        _mm512_setr_ps(9.643976688e-01f, 9.855152369e-01f, 1.007095218e+00f, 1.029147744e+00f,
                       1.051683068e+00f, 1.074711919e+00f, 1.098245144e+00f, 1.122293591e+00f,
                       1.146868587e+00f, 1.171981692e+00f, 1.197644711e+00f, 1.223869801e+00f,
                       1.250669003e+00f, 1.278055072e+00f, 6.530204415e-01f, 6.673197150e-01f);
    const vf high =
        _mm512_setr_ps(6.819321513e-01f, 6.968644857e-01f, 7.121238112e-01f, 7.277173400e-01f,
                       7.436522841e-01f, 7.599360943e-01f, 7.765765786e-01f, 7.935813665e-01f,
                       8.109585643e-01f, 8.287162185e-01f, 8.468627334e-01f, 8.654066324e-01f,
                       8.843565583e-01f, 9.037214518e-01f, 9.235103726e-01f, 9.437326193e-01f);
    vf log2e = vf_set1(SIMD_LOG2E);
    vf rounded = vf_fma(x, log2e, vf_set1(0x1.8p18f));
    vf above = rounded - vf_set1(0x1.8p18f + 1.4375f); // n/32 - 46/32
    vf g = vf_fms(x, log2e, above);
    vf root = _mm512_permutex2var_ps(low, _mm512_castps_si512(rounded), high);
    vf p = vf_fma(g, g, vf_set1(2.081259966e+00f));
    return vf_fma(p, vf_scale2_flushed(root, above), sum);
}

#endif
