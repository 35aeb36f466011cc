// SPDX-License-Identifier: Apache-2.0
// The gradient of matmul's epilogue, g = dc act'(preact), once for the products that read it several times over. The
// host defines DTYPE. A thread has COLS columns of a row.
#include "ops/matmul/matmul_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(256)
    matmul_gradient(const struct matmul_gradient_params p) {
    long long groups = (p.n + COLS - 1) / COLS, all = p.num_rows * groups;
    long long step = (long long)gridDim.x * 256;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < all; i += step) {
        long long row = i / groups, col = i % groups * COLS, in_batch = row % p.rows_of_batch;
        long long index[3];
        batch_index(index, p.batch, row / p.rows_of_batch);
        int count = p.n - col < COLS ? (int)(p.n - col) : COLS;
        float dc[COLS], x[COLS];
        load_cols(dc, p.dc.data, batch_offset(&p.dc, index) + in_batch * p.dc.line + col, 0, count,
                  p.is_vector);
        load_cols(x, p.preact.data, batch_offset(&p.preact, index) + in_batch * p.preact.line + col,
                  0, count, p.is_vector);
        EACH_COL(e) {
            float grad;
            activate_with_grad(p.activation, x[e], &grad);
            dc[e] *= grad;
        }
        store_cols(dc, p.g, row * p.n + col, 0, count, p.is_vector);
    }
}
