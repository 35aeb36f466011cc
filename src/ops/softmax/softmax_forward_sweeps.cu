// SPDX-License-Identifier: Apache-2.0
// Softmax of rows of any width, (rows, cols), in two sweeps; unless the row is too wide, the second finds it in the
// second-level cache. The first keeps a running maximum and a sum relative to it (arXiv:1805.02867).
// Floor: x read once, y written once.
// Limit: rows that leave the cache are read twice.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW (512)
#include "cuda/device/sweeps.cuh"
#include "ops/softmax/softmax_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_forward_sweeps(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        long long at = row * p.in_stride[0];
        float max = -INFINITE, sum = 0, x[GROUP];
        SWEEP(p, col, width) {
            float larger = max;
            load_some(x, p.in[0], at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) larger = fmaxf(larger, x[i]);
            float zero = larger == -INFINITE ? 0 : larger; // nothing yet: terms are 0 or NaN
            sum *= exp2_fast((max - zero) * LOG2_E);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) sum += exp2_fast((x[i] - zero) * LOG2_E);
            max = larger;
        }
        float all = reduce_max(max, &reducer);
        if (all == -INFINITE) all = 0;
        sum = reduce_sum(sum * exp2_fast((max - all) * LOG2_E), &reducer);
        float inverse = sum == 0 ? 0 : 1 / sum;
        SWEEP(p, col, width) {
            load_some(x, p.in[0], at + col, width);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < width) x[i] = exp2_fast((x[i] - all) * LOG2_E) * inverse;
            store_some(x, p.out, row * p.out_stride + col, width);
        }
    }
}
