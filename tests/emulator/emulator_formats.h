// SPDX-License-Identifier: Apache-2.0
// Conversions of 8-bit and 16-bit numbers on their bits, with rounding to nearest even, as PTX defines them: NaN
// becomes the canonical NaN. Both compilers read this file.
#ifndef EMULATOR_FORMATS_H
#define EMULATOR_FORMATS_H

static inline unsigned emulator_bits(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float emulator_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float emulator_of_bf16(unsigned bits) { return emulator_float(bits << 16); }
static inline unsigned emulator_to_bf16(float x) {
    unsigned bits = emulator_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// A format with `mantissa` bits and exponent bias `bias`, without its special values.
static inline float emulator_widen(unsigned bits, int mantissa, int bias) {
    return emulator_float(bits << (23 - mantissa)) * emulator_float((unsigned)(254 - bias) << 23);
}
static inline unsigned emulator_narrow(unsigned magnitude, int mantissa, int bias) {
    if (magnitude < (unsigned)(128 - bias) << 23) { // the addition rounds to the smallest step
        float magic = emulator_float((unsigned)(127 + 23 + 1 - bias - mantissa) << 23);
        return emulator_bits(emulator_float(magnitude) + magic) - emulator_bits(magic);
    }
    int shift = 23 - mantissa;
    unsigned rounded = magnitude + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
    return (rounded >> shift) - ((unsigned)(127 - bias) << mantissa);
}

static inline float emulator_of_f16(unsigned bits) {
    unsigned size = bits & 0x7fffu;
    float x = size >= 0x7c00u ? emulator_float(0x7f800000u | (size & 0x3ffu) << 13)
                              : emulator_widen(size, 10, 15);
    return emulator_float(emulator_bits(x) | (bits & 0x8000u) << 16);
}
static inline unsigned emulator_to_f16(float x) {
    unsigned bits = emulator_bits(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (size > 0x7f800000u) return 0x7fff;
    return sign | (size >= 0x477ff000u ? 0x7c00u : emulator_narrow(size, 10, 15));
}

static inline float emulator_of_e4m3(unsigned bits) {
    unsigned size = bits & 0x7fu;
    float x = size == 0x7f ? emulator_float(0x7fc00000u) : emulator_widen(size, 3, 7);
    return emulator_float(emulator_bits(x) | (bits & 0x80u) << 24);
}
static inline float emulator_of_e5m2(unsigned bits) {
    unsigned size = bits & 0x7fu;
    float x =
        size >= 0x7c ? emulator_float(0x7f800000u | (size & 3) << 21) : emulator_widen(size, 2, 15);
    return emulator_float(emulator_bits(x) | (bits & 0x80u) << 24);
}

// Larger values become the largest finite number.
static inline unsigned emulator_to_fp8(float x, int mantissa, int bias, float largest) {
    unsigned bits = emulator_bits(x), size = bits & 0x7fffffffu, most = emulator_bits(largest);
    if (size > 0x7f800000u) return 0x7f;
    return (bits >> 24 & 0x80u) | emulator_narrow(size < most ? size : most, mantissa, bias);
}
static inline unsigned emulator_to_e4m3(float x) { return emulator_to_fp8(x, 3, 7, 448.0f); }
static inline unsigned emulator_to_e5m2(float x) { return emulator_to_fp8(x, 2, 15, 57344.0f); }

#endif
