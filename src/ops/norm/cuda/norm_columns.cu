// SPDX-License-Identifier: Apache-2.0
// Sums over rows for dweight and dbias (cols), for rows wider than a tile of norm_mixed_backward.cu. A block has a strip of 128
// columns and one of several groups of rows. Must run before dx is written, because dx may overwrite x or dy.
// Floor: x and dy read once, 8 cols bytes a group written.
// See docs/kernels/norm.md (cuda-mixed).
// The host defines
//     DTYPE (2: the tensors' dtypes are known at run time)
#define THREADS_PER_ROW 128
#include "ops/norm/cuda/norm_mixed.cuh"

extern "C" __global__ void __launch_bounds__(128) norm_columns(const struct norm_mixed_params p) {
    int strips = (p.cols + 127) / 128, groups = gridDim.x / strips;
    int group = blockIdx.x / strips, col = blockIdx.x % strips * 128 + threadIdx.x;
    float dweight = 0, dbias = 0;
    if (col >= p.cols) return;
#pragma unroll 4
    for (long long row = group; row < p.rows; row += groups) {
        float mean = p.mean != 0 ? p.mean[row] : 0;
        float dy = load_any(p.dy.rows.data, row_at(&p.dy.rows, row) + col, p.dy.dtype);
        float x = load_any(p.x.rows.data, row_at(&p.x.rows, row) + col, p.x.dtype);
        float rest = p.rest != 0 ? p.rest[row] : 0;
        dweight += dy * (normalised(x, mean, p.rstd[row]) - rest);
        dbias += dy;
    }
    p.partial[2LL * group * p.cols + col] = dweight;
    p.partial[(2LL * group + 1) * p.cols + col] = dbias;
}
