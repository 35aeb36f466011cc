// SPDX-License-Identifier: Apache-2.0
// The 8-bit formats e4m3 and e5m2 in registers: the arithmetic of core/core_fp8.h, or the architecture's instructions
// if it has them. Rounding is to nearest even and saturates at the largest value; NaN keeps its sign.
#ifndef TSRI_DEVICE_FP8_CUH
#define TSRI_DEVICE_FP8_CUH

#include "cuda/device/numbers.cuh"

// The bits below the sign, shifted into place, form a float whose exponent is too small by the difference of the
// biases. Multiplying by a power of two adds this difference, for subnormal numbers too.
DEVICE float float_of_e4m3(unsigned code) {
    unsigned size = code & 0x7fu;
    float x = __uint_as_float(size << 20) * __uint_as_float(247u << 23); // 2^120
    unsigned bits = size == 0x7f ? 0x7fc00000u : __float_as_uint(x);
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

DEVICE float float_of_e5m2(unsigned code) {
    unsigned size = code & 0x7fu;
    float x = __uint_as_float(size << 21) * __uint_as_float(239u << 23); // 2^112
    unsigned bits = size >= 0x7c ? 0x7f800000u | (size & 3) << 21 : __float_as_uint(x);
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

#if __CUDA_ARCH__ >= 890

// Converts two numbers, the first in the low byte. Goes through f16, which holds all values exactly.
#define DEFINE_PAIR_OF_FP8(format)                                                                 \
    DEVICE void floats_of_##format(float x[2], unsigned pair) {                                    \
        unsigned halves;                                                                           \
        asm("cvt.rn.f16x2." #format "x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)pair));      \
        x[0] = __uint_as_float(__float_as_uint(float_of_f16(halves & 0xffff)) |                    \
                               (pair << 24 & 0x80000000u));                                        \
        x[1] = __uint_as_float(__float_as_uint(float_of_f16(halves >> 16)) |                       \
                               (pair << 16 & 0x80000000u));                                        \
    }
DEFINE_PAIR_OF_FP8(e4m3)
DEFINE_PAIR_OF_FP8(e5m2)

// The instruction alone drops the sign of NaN.
#define DEFINE_PAIR_TO_FP8(format)                                                                 \
    DEVICE unsigned numbers_to_##format(float low, float high) {                                   \
        unsigned short pair;                                                                       \
        asm("cvt.rn.satfinite." #format "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));  \
        return pair;                                                                               \
    }                                                                                              \
    DEVICE unsigned pair_to_##format(float low, float high) {                                      \
        return numbers_to_##format(low, high) | (__float_as_uint(low) >> 24 & 0x80u) |             \
               (__float_as_uint(high) >> 16 & 0x8000u);                                            \
    }
DEFINE_PAIR_TO_FP8(e4m3)
DEFINE_PAIR_TO_FP8(e5m2)

#else

DEVICE void floats_of_e4m3(float x[2], unsigned pair) {
    x[0] = float_of_e4m3(pair & 0xff);
    x[1] = float_of_e4m3(pair >> 8 & 0xff);
}
DEVICE void floats_of_e5m2(float x[2], unsigned pair) {
    x[0] = float_of_e5m2(pair & 0xff);
    x[1] = float_of_e5m2(pair >> 8 & 0xff);
}

// Caps the magnitude. Then a normal result rounds the bits; a subnormal one lets the float adder round to a multiple of
// the smallest step.
DEVICE unsigned fp8_of_float(float x, int mantissa_bits, int bias, unsigned largest,
                             unsigned nan_code) {
    unsigned u = __float_as_uint(x), magnitude = u & 0x7fffffffu;
    unsigned capped = magnitude < largest ? magnitude : largest;
    int shift = 23 - mantissa_bits;
    unsigned normal = (capped + (1u << (shift - 1)) - 1 + (capped >> shift & 1)) >> shift;
    normal -= (unsigned)(127 - bias) << mantissa_bits;
    unsigned magic = (unsigned)(127 + 23 + 1 - bias - mantissa_bits) << 23;
    unsigned subnormal = __float_as_uint(__uint_as_float(capped) + __uint_as_float(magic)) - magic;
    unsigned code = capped < (unsigned)(128 - bias) << 23 ? subnormal : normal;
    return (u >> 24 & 0x80u) | (magnitude > 0x7f800000u ? nan_code : code);
}
DEVICE unsigned pair_to_e4m3(float low, float high) {
    return fp8_of_float(low, 3, 7, 0x43e00000u, 0x7f) | fp8_of_float(high, 3, 7, 0x43e00000u, 0x7f)
                                                            << 8;
}
DEVICE unsigned pair_to_e5m2(float low, float high) {
    return fp8_of_float(low, 2, 15, 0x47600000u, 0x7e) |
           fp8_of_float(high, 2, 15, 0x47600000u, 0x7e) << 8;
}
#define numbers_to_e4m3 pair_to_e4m3
#define numbers_to_e5m2 pair_to_e5m2

#endif
#endif
