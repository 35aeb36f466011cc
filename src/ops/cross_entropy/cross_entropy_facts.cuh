// SPDX-License-Identifier: Apache-2.0
// Values that the elements of a row share in the gradient: a shift, a factor and the target's gradient. Most rows use
// the lse of forward. If its rounding to f32 lost too much, the exponentials are summed again, the target's apart from
// the others', so that nothing cancels. A target that is neither a class nor ignore_index gives a row of NaN.
#ifndef TSRI_CROSS_ENTROPY_FACTS_CUH
#define TSRI_CROSS_ENTROPY_FACTS_CUH

#include "ops/cross_entropy/cross_entropy_lse_params.h"
#include "ops/cross_entropy/cross_entropy_online.cuh"
#include "ops/cross_entropy/cross_entropy_params.h"

DEVICE struct cross_entropy_row row_of_lse(float lse, float dloss, float x, double q) {
    float p = exp2_fast((x - lse) * LOG2_E);
    struct cross_entropy_row row = {lse, dloss, (float)(dloss * (p - q)), 0};
    return row;
}

// Sums a row again. Called by all its threads, before any of them writes to it: dlogits may be logits.
DEVICE struct cross_entropy_row row_of_sums(const struct cross_entropy_rows_params *p,
                                            long long row, struct reducer *reducer) {
    const long long at = row * p->logits_stride;
    const int target = p->targets[row * p->targets_stride];
    const float x = load(p->logits, at + target), dloss = p->dloss[row];
    struct online o = take_row(p->logits, at, p->cols, 0, target);
    float max = finite_max(reduce_max(fmaxf(o.max, x), reducer));
    double others = reduce_sum_double(o.sum * exp2_fast((o.max - max) * LOG2_E), reducer);
    double inverse = 1 / (others + exp2_fast((x - max) * LOG2_E));
    struct cross_entropy_row r = {max, (float)(dloss * inverse), 0, target};
    r.at_target = (float)(dloss * (p->label_smoothing - p->other - others * inverse));
    return r;
}

// The values of a row by its lse. Returns 1 if that is not exact enough: then row_of_sums gives them.
DEVICE int facts_of_row(struct cross_entropy_row *r, const struct cross_entropy_rows_params *p,
                        long long row) {
    const float lse = p->lse[row], dloss = p->dloss[row];
    const int target = p->targets[row * p->targets_stride];
    const struct cross_entropy_row zeros = {0, 0, 0, -1},
                                   invalid = {0, NOT_A_NUMBER, NOT_A_NUMBER, 0};
    *r = zeros;
    if (target == p->ignore_index || lse == -INFINITE) return 0;
    *r = invalid;
    if (target < 0 || target >= p->cols) return 0;
    const float x = load(p->logits, row * p->logits_stride + target);
    *r = row_of_lse(lse, dloss, x, 1 - p->label_smoothing + p->other);
    r->target = target;
    return !CROSS_ENTROPY_LSE_IS_ENOUGH(DTYPE == DTYPE_F32, fabsf(lse), lse - x);
}

#endif
