// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm for rows of any width, one block per row: one sweep for the sum (and that with the residual), a
// second for the squares, a third for the output. Sums are in double: rows this wide are rare, and double needs no
// special cases.
// Floor: x read once, y written once; the sweeps read x three times, plain RMSNorm twice.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW (512)
#include "cuda/device/sweeps.cuh"
#include "ops/norm/norm_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_forward_sweeps(const struct norm_forward_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const void *source = p.residual != 0 ? p.residual_out : p.x;
        long long at = row * (p.residual != 0 ? p.residual_out_stride : p.x_stride);
        double mean = 0, squares = 0;
        float s[GROUP], other[GROUP];
        if (p.residual != 0 || !p.is_rmsnorm) {
            SWEEP(p, col, width) {
                load_some(s, p.x, row * p.x_stride + col, width);
                if (p.residual != 0) {
                    load_some(other, p.residual, row * p.residual_stride + col, width);
#pragma unroll
                    for (int i = 0; i < GROUP; i++)
                        if (i < width) s[i] = as_stored(s[i] + other[i]);
                    store_some(s, p.residual_out, at + col, width);
                }
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < width) mean += s[i];
            }
            mean = p.is_rmsnorm ? 0 : reduce_sum_double(mean, &reducer) * p.inverse_cols;
        }
        SWEEP(p, col, width) {
            load_some(s, source, at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) squares += (s[i] - mean) * (s[i] - mean);
        }
        double rstd = rsqrt(reduce_sum_double(squares, &reducer) * p.inverse_cols + p.eps);
        if (ROW_THREAD == 0 && p.mean != 0) p.mean[row] = (float)mean;
        if (ROW_THREAD == 0 && p.rstd != 0) p.rstd[row] = (float)rstd;
        SWEEP(p, col, width) {
            load_some(s, source, at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i >= width) continue;
                double h = (s[i] - mean) * rstd;
                if (p.weight != 0) h *= load_either(p.weight, col + i, p.weight_is_f32);
                if (p.bias != 0) h += load_either(p.bias, col + i, p.weight_is_f32);
                s[i] = (float)h;
            }
            store_some(s, p.y, row * p.y_stride + col, width);
        }
    }
}
