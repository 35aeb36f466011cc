// SPDX-License-Identifier: Apache-2.0
// Quantised rows to numbers, compiled once per instruction set: 32 columns become signed bytes, and these floats, each times its
// scale. Formats differ in how they hold codes and scales; the arithmetic after that has three forms.
// Floor: x read once, y written once: 2.56 bytes a number from Q4_0 to bf16.
// Limit: memory with several threads.
// Figures: docs/kernels/dequantize.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_quant.h"
#include "ops/dequantize/dequantize_problem.h"

// Codes of up to 32 columns and what makes numbers of them: each half of the columns has its scale.
struct unit {
    const int8_t *codes;
    float scale[2], zero, offset;
    bool has_zero, has_offset;
    int8_t room[QUANT_UNIT]; // for codes that are not signed bytes in x
};

// ---- From bytes to codes ------------------------------------------------------------------------

static void set_scale(struct unit *u, float scale) { u->scale[0] = u->scale[1] = scale; }

// Blocks of 32 columns that begin with scales.
static void read_block(struct unit *u, tsr_quant_format format, const uint8_t *block) {
    switch (format) {
    case TSR_QUANT_Q8_0:
        u->codes = (const int8_t *)block + 2;
        set_scale(u, tsri_quant_f16(block));
        break;
    case TSR_QUANT_Q4_0:
        simd_split_halves(block + 2, u->room, 8, false);
        set_scale(u, tsri_quant_f16(block));
        break;
    case TSR_QUANT_Q4_1:
        simd_split_halves(block + 4, u->room, 0, false);
        set_scale(u, tsri_quant_f16(block));
        u->offset = tsri_quant_f16(block + 2);
        u->has_offset = true;
        break;
    default:
        simd_split_halves(block + 1, u->room, 0, true);
        set_scale(u, tsri_half_power(block[0]));
    }
}

// 32 of a block's 256 columns.
static void read_part(struct unit *u, tsr_quant_format format, const uint8_t *block, int part) {
    if (format == TSR_QUANT_Q4_K) {
        const float minimum = (float)tsri_quant_six_bits(block + 4, part, true);
        simd_split_q4_k(block, part, u->room);
        set_scale(u, tsri_quant_f16(block) * (float)tsri_quant_six_bits(block + 4, part, false));
        u->offset = -(tsri_quant_f16(block + 2) * minimum);
        u->has_offset = true;
        return;
    }
    const int8_t *scale = (const int8_t *)block + 192 + part * 2;
    simd_split_q6_k(block, part, u->room);
    for (int i = 0; i < 2; i++) u->scale[i] = tsri_quant_f16(block + 208) * (float)scale[i];
}

// Codes beside tensors of scales; n: columns, fewer than 32 only at the end of a row.
static void read_codes(struct unit *u, tsr_quant_format format, const uint8_t *from, int64_t n,
                       const struct tsri_quant_scales *s) {
    uint8_t some[QUANT_UNIT] = {0};
    if (n < QUANT_UNIT) {
        const int64_t bytes = tsri_quant_block(format).bytes; // of 32 columns
        memcpy(some, from, (size_t)tsri_ceil_div(n * bytes, QUANT_UNIT));
        from = some;
    }
    set_scale(u, s->scale);
    u->has_zero = s->has_zero;
    u->zero = s->zero;
    u->has_offset = s->has_minimum;
    u->offset = s->minimum;
    if (format == TSR_QUANT_MXFP4) {
        simd_split_pairs(from, u->room, 0, true);
        set_scale(u, s->power == 255 ? NAN : tsri_half_power(s->power));
    } else if (format == TSR_QUANT_INT4) {
        simd_split_pairs(from, u->room, s->has_zero || s->has_minimum ? 0 : 8, false);
    } else {
        memcpy(u->room, from, QUANT_UNIT);
    }
}

// ---- From codes to numbers ----------------------------------------------------------------------

SIMD_INLINE vf numbers_of(const struct unit *u, int64_t i, bool has_zero, bool has_offset) {
    vf v = vf_of_codes(u->codes + i);
    if (has_zero) v = v - vf_set1(u->zero);
    v = v * vf_set1(u->scale[i / (QUANT_UNIT / 2)]);
    if (has_offset) v = v + vf_set1(u->offset);
    return v;
}

SIMD_INLINE void put_as(tsr_dtype dtype, const struct unit *u, void *y, int64_t n, bool has_zero,
                        bool has_offset) {
#define STEP(access, i, n) vf_put(access, dtype, y, i, numbers_of(u, i, has_zero, has_offset), n)
    SIMD_FOR_SPAN(n, 0, false, STEP);
#undef STEP
}

SIMD_INLINE void put(tsr_dtype dtype, const struct unit *u, void *y, int64_t n) {
    if (u->has_zero)
        u->has_offset ? put_as(dtype, u, y, n, true, true) : put_as(dtype, u, y, n, true, false);
    else
        u->has_offset ? put_as(dtype, u, y, n, false, true) : put_as(dtype, u, y, n, false, false);
}

// ---- Rows ---------------------------------------------------------------------------------------

static void put_unit(const struct dequantize_problem *p, int64_t source, int64_t row, int64_t col,
                     int64_t n) {
    const struct tsri_quant_block shape = tsri_quant_block(p->format);
    const uint8_t *block =
        (const uint8_t *)tsri_row(&p->x, source) + col / shape.cols * shape.bytes;
    char *y = (char *)tsri_row(&p->y, row) + col * tsri_dtype_bytes(p->y.dtype);
    struct unit u;
    u.codes = u.room;
    u.has_zero = u.has_offset = false;
    if (shape.has_scales) {
        const struct tsri_quant_scales s = dequantize_scales(p, source, col / p->group);
        read_codes(&u, p->format, block, n, &s);
    } else if (shape.cols == QUANT_UNIT) {
        read_block(&u, p->format, block);
    } else {
        read_part(&u, p->format, block, (int)(col % shape.cols / QUANT_UNIT));
    }
    switch (p->y.dtype) {
    case TSR_BF16: put(TSR_BF16, &u, y, n); break;
    case TSR_F16: put(TSR_F16, &u, y, n); break;
    default: put(TSR_F32, &u, y, n);
    }
}

static void dequantize(const struct dequantize_problem *p, const struct tsri_piece *piece) {
    const int64_t bytes = tsri_dtype_bytes(p->y.dtype);
    for (int64_t row = piece->first_row; row < piece->last_row; row++) {
        const int64_t source = dequantize_source(p, row);
        if (source < 0)
            memset((char *)tsri_row(&p->y, row) + piece->first_col * bytes, 0,
                   (size_t)((piece->last_col - piece->first_col) * bytes));
        for (int64_t col = piece->first_col; source >= 0 && col < piece->last_col;
             col += QUANT_UNIT)
            put_unit(p, source, row, col, tsri_min(piece->last_col - col, QUANT_UNIT));
    }
}

const struct dequantize_kernels TSRI_KERNEL_TABLE(dequantize) = {.dequantize = dequantize};
