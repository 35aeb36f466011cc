// SPDX-License-Identifier: Apache-2.0
// Sums over rows, for the gradient of a bias: first of each group of rows, then of the groups' sums. The host defines
// DTYPE (2: the tensors' own are known at run time). A warp adds every eighth row of 32 columns, and the eight warps of a block are added in order, so the bits
// are the same in every run.
#include "cuda/device/any_dtype.cuh"
#include "ops/matmul/matmul_tiles.cuh"

#define WARPS 8

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    matmul_sums(const struct matmul_sums_params p) {
    __shared__ float sums[WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long strips = (p.n + 31) / 32, all = strips * p.num_groups;
    for (long long i = blockIdx.x; i < all; i += gridDim.x) {
        long long col = i % strips * 32 + lane, group = i / strips;
        long long first = group * p.rows_of_group, end = first + p.rows_of_group;
        if (end > p.num_rows) end = p.num_rows;
        float sum = 0;
        if (col < p.n) {
#pragma unroll 4
            for (long long row = first + warp; row < end; row += WARPS) {
                long long index[3], in_batch = row;
                long long at = col;
                if (p.rows_of_batch < p.num_rows) {
                    batch_index(index, p.batch, row / p.rows_of_batch);
                    in_batch = row % p.rows_of_batch;
                    at += batch_offset(&p.in, index);
                }
                sum += load_any(p.in.data, at + in_batch * p.in.line, p.in_dtype);
            }
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && col < p.n) {
#pragma unroll
            for (int w = 1; w < WARPS; w++) sum += sums[w][lane];
            store_any(p.out, group * p.n + col, sum, p.out_dtype);
        }
        __syncthreads();
    }
}
