// SPDX-License-Identifier: Apache-2.0
// The numbers that fp8 codes stand for, without the library's conversions.
#ifndef FP8_VALUE_H
#define FP8_VALUE_H

#include <math.h>
#include <stdint.h>

#include <tessera/tessera.h>

// Decodes a code from its sign, exponent and mantissa, as the format's paper defines it.
static inline double fp8_value(tsr_dtype dtype, uint8_t code) {
    int mantissa_bits = dtype == TSR_E4M3 ? 3 : 2, bias_of_exponent = dtype == TSR_E4M3 ? 7 : 15;
    int mantissa = code & ((1 << mantissa_bits) - 1);
    int exponent = (code & 0x7f) >> mantissa_bits;
    double sign = code & 0x80 ? -1 : 1, fraction = ldexp(mantissa, -mantissa_bits);
    if (dtype == TSR_E4M3 && (code & 0x7f) == 0x7f) return (double)NAN;
    if (dtype == TSR_E5M2 && exponent == 31) return mantissa != 0 ? (double)NAN : sign * INFINITY;
    return sign * (exponent == 0 ? ldexp(fraction, 1 - bias_of_exponent)
                                 : ldexp(1 + fraction, exponent - bias_of_exponent));
}

#endif
