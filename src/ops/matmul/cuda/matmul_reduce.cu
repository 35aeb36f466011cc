// SPDX-License-Identifier: Apache-2.0
// The end of a product c (m x n) whose k was split: adds the partial sums in the order of the splits, then applies the
// epilogue. A thread has COLS columns of a row of c.
// Floor: 4 splits m n bytes read, with a gate twice as many, and c written once.
// See docs/kernels/matmul_cuda.md; figures of whole products: docs/kernels/matmul_cuda_fp32.md.
// The host defines DTYPE.
#include "ops/matmul/cuda/matmul_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(256) matmul_reduce(const struct matmul_params p) {
    long long groups = (p.n + COLS - 1) / COLS, all = p.num_batches * p.m * groups;
    long long step = (long long)gridDim.x * 256;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
        long long row = i / groups % p.m, batch = i / groups / p.m, index[3];
        long long col = i % groups * COLS;
        float v[COLS], up[COLS], x[COLS];
        EACH_COL(e) v[e] = up[e] = 0;
#pragma unroll 4
        for (int split = 0; split < p.num_splits; split++) {
            load_cols(x, partial_row(&p, split, batch, 0, row), col, 1, COLS, 1);
            EACH_COL(e) v[e] += x[e];
        }
        if (is_gated(&p))
#pragma unroll 4
            for (int split = 0; split < p.num_splits; split++) {
                load_cols(x, partial_row(&p, split, batch, 1, row), col, 1, COLS, 1);
                EACH_COL(e) up[e] += x[e];
            }
        batch_index(index, p.batch, batch);
        finish(&p, index, row, col, v, up);
    }
}
