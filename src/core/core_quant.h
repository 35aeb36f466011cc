// SPDX-License-Identifier: Apache-2.0
// The formats of tessera/dequantize.h: the sizes of blocks, single numbers for the oracles, rows as operations have them, and the
// checks of a call's fields.
#ifndef TSRI_CORE_QUANT_H
#define TSRI_CORE_QUANT_H

#include <stdbool.h>
#include <tessera/dequantize.h>

#include "core/core_dtype.h"
#include "core/core_tensor.h"

// The numbers of e2m1, doubled: integers.
static const int8_t tsri_e2m1_doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};

struct tsri_quant_block {
    int cols, bytes;
    bool has_scales; // in tensors of their own; else in the block
};

static inline struct tsri_quant_block tsri_quant_block(tsr_quant_format format) {
    static const struct tsri_quant_block blocks[TSR_QUANT_COUNT] = {
        [TSR_QUANT_Q8_0] = {32, 34, false},   [TSR_QUANT_Q4_0] = {32, 18, false},
        [TSR_QUANT_Q4_1] = {32, 20, false},   [TSR_QUANT_Q4_K] = {256, 144, false},
        [TSR_QUANT_Q6_K] = {256, 210, false}, [TSR_QUANT_MXFP4_GGUF] = {32, 17, false},
        [TSR_QUANT_INT8] = {32, 32, true},    [TSR_QUANT_INT4] = {32, 16, true},
        [TSR_QUANT_MXFP4] = {32, 16, true}};
    return blocks[format];
}

// 2^(e - 128), the factor of doubled e2m1 numbers.
static inline float tsri_half_power(uint8_t e) {
    return tsri_float_of_bits(e < 2 ? (uint32_t)0x200000 << e : (uint32_t)(e - 1) << 23);
}

// The factor by a scale of MXFP4, whose last code is NaN.
static inline float tsri_mxfp4_scale(uint8_t power) {
    return power == 255 ? NAN : tsri_half_power(power);
}

static inline float tsri_quant_f16(const uint8_t *at) {
    return tsri_f16_to_float((uint16_t)(at[0] | at[1] << 8));
}

static inline int tsri_quant_nibble(uint8_t byte, bool is_upper) {
    return is_upper ? byte >> 4 : byte & 15;
}

// The 6-bit scale, or minimum, of 32 columns of a Q4_K block: the upper 2 bits of the last four lie with the first four.
static inline int tsri_quant_six_bits(const uint8_t scales[12], int of, bool is_minimum) {
    const int first = is_minimum ? 4 : 0;
    if (of < 4) return scales[of + first] & 63;
    return tsri_quant_nibble(scales[of + 4], is_minimum) | scales[of - 4 + first] >> 6 << 4;
}

// The scales of a number that lie beside its row.
struct tsri_quant_scales {
    float scale, zero, minimum;
    bool has_zero, has_minimum;
    int middle;    // of codes of INT4: 8, but 0 with a zero or a minimum
    uint8_t power; // MXFP4's scale
};

// ---- Single numbers -----------------------------------------------------------------------------

static inline float tsri_quant_of_group(float q, const struct tsri_quant_scales *s) {
    if (s->has_zero) q -= s->zero;
    q *= s->scale;
    return s->has_minimum ? q + s->minimum : q;
}

static inline float tsri_quant_q4_k(const uint8_t *block, int i) {
    const int of = i / 32, byte = 16 + i / 64 * 32 + i % 32;
    const float scale = tsri_quant_f16(block) * (float)tsri_quant_six_bits(block + 4, of, false);
    const float minimum =
        tsri_quant_f16(block + 2) * (float)tsri_quant_six_bits(block + 4, of, true);
    return scale * (float)tsri_quant_nibble(block[byte], of % 2 == 1) - minimum;
}

static inline float tsri_quant_q6_k(const uint8_t *block, int i) {
    const int half = i / 128, part = i % 128;
    const int lower = tsri_quant_nibble(block[half * 64 + part % 64], part > 63);
    const int upper = block[128 + half * 32 + part % 32] >> part / 32 * 2 & 3;
    const float scale = tsri_quant_f16(block + 208) * (float)(int8_t)block[192 + i / 16];
    return scale * (float)((lower | upper << 4) - 32);
}

