// SPDX-License-Identifier: Apache-2.0
// Products of rows of a by quantised columns of b in integers: what both of its files share. A number of a becomes an integer of
// 16 bits, in units of a power of two that its 32 columns share, and two signed bytes; a code of b becomes an unsigned byte. A
// vector holds 16 codes of each of four units of 32 columns, so that a sum of four products belongs to one scale.
#ifndef TSRI_MATMUL_INTEGER_CODES_H
#define TSRI_MATMUL_INTEGER_CODES_H

#include <immintrin.h>

#include "cpu/simd_quant.h"
#include "ops/matmul/cpu/matmul_quant_vnni.h"

enum { UNIT = QUANT_UNIT, UNITS = MATMUL_INTEGERS / UNIT, ROWS = 4 };

// The formats whose numbers are a scale times a whole number.
#define EACH_INTEGER_FORMAT(DO)                                                                    \
    DO(Q8_0) DO(Q4_0) DO(Q6_K) DO(MXFP4_GGUF) DO(INT8) DO(INT4) DO(MXFP4)

// 128 numbers of a row. First and last: 16 columns of each unit, as codes of b lie.
struct integers {
    int8_t high_first[64], low_first[64], high_last[64], low_last[64];
    // What the codes have too much, times the integers of each lane, negated: of both halves, but of Q6_K of each half.
    int32_t start_first[16], start_last[16];
    float scale[16];
    int32_t start_of_first[UNITS], start_of_last[UNITS]; // the same of each unit
    int32_t unused[8];
};
_Static_assert(sizeof(struct integers) == MATMUL_INTEGERS_BYTES, "bytes of 128 numbers");

// What is added to a code so that it is an unsigned byte.
SIMD_INLINE int excess_of(tsr_quant_format format) {
    switch (format) {
    case TSR_QUANT_Q8_0:
    case TSR_QUANT_INT8: return 128;
    case TSR_QUANT_MXFP4:
    case TSR_QUANT_MXFP4_GGUF: return 12;
    case TSR_QUANT_Q6_K: return 32;
    default: return 8;
    }
}
// Lower halves of bytes are even columns, not columns 0 to 15.
SIMD_INLINE bool is_in_pairs(tsr_quant_format format) {
    return format == TSR_QUANT_INT4 || format == TSR_QUANT_MXFP4;
}

// ---- Codes of b ---------------------------------------------------------------------------------

// 128 codes of a column as unsigned bytes, and a scale for each lane.
struct codes {
    __m512i first, last;
    __m512 scale, scale_last; // scale_last: of Q6_K
};

// 16 bytes from each of four blocks.
SIMD_INLINE __m512i load_four(const uint8_t *from, int step) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from + step)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from + 2 * step)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(from + 3 * step)), 3);
}

// Four numbers, each in four lanes.
SIMD_INLINE __m512 each_four_times(__m128 x) {
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(x));
}

// The f16 scales that four blocks begin with, `step` bytes apart, 18 or 34, each in four lanes.
SIMD_INLINE __m512 scales_of_blocks(const uint8_t *block, int step) {
    const __m256i one = _mm256_setr_epi16(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i words =
        _mm512_castsi256_si512(_mm256_mullo_epi16(one, _mm256_set1_epi16((short)(step / 2))));
    const __m512i low = _mm512_loadu_si512(block);
    const __m512i high = _mm512_loadu_si512(block + (step == 18 ? 0 : 64));
    return _mm512_cvtph_ps(
        _mm512_castsi512_si256(step == 18 ? _mm512_permutexvar_epi16(words, low)
                                          : _mm512_permutex2var_epi16(low, words, high)));
}

SIMD_INLINE void split(struct codes *c, __m512i bytes, bool is_e2m1) {
    const __m512i four_bits = _mm512_set1_epi8(15);
    c->first = _mm512_and_si512(bytes, four_bits);
    c->last = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), four_bits);
    if (!is_e2m1) return;
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_add_epi8(_mm_loadu_si128((const __m128i *)tsri_e2m1_doubled),
                                            _mm_set1_epi8((char)excess_of(TSR_QUANT_MXFP4))));
    c->first = _mm512_shuffle_epi8(table, c->first);
    c->last = _mm512_shuffle_epi8(table, c->last);
}

// Half of a block of 256 columns of Q6_K: four units, whose lower four bits lie in 64 bytes and upper two in 32.
SIMD_INLINE void split_q6_k(struct codes *c, const uint8_t *block, int half) {
    const __m512i by_four = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m512i by_two = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i four_bits = _mm512_set1_epi8(15), two_bits = _mm512_set1_epi8(3);
    const uint8_t *lower = block + half * 64, *upper = block + 128 + half * 32;
    for (int i = 0; i < 2; i++, lower += 16, upper += 16) {
        const __m256i low =
            _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lower)),
                                    _mm_loadu_si128((const __m128i *)(lower + 32)), 1);
        __m512i x = _mm512_broadcast_i64x4(low);
        __m512i y = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)upper));
        x = _mm512_and_si512(_mm512_srlv_epi32(x, by_four), four_bits);
        y = _mm512_and_si512(_mm512_srlv_epi32(y, by_two), two_bits);
        x = _mm512_or_si512(x, _mm512_slli_epi16(y, 4));
        if (i == 0)
            c->first = x;
        else
            c->last = x;
    }
    // Scales of 16 columns each: those of the first and of the last half of each unit.
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(block + 192 + half * 8));
    const __m256 scales = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                                        _mm256_set1_ps(simd_quant_f16(block + 208)));
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512 all = _mm512_castps256_ps512(scales);
    c->scale = _mm512_permutexvar_ps(lanes, all);
    c->scale_last = _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(1)), all);
}

