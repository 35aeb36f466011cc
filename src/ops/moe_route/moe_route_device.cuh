// SPDX-License-Identifier: Apache-2.0
// What the routing's kernels share: the scores of moe_route_score_params.h with the host's bits, and a warp's sums. Lane j has
// elements j, j + 32, ... of a token.
#ifndef TSRI_MOE_ROUTE_DEVICE_CUH
#define TSRI_MOE_ROUTE_DEVICE_CUH

#include "cuda/device/any_dtype.cuh"

#define MOE_MINUS_INF (-INFINITE)
#define MOE_FUNCTION DEVICE
#define MOE_ADD(a, b) __fadd_rn(a, b)
#define MOE_MUL(a, b) __fmul_rn(a, b)
#define MOE_DIV(a, b) __fdiv_rn(a, b)
// Sums with 1.5 2^23, whose low bits are the integer: conversions take as long as eight additions.
#define MOE_ROUND(x) __fadd_rn(__fadd_rn(x, 12582912.0f), -12582912.0f)
#define MOE_POWER(n) __int_as_float((__float_as_int(__fadd_rn(n, 12582912.0f)) << 23) + 0x3f800000)
#include "ops/moe_route/moe_route_score_params.h"

#define LANE ((int)(threadIdx.x % 32))
#define ALL_LANES 0xffffffffu
#define NOT_A_NUMBER __int_as_float(0xffc00000)

// Of one number a lane, in the order of moe_add_sums.
DEVICE float add_lanes(float x) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x = __fadd_rn(x, __shfl_xor_sync(ALL_LANES, x, half));
    return x;
}

// threadIdx.x / 32, which the compiler then knows to be the same in all lanes, and so are branches that depend on it.
DEVICE int warp_index(void) { return __shfl_sync(ALL_LANES, (int)(threadIdx.x / 32), 0); }

// Larger floats have larger keys; 0 and -0 have the same. No number has the key 0.
DEVICE unsigned key_of(float x) {
    const int bits = __float_as_int(__fadd_rn(x, 0.0f));
    return (unsigned)bits ^ ((unsigned)(bits >> 31) | 0x80000000u);
}
DEVICE float float_of_key(unsigned key) {
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

// Of numbers that are not NaN.
DEVICE float max_lanes(float x) { return float_of_key(__reduce_max_sync(ALL_LANES, key_of(x))); }

// A quotient that is 0 where nothing was summed.
DEVICE float share_of(float x, float sum) { return sum == 0 ? 0 : __fdiv_rn(x, sum); }

// log(x) for x >= 1, within 2^-23.
DEVICE double log_of_sum(float x) {
    const unsigned bits = __float_as_uint(x);
    const int n = (int)((bits + 0x4afb0du) >> 23) - 127; // the rest is from sqrt(1/2) to sqrt(2)
    return n * 0.693147180559945309 + (double)logf(__uint_as_float(bits - ((unsigned)n << 23)));
}

#endif
