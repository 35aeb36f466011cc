// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between float and the 8-bit formats, without branches, so that the compiler vectorizes loops over
// them. They round to nearest even and saturate at the largest value.
#ifndef TSRI_CORE_FP8_H
#define TSRI_CORE_FP8_H

#include "core/core_dtype.h"

// The bits below the sign, shifted into place, form a float whose exponent is too small by the difference of the
// biases. Multiplying by a power of two adds this difference and also turns subnormals of the 8-bit format into normal
// floats.
static inline float tsri_e4m3_to_float(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80) << 24, code = h & 0x7fu;
    uint32_t magnitude = tsri_bits_of_float(tsri_float_of_bits(code << 20) * 0x1p120f);
    return tsri_float_of_bits(sign | (code == 0x7f ? 0x7fc00000u : magnitude));
}

static inline float tsri_e5m2_to_float(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80) << 24, code = h & 0x7fu;
    uint32_t magnitude = tsri_bits_of_float(tsri_float_of_bits(code << 21) * 0x1p112f);
    uint32_t special = 0x7f800000u | (code & 3) << 21;
    return tsri_float_of_bits(sign | (code >= 0x7c ? special : magnitude));
}

// Rounds x to a format of one sign bit, 7 - mantissa_bits exponent bits and mantissa_bits. The magnitude is first
// capped. A normal result rounds the bits; for a subnormal one, adding 2^23 times the smallest step makes the float
// adder round to a multiple of that step.
static inline uint8_t tsri_fp8_of_float(float x, int mantissa_bits, int bias, uint32_t largest,
                                        uint32_t nan_code) {
    uint32_t u = tsri_bits_of_float(x), sign = u >> 24 & 0x80u, magnitude = u & 0x7fffffffu;
    uint32_t capped = magnitude < largest ? magnitude : largest;
    int shift = 23 - mantissa_bits;
    uint32_t normal = (capped + (1u << (shift - 1)) - 1 + (capped >> shift & 1)) >> shift;
    normal -= (uint32_t)(127 - bias) << mantissa_bits;
    uint32_t magic = (uint32_t)(127 + 23 + 1 - bias - mantissa_bits) << 23;
    float stepped = tsri_float_of_bits(capped) + tsri_float_of_bits(magic);
    uint32_t subnormal = tsri_bits_of_float(stepped) - magic;
    uint32_t code = capped < (uint32_t)(128 - bias) << 23 ? subnormal : normal;
    return (uint8_t)(sign | (magnitude > 0x7f800000u ? nan_code : code));
}

static inline uint8_t tsri_e4m3_of_float(float x) {
    return tsri_fp8_of_float(x, 3, 7, 0x43e00000u, 0x7f); // largest value 448
}

static inline uint8_t tsri_e5m2_of_float(float x) {
    return tsri_fp8_of_float(x, 2, 15, 0x47600000u, 0x7e); // largest value 57344
}

// Rounds x to odd: an inexact result gets an odd last bit, so that a second rounding, to a format of at most 22 bits of
// precision, is correct (Boldo and Melquiond, 2008).
static inline float tsri_odd_float_of_double(double x) {
    float nearest = (float)x;
    double back = (double)nearest, size = x < 0 ? -x : x, got = back < 0 ? -back : back;
    uint32_t u = tsri_bits_of_float(nearest);
    u -= got > size ? 1 : 0; // now rounded towards zero
    u |= back != x ? 1 : 0;
    return tsri_float_of_bits(u);
}

#endif