// Number `col` of a row.
static inline float tsri_quant_number(tsr_quant_format format, const uint8_t *row, int64_t col,
                                      const struct tsri_quant_scales *s) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    const uint8_t *block = row + col / shape.cols * shape.bytes;
    const int i = (int)(col % shape.cols), low = i % 16;
    const bool is_upper = i > 15, is_odd = i % 2 == 1;
    switch (format) {
    case TSR_QUANT_Q8_0: return tsri_quant_f16(block) * (float)(int8_t)block[2 + i];
    case TSR_QUANT_Q4_0:
        return tsri_quant_f16(block) * (float)(tsri_quant_nibble(block[2 + low], is_upper) - 8);
    case TSR_QUANT_Q4_1:
        return tsri_quant_f16(block) * (float)tsri_quant_nibble(block[4 + low], is_upper) +
               tsri_quant_f16(block + 2);
    case TSR_QUANT_Q4_K: return tsri_quant_q4_k(block, i);
    case TSR_QUANT_Q6_K: return tsri_quant_q6_k(block, i);
    case TSR_QUANT_MXFP4_GGUF:
        return tsri_half_power(block[0]) *
               (float)tsri_e2m1_doubled[tsri_quant_nibble(block[1 + low], is_upper)];
    case TSR_QUANT_MXFP4:
        return tsri_mxfp4_scale(s->power) *
               (float)tsri_e2m1_doubled[tsri_quant_nibble(block[i / 2], is_odd)];
    case TSR_QUANT_INT8: return tsri_quant_of_group((float)(int8_t)block[i], s);
    default:
        return tsri_quant_of_group((float)(tsri_quant_nibble(block[i / 2], is_odd) - s->middle), s);
    }
}

// ---- Rows ---------------------------------------------------------------------------------------

// Quantised rows, and what lies beside them: without a dtype where it is absent.
struct tsri_quant_rows {
    tsr_quant_format format; // TSR_QUANT_NONE: there are none
    int64_t group;           // columns of a scale, at least 1
    struct tsri_rows x;      // bytes
    struct tsri_rows scale, zero, minimum;
};

static inline struct tsri_quant_scales tsri_quant_scales(const struct tsri_quant_rows *q,
                                                         int64_t row, int64_t group) {
    struct tsri_quant_scales s = {.has_zero = q->zero.dtype != TSR_DTYPE_NONE,
                                  .has_minimum = q->minimum.dtype != TSR_DTYPE_NONE};
    s.middle = s.has_zero || s.has_minimum ? 0 : 8;
    if (q->format == TSR_QUANT_MXFP4)
        s.power = ((const uint8_t *)tsri_row(&q->scale, row))[group];
    else if (q->scale.dtype != TSR_DTYPE_NONE)
        s.scale = (float)tsri_load(q->scale.dtype, tsri_row(&q->scale, row), group);
    if (s.has_zero) s.zero = (float)tsri_load(q->zero.dtype, tsri_row(&q->zero, row), group);
    if (s.has_minimum)
        s.minimum = (float)tsri_load(q->minimum.dtype, tsri_row(&q->minimum, row), group);
    return s;
}

static inline float tsri_quant_at(const struct tsri_quant_rows *q, int64_t row, int64_t col) {
    const struct tsri_quant_scales s = tsri_quant_scales(q, row, col / q->group);
    return tsri_quant_number(q->format, tsri_row(&q->x, row), col, &s);
}

// ---- Checks -------------------------------------------------------------------------------------

// The fields of a call that make quantised rows. like: the tensor that is f64 where scales may be, on "reference".
struct tsri_quant_fields {
    const char *name, *scale_name, *zero_name, *minimum_name, *like_name;
    tsr_tensor *x, *scale, *zero, *minimum;
    const tsr_tensor *like;
    tsr_quant_format format;
    int32_t group;
};

tsr_status tsri_check_quant_format(const char *op, tsr_quant_format format);
// Checks x as rows of bytes; then that they are those of so many columns, dimension of_dim of the field of_field.
tsr_status tsri_check_quant_rows(const char *op, const struct tsri_quant_fields *f,
                                 struct tsri_quant_rows *q);
tsr_status tsri_check_quant_bytes(const char *op, const struct tsri_quant_fields *f,
                                  const char *of_field, int of_dim, int64_t cols,
                                  const struct tsri_quant_rows *q);
// Checks the group and what lies beside x, which has passed.
tsr_status tsri_check_quant_scales(const char *op, const struct tsri_quant_fields *f, int64_t cols,
                                   struct tsri_quant_rows *q);

#endif
