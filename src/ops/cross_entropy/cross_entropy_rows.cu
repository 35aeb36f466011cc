// SPDX-License-Identifier: Apache-2.0
// What the elements of each row share in the gradient (cross_entropy_facts.cuh), for calls of a few wide rows: a launch of its own
// ahead of cross_entropy_backward.cu, whose blocks then share the rows.
// Floor: the target's logit and some words a row, 16 bytes a row written; rows that are summed anew are read once.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "ops/cross_entropy/cross_entropy_facts.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cross_entropy_rows(const struct cross_entropy_rows_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        struct cross_entropy_row r;
        if (facts_of_row(&r, &p, row)) r = row_of_sums(&p, row, &reducer);
        if (ROW_THREAD == 0) p.rows_out[row] = r;
    }
}
