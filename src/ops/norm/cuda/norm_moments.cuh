// SPDX-License-Identifier: Apache-2.0
// Moments of rows in registers, for the norms' forward. The variance is the corrected two-pass one (Chan, Golub,
// LeVeque): about the rounded mean, corrected by the error of that mean. Rows whose squares overflow or underflow fp32
// are summed again in double.
#ifndef TSRI_NORM_MOMENTS_CUH
#define TSRI_NORM_MOMENTS_CUH

#include "cuda/device/rows.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_params.h"

// Four chains, so that additions do not wait for each other.
DEVICE float sum_of(const float x[FLOATS_PER_THREAD]) {
    float sum[4] = {0};
    EACH_FLOAT(e) sum[e % 4] += x[e];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
DEVICE float squares_of(const float x[FLOATS_PER_THREAD]) {
    float sum[4] = {0};
    EACH_FLOAT(e) sum[e % 4] += x[e] * x[e];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Rows of at least a warp share no warp, and all threads of such a row agree on whether it is wide. If one shorter row
// in a warp is wide, all rows of the warp take the wide path, because of its shuffles.
#define ARE_ROWS_APART (THREADS_PER_ROW >= 32)
DEVICE int is_any_wide(int is_wide) {
    return ARE_ROWS_APART ? is_wide : __any_sync(0xffffffffu, is_wide);
}

struct row_moments {
    float mean, rstd;
    float shift; // to subtract from (x - rounded mean) rstd
    int is_wide; // fp32 cannot hold the squares
};

// From the rounded mean and the row's sums of (x - rounded mean) and of its squares.
DEVICE struct row_moments moments_from(float mean, float offset, float squares,
                                       const struct norm_forward_params *p) {
    const float inverse_cols = (float)p->inverse_cols;
    offset *= inverse_cols;
    squares *= inverse_cols;
    float variance = fmaxf(squares - offset * offset, 0) + (float)p->eps;
    float rstd = rsqrtf(variance);
    rstd = rstd * (1.5f - 0.5f * variance * rstd * rstd); // a Newton step, to about the last bit
    struct row_moments moments = {
        mean + offset, rstd, offset * rstd,
        !(squares <= 1e37f && variance >= 1e-30f && fabsf(mean) <= 1e37f)};
    return moments;
}

// From this thread's part of the sums.
DEVICE struct row_moments moments_of(float mean, float offset, float squares,
                                     const struct norm_forward_params *p, struct row_sums *sums) {
    sum_two(&offset, &squares, sums);
    return moments_from(mean, offset, squares, p);
}

#endif
