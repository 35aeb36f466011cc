// SPDX-License-Identifier: Apache-2.0
// Moments of rows in registers, for the norms' forward. The variance is the corrected two-pass one (Chan, Golub,
// LeVeque): about the rounded mean, corrected by the error of that mean. Rows whose squares overflow or underflow fp32
// are summed again in double.
#ifndef TSRI_NORM_MOMENTS_CUH
#define TSRI_NORM_MOMENTS_CUH

#include "cuda/device/rows.cuh"
#include "ops/norm/norm_device.cuh"
#include "ops/norm/norm_params.h"

struct moments {
    double mean, rstd;
};

#define EACH_COLUMN(col, cols)                                                                     \
    _Pragma("unroll 1") for (int col = ROW_THREAD; col < (cols); col += THREADS_PER_ROW)

// The row in double, read again from memory (with a residual: the sum that the row's threads have just written).
DEVICE struct moments wide_moments(const void *s, long long at, int cols,
                                   const struct norm_forward_params *p, struct row_sums *sums) {
    double squares = 0, mean = 0;
    __syncwarp(); // wider rows have passed a barrier since
    if (!p->is_rmsnorm) {
        EACH_COLUMN(col, cols) mean += load(s, at + col);
        mean = sum_double(mean, sums) * p->inverse_cols;
    }
    EACH_COLUMN(col, cols) {
        const double centred = load(s, at + col) - mean;
        squares += centred * centred;
    }
    squares = sum_double(squares, sums);
    struct moments moments = {mean, rsqrt(squares * p->inverse_cols + p->eps)};
    return moments;
}

DEVICE void store_wide(const struct norm_forward_params *p, int first, const void *s, long long at,
                       long long y_at, int cols, struct moments moments) {
    EACH_COLUMN(col, cols) {
        double h = (load(s, at + col) - moments.mean) * moments.rstd;
        if (p->weight != 0) h *= load_either(p->weight, first + col, p->weight_is_f32);
        if (p->bias != 0) h += load_either(p->bias, first + col, p->weight_is_f32);
        store(p->y, y_at + col, (float)h);
    }
}

DEVICE void store_moments(const struct norm_forward_params *p, int first, long long row, float mean,
                          float rstd) {
    if (ROW_THREAD != 0 || first != 0) return;
    if (p->mean != 0) p->mean[row] = mean;
    if (p->rstd != 0) p->rstd[row] = rstd;
}

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

// From the rounded mean and this thread's sums of (x - rounded mean) and of its squares.
DEVICE struct row_moments moments_of(float mean, float offset, float squares,
                                     const struct norm_forward_params *p, struct row_sums *sums) {
    const float inverse_cols = (float)p->inverse_cols;
    sum_two(&offset, &squares, sums);
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

// The row to normalise: x, or the sum with the residual that was just stored.
DEVICE const void *source_of(const struct norm_forward_params *p) {
    return p->residual != 0 ? p->residual_out : p->x;
}
DEVICE long long source_at(const struct norm_forward_params *p, long long row) {
    return row * (p->residual != 0 ? p->residual_out_stride : p->x_stride);
}

// Normalises a row again, in double, from memory.
DEVICE void norm_wide(const struct norm_forward_params *p, long long row, int cols, int is_wide,
                      struct row_sums *sums) {
    const void *source = source_of(p);
    const long long at = source_at(p, row);
    const struct moments moments = wide_moments(source, at, cols, p, sums);
    if (!is_wide) return;
    store_moments(p, 0, row, (float)moments.mean, (float)moments.rstd);
    store_wide(p, 0, source, at, row * p->y_stride, cols, moments);
}

#endif
