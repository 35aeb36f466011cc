// SPDX-License-Identifier: Apache-2.0
// The gradient of matmul's epilogue, g = dc act'(preact), (rows, n), computed once for the products that read it
// several times. A thread has COLS columns of a row.
// Floor: dc and preact read once, g written once. docs/kernels/matmul_cuda.md has no figures of it.
// The host defines DTYPE (2: the tensors' dtype is known at run time).
#include "cuda/device/any_dtype.cuh"
#include "ops/matmul/cuda/matmul_epilogue.cuh"

DEVICE void load_eight(float x[COLS], const void *data, long long at, int count, int is_vector,
                       int dtype) {
    if (is_vector && count == COLS) {
        load_four_any(x, data, at, dtype);
        load_four_any(x + 4, data, at + 4, dtype);
    } else {
        EACH_COL(e) x[e] = e < count ? load_any(data, at + e, dtype) : 0;
    }
}

DEVICE void store_eight(const float x[COLS], void *data, long long at, int count, int is_vector,
                        int dtype) {
    if (is_vector && count == COLS) {
        store_four_any(data, at, x, dtype);
        store_four_any(data, at + 4, x + 4, dtype);
    } else {
        EACH_COL(e) if (e < count) store_any(data, at + e, x[e], dtype);
    }
}

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
        load_eight(dc, p.dc.data, batch_offset(&p.dc, index) + in_batch * p.dc.line + col, count,
                   p.is_vector, p.dtype);
        load_eight(x, p.preact.data,
                   batch_offset(&p.preact, index) + in_batch * p.preact.line + col, count,
                   p.is_vector, p.dtype);
        EACH_COL(e) {
            float grad;
            activate_with_grad(p.activation, x[e], &grad);
            dc[e] *= grad;
        }
        store_eight(dc, p.g, row * p.n + col, count, p.is_vector, p.dtype);
    }
}
