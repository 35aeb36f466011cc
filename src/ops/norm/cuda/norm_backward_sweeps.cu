// SPDX-License-Identifier: Apache-2.0
// dx of LayerNorm and RMSNorm for rows of any width, one block per row, in two sweeps; norm_columns.cu computes the
// sums over rows.
// Floor: x and dy read once, dx written once; the sweeps read x and dy twice.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW (512)
#include "cuda/device/sweeps.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_params.h"

// Loads h and g of a group of this row.
DEVICE void load_h_and_g(float h[GROUP], float g[GROUP], const struct norm_backward_params *p,
                         long long row, int col, int width, float mean, float rstd, float rest) {
    load_some(h, p->x, row * p->x_stride + col, width);
    load_some(g, p->dy, row * p->dy_stride + col, width);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (i >= width) continue;
        h[i] = normalised(h[i], mean, rstd) - rest;
        if (p->weight != 0) g[i] *= load_either(p->weight, col + i, p->weight_is_f32);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    norm_backward_sweeps(const struct norm_backward_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    float inverse_cols = 1.0f / p.cols;
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        float mean = p.mean != 0 ? p.mean[row] : 0, rstd = p.rstd[row];
        float rest = p.rest != 0 ? p.rest[row] : 0;
        float h[GROUP], g[GROUP], sum_g = 0, sum_gh = 0;
        SWEEP(p, col, width) {
            load_h_and_g(h, g, &p, row, col, width, mean, rstd, rest);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (i >= width) continue;
                sum_g += g[i];
                sum_gh += g[i] * h[i];
            }
        }
        float mean_gh = reduce_sum(sum_gh, &reducer) * inverse_cols, mean_g = 0;
        if (!p.is_rmsnorm) mean_g = reduce_sum(sum_g, &reducer) * inverse_cols;
        SWEEP(p, col, width) {
            load_h_and_g(h, g, &p, row, col, width, mean, rstd, rest);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) h[i] = rstd * (g[i] - mean_g - h[i] * mean_gh);
            if (p.dresidual_out != 0) {
                load_some(g, p.dresidual_out, row * p.dresidual_out_stride + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < width) h[i] += g[i];
            }
            store_some(h, p.dx, row * p.dx_stride + col, width);
        }
    }
}
