// SPDX-License-Identifier: Apache-2.0
// Moves, masks and integers of AVX-512, for this folder's immintrin.h.
#ifndef EMULATED_INTEGERS_H
#define EMULATED_INTEGERS_H

// ---- Moves without changes -----------------------------------------------------------------------

EMULATED __m512i _mm512_castps_si512(__m512 x) { return (__m512i)x; }
EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }
EMULATED __m512d _mm512_castps_pd(__m512 x) { return (__m512d)x; }
EMULATED __m512 _mm512_castpd_ps(__m512d x) { return (__m512)x; }
EMULATED __m256i emulated_half(__m512i x, int half) {
    __m256i y;
    memcpy(&y, (const char *)&x + 32 * half, sizeof y);
    return y;
}
EMULATED __m512i emulated_whole(__m256i low, __m256i high) {
    __m512i x;
    memcpy(&x, &low, sizeof low);
    memcpy((char *)&x + 32, &high, sizeof high);
    return x;
}
EMULATED __m256i _mm512_castsi512_si256(__m512i x) { return emulated_half(x, 0); }
// The upper half is undefined. The fill makes code that relies on it fail.
EMULATED __m512i _mm512_castsi256_si512(__m256i x) {
    return emulated_whole(x, _mm256_set1_epi8((char)0xa5));
}
EMULATED __m512i _mm512_inserti64x4(__m512i x, __m256i y, int half) {
    return half ? emulated_whole(emulated_half(x, 0), y) : emulated_whole(y, emulated_half(x, 1));
}
EMULATED __m128 _mm512_castps512_ps128(__m512 x) {
    __m128 y;
    memcpy(&y, &x, sizeof y);
    return y;
}
EMULATED float _mm512_cvtss_f32(__m512 x) { return x[0]; }

// ---- Memory --------------------------------------------------------------------------------------

EMULATED __m512 _mm512_loadu_ps(const void *p) {
    __m512 x;
    memcpy(&x, p, sizeof x);
    return x;
}
EMULATED void _mm512_storeu_ps(void *p, __m512 x) { memcpy(p, &x, sizeof x); }
EMULATED __m512i _mm512_loadu_si512(const void *p) {
    __m512i x;
    memcpy(&x, p, sizeof x);
    return x;
}
EMULATED void _mm512_storeu_si512(void *p, __m512i x) { memcpy(p, &x, sizeof x); }

// Non-temporal stores fault if they are misaligned.
EMULATED void emulated_check_aligned(const void *p, uintptr_t bytes) {
    if ((uintptr_t)p % bytes != 0) __builtin_trap();
}
EMULATED void _mm512_stream_ps(float *p, __m512 x) {
    emulated_check_aligned(p, sizeof x);
    memcpy(p, &x, sizeof x);
}
EMULATED void _mm512_stream_si512(void *p, __m512i x) {
    emulated_check_aligned(p, sizeof x);
    memcpy(p, &x, sizeof x);
}

// Masked load: lanes outside the mask are not read, because they may be unmapped.
EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void *p) {
    __m512 x = {0};
    LANES(16) if (mask >> i & 1) memcpy((char *)&x + 4 * i, (const char *)p + 4 * i, 4);
    return x;
}
EMULATED void _mm512_mask_storeu_ps(void *p, __mmask16 mask, __m512 x) {
    LANES(16) if (mask >> i & 1) memcpy((char *)p + 4 * i, (const char *)&x + 4 * i, 4);
}
EMULATED __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void *p) {
    __m256i x = _mm256_setzero_si256();
    LANES(16) if (mask >> i & 1) memcpy((char *)&x + 2 * i, (const char *)p + 2 * i, 2);
    return x;
}
EMULATED void _mm256_mask_storeu_epi16(void *p, __mmask16 mask, __m256i x) {
    LANES(16) if (mask >> i & 1) memcpy((char *)p + 2 * i, (const char *)&x + 2 * i, 2);
}
EMULATED __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void *p) {
    __m512i x = {0};
    LANES(32) if (mask >> i & 1) memcpy((char *)&x + 2 * i, (const char *)p + 2 * i, 2);
    return x;
}
EMULATED void _mm512_mask_storeu_epi16(void *p, __mmask32 mask, __m512i x) {
    LANES(32) if (mask >> i & 1) memcpy((char *)p + 2 * i, (const char *)&x + 2 * i, 2);
}

// ---- Constants -----------------------------------------------------------------------------------

