// SPDX-License-Identifier: Apache-2.0
// Gradient of softmax, dx = y (dy - sum y dy), (rows, cols), for rows that fit into the registers of a block.
// Floor: y and dy read once, dx written once.
// Limit: memory; arithmetic is far below.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "cuda/device/rows.cuh"
#include "ops/softmax/softmax_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_backward(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK;
        int cols = row < p.rows ? p.cols : 0;
        float y[FLOATS_PER_THREAD], dy[FLOATS_PER_THREAD], sum = 0;
        load_row(y, p.in[0], row * p.in_stride[0], cols, p.is_aligned, 0);
        load_row(dy, p.in[1], row * p.in_stride[1], cols, p.is_aligned, 0);
        EACH_FLOAT(e) sum += y[e] * dy[e];
        sum = reduce_sum(sum, &reducer);
        EACH_FLOAT(e) dy[e] = y[e] * (dy[e] - sum);
        store_row(dy, p.out, row * p.out_stride, cols, p.is_aligned, 0);
    }
}
