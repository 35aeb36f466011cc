// SPDX-License-Identifier: Apache-2.0
// moe_route_score_params.h for the host's compiler, which fuses nothing (-ffp-contract=off).
#ifndef TSRI_MOE_ROUTE_SCORE_H
#define TSRI_MOE_ROUTE_SCORE_H

#include <math.h>

#include "core/core_dtype.h"

#define MOE_MINUS_INF (-__builtin_inff())
#define MOE_FUNCTION static inline
#define MOE_ADD(a, b) ((a) + (b))
#define MOE_MUL(a, b) ((a) * (b))
#define MOE_DIV(a, b) ((a) / (b))
#define MOE_ROUND(x) rintf(x)
#define MOE_POWER(n) tsri_float_of_bits((uint32_t)((int)(n) + 127) << 23)
#include "ops/moe_route/moe_route_score_params.h"

// Adds the 32 sums.
static inline float moe_add_sums(float sums[MOE_NUM_SUMS]) {
    for (int half = MOE_NUM_SUMS / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

#endif