EMULATED __m512i _mm512_setzero_si512(void) { return (__m512i){0}; }
EMULATED __m512i _mm512_set1_epi32(int32_t x) {
    emulated_ints all = {0};
    return (__m512i)(all + x);
}
EMULATED __m512i _mm512_set1_epi16(int16_t x) {
    emulated_shorts all = {0};
    return (__m512i)(all + x);
}
EMULATED __m512i _mm512_set4_epi32(int32_t d, int32_t c, int32_t b, int32_t a) {
    return (__m512i)(emulated_ints){a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d};
}
// The first argument is the lowest lane; with _mm512_set_epi16 the last is.
#define _mm512_setr_epi32(...) ((__m512i)(emulated_ints){__VA_ARGS__})
#define _mm512_setr_ps(...) ((__m512)(emulated_floats){__VA_ARGS__})
EMULATED __m512i emulated_reversed_epi16(emulated_shorts x) {
    emulated_shorts y;
    LANES(32) y[i] = x[31 - i];
    return (__m512i)y;
}
#define _mm512_set_epi16(...) emulated_reversed_epi16((emulated_shorts){__VA_ARGS__})

// ---- Integers ------------------------------------------------------------------------------------

EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
EMULATED __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) {
    typedef uint32_t words __attribute__((vector_size(64)));
    return (__m512i)((words)a + (words)b);
}
EMULATED __m512i _mm512_add_epi16(__m512i a, __m512i b) {
    typedef uint16_t halves __attribute__((vector_size(64)));
    return (__m512i)((halves)a + (halves)b);
}
EMULATED __m512i _mm512_slli_epi32(__m512i x, unsigned bits) {
    typedef uint32_t words __attribute__((vector_size(64)));
    return bits > 31 ? (__m512i){0} : (__m512i)((words)x << bits);
}
EMULATED __m512i _mm512_srli_epi64(__m512i x, unsigned bits) {
    typedef uint64_t longs __attribute__((vector_size(64)));
    return bits > 63 ? (__m512i){0} : (__m512i)((longs)x >> bits);
}
EMULATED __m512i _mm512_mul_epu32(__m512i a, __m512i b) { // of the even lanes
    typedef uint64_t longs __attribute__((vector_size(64)));
    return (__m512i)(((longs)a & 0xffffffffu) * ((longs)b & 0xffffffffu));
}
// The bits of a (highest), b and c select a bit of the table.
EMULATED __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
    __m512i y = {0};
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) y |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return y;
}
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i x) {
    return emulated_whole(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}

EMULATED __m512i _mm512_cvtepi8_epi32(__m128i x) {
    return emulated_whole(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)));
}
EMULATED __m512 _mm512_cvtepi32_ps(__m512i x) {
    return (__m512)emulated_whole((__m256i)_mm256_cvtepi32_ps(emulated_half(x, 0)),
                                  (__m256i)_mm256_cvtepi32_ps(emulated_half(x, 1)));
}

// Converts lanes of all ones, as vector comparisons give them, to a mask.
EMULATED __mmask16 emulated_mask(emulated_ints lanes) {
    int low = _mm256_movemask_ps((__m256)emulated_half((__m512i)lanes, 0));
    int high = _mm256_movemask_ps((__m256)emulated_half((__m512i)lanes, 1));
    return (__mmask16)(low | high << 8);
}
// The inverse of emulated_mask().
EMULATED emulated_ints emulated_lanes(__mmask16 mask) {
    emulated_ints bit = {1,   2,   4,    8,    16,   32,   64,    128,
                         256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    return (bit & (int32_t)mask) != 0;
}
EMULATED emulated_ints emulated_select(emulated_ints lanes, emulated_ints yes, emulated_ints no) {
    return (lanes & yes) | (~lanes & no);
}

EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
    return emulated_mask(((emulated_ints)a & (emulated_ints)b) != 0);
}
EMULATED __mmask16 _mm512_cmpgt_epu32_mask(__m512i a, __m512i b) {
    typedef uint32_t words __attribute__((vector_size(64)));
    return emulated_mask((emulated_ints)((words)a > (words)b));
}
EMULATED __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
    emulated_shorts x = (emulated_shorts)a, y = (emulated_shorts)b;
    __mmask32 mask = 0;
    LANES(32) mask |= (__mmask32)(x[i] == y[i]) << i;
    return mask;
}
EMULATED __m512i _mm512_mask_add_epi32(__m512i otherwise, __mmask16 mask, __m512i a, __m512i b) {
    emulated_ints sum = (emulated_ints)_mm512_add_epi32(a, b);
    return (__m512i)emulated_select(emulated_lanes(mask), sum, (emulated_ints)otherwise);
}
EMULATED __m512 _mm512_mask_mov_ps(__m512 otherwise, __mmask16 mask, __m512 x) {
    return (__m512)emulated_select(emulated_lanes(mask), (emulated_ints)x,
                                   (emulated_ints)otherwise);
}
EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 x) {
    return (__m512)(emulated_lanes(mask) & (emulated_ints)x);
}
EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 otherwise, __m512 x) {
    return _mm512_mask_mov_ps(otherwise, mask, x);
}

// ---- Permutations --------------------------------------------------------------------------------

