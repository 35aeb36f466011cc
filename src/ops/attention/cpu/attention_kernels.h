// SPDX-License-Identifier: Apache-2.0
// Attention's own kernels, compiled once per instruction set. The products are in cpu/gemm.h.
#ifndef TSRI_ATTENTION_KERNELS_H
#define TSRI_ATTENTION_KERNELS_H

#include <stdbool.h>
#include <tessera/types.h>

#include "cpu/cpu_isa.h"

// What changes the scores of one row between q k^T and the softmax.
struct attention_terms {
    float softcap;    // 0: none
    const char *bias; // of key 0; NULL: none
    tsr_dtype bias_dtype;
    int64_t bias_stride;
    float slope; // ALiBi; 0: none
    int64_t diagonal;
};

// Dropout of one row: which weights stay.
struct attention_dropout {
    uint64_t seed, offset, threshold; // threshold 0: all
    uint32_t i, head, batch;
    float scale;
};

enum { ATTENTION_MOST_SET = 16, ATTENTION_SET_STEP = 32 };

struct attention_kernels {
    // y = scale x, widened to fp32; x also e4m3.
    void (*load)(tsr_dtype dtype, const void *x, int64_t n, float scale, float *y);
    // y = scale x, rounded to dtype.
    void (*store)(tsr_dtype dtype, const float *x, int64_t n, float scale, void *y);
    // load and store of whole rows of n elements; strides are in elements. They prefetch a row some rows ahead, which no hardware
    // prefetcher does. store_rows has a factor for each row. have_nonfinite: whether any element is not finite.
    void (*load_rows)(tsr_dtype dtype, const void *x, int64_t stride, int64_t rows, int64_t n,
                      float scale, float *y, int64_t y_stride);
    void (*store_rows)(tsr_dtype dtype, const float *x, int64_t x_stride, int64_t rows, int64_t n,
                       const float *factor, void *y, int64_t stride);
    bool (*have_nonfinite)(tsr_dtype dtype, const void *x, int64_t stride, int64_t rows, int64_t n);

    // Modifies the scores s of keys [first, first + n) in place. slope, if not NULL: d s / d (s before the cap).
    void (*modify)(const struct attention_terms *terms, int64_t first, int64_t n, float *s,
                   float *slope);
    float (*max)(const float *s, int64_t n);
    // p = exp(s - max - low), in place. Returns their sum.
    float (*weigh)(float *s, int64_t n, float max, float low);
    // The softmax step of up to `set` rows, columns [begin[i], end[i]) of each; begin is a multiple of ATTENTION_SET_STEP. s
    // becomes weights relative to the new max; alpha is the factor of earlier results. A row's bits do not depend on the other
    // rows. False, with nothing done: a row has only -inf or NaN so far.
    int set;
    bool (*weigh_rows)(int rows, const int64_t *begin, const int64_t *end, float *s, int64_t stride,
                       float *max, float *sum, float *alpha);
    // p = keep ? p scale : 0, for keys [first, first + n).
    void (*drop)(const struct attention_dropout *dropout, int64_t first, int64_t n, float *p);
    void (*scale)(float *x, int64_t n, float factor);
    void (*add)(const float *x, int64_t n, float *sum);

    // For each row the sum of x y over n elements of one dtype.
    void (*dots)(tsr_dtype dtype, const void *x, int64_t x_stride, const void *y, int64_t y_stride,
                 int64_t rows, int64_t n, float *sums);
    // p = exp(s - lse - low), ds = p (dp - delta), in place of s and dp.
    void (*weigh_grad)(float *s, int64_t n, float lse, float low, float delta, float *dp);
    // ds = p (dp - delta) [slope], in place of dp; slope may be NULL.
    void (*score_grad)(const float *p, const float *slope, float delta, int64_t n, float *dp);
};
TSRI_DECLARE_KERNELS(attention)

// Whether a score is NaN. A maximum ignores NaN.
static inline bool attention_has_nan(const float *s, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        if (s[j] != s[j]) return true;
    return false;
}

#endif