// Scales beside b, of the groups of four units from column `at` on.
SIMD_INLINE __m512 scales_beside(tsr_quant_format format, const struct tsri_quant_rows *q,
                                 const char *scales, int64_t at, int64_t k) {
    float four[UNITS] = {0};
    for (int i = 0; i < UNITS && at + i * UNIT < k; i++) {
        const int64_t group = (at + i * UNIT) / q->group;
        four[i] = format == TSR_QUANT_MXFP4 ? tsri_mxfp4_scale(((const uint8_t *)scales)[group])
                                            : simd_quant_load(q->scale.dtype, scales, group);
    }
    return each_four_times(_mm_loadu_ps(four));
}

// 128 columns from `at` on, whose bytes begin at `from`.
SIMD_INLINE void load_codes(struct codes *c, tsr_quant_format format,
                            const struct tsri_quant_rows *q, const uint8_t *from,
                            const char *scales, int64_t at, int64_t k) {
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    switch (format) {
    case TSR_QUANT_Q8_0:
        c->first = _mm512_xor_si512(load_four(from + 2, 34), sign);
        c->last = _mm512_xor_si512(load_four(from + 18, 34), sign);
        c->scale = scales_of_blocks(from, 34);
        break;
    case TSR_QUANT_Q4_0:
        split(c, load_four(from + 2, 18), false);
        c->scale = scales_of_blocks(from, 18);
        break;
    case TSR_QUANT_MXFP4_GGUF:
        split(c, load_four(from + 1, 17), true);
        c->scale =
            each_four_times(_mm_setr_ps(tsri_half_power(from[0]), tsri_half_power(from[17]),
                                        tsri_half_power(from[34]), tsri_half_power(from[51])));
        break;
    case TSR_QUANT_Q6_K: split_q6_k(c, from, (int)(at / MATMUL_INTEGERS % 2)); break;
    case TSR_QUANT_INT8:
        c->first = _mm512_xor_si512(load_four(from, 32), sign);
        c->last = _mm512_xor_si512(load_four(from + 16, 32), sign);
        c->scale = scales_beside(format, q, scales, at, k);
        break;
    default:
        split(c, _mm512_loadu_si512(from), format == TSR_QUANT_MXFP4);
        c->scale = scales_beside(format, q, scales, at, k);
    }
}

// A column: a row of b's bytes, and of scales.
struct column {
    const uint8_t *row;
    const char *scales;
};

// The codes of a column's 128 numbers from `at` on. A part of them at the end of a row, which is not whole, is copied, so that
// nothing beyond b is read.
SIMD_INLINE void read_codes(struct codes *c, tsr_quant_format format, bool is_whole,
                            const struct tsri_quant_rows *q, const struct column *column,
                            int64_t at, int64_t k) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    const int64_t offset = at / shape.cols * shape.bytes;
    const uint8_t *from = column->row + offset;
    uint8_t some[2 * MATMUL_INTEGERS];
    if (!is_whole) {
        memset(some, 0, sizeof some);
        memcpy(some, from, (size_t)(q->x.cols - offset));
        from = some;
    }
    load_codes(c, format, q, from, column->scales, at, k);
}

// Fetches what comes `ahead` bytes after a column's codes from `at` on: of the column, or at its end of the one `skip` bytes
// further.
SIMD_INLINE void fetch_codes(tsr_quant_format format, const struct column *column, int64_t at,
                             int ahead, int64_t row_bytes, int64_t skip, bool is_near) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    const int64_t offset = at / shape.cols * shape.bytes + ahead;
    const uintptr_t from =
        (uintptr_t)column->row + (uintptr_t)(offset < row_bytes ? offset : offset + skip);
    for (int i = 0; i < MATMUL_INTEGERS * shape.bytes / shape.cols; i += 64)
        if (is_near)
            __builtin_prefetch((const char *)from + i, 0, 3);
        else
            __builtin_prefetch((const char *)from + i, 0, 2);
}

SIMD_INLINE struct column column_of(tsr_quant_format format, const struct tsri_quant_rows *q,
                                    int64_t col) {
    const bool has_scales = tsri_quant_block(format).has_scales;
    return (struct column){tsri_row(&q->x, col), has_scales ? tsri_row(&q->scale, col) : NULL};
}

// ---- Sums ---------------------------------------------------------------------------------------

SIMD_INLINE __m512 scaled(__m512i low, __m512i high, __m512 scale, __m512 sum) {
    const __m512i whole = _mm512_add_epi32(low, _mm512_slli_epi32(high, 8));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sum);
}

#endif
