// SPDX-License-Identifier: Apache-2.0
// core/core_philox.h for VL consecutive counters. For files that include cpu/simd.h.
#ifndef TSRI_SIMD_PHILOX_H
#define TSRI_SIMD_PHILOX_H

#include "cpu/simd.h"

// A vector of VL words. simd_words_multiply returns the high halves of a * m and stores the low ones in *low.
// simd_words_above returns `yes` where a > most, else 0.
#if defined(TSRI_SIMD_AVX512)
typedef __m512i simd_words;
SIMD_INLINE simd_words simd_words_set1(uint32_t x) { return _mm512_set1_epi32((int)x); }
SIMD_INLINE simd_words simd_words_from(uint32_t first) {
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(simd_words_set1(first), lane);
}
SIMD_INLINE simd_words simd_words_xor(simd_words a, simd_words b, simd_words c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
SIMD_INLINE simd_words simd_words_multiply(simd_words a, simd_words m, simd_words *low) {
    __m512i even = _mm512_mul_epu32(a, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
    *low = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, _MM_PERM_CCAA);
    return _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}
SIMD_INLINE vf simd_words_as_floats(simd_words a) { return _mm512_castsi512_ps(a); }
SIMD_INLINE vf simd_words_above(vf a, uint32_t most, float yes) {
    return _mm512_maskz_mov_ps(
        _mm512_cmpgt_epu32_mask(_mm512_castps_si512(a), simd_words_set1(most)), vf_set1(yes));
}
#elif defined(TSRI_SIMD_AVX2)
typedef __m256i simd_words;
SIMD_INLINE simd_words simd_words_set1(uint32_t x) { return _mm256_set1_epi32((int)x); }
SIMD_INLINE simd_words simd_words_from(uint32_t first) {
    return _mm256_add_epi32(simd_words_set1(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SIMD_INLINE simd_words simd_words_xor(simd_words a, simd_words b, simd_words c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
SIMD_INLINE simd_words simd_words_multiply(simd_words a, simd_words m, simd_words *low) {
    __m256i even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
SIMD_INLINE vf simd_words_as_floats(simd_words a) { return _mm256_castsi256_ps(a); }
SIMD_INLINE vf simd_words_above(vf a, uint32_t most, float yes) {
    __m256i words = _mm256_xor_si256(_mm256_castps_si256(a), simd_words_set1(1u << 31));
    __m256i is_above = _mm256_cmpgt_epi32(words, simd_words_set1(most ^ 1u << 31)); // signed
    return _mm256_and_ps(_mm256_castsi256_ps(is_above), vf_set1(yes));
}
#else
typedef uint32_t simd_words;
SIMD_INLINE simd_words simd_words_set1(uint32_t x) { return x; }
SIMD_INLINE simd_words simd_words_from(uint32_t first) { return first; }
SIMD_INLINE simd_words simd_words_xor(simd_words a, simd_words b, simd_words c) {
    return a ^ b ^ c;
}
SIMD_INLINE simd_words simd_words_multiply(simd_words a, simd_words m, simd_words *low) {
    uint64_t product = (uint64_t)a * m;
    *low = (uint32_t)product;
    return (uint32_t)(product >> 32);
}
SIMD_INLINE vf simd_words_as_floats(simd_words a) { return tsri_float_of_bits(a); }
SIMD_INLINE vf simd_words_above(vf a, uint32_t most, float yes) {
    return tsri_bits_of_float(a) > most ? yes : 0.0f;
}
#endif

// Word w of the counter (first + l, c1, c2, c3) goes to lane 4 l + w of the four vectors, which hold words although
// their type is vf.
SIMD_INLINE void simd_philox(uint64_t key, uint32_t first, uint32_t c1, uint32_t c2, uint32_t c3,
                             vf words[4]) {
    simd_words a = simd_words_from(first), b = simd_words_set1(c1), c = simd_words_set1(c2);
    simd_words d = simd_words_set1(c3);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        simd_words of_a, of_c;
        simd_words high_a = simd_words_multiply(a, simd_words_set1(0xd2511f53u), &of_a);
        simd_words high_c = simd_words_multiply(c, simd_words_set1(0xcd9e8d57u), &of_c);
        a = simd_words_xor(high_c, b, simd_words_set1(k0));
        b = of_c;
        c = simd_words_xor(high_a, d, simd_words_set1(k1));
        d = of_a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    vf ac[2], bd[2];
    vf_zip(simd_words_as_floats(a), simd_words_as_floats(c), &ac[0], &ac[1]);
    vf_zip(simd_words_as_floats(b), simd_words_as_floats(d), &bd[0], &bd[1]);
    vf_zip(ac[0], bd[0], &words[0], &words[1]);
    vf_zip(ac[1], bd[1], &words[2], &words[3]);
}

#endif
