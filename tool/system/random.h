// SPDX-License-Identifier: Apache-2.0
// Reproducible random numbers: splitmix64; the caller logs the seed. Draw once in a statement, or in a fixed order, because
// the compiler chooses which operand or argument it evaluates first.
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
                int64_t high); // both ends included; low if high is less
bool rng_chance(struct rng *rng, double probability);
// A dimension up to max, often one at which kernels break: 0, 1, powers of two, vector and tile widths
// and the neighbours of these; else anything in between.
int64_t rng_dim(struct rng *rng, int64_t max);

#endif
