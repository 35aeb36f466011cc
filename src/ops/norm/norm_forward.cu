// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of rows that fit into the registers of a block: one read, one write, residual included. The
// host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
// The variance is the corrected two-pass one (Chan, Golub, LeVeque): about the mean as rounded, less what that is off
// by. Rows whose squares leave fp32's range, upwards or downwards, are summed again in double.
#include "cuda/device/rows.cuh"
#include "ops/norm/norm_params.h"

struct moments {
    double mean, rstd;
};

// The row in double, from where it was read (a residual sum: from where it was just written).
DEVICE struct moments wide_moments(const void *s, long long at, int cols,
                                   const struct norm_forward_params *p, struct reducer *reducer) {
    double sum = 0, squares = 0, mean = 0;
    if (!p->is_rmsnorm) {
#pragma unroll 1
        for (int e = 0; e < FLOATS_PER_THREAD; e++) {
            int col = column_of(e, p->is_aligned);
            if (col < cols) sum += load(s, at + col);
        }
        mean = reduce_sum_double(sum, reducer) * p->inverse_cols;
    }
#pragma unroll 1
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        int col = column_of(e, p->is_aligned);
        double centred = col < cols ? load(s, at + col) - mean : 0;
        squares += centred * centred;
    }
    squares = reduce_sum_double(squares, reducer);
    struct moments moments = {mean, rsqrt(squares * p->inverse_cols + p->eps)};
    return moments;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_forward(const struct norm_forward_params p) {
    DECLARE_REDUCER(reducer);
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    float inverse_cols = (float)p.inverse_cols;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK, at = row * p.x_stride;
        int cols = row < p.rows ? p.cols : 0; // the last block's missing rows take part in shuffles
        const void *source = p.x;
        float s[FLOATS_PER_THREAD];
        load_row(s, p.x, at, cols, p.is_aligned, 0);
        if (p.residual != 0) {
            float residual[FLOATS_PER_THREAD];
            load_row(residual, p.residual, row * p.residual_stride, cols, p.is_aligned, 0);
            EACH_FLOAT(e) s[e] = as_stored(s[e] + residual[e]);
            source = p.residual_out;
            at = row * p.residual_out_stride;
            store_row(s, p.residual_out, at, cols, p.is_aligned);
        }

        // Mean, then variance about it.
        float mean = 0, offset = 0, squares = 0;
        if (!p.is_rmsnorm) {
            float sum = 0;
            EACH_FLOAT(e) sum += s[e];
            mean = reduce_sum(sum, &reducer) * inverse_cols;
            EACH_FLOAT(e) {
                s[e] = column_of(e, p.is_aligned) < cols ? s[e] - mean : 0;
                offset += s[e];
            }
            offset = reduce_sum(offset, &reducer) * inverse_cols;
        }
        EACH_FLOAT(e) squares += s[e] * s[e];
        squares = reduce_sum(squares, &reducer) * inverse_cols;
        float variance = fmaxf(squares - offset * offset, 0) + (float)p.eps;
        float rstd = rsqrtf(variance);
        rstd =
            rstd * (1.5f - 0.5f * variance * rstd * rstd); // a Newton step: to the last bit or so

        int is_wide =
            !(squares <= 1e37f && variance >= 1e-30f && fabsf(mean) <= 1e37f) && row < p.rows;
        struct moments wide = {mean + offset, rstd};
        if (__any_sync(0xffffffffu, is_wide)) { // all rows of a warp, for its shuffles
            struct moments exact = wide_moments(source, at, cols, &p, &reducer);
            if (is_wide) wide = exact;
        }
        if (ROW_THREAD == 0 && row < p.rows) {
            if (p.mean != 0) p.mean[row] = (float)wide.mean;
            if (p.rstd != 0) p.rstd[row] = (float)wide.rstd;
        }
        if (is_wide) {
#pragma unroll 1
            for (int e = 0; e < FLOATS_PER_THREAD; e++) {
                int col = column_of(e, p.is_aligned);
                if (col >= cols) continue;
                double h = (load(source, at + col) - wide.mean) * wide.rstd;
                if (p.weight != 0) h *= load_either(p.weight, col, p.weight_is_f32);
                if (p.bias != 0) h += load_either(p.bias, col, p.weight_is_f32);
                store(p.y, row * p.y_stride + col, (float)h);
            }
            continue;
        }
        EACH_FLOAT(e) s[e] = (s[e] - offset) * rstd;
        if (p.weight != 0)
            scale_and_shift(s, p.weight, p.bias, cols, p.is_aligned, p.weight_is_f32);
        store_row(s, p.y, row * p.y_stride, cols, p.is_aligned);
    }
}
