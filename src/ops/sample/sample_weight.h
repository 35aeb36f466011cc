// SPDX-License-Identifier: Apache-2.0
// sample_weight_params.h for the host's compiler, which fuses nothing (-ffp-contract=off), and the numbers of a row.
#ifndef TSRI_SAMPLE_WEIGHT_H
#define TSRI_SAMPLE_WEIGHT_H

#include <math.h>

#include "core/core_dtype.h"
#include "core/core_philox.h"

#define SAMPLE_FUNCTION static inline
#define SAMPLE_ADD(a, b) ((a) + (b))
#define SAMPLE_MUL(a, b) ((a) * (b))
#define SAMPLE_DIV(a, b) ((a) / (b))
#define SAMPLE_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SAMPLE_ROUND(x) rintf(x)
#define SAMPLE_SCALED(p, t)                                                                        \
    tsri_float_of_bits(tsri_bits_of_float(p) + (tsri_bits_of_float(t) << 23))
#include "ops/sample/sample_weight_params.h"

static inline uint32_t sample_key_of(float x) { return sample_key(tsri_bits_of_float(x)); }

// floor(u sum), of the row with this stream (its seed or its number) and offset.
static inline uint64_t sample_target(uint64_t seed, uint64_t offset, uint64_t stream,
                                     uint64_t sum) {
    const uint32_t counter[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    uint32_t words[4];
    unsigned long long low;
    tsri_philox(seed, counter, words);
    return sample_high_product((uint64_t)words[1] << 32 | words[0], sum, &low);
}

#endif
