// SPDX-License-Identifier: Apache-2.0
// Names, sizes and scalar conversions of the data types. One exact routine, narrow, rounds a double to any format, so
// no value is rounded twice.
#include "core/core_dtype.h"

#include <stdbool.h>
#include <string.h>
#include <tessera/types.h>

static const struct {
    const char *name, *long_name;
} dtypes[TSR_DTYPE_COUNT] = {
    [TSR_DTYPE_NONE] = {"none", "none"},  [TSR_F64] = {"f64", "float64"},
    [TSR_F32] = {"f32", "float32"},       [TSR_BF16] = {"bf16", "bfloat16"},
    [TSR_F16] = {"f16", "float16"},       [TSR_E4M3] = {"e4m3", "float8_e4m3fn"},
    [TSR_E5M2] = {"e5m2", "float8_e5m2"}, [TSR_I32] = {"i32", "int32"},
    [TSR_U8] = {"u8", "uint8"},
};

static int is_dtype(tsr_dtype dtype) { return (unsigned)dtype < TSR_DTYPE_COUNT; }

const char *tsr_dtype_name(tsr_dtype dtype) {
    return is_dtype(dtype) ? dtypes[dtype].name : "unknown dtype";
}

size_t tsr_dtype_bytes(tsr_dtype dtype) {
    return is_dtype(dtype) ? (size_t)tsri_dtype_bytes(dtype) : 0;
}

tsr_dtype tsr_dtype_from_name(const char *name) {
    static const struct {
        const char *name;
        tsr_dtype dtype;
    } aliases[] = {{"fp64", TSR_F64}, {"fp32", TSR_F32},  {"fp16", TSR_F16},
                   {"half", TSR_F16}, {"float", TSR_F32}, {"double", TSR_F64}};
    if (name == NULL) return TSR_DTYPE_NONE;
    for (int i = 1; i < TSR_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0 || strcmp(name, dtypes[i].long_name) == 0)
            return (tsr_dtype)i;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(name, aliases[i].name) == 0) return aliases[i].dtype;
    return TSR_DTYPE_NONE;
}

// ---- Conversions ------------------------------------------------------------------------------
// Integer arithmetic only, so the caller's rounding mode, FTZ and DAZ do not matter and no flag is raised. Loops inside
// the library use tsri_load, because the library sets its own environment.

static const uint64_t double_infinity = (uint64_t)0x7ff << 52;

// Decodes an IEEE format with the usual bias. Without infinities (has_infinity false), only the largest code is NaN.
static double widen(uint64_t code, int exponent_bits, int mantissa_bits, bool has_infinity) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent_max = (1 << exponent_bits) - 1;
    uint64_t sign = code >> (exponent_bits + mantissa_bits);
    uint64_t fraction = code & (((uint64_t)1 << mantissa_bits) - 1), bits;
    int exponent = (int)(code >> mantissa_bits) & exponent_max;
    bool is_nan = exponent == exponent_max &&
                  (has_infinity ? fraction != 0 : fraction == ((uint64_t)1 << mantissa_bits) - 1);
    if (is_nan) { // quiet NaN; formats of 16 bits and more keep the payload
        bits = double_infinity | (uint64_t)1 << 51;
        if (mantissa_bits > 3) bits |= fraction << (52 - mantissa_bits);
    } else if (exponent == exponent_max && has_infinity) {
        bits = double_infinity;
    } else if (exponent > 0) {
        bits = (uint64_t)(exponent - bias + 1023) << 52 | fraction << (52 - mantissa_bits);
    } else if (fraction > 0) { // subnormal: the value is fraction * 2^(1 - bias - mantissa_bits)
        int lead = 63 - __builtin_clzll(fraction);
        bits = (uint64_t)(lead + 1 - bias - mantissa_bits + 1023) << 52 |
               (fraction ^ (uint64_t)1 << lead) << (52 - lead);
    } else {
        bits = 0;
    }
    double value;
    bits |= sign << 63;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double tsr_load(tsr_dtype dtype, const void *data, int64_t index) {
    switch (dtype) {
    case TSR_F32: return widen(tsri_bits_of_float(((const float *)data)[index]), 8, 23, true);
    case TSR_BF16: return widen(((const uint16_t *)data)[index], 8, 7, true);
    case TSR_F16: return widen(((const uint16_t *)data)[index], 5, 10, true);
    case TSR_E4M3: return widen(((const uint8_t *)data)[index], 4, 3, false);
    case TSR_E5M2: return widen(((const uint8_t *)data)[index], 5, 2, true);
    default: return tsri_load(dtype, data, index); // f64 and integers convert exactly
    }
}

