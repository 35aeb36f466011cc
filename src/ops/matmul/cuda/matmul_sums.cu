// SPDX-License-Identifier: Apache-2.0
// Sums over rows, (rows, n) to n, for the gradient of a bias: first of each group of rows, then of the groups' sums. A
// warp adds every eighth row of a strip of columns, one column per lane, or four in a single matrix of aligned rows
// (is_vector). The eight warps of a block are then added in order, so the bits are the same in every run.
// Floor: dc read once.
// Figures: docs/kernels/matmul_cuda_wgmma.md (gradients).
// The host defines
//     DTYPE (2: the tensors' dtypes are known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/matmul/cuda/matmul_tiles.cuh"

#define WARPS 8
#define ROWS_AT_ONCE 8 // rows that a warp loads at once

// Adds rows first, first + WARPS, ... of one column.
DEVICE float add_column(const struct matmul_sums_params *p, long long first, long long end,
                        long long col) {
    float sum = 0;
#pragma unroll 2
    for (long long row = first; row < end; row += WARPS) {
        long long index[3], in_batch = row, at = col;
        if (p->rows_of_batch < p->num_rows) {
            batch_index(index, p->batch, row / p->rows_of_batch);
            in_batch = row % p->rows_of_batch;
            at += batch_offset(&p->in, index);
        }
        sum += load_any(p->in.data, at + in_batch * p->in.line, p->in_dtype);
    }
    return sum;
}

// The same for four columns of a single matrix, with several rows loaded at once; dtype is a constant.
DEVICE void add_four(float sum[4], const struct matmul_sums_params *p, long long first,
                     long long end, long long col, int dtype) {
    const long long step = WARPS * p->in.line;
    long long at = first * p->in.line + col;
    for (long long row = first; row < end; row += WARPS * ROWS_AT_ONCE, at += ROWS_AT_ONCE * step) {
        float x[ROWS_AT_ONCE][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            if (row + r * WARPS < end) load_four_any(x[r], p->in.data, at + r * step, dtype);
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += x[r][i];
    }
}

DEVICE void add_rows(float sum[4], const struct matmul_sums_params *p, long long first,
                     long long end, long long col) {
    if (!p->is_vector)
        sum[0] = add_column(p, first, end, col);
    else if (p->in_dtype == DTYPE_F32)
        add_four(sum, p, first, end, col, DTYPE_F32);
    else if (p->in_dtype == DTYPE_BF16)
        add_four(sum, p, first, end, col, DTYPE_BF16);
    else
        add_four(sum, p, first, end, col, DTYPE_F16);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    matmul_sums(const struct matmul_sums_params p) {
    __shared__ float sums[WARPS][4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = p.is_vector ? 4 : 1;
    const long long strips = (p.n + 32 * width - 1) / (32 * width), all = strips * p.num_groups;
    wait_for_primary();
    start_dependents();
    for (long long i = blockIdx.x; i < all; i += gridDim.x) {
        const long long col = i % strips * 32 * width + lane * width, group = i / strips;
        const long long first = group * p.rows_of_group, last = first + p.rows_of_group;
        float sum[4] = {};
        if (col < p.n) add_rows(sum, &p, first + warp, last < p.num_rows ? last : p.num_rows, col);
#pragma unroll
        for (int j = 0; j < 4; j++) sums[warp][j][lane] = sum[j];
        __syncthreads();
        // Each of the first warps has its columns of every lane.
        const long long to = i % strips * 32 * width + lane * width + warp;
        if (warp < width && to < p.n) {
            float all_warps = sums[0][warp][lane];
#pragma unroll
            for (int w = 1; w < WARPS; w++) all_warps += sums[w][warp][lane];
            store_any(p.out, group * p.n + to, all_warps, p.out_dtype);
        }
        __syncthreads();
    }
}
