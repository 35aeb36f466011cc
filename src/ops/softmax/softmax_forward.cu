// SPDX-License-Identifier: Apache-2.0
// y = softmax(x) over the columns of (rows, cols), for rows that fit into the registers of a block. A row of -inf gives
// zeros; a row with +inf or NaN becomes NaN throughout, like its sum.
// Floor: x read once, y written once.
// Limit: memory; arithmetic is far below.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "cuda/device/rows.cuh"
#include "ops/softmax/softmax_params.h"

// Keeps 1024 threads on a multiprocessor, so that more rows are in flight.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1024 / BLOCK_THREADS)
    softmax_forward(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    const long long first = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    start_dependents();
    if (first < p.early_rows) fetch_row(p.in[0], first * p.in_stride[0], p.cols);
    wait_for_primary();
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK;
        int cols = row < p.rows ? p.cols : 0; // missing rows still take part in shuffles
        float x[FLOATS_PER_THREAD], max = -INFINITE, sum = 0;
        load_row(x, p.in[0], row * p.in_stride[0], cols, p.is_aligned, -INFINITE);
        EACH_FLOAT(e) max = fmaxf(max, x[e]);
        max = reduce_max(max, &reducer);
        if (max == -INFINITE) max = 0;
        EACH_FLOAT(e) {
            x[e] = exp2_fast((x[e] - max) * LOG2_E);
            sum += x[e];
        }
        sum = reduce_sum(sum, &reducer);
        float inverse = sum == 0 ? 0 : 1 / sum;
        EACH_FLOAT(e) x[e] *= inverse;
        store_row(x, p.out, row * p.out_stride, cols, p.is_aligned, 0);
    }
}