EMULATED __m512i _mm512_permutexvar_epi16(__m512i index, __m512i x) {
    emulated_shorts at = (emulated_shorts)index & 31, from = (emulated_shorts)x, y;
    LANES(32) y[i] = from[at[i]];
    return (__m512i)y;
}
EMULATED __m512i _mm512_permutex2var_epi16(__m512i a, __m512i index, __m512i b) {
    emulated_shorts at = (emulated_shorts)index;
    int16_t from[64], y[32];
    memcpy(from, &a, sizeof a), memcpy(from + 32, &b, sizeof b);
    LANES(32) y[i] = from[at[i] & 63];
    return _mm512_loadu_si512(y);
}
// In each 128-bit lane, takes the lower or the upper four elements of a and b alternately.
EMULATED __m512i emulated_unpack_epi16(__m512i a, __m512i b, int first) {
    emulated_shorts of_a = (emulated_shorts)a, of_b = (emulated_shorts)b, y;
    LANES(32) {
        int at = i / 8 * 8 + first + i % 8 / 2;
        y[i] = i % 2 == 0 ? of_a[at] : of_b[at];
    }
    return (__m512i)y;
}
EMULATED __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) {
    return emulated_unpack_epi16(a, b, 0);
}
EMULATED __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) {
    return emulated_unpack_epi16(a, b, 4);
}
EMULATED __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
    emulated_ints at = (emulated_ints)index;
    int32_t from[32], y[16];
    memcpy(from, &a, sizeof a), memcpy(from + 16, &b, sizeof b);
    LANES(16) y[i] = from[at[i] & 31];
    return _mm512_loadu_ps(y);
}
EMULATED __m512d _mm512_permutex2var_pd(__m512d a, __m512i index, __m512d b) {
    int64_t from[16], y[8];
    memcpy(from, &a, sizeof a), memcpy(from + 8, &b, sizeof b);
    LANES(8) y[i] = from[index[i] & 15];
    return (__m512d)_mm512_loadu_si512(y);
}
EMULATED __m512d _mm512_mask_permutexvar_pd(__m512d otherwise, __mmask8 mask, __m512i index,
                                            __m512d x) {
    int64_t from[8], y[8];
    memcpy(from, &x, sizeof x), memcpy(y, &otherwise, sizeof y);
    LANES(8) if (mask >> i & 1) y[i] = from[index[i] & 7];
    return (__m512d)_mm512_loadu_si512(y);
}
// Within 128 bits: bytes of x, or 0 if the index is negative.
EMULATED __m512i _mm512_mask_shuffle_epi8(__m512i otherwise, __mmask64 mask, __m512i x,
                                          __m512i index) {
    int8_t from[64], at[64], y[64];
    memcpy(from, &x, sizeof x), memcpy(at, &index, sizeof at), memcpy(y, &otherwise, sizeof y);
    LANES(64) if (mask >> i & 1) y[i] = at[i] < 0 ? 0 : from[(i & 48) + (at[i] & 15)];
    return _mm512_loadu_si512(y);
}

// In each 128 bits: either elements of a and b alternately, from the two lower or upper ones, or two of a, then two of
// b.
EMULATED __m512 emulated_shuffle(__m512 a, __m512 b, int i0, int i1, int i2, int i3) {
    int32_t from[32], y[16];
    memcpy(from, &a, sizeof a), memcpy(from + 16, &b, sizeof b);
    for (int i = 0; i < 16; i += 4) {
        y[i] = from[i + i0], y[i + 1] = from[i + i1];
        y[i + 2] = from[i + i2], y[i + 3] = from[i + i3];
    }
    return _mm512_loadu_ps(y);
}
EMULATED __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
    return emulated_shuffle(a, b, 0, 16, 1, 17);
}
EMULATED __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
    return emulated_shuffle(a, b, 2, 18, 3, 19);
}
EMULATED __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int order) {
    return emulated_shuffle(a, b, order & 3, order >> 2 & 3, 16 + (order >> 4 & 3),
                            16 + (order >> 6 & 3));
}
EMULATED __m512i _mm512_mask_shuffle_epi32(__m512i otherwise, __mmask16 mask, __m512i x,
                                           int order) {
    __m512 y = _mm512_shuffle_ps((__m512)x, (__m512)x, order);
    return (__m512i)_mm512_mask_mov_ps((__m512)otherwise, mask, y);
}
// Whole 128-bit lanes: two of a, two of b.
EMULATED __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order) {
    char y[64];
    for (int i = 0; i < 4; i++)
        memcpy(y + 16 * i, (const char *)(i < 2 ? &a : &b) + 16 * (order >> 2 * i & 3), 16);
    return _mm512_loadu_ps(y);
}
EMULATED __m512 _mm512_zextps128_ps512(__m128 x) {
    char y[64] = {0};
    memcpy(y, &x, sizeof x);
    return _mm512_loadu_ps(y);
}
// Repeats x four times.
EMULATED __m512 _mm512_mask_broadcast_f32x4(__m512 from, uint16_t mask, __m128 x) {
    float y[16], lanes[4];
    memcpy(y, &from, sizeof from), memcpy(lanes, &x, sizeof x);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) y[i] = lanes[i % 4];
    return _mm512_loadu_ps(y);
}

#endif
