// SPDX-License-Identifier: Apache-2.0
// Codes of quantised weights (core/core_quant.h), 32 columns at a time, as signed bytes, and such bytes as vectors of floats.
#ifndef TSRI_SIMD_QUANT_H
#define TSRI_SIMD_QUANT_H

#include "core/core_quant.h"
#include "cpu/simd.h"

enum { QUANT_UNIT = 32 }; // columns

// 16 bytes, as the compiler's vectors: they are the same in every instruction set.
typedef uint8_t simd_bytes16 __attribute__((vector_size(16)));

#if defined(TSRI_SIMD_SCALAR)
SIMD_INLINE float simd_quant_f16(const uint8_t *at) { return tsri_quant_f16(at); }
SIMD_INLINE vf vf_of_codes(const int8_t *codes) { return (float)*codes; }
SIMD_INLINE simd_bytes16 simd_look_up(simd_bytes16 table, simd_bytes16 at) {
    for (int i = 0; i < 16; i++) at[i] = table[at[i] & 15];
    return at;
}
// a's first bytes, or last ones, each followed by b's.
SIMD_INLINE simd_bytes16 simd_take_turns(simd_bytes16 a, simd_bytes16 b, bool is_last) {
    simd_bytes16 y;
    for (int i = 0; i < 16; i++) y[i] = (i % 2 == 0 ? a : b)[i / 2 + (is_last ? 8 : 0)];
    return y;
}
#else
SIMD_INLINE float simd_quant_f16(const uint8_t *at) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(at[0] | at[1] << 8)));
}
#if defined(TSRI_SIMD_AVX2)
SIMD_INLINE vf vf_of_codes(const int8_t *codes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes)));
}
#else
SIMD_INLINE vf vf_of_codes(const int8_t *codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes)));
}
#endif
SIMD_INLINE simd_bytes16 simd_look_up(simd_bytes16 table, simd_bytes16 at) {
    return (simd_bytes16)_mm_shuffle_epi8((__m128i)table, (__m128i)at);
}
SIMD_INLINE simd_bytes16 simd_take_turns(simd_bytes16 a, simd_bytes16 b, bool is_last) {
    return (simd_bytes16)(is_last ? _mm_unpackhi_epi8((__m128i)a, (__m128i)b)
                                  : _mm_unpacklo_epi8((__m128i)a, (__m128i)b));
}
#endif

SIMD_INLINE simd_bytes16 simd_load_bytes16(const uint8_t *from) {
    simd_bytes16 bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes;
}
SIMD_INLINE void simd_store_codes16(int8_t *to, simd_bytes16 codes) {
    memcpy(to, &codes, sizeof codes);
}

// The numbers of e2m1 for codes of 4 bits, doubled.
SIMD_INLINE simd_bytes16 simd_e2m1(simd_bytes16 codes) {
    return simd_look_up(simd_load_bytes16((const uint8_t *)tsri_e2m1_doubled), codes);
}

// Codes of 4 bits whose lower halves are columns 0 to 15.
SIMD_INLINE void simd_split_halves(const uint8_t *from, int8_t codes[QUANT_UNIT], int zero,
                                   bool is_e2m1) {
    const simd_bytes16 bytes = simd_load_bytes16(from);
    const simd_bytes16 low = bytes & 15, high = bytes >> 4;
    simd_store_codes16(codes, is_e2m1 ? simd_e2m1(low) : low - (uint8_t)zero);
    simd_store_codes16(codes + 16, is_e2m1 ? simd_e2m1(high) : high - (uint8_t)zero);
}

// Codes of 4 bits whose lower halves are even columns.
SIMD_INLINE void simd_split_pairs(const uint8_t *from, int8_t codes[QUANT_UNIT], int zero,
                                  bool is_e2m1) {
    const simd_bytes16 bytes = simd_load_bytes16(from);
    simd_bytes16 low = bytes & 15, high = bytes >> 4;
    low = is_e2m1 ? simd_e2m1(low) : low - (uint8_t)zero;
    high = is_e2m1 ? simd_e2m1(high) : high - (uint8_t)zero;
    simd_store_codes16(codes, simd_take_turns(low, high, false));
    simd_store_codes16(codes + 16, simd_take_turns(low, high, true));
}

