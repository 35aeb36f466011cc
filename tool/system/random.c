// SPDX-License-Identifier: Apache-2.0
#include "system/random.h"

#include <math.h>

uint64_t rng_bits(struct rng *rng) {
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double rng_uniform(struct rng *rng) { return (double)(rng_bits(rng) >> 11) * 0x1p-53; }

double rng_normal(struct rng *rng) {
    double u = 1.0 - rng_uniform(rng), angle = 6.283185307179586 * rng_uniform(rng);
    return sqrt(-2.0 * log(u)) * cos(angle);
}

int64_t rng_int(struct rng *rng, int64_t low, int64_t high) {
    return high < low ? low : low + (int64_t)(rng_bits(rng) % (uint64_t)(high - low + 1));
}

bool rng_chance(struct rng *rng, double probability) { return rng_uniform(rng) < probability; }

int64_t rng_dim(struct rng *rng, int64_t max) {
    static const int64_t widths[] = {1,  2,   4,   6,   8,   16,   32,   48,  64,
                                     96, 128, 256, 384, 512, 1024, 2048, 4096};
    double kind = rng_uniform(rng);
    int64_t dim;
    if (kind < 0.02)
        dim = 0;
    else if (kind < 0.08)
        dim = 1;
    else if (kind < 0.45)
        dim = widths[rng_int(rng, 0, 16)], dim += rng_int(rng, -1, 1);
    else if (kind < 0.80)
        dim = (int64_t)exp(rng_uniform(rng) * log((double)max + 1)); // every scale alike
    else
        dim = rng_int(rng, 1, max);
    return dim > max ? rng_int(rng, 1, max) : dim;
}
