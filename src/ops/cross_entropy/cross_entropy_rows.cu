// SPDX-License-Identifier: Apache-2.0
// Values that the elements of a row share in the gradient: a shift, a factor and the target's gradient. Most rows use
// the lse of forward. If its rounding to f32 lost too much, the exponentials are summed again, the target's apart from
// the others', so that nothing cancels. A target that is neither a class nor ignore_index gives a row of NaN.
// Floor: the target's logit and some words a row, 16 bytes a row written; rows that are summed anew are read once. It is a launch
// of its own ahead of cross_entropy_backward.cu.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "ops/cross_entropy/cross_entropy_lse_params.h"
#include "ops/cross_entropy/cross_entropy_online.cuh"
#include "ops/cross_entropy/cross_entropy_params.h"

DEVICE struct cross_entropy_row row_of_lse(float lse, float dloss, float x, double q) {
    float p = exp2_fast((x - lse) * LOG2_E);
    struct cross_entropy_row row = {lse, dloss, (float)(dloss * (p - q)), 0};
    return row;
}

// Called by all threads of a row.
DEVICE struct cross_entropy_row row_of_sums(const struct cross_entropy_rows_params *p, long long at,
                                            int target, float x, float dloss, double other,
                                            struct reducer *reducer) {
    struct online o = take_row(p->logits, at, p->cols, 0, target);
    float max = finite_max(reduce_max(fmaxf(o.max, x), reducer));
    double others = reduce_sum_double(o.sum * exp2_fast((o.max - max) * LOG2_E), reducer);
    double inverse = 1 / (others + exp2_fast((x - max) * LOG2_E));
    struct cross_entropy_row row = {max, (float)(dloss * inverse), 0, 0};
    row.at_target = (float)(dloss * (p->label_smoothing - other - others * inverse));
    return row;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cross_entropy_rows(const struct cross_entropy_rows_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    double other = p.label_smoothing / p.cols;
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK, at = row * p.logits_stride;
        if (row >= p.rows) continue; // such a row has its own warp
        int target = p.targets[row * p.targets_stride];
        float lse = p.lse[row], dloss = p.dloss[row];
        struct cross_entropy_row r = {0, 0, 0, -1};
        if (target != p.ignore_index && lse != -INFINITE) {
            if (target < 0 || target >= p.cols) {
                r.factor = r.at_target = NOT_A_NUMBER;
                target = 0;
            } else {
                float x = load(p.logits, at + target), below = lse - x;
                if (CROSS_ENTROPY_LSE_IS_ENOUGH(DTYPE == DTYPE_F32, fabsf(lse), below))
                    r = row_of_lse(lse, dloss, x, 1 - p.label_smoothing + other);
                else
                    r = row_of_sums(&p, at, target, x, dloss, other, &reducer);
            }
            r.target = target;
        }
        if (ROW_THREAD == 0) p.rows_out[row] = r;
    }
}
