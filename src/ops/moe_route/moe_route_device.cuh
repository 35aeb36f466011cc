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
#define MOE_ROUND(x) rintf(x)
#define MOE_POWER(n) __int_as_float(((int)(n) + 127) << 23)
#include "ops/moe_route/moe_route_score_params.h"

#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))
#define ALL_LANES 0xffffffffu
#define NOT_A_NUMBER __int_as_float(0xffc00000)

// Of one number a lane, in the order of moe_add_sums.
DEVICE float add_lanes(float x) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x = __fadd_rn(x, __shfl_xor_sync(ALL_LANES, x, half));
    return x;
}

DEVICE float max_lanes(float x) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, half));
    return x;
}

// A quotient that is 0 where nothing was summed.
DEVICE float share_of(float x, float sum) { return sum == 0 ? 0 : __fdiv_rn(x, sum); }

#endif