// Columns [32 unit, 32 unit + 32) of a block of Q4_K, and of Q6_K.
SIMD_INLINE void simd_split_q4_k(const uint8_t *block, int unit, int8_t codes[QUANT_UNIT]) {
    const uint8_t *from = block + 16 + unit / 2 * QUANT_UNIT;
    for (int i = 0; i < QUANT_UNIT; i += 16) {
        const simd_bytes16 bytes = simd_load_bytes16(from + i);
        simd_store_codes16(codes + i, unit % 2 == 1 ? bytes >> 4 : bytes & 15);
    }
}
SIMD_INLINE void simd_split_q6_k(const uint8_t *block, int unit, int8_t codes[QUANT_UNIT]) {
    const int half = unit / 4, part = unit % 4;
    const uint8_t *lower = block + half * 64 + part % 2 * QUANT_UNIT;
    const uint8_t *upper = block + 128 + half * QUANT_UNIT;
    for (int i = 0; i < QUANT_UNIT; i += 16) {
        const simd_bytes16 low = simd_load_bytes16(lower + i), high = simd_load_bytes16(upper + i);
        const simd_bytes16 four = part > 1 ? low >> 4 : low & 15;
        simd_store_codes16(codes + i, (four | (high >> (uint8_t)(2 * part) & 3) << 4) - 32);
    }
}

// ---- Units of 32 columns ------------------------------------------------------------------------

// Codes of up to 32 columns and what makes numbers of them: each half of the columns has its scale.
struct simd_quant_unit {
    const int8_t *codes;
    float scale[2], zero, offset;
    bool has_zero, has_offset;
    int8_t room[QUANT_UNIT]; // for codes that are not signed bytes in x
};

// ---- From bytes to codes ------------------------------------------------------------------------

SIMD_INLINE void simd_quant_set(struct simd_quant_unit *u, float scale) {
    u->scale[0] = u->scale[1] = scale;
}

// Blocks of 32 columns that begin with scales.
SIMD_INLINE void simd_quant_read_block(struct simd_quant_unit *u, tsr_quant_format format,
                                       const uint8_t *block) {
    switch (format) {
    case TSR_QUANT_Q8_0:
        u->codes = (const int8_t *)block + 2;
        simd_quant_set(u, simd_quant_f16(block));
        break;
    case TSR_QUANT_Q4_0:
        simd_split_halves(block + 2, u->room, 8, false);
        simd_quant_set(u, simd_quant_f16(block));
        break;
    case TSR_QUANT_Q4_1:
        simd_split_halves(block + 4, u->room, 0, false);
        simd_quant_set(u, simd_quant_f16(block));
        u->offset = simd_quant_f16(block + 2);
        u->has_offset = true;
        break;
    default:
        simd_split_halves(block + 1, u->room, 0, true);
        simd_quant_set(u, tsri_half_power(block[0]));
    }
}

// 32 of a block's 256 columns.
SIMD_INLINE void simd_quant_read_part(struct simd_quant_unit *u, tsr_quant_format format,
                                      const uint8_t *block, int part) {
    if (format == TSR_QUANT_Q4_K) {
        const float minimum = (float)tsri_quant_six_bits(block + 4, part, true);
        simd_split_q4_k(block, part, u->room);
        simd_quant_set(u,
                       simd_quant_f16(block) * (float)tsri_quant_six_bits(block + 4, part, false));
        u->offset = -(simd_quant_f16(block + 2) * minimum);
        u->has_offset = true;
        return;
    }
    const int8_t *scale = (const int8_t *)block + 192 + part * 2;
    simd_split_q6_k(block, part, u->room);
    for (int i = 0; i < 2; i++) u->scale[i] = simd_quant_f16(block + 208) * (float)scale[i];
}

// Codes beside tensors of scales; n: columns, fewer than 32 only at the end of a row.
static inline void simd_quant_read_codes(struct simd_quant_unit *u, tsr_quant_format format,
                                         const uint8_t *from, int64_t n,
                                         const struct tsri_quant_scales *s) {
    uint8_t some[QUANT_UNIT] = {0};
    if (n < QUANT_UNIT) {
        const int64_t bytes = tsri_quant_block(format).bytes; // of 32 columns
        memcpy(some, from, (size_t)tsri_ceil_div(n * bytes, QUANT_UNIT));
        from = some;
    }
    simd_quant_set(u, s->scale);
    u->has_zero = s->has_zero;
    u->zero = s->zero;
    u->has_offset = s->has_minimum;
    u->offset = s->minimum;
    if (format == TSR_QUANT_MXFP4) {
        simd_split_pairs(from, u->room, 0, true);
        simd_quant_set(u, tsri_mxfp4_scale(s->power));
    } else if (format == TSR_QUANT_INT4) {
        simd_split_pairs(from, u->room, s->middle, false);
    } else {
        memcpy(u->room, from, QUANT_UNIT);
    }
}

