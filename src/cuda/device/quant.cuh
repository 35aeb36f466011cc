// SPDX-License-Identifier: Apache-2.0
// Numbers of quantised weights: core/core_quant.h on the device, eight columns at a time, from a multiple of eight on. Products and
// sums are rounded one by one, so that the bits are those of the CPU.
#ifndef TSRI_DEVICE_QUANT_CUH
#define TSRI_DEVICE_QUANT_CUH

#include "cuda/device/numbers.cuh"

// As tsr_quant_format.
enum {
    QUANT_Q8_0 = 1,
    QUANT_Q4_0,
    QUANT_Q4_1,
    QUANT_Q4_K,
    QUANT_Q6_K,
    QUANT_MXFP4_GGUF,
    QUANT_INT8,
    QUANT_INT4,
    QUANT_MXFP4,
};
#define EACH_OF_EIGHT(i) _Pragma("unroll") for (int i = 0; i < 8; i++)

// Eight codes, and what makes numbers of them.
struct quant_unit {
    int code[8];
    float scale, zero, offset;
    int has_zero, has_offset;
};

DEVICE float half_at(const unsigned char *at) { return float_of_f16(at[0] | at[1] << 8); }

// 2^(e - 128).
DEVICE float half_power(unsigned e) {
    return __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

// The number of e2m1 of a code of 4 bits, doubled: from a table in one word for each four magnitudes.
DEVICE int e2m1_doubled(int code) {
    const unsigned table = code & 4 ? 0x0c080604u : 0x03020100u;
    const int size = (int)(table >> (code & 3) * 8 & 15);
    return code & 8 ? -size : size;
}

// Codes of 4 bits: eight bytes' lower or upper halves, or four bytes' both.
DEVICE void split_halves(int code[8], const unsigned char *from, int is_upper) {
    EACH_OF_EIGHT(i) code[i] = from[i] >> (is_upper ? 4 : 0) & 15;
}
DEVICE void split_pairs(int code[8], const unsigned char *from, int count) {
    EACH_OF_EIGHT(i) code[i] = i < count ? from[i / 2] >> i % 2 * 4 & 15 : 0;
}

DEVICE int six_bits(const unsigned char *scales, int of, int is_minimum) {
    const int first = is_minimum ? 4 : 0;
    if (of < 4) return scales[of + first] & 63;
    const int byte = scales[of + 4];
    return (is_minimum ? byte >> 4 : byte & 15) | scales[of - 4 + first] >> 6 << 4;
}

DEVICE void read_q4_k(struct quant_unit *u, const unsigned char *block, int i) {
    const int of = i / 32;
    split_halves(u->code, block + 16 + i / 64 * 32 + i % 32, of % 2);
    u->scale = __fmul_rn(half_at(block), (float)six_bits(block + 4, of, 0));
    u->offset = -__fmul_rn(half_at(block + 2), (float)six_bits(block + 4, of, 1));
    u->has_offset = 1;
}

DEVICE void read_q6_k(struct quant_unit *u, const unsigned char *block, int i) {
    const int half = i / 128, part = i % 128;
    const unsigned char *lower = block + half * 64 + part % 64;
    const unsigned char *upper = block + 128 + half * 32 + part % 32;
    EACH_OF_EIGHT(e)
    u->code[e] =
        ((lower[e] >> (part > 63 ? 4 : 0) & 15) | (upper[e] >> part / 32 * 2 & 3) << 4) - 32;
    u->scale = __fmul_rn(half_at(block + 208), (float)(signed char)block[192 + i / 16]);
}

// Columns [i, i + count) of a block, which has its scales within; of formats with scales beside x, which the caller has set, only
// the codes.
DEVICE void read_quant(struct quant_unit *u, int format, const unsigned char *block, int i,
                       int count) {
    const int low = i % 16, is_upper = i > 15;
    switch (format) {
    case QUANT_Q8_0:
        EACH_OF_EIGHT(e) u->code[e] = (signed char)block[2 + i + e];
        u->scale = half_at(block);
        break;
    case QUANT_Q4_0:
        split_halves(u->code, block + 2 + low, is_upper);
        EACH_OF_EIGHT(e) u->code[e] -= 8;
        u->scale = half_at(block);
        break;
    case QUANT_Q4_1:
        split_halves(u->code, block + 4 + low, is_upper);
        u->scale = half_at(block);
        u->offset = half_at(block + 2);
        u->has_offset = 1;
        break;
    case QUANT_Q4_K: read_q4_k(u, block, i); break;
    case QUANT_Q6_K: read_q6_k(u, block, i); break;
    case QUANT_MXFP4_GGUF:
        split_halves(u->code, block + 1 + low, is_upper);
        EACH_OF_EIGHT(e) u->code[e] = e2m1_doubled(u->code[e]);
        u->scale = half_power(block[0]);
        break;
    case QUANT_MXFP4:
        split_pairs(u->code, block + i / 2, count);
        EACH_OF_EIGHT(e) u->code[e] = e2m1_doubled(u->code[e]);
        break;
    case QUANT_INT8: EACH_OF_EIGHT(e) u->code[e] = e < count ? (signed char)block[i + e] : 0; break;
    default: // INT4
        split_pairs(u->code, block + i / 2, count);
        if (!u->has_zero && !u->has_offset) {
            EACH_OF_EIGHT(e) u->code[e] -= 8;
        }
    }
}

DEVICE void numbers_of_quant(float x[8], const struct quant_unit *u) {
    EACH_OF_EIGHT(i) {
        x[i] = (float)u->code[i];
        if (u->has_zero) x[i] = __fsub_rn(x[i], u->zero);
        x[i] = __fmul_rn(x[i], u->scale);
        if (u->has_offset) x[i] = __fadd_rn(x[i], u->offset);
    }
}

#endif
