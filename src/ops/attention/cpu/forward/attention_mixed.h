// SPDX-License-Identifier: Apache-2.0
// Steps of a tile whose two products are of bf16 operands, summed in fp32 (cpu/gemm_bf16.h): q, k, v
// as they come, weights rounded. Scores and softmax are fp32's. A float of q, k, v and of the weights,
// which lie where the scores were, holds a pair of elements.
#ifndef TSRI_ATTENTION_MIXED_H
#define TSRI_ATTENTION_MIXED_H

#include "ops/attention/cpu/attention_tile.h"

extern const struct attention_steps attention_mixed_steps;

struct attention_packed attention_mixed_packed(const struct attention_problem *p, int64_t num_keys);

#define ATTENTION_FAR 0x1p16f // a reference whose product with log2(e) is rounded by more than 2^-8

// softmax_scale = factor power, power one of two: exact where it is multiplied into bf16. Gives the factor.
float attention_split_scale(const struct attention_problem *p, float *power);

enum { ATTENTION_STRIP = 32 }; // rows that backward turns into weights at a time

// Of a strip, n columns, a multiple of 32: weights and gradients of the scores, both times what is below. Columns that
// a row does not see become 0, whatever s and dp hold there.
struct attention_grad_strip {
    int64_t n;
    struct attention_range seen[ATTENTION_STRIP]; // columns
    const float *s, *dp;                          // rows of stride floats
    int64_t stride;
    float exponent; // weights p = 2^(exponent s + reference)
    float factor;   // gradients ds = p (factor dp + delta)
    float reference[ATTENTION_STRIP], delta[ATTENTION_STRIP];
    unsigned done;     // a bit for each row: s holds p, dp gradients but for the factor
    uint16_t *p, *ds;  // pairs of rows in panels, as cpu/gemm_bf16.h wants the right side
    int64_t panel;     // from panel to panel
    uint16_t *ds_rows; // ds once more, row by row
    int64_t ds_stride;
};

struct attention_bf16_kernels {
    // Weights p = e^(factor s - reference) of rows <= 16, n a multiple of 32, stride floats apart, in bf16. p may
    // begin where s does, or before. max holds the references, sum the denominators; alpha: what the past is
    // worth now. The rows whose reference would be far, a bit each: nothing is done for these, and the others' bits do not
    // follow them.
    unsigned (*weigh_rows)(int rows, int64_t n, float factor, float *s, uint16_t *p, int64_t stride,
                           float *max, float *sum, float *alpha);
    // y = power x, exact for a power of two but for what is subnormal; zero beyond n up to a multiple of 32.
    void (*scale)(const uint16_t *x, int64_t n, float power, uint16_t *y);
    void (*grad_strip)(const struct attention_grad_strip *strip);
    // to[j][i] = from[i][j], written up to multiples of 16 of both.
    void (*transpose)(const float *from, int64_t from_stride, int64_t rows, int64_t cols, float *to,
                      int64_t to_stride);
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
