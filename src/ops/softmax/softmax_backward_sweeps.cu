// SPDX-License-Identifier: Apache-2.0
// Gradient of softmax for rows of any width, (rows, cols): one sweep sums y dy, a second computes dx.
// Floor: y and dy read once, dx written once.
// Limit: rows that leave the cache are read twice.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW (512)
#include "cuda/device/sweeps.cuh"
#include "ops/softmax/softmax_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_backward_sweeps(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        long long y_at = row * p.in_stride[0], dy_at = row * p.in_stride[1];
        float sum = 0, y[GROUP], dy[GROUP];
        SWEEP(p, col, width) {
            load_some(y, p.in[0], y_at + col, width);
            load_some(dy, p.in[1], dy_at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) sum += y[i] * dy[i];
        }
        sum = reduce_sum(sum, &reducer);
        SWEEP(p, col, width) {
            load_some(y, p.in[0], y_at + col, width);
            load_some(dy, p.in[1], dy_at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) dy[i] = y[i] * (dy[i] - sum);
            store_some(dy, p.out, row * p.out_stride + col, width);
        }
    }
}
