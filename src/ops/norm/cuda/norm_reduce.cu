// SPDX-License-Identifier: Apache-2.0
// dweight and dbias (cols) from the sums of all blocks, added in a fixed order: for 32 columns, each of 8 warps adds
// every eighth block's sums, and the first warp adds the results.
// Floor: 8 cols bytes a block read, dweight and dbias written. It is a second launch.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE (2: the dtypes of dweight and dbias are known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/norm/cuda/norm_params.h"

extern "C" __global__ void __launch_bounds__(256) norm_reduce(const struct norm_reduce_params p) {
    __shared__ float sums[8][32];
    int strips = (p.cols + 31) / 32, which = blockIdx.x / strips; // 0: dweight, 1: dbias
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x % strips * 32 + lane;
    void *to = which == 0 ? p.dweight : p.dbias;
    float sum = 0;
    begin_early();
    if (to == 0) return;
    if (col < p.cols)
#pragma unroll 8
        for (int block = warp; block < p.blocks; block += 8)
            sum += p.partial[(2LL * block + which) * p.cols + col];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= p.cols) return;
    for (int i = 1; i < 8; i++) sum += sums[i][lane];
    store_any(to, col, sum, which == 0 ? p.dweight_dtype : p.dbias_dtype);
}