// ---- From codes to numbers ----------------------------------------------------------------------

SIMD_INLINE vf simd_quant_numbers(const struct simd_quant_unit *u, int64_t i, bool has_zero,
                                  bool has_offset) {
    vf v = vf_of_codes(u->codes + i);
    if (has_zero) v = v - vf_set1(u->zero);
    v = v * vf_set1(u->scale[i / (QUANT_UNIT / 2)]);
    if (has_offset) v = v + vf_set1(u->offset);
    return v;
}

// Unit `part` of a block, n columns, fewer than 32 only at the end of a row. s: what lies beside x for their group, if the format
// has such.
SIMD_INLINE void simd_quant_read_unit(struct simd_quant_unit *u, tsr_quant_format format,
                                      const uint8_t *block, int part, int64_t n,
                                      const struct tsri_quant_scales *s) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    u->codes = u->room;
    u->has_zero = u->has_offset = false;
    u->zero = u->offset = 0;
    if (shape.has_scales)
        simd_quant_read_codes(u, format, block, n, s);
    else if (shape.cols == QUANT_UNIT)
        simd_quant_read_block(u, format, block);
    else
        simd_quant_read_part(u, format, block, part);
}

// Columns [col, col + n) of a row of x's bytes, n at most 32, col a multiple of 32.
static inline void simd_quant_read(struct simd_quant_unit *u, tsr_quant_format format,
                                   const uint8_t *row, int64_t col, int64_t n,
                                   const struct tsri_quant_scales *s) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    simd_quant_read_unit(u, format, row + col / shape.cols * shape.bytes,
                         (int)(col % shape.cols / QUANT_UNIT), n, s);
}

// ---- Scales beside a row ------------------------------------------------------------------------

// Those of the present group are in s.
struct simd_quant_beside {
    struct tsri_quant_scales s;
    const char *scale, *zero, *minimum; // of the row; NULL: absent
    tsr_dtype dtype;
    int64_t group, end; // the next group, and the column where the present one ends
};

// For columns from `first` on, whose group simd_quant_find then finds.
SIMD_INLINE struct simd_quant_beside simd_quant_beside(tsr_quant_format format,
                                                       const struct tsri_quant_rows *q, int64_t row,
                                                       int64_t first) {
    struct simd_quant_beside beside = {.dtype = q->scale.dtype};
    if (!tsri_quant_block(format).has_scales) return beside;
    beside.group = first / q->group;
    beside.end = beside.group * q->group;
    beside.scale = tsri_row(&q->scale, row);
    if (q->zero.dtype != TSR_DTYPE_NONE) beside.zero = tsri_row(&q->zero, row);
    if (q->minimum.dtype != TSR_DTYPE_NONE) beside.minimum = tsri_row(&q->minimum, row);
    beside.s.has_zero = beside.zero != NULL;
    beside.s.has_minimum = beside.minimum != NULL;
    beside.s.middle = beside.s.has_zero || beside.s.has_minimum ? 0 : 8;
    return beside;
}

SIMD_INLINE float simd_quant_load(tsr_dtype dtype, const char *from, int64_t i) {
    if (dtype == TSR_F32) return ((const float *)(const void *)from)[i];
    if (dtype == TSR_F16) return simd_quant_f16((const uint8_t *)from + 2 * i);
    return tsri_float_of_bits((uint32_t)((const uint16_t *)(const void *)from)[i] << 16);
}

// Moves on to the group of column `at`, if that is the next one.
SIMD_INLINE void simd_quant_find(struct simd_quant_beside *beside, tsr_quant_format format,
                                 const struct tsri_quant_rows *q, int64_t at) {
    const int64_t i = beside->group;
    if (!tsri_quant_block(format).has_scales || at < beside->end) return;
    beside->group++;
    beside->end += q->group;
    if (format == TSR_QUANT_MXFP4) {
        beside->s.power = ((const uint8_t *)beside->scale)[i];
        return;
    }
    beside->s.scale = simd_quant_load(beside->dtype, beside->scale, i);
    if (beside->zero != NULL) beside->s.zero = simd_quant_load(beside->dtype, beside->zero, i);
    if (beside->minimum != NULL)
        beside->s.minimum = simd_quant_load(beside->dtype, beside->minimum, i);
}

#endif
