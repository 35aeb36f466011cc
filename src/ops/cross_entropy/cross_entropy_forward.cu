// SPDX-License-Identifier: Apache-2.0
// loss and lse of rows of logits (rows, classes): lse = log sum exp, loss = lse - target logit, perhaps with label
// smoothing. The sums of a row's threads (cross_entropy_online.cuh) are combined in double. A target that is neither a
// class nor ignore_index gives NaN.
// Floor: logits read once, 8 bytes a row written.
// Limit: reading memory.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "ops/cross_entropy/cross_entropy_online.cuh"
#include "ops/cross_entropy/cross_entropy_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cross_entropy_forward(const struct cross_entropy_forward_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    int is_smoothed = p.label_smoothing != 0;
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK, at = row * p.logits_stride;
        if (row >= p.rows) continue; // such a row has its own warp
        int target = p.targets[row * p.targets_stride], is_ignored = target == p.ignore_index;
        if (is_ignored && p.lse == 0) {
            if (ROW_THREAD == 0) p.loss[row] = 0;
            continue;
        }
        struct online o = take_row(p.logits, at, p.cols, is_smoothed, -1);
        float max = finite_max(reduce_max(o.max, &reducer));
        double sum = reduce_sum_double(o.sum * exp2_fast((o.max - max) * LOG2_E), &reducer);
        double spread = 0;
        if (is_smoothed) {
            spread = o.spread + (double)o.count * ((double)finite_max(o.max) - max);
            spread = reduce_sum_double(spread, &reducer);
        }
        if (ROW_THREAD != 0) continue;
        double over_max = sum == 0 ? -INFINITE : log(sum), loss = 0; // lse - max
        if (p.lse != 0) p.lse[row] = (float)(max + over_max);
        if (!is_ignored) {
            if (target < 0 || target >= p.cols || over_max != over_max)
                loss = NOT_A_NUMBER;
            else if (sum == 0)
                loss = INFINITE;
            else
                loss = (1 - p.label_smoothing) *
                       (over_max + ((double)max - load(p.logits, at + target)));
            if (is_smoothed && sum != 0) loss += p.label_smoothing * (over_max - spread / p.cols);
        }
        p.loss[row] = (float)loss;
    }
}
