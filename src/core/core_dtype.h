// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between float, double and the small formats, for the tails of kernels and for the oracles.
#ifndef TSRI_CORE_DTYPE_H
#define TSRI_CORE_DTYPE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tessera/types.h>

// tsr_dtype_bytes without a call or a check, for code that runs once per row.
static inline int64_t tsri_dtype_bytes(tsr_dtype dtype) {
    static const uint8_t bytes[TSR_DTYPE_COUNT] = {
        [TSR_F64] = 8,  [TSR_F32] = 4,  [TSR_BF16] = 2, [TSR_F16] = 2,
        [TSR_E4M3] = 1, [TSR_E5M2] = 1, [TSR_I32] = 4,  [TSR_U8] = 1};
    return bytes[dtype];
}

static inline uint32_t tsri_bits_of_float(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float tsri_float_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float tsri_bf16_to_float(uint16_t h) { return tsri_float_of_bits((uint32_t)h << 16); }

static inline uint16_t tsri_bf16_of_float(float x) {
    uint32_t u = tsri_bits_of_float(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); // quiet NaN
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float tsri_f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return tsri_float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) { // zero or subnormal: fraction * 2^-24 is exact in float
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    return tsri_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t tsri_f16_of_float(float x) {
    uint32_t u = tsri_bits_of_float(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // rounds to infinity
    if (magnitude < 0x38800000u) { // subnormal: the float adder rounds to a multiple of 2^-24
        float shifted = tsri_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (tsri_bits_of_float(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

static inline double tsri_fp8_to_double(uint8_t h, int mantissa_bits, int bias, int has_infinity) {
    int exponent = (h & 0x7f) >> mantissa_bits, fraction = h & ((1 << mantissa_bits) - 1);
    double sign = h & 0x80 ? -1.0 : 1.0, scale;
    if (has_infinity && exponent == 31) return copysign((double)(fraction ? NAN : INFINITY), sign);
    if (!has_infinity && (h & 0x7f) == 0x7f) return copysign((double)NAN, sign);
    uint64_t power = (uint64_t)((exponent ? exponent : 1) - bias - mantissa_bits + 1023) << 52;
    memcpy(&scale, &power, sizeof scale); // scale = power, a power of two
    return sign * scale * (double)((exponent ? 1 << mantissa_bits : 0) + fraction);
}

// Like tsr_load, but fast enough for loops.
static inline double tsri_load(tsr_dtype dtype, const void *data, int64_t index) {
    switch (dtype) {
    case TSR_F64: return ((const double *)data)[index];
    case TSR_F32: return (double)((const float *)data)[index];
    case TSR_BF16: return (double)tsri_bf16_to_float(((const uint16_t *)data)[index]);
    case TSR_F16: return (double)tsri_f16_to_float(((const uint16_t *)data)[index]);
    case TSR_E4M3: return tsri_fp8_to_double(((const uint8_t *)data)[index], 3, 7, 0);
    case TSR_E5M2: return tsri_fp8_to_double(((const uint8_t *)data)[index], 2, 15, 1);
    case TSR_I32: return (double)((const int32_t *)data)[index];
    case TSR_U8: return (double)((const uint8_t *)data)[index];
    default: return 0.0;
    }
}

// Loads `count` elements, `step` apart, and tests the dtype only once.
static inline void tsri_load_run(tsr_dtype dtype, const void *data, int64_t index, int64_t step,
                                 int64_t count, double *to) {
#define TSRI_LOAD_RUN(of)                                                                          \
    case of:                                                                                       \
        for (int64_t i = 0; i < count; i++) to[i] = tsri_load(of, data, index + i * step);         \
        break;
    switch (dtype) {
        TSRI_LOAD_RUN(TSR_F64)
        TSRI_LOAD_RUN(TSR_F32)
        TSRI_LOAD_RUN(TSR_BF16)
        TSRI_LOAD_RUN(TSR_F16)
        TSRI_LOAD_RUN(TSR_E4M3)
        TSRI_LOAD_RUN(TSR_E5M2)
        TSRI_LOAD_RUN(TSR_I32)
        TSRI_LOAD_RUN(TSR_U8)
    default: break;
    }
#undef TSRI_LOAD_RUN
}

#endif
