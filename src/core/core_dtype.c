// SPDX-License-Identifier: Apache-2.0
// Names, sizes and scalar conversions of the data types. Rounding from double goes through one
// exact routine for every format (round_to_format), so that no value is rounded twice.
#include "core/core_dtype.h"

#include <math.h>
#include <string.h>
#include <tessera/types.h>

static const struct {
    const char *name, *long_name;
} dtypes[TSR_DTYPE_COUNT] = {
    [TSR_DTYPE_NONE] = {"none", "none"},  [TSR_F64] = {"f64", "float64"},
    [TSR_F32] = {"f32", "float32"},       [TSR_BF16] = {"bf16", "bfloat16"},
    [TSR_F16] = {"f16", "float16"},       [TSR_E4M3] = {"e4m3", "float8_e4m3fn"},
    [TSR_E5M2] = {"e5m2", "float8_e5m2"}, [TSR_I32] = {"i32", "int32"},
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

double tsr_load(tsr_dtype dtype, const void *data, int64_t index) {
    return tsri_load(dtype, data, index);
}

// ---- double to any format ---------------------------------------------------------------------

static double power_of_two(int exponent) { // of a normal number
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

// |value| rounded to nearest even as an integer code exponent << mantissa_bits | fraction,
// subnormals included. The caller has dealt with NaN and with what rounds beyond the largest
// finite value.
static uint32_t round_to_format(double magnitude, int mantissa_bits, int bias) {
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    int biased = (int)(bits >> 52) - 1023 + bias;
    if (biased < 1) biased = 1; // subnormal: the spacing of the smallest normal numbers
    double steps = magnitude * power_of_two(mantissa_bits + bias - biased);
    steps = (steps + 0x1p52) - 0x1p52; // a double has no fraction there
    // A normal number has 2^mantissa_bits <= steps; a carry to the next power of two adds up
    // by itself.
    return (uint32_t)((biased - 1) << mantissa_bits) + (uint32_t)steps;
}

static void store_small(void *data, int64_t index, double value, tsr_dtype dtype) {
    uint32_t sign = signbit(value) ? 1u : 0u;
    double magnitude = fabs(value);
    uint32_t code;
    switch (dtype) {
    case TSR_E4M3:
        code = isnan(value) ? 0x7f : magnitude >= 448 ? 0x7e : round_to_format(magnitude, 3, 7);
        ((uint8_t *)data)[index] = (uint8_t)(sign << 7 | code);
        break;
    case TSR_E5M2:
        code = isnan(value) ? 0x7e : magnitude >= 57344 ? 0x7b : round_to_format(magnitude, 2, 15);
        ((uint8_t *)data)[index] = (uint8_t)(sign << 7 | code);
        break;
    case TSR_F16:
        code = isnan(value)         ? 0x7e00
               : magnitude >= 65520 ? 0x7c00
                                    : round_to_format(magnitude, 10, 15);
        ((uint16_t *)data)[index] = (uint16_t)(sign << 15 | code);
        break;
    default: // TSR_BF16
        code = isnan(value)               ? 0x7fc0
               : magnitude >= 0x1.ffp+127 ? 0x7f80
                                          : round_to_format(magnitude, 7, 127);
        ((uint16_t *)data)[index] = (uint16_t)(sign << 15 | code);
    }
}

static int32_t to_int32(double value) {
    if (isnan(value)) return 0;
    double whole = nearbyint(value);
    return whole >= INT32_MAX ? INT32_MAX : whole <= INT32_MIN ? INT32_MIN : (int32_t)whole;
}

void tsr_store(tsr_dtype dtype, void *data, int64_t index, double value) {
    switch (dtype) {
    case TSR_F64: ((double *)data)[index] = value; break;
    case TSR_F32: ((float *)data)[index] = (float)value; break;
    case TSR_I32: ((int32_t *)data)[index] = to_int32(value); break;
    case TSR_BF16:
    case TSR_F16:
    case TSR_E4M3:
    case TSR_E5M2: store_small(data, index, value, dtype); break;
    default: break;
    }
}