// magnitude * 2^-shift, rounded to nearest even. Requires magnitude < 2^53 and shift >= 1.
static uint64_t round_shifted(uint64_t magnitude, int shift) {
    if (shift > 53) return 0; // the value is below one half
    uint64_t half = (uint64_t)1 << (shift - 1);
    return (magnitude + half - 1 + (magnitude >> shift & 1)) >> shift;
}

// Returns the 53-bit significand of a double's magnitude: magnitude = significand * 2^(exponent - 52).
static uint64_t significand_of(uint64_t magnitude, int *exponent) {
    int biased = (int)(magnitude >> 52);
    *exponent = (biased > 0 ? biased : 1) - 1023;
    return (magnitude & (((uint64_t)1 << 52) - 1)) | (uint64_t)(biased > 0) << 52;
}

// Rounds |value| to nearest even and returns its code, exponent << mantissa_bits | fraction, subnormals included,
// capped at `largest`.
static uint32_t narrow(uint64_t magnitude, int mantissa_bits, int bias, uint32_t largest) {
    int exponent, shift = 52 - mantissa_bits;
    uint64_t significand = significand_of(magnitude, &exponent);
    int biased = exponent + bias;
    if (biased < 1) { // subnormal: round to the spacing of the smallest normal numbers
        shift += 1 - biased;
        biased = 1;
    }
    // The rounded significand of a normal number is at least 2^mantissa_bits, so the sum also carries into the exponent
    // correctly.
    uint64_t code = ((uint64_t)(biased - 1) << mantissa_bits) + round_shifted(significand, shift);
    return code < largest ? (uint32_t)code : largest;
}

static int32_t to_int32(uint64_t magnitude, bool is_negative) {
    int exponent;
    uint64_t significand = significand_of(magnitude, &exponent), whole = (uint64_t)1 << 31;
    if (magnitude > double_infinity) return 0;
    if (exponent < 31) whole = round_shifted(significand, 52 - exponent);
    if (is_negative) return (int32_t) - (int64_t)whole;
    return whole > INT32_MAX ? INT32_MAX : (int32_t)whole;
}

static uint8_t to_uint8(int32_t value) {
    return (uint8_t)(value < 0 ? 0 : value > UINT8_MAX ? UINT8_MAX : value);
}

void tsr_store(tsr_dtype dtype, void *data, int64_t index, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t magnitude = bits & ~((uint64_t)1 << 63);
    bool is_nan = magnitude > double_infinity;
    uint32_t sign = (uint32_t)(bits >> 63), code;
    switch (dtype) {
    case TSR_F64: ((double *)data)[index] = value; break;
    case TSR_F32:
        code = is_nan ? 0x7fc00000 | (uint32_t)(magnitude >> 29 & 0x3fffff)
                      : narrow(magnitude, 23, 127, 0x7f800000);
        ((float *)data)[index] = tsri_float_of_bits(sign << 31 | code);
        break;
    case TSR_BF16:
        code = is_nan ? 0x7fc0 : narrow(magnitude, 7, 127, 0x7f80);
        ((uint16_t *)data)[index] = (uint16_t)(sign << 15 | code);
        break;
    case TSR_F16:
        code = is_nan ? 0x7e00 : narrow(magnitude, 10, 15, 0x7c00);
        ((uint16_t *)data)[index] = (uint16_t)(sign << 15 | code);
        break;
    case TSR_E4M3:
        code = is_nan ? 0x7f : narrow(magnitude, 3, 7, 0x7e);
        ((uint8_t *)data)[index] = (uint8_t)(sign << 7 | code);
        break;
    case TSR_E5M2:
        code = is_nan ? 0x7e : narrow(magnitude, 2, 15, 0x7b);
        ((uint8_t *)data)[index] = (uint8_t)(sign << 7 | code);
        break;
    case TSR_I32: ((int32_t *)data)[index] = to_int32(magnitude, sign != 0); break;
    case TSR_U8: ((uint8_t *)data)[index] = to_uint8(to_int32(magnitude, sign != 0)); break;
    default: break;
    }
}
