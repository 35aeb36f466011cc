// SPDX-License-Identifier: Apache-2.0
// loss and lse of rows of logits (rows, classes): lse = log sum exp, loss = lse - target logit, perhaps with label
// smoothing. The sums of a row's threads (cross_entropy_online.cuh) are combined in double. A warp takes several short rows, and
// its lanes then form their logarithms side by side. A target that is neither a class nor ignore_index gives NaN.
// Floor: logits read once, 8 bytes a row written.
// Limit: reading memory.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "ops/cross_entropy/cross_entropy_online.cuh"
#include "ops/cross_entropy/cross_entropy_params.h"

// Of a row: the maximum, the sum of e^(x - max), and with smoothed labels that of x - max.
struct row_sum {
    float max;
    double sum, spread;
};

// Called by all threads of a row.
DEVICE struct row_sum sum_of_row(const struct cross_entropy_forward_params *p, long long row,
                                 struct reducer *reducer) {
    const int is_smoothed = p->label_smoothing != 0;
    const struct online o = take_row(p->logits, row * p->logits_stride, p->cols, is_smoothed, -1);
    struct row_sum r = {finite_max(reduce_max(o.max, reducer)), 0, 0};
    r.sum = reduce_sum_double(o.sum * exp2_fast((o.max - r.max) * LOG2_E), reducer);
    if (is_smoothed) {
        r.spread = o.spread + (double)o.count * ((double)finite_max(o.max) - r.max);
        r.spread = reduce_sum_double(r.spread, reducer);
    }
    return r;
}

DEVICE void finish(const struct cross_entropy_forward_params *p, long long row, struct row_sum r) {
    const int target = p->targets[row * p->targets_stride];
    double over_max = r.sum == 0 ? -INFINITE : log(r.sum), loss = 0; // lse - max
    if (p->lse != 0) p->lse[row] = (float)(r.max + over_max);
    if (target != p->ignore_index) {
        if (target < 0 || target >= p->cols || over_max != over_max)
            loss = NOT_A_NUMBER;
        else if (r.sum == 0)
            loss = INFINITE;
        else
            loss = (1 - p->label_smoothing) *
                   (over_max + ((double)r.max - load(p->logits, row * p->logits_stride + target)));
        if (p->label_smoothing != 0 && r.sum != 0)
            loss += p->label_smoothing * (over_max - r.spread / p->cols);
    }
    p->loss[row] = (float)loss;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cross_entropy_forward(const struct cross_entropy_forward_params p) {
    DECLARE_REDUCER(reducer);
    const long long step = (long long)gridDim.x * ROWS_PER_BLOCK * p.rows_each;
    long long first = ((long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK) * p.rows_each;
    begin_early();
    for (; first < p.rows; first += step) { // once, unless a launch has too few blocks
        struct row_sum mine = {0, 0, 0};
        for (int i = 0; i < p.rows_each && first + i < p.rows; i++) {
            const long long row = first + i;
            if (p.lse == 0 && p.targets[row * p.targets_stride] == p.ignore_index) continue;
            const struct row_sum r = sum_of_row(&p, row, &reducer);
            if (ROW_THREAD == i) mine = r;
        }
        if (ROW_THREAD < p.rows_each && first + ROW_THREAD < p.rows)
            finish(&p, first + ROW_THREAD, mine);
    }
}
