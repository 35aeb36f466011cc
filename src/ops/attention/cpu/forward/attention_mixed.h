// SPDX-License-Identifier: Apache-2.0
// Steps of a tile with two products of bf16 operands, summed in fp32 (cpu/gemm_bf16.h): q, k, v as given, weights rounded. Scores
// and softmax are in fp32. A float of q, k, v or of the weights holds a pair of elements. Weights replace the scores in memory.
#ifndef TSRI_ATTENTION_MIXED_H
#define TSRI_ATTENTION_MIXED_H

#include "ops/attention/cpu/attention_tile.h"

extern const struct attention_steps attention_mixed_steps;

struct attention_packed attention_mixed_packed(const struct attention_problem *p, int64_t num_keys);

#define ATTENTION_FAR 0x1p16f // m log2(e) is rounded by more than 2^-8 from here on

// Returns factor: softmax_scale = factor x power, with power a power of two, which is exact when multiplied into bf16.
float attention_split_scale(const struct attention_problem *p, float *power);

enum { ATTENTION_STRIP = 32 }; // rows of which backward makes weights at a time

// One strip of n columns, a multiple of 32: its weights and the gradients of its scores, both with the factors below. Columns that
// a row does not see become 0, whatever s and dp hold there.
struct attention_grad_strip {
    int64_t n;
    struct attention_range seen[ATTENTION_STRIP]; // columns
    const float *s, *dp;                          // rows of stride floats
    int64_t stride;
    float exponent; // weights p = 2^(exponent s + reference)
    float factor;   // gradients ds = p (factor dp + delta)
    float reference[ATTENTION_STRIP], delta[ATTENTION_STRIP];
    unsigned done;     // a bit per row: s holds p, dp gradients without factor
    uint16_t *p, *ds;  // pairs of rows in panels: right side of cpu/gemm_bf16.h
    int64_t panel;     // from panel to panel
    uint16_t *ds_rows; // ds again, row by row
    int64_t ds_stride;
};

struct attention_bf16_kernels {
    // Weights p = e^(factor s - reference) in bf16, for up to 16 rows, stride floats apart; n is a multiple of 32. p may begin at
    // s or before it. max holds the references, sum the denominators; alpha: the factor of earlier results. Returns a bit for each
    // row whose reference would be far. Such rows are left as they were, and the bits of the others do not depend on them.
    unsigned (*weigh_rows)(int rows, int64_t n, float factor, float *s, uint16_t *p, int64_t stride,
                           float *max, float *sum, float *alpha);
    // y = power x, exact for a power of two unless the result is subnormal; zero from n on up to a multiple of 32.
    void (*scale)(const uint16_t *x, int64_t n, float power, uint16_t *y);
    void (*grad_strip)(const struct attention_grad_strip *strip);
    // to[j][i] = from[i][j], written up to multiples of 16 of both.
    void (*transpose)(const float *from, int64_t from_stride, int64_t rows, int64_t cols, float *to,
                      int64_t to_stride);
};
extern const struct attention_bf16_kernels tsri_attention_bf16_kernels;

// NULL if the build has none.
static inline const struct attention_bf16_kernels *attention_bf16_kernels(void) {
#if defined(TSRI_HAS_BF16_KERNELS)
    return &tsri_attention_bf16_kernels;
#else
    return NULL;
#endif
}

#endif
