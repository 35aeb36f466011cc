// SPDX-License-Identifier: Apache-2.0
// Steps of a tile whose two products are of bf16 operands, summed in fp32 (cpu/gemm_bf16.h): q, k, v
// as they come, weights rounded. Scores and softmax are fp32's. A float of q, k, v and of the weights,
// which lie where the scores were, holds a pair of elements.
#ifndef TSRI_ATTENTION_MIXED_H
#define TSRI_ATTENTION_MIXED_H

#include "ops/attention/attention_tile.h"

extern const struct attention_steps attention_mixed_steps;

struct attention_packed attention_mixed_packed(const struct attention_problem *p);

#define ATTENTION_FAR 1e38f // a score whose product with log2(e) may overflow

struct attention_bf16_kernels {
    // Weights p = e^(factor s - reference) of rows <= 16, n a multiple of 32, stride floats apart, in bf16. p may
    // begin where s does, or before. max holds the references, sum the denominators; alpha: what the past is
    // worth now. False where a reference would be far: nothing is done then.
    bool (*weigh_rows)(int rows, int64_t n, float factor, float *s, uint16_t *p, int64_t stride,
                       float *max, float *sum, float *alpha);
};
extern const struct attention_bf16_kernels tsri_attention_bf16_kernels;

// NULL where the build has none.
static inline const struct attention_bf16_kernels *attention_bf16_kernels(void) {
#if defined(TSRI_HAS_BF16_KERNELS)
    return &tsri_attention_bf16_kernels;
#else
    return NULL;
#endif
}

#endif
