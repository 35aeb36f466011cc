// SPDX-License-Identifier: Apache-2.0
// Reproducible random numbers: splitmix64, seeds logged by whoever draws. One draw to a statement, or in a fixed order: which
// operand or argument is evaluated first is the compiler's choice.
#ifndef TOOL_RANDOM_H
#define TOOL_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

uint64_t rng_bits(struct rng *rng);
double rng_uniform(struct rng *rng); // [0, 1)
double rng_normal(struct rng *rng);  // mean 0, variance 1
int64_t rng_int(struct rng *rng, int64_t low,
                int64_t high); // both ends included; low where high is below
bool rng_chance(struct rng *rng, double probability);
// A dimension up to max that likes the places where kernels break: 0, 1, powers of two and their
// neighbours, vector and tile widths and theirs, and anything in between.
int64_t rng_dim(struct rng *rng, int64_t max);

#endif
