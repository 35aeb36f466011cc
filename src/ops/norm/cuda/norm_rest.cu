// SPDX-License-Identifier: Apache-2.0
// The rounding error of each row's mean, as the mean of h = (x - mean) rstd; 0 if the mean is near 0, without reading
// the row. For norm_columns.cu.
// Floor: 12 bytes a row; rows with a far mean are read once.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE (2: the tensors' dtypes are known at run time)
#define THREADS_PER_ROW 256
#include "ops/norm/cuda/norm_mixed.cuh"

extern "C" __global__ void __launch_bounds__(THREADS_PER_ROW)
    norm_rest(const struct norm_mixed_params p) {
    DECLARE_REDUCER(reducer);
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        float mean = p.mean[row], rstd = p.rstd[row], sum = 0;
        int is_far = is_mean_far(mean, rstd);
        for (int col = ROW_THREAD; is_far && col < p.cols; col += THREADS_PER_ROW)
            sum += normalised(load_any(p.x.rows.data, row_at(&p.x.rows, row) + col, p.x.dtype),
                              mean, rstd);
        if (is_far) sum = reduce_sum(sum, &reducer);
        if (ROW_THREAD == 0) p.rest[row] = rest_of(sum, p.cols);
    }
}
