// SPDX-License-Identifier: Apache-2.0
// One warp product, 16 x 16 x 16, that exposes every step on which tensor-core kernels rely: copies that fill up with
// zeros, permuted shared memory, ldmatrix plain and transposed, mma.sync, and the layout of its results. For
// tests/cuda/test_cuda_layouts.c, which checks the results to the bit. The host defines
//     DTYPE (bf16 or f16)
#include "cuda/device/mma.cuh"
#include "cuda/device/mma_layouts_params.h"

#define LINES 16
#define PIECES 4 // 16-byte pieces of a line

extern "C" __global__ void __launch_bounds__(32) mma_layouts(const struct mma_layouts_params p) {
    __shared__ uint4 tiles[2][LINES * PIECES];
    const int lane = threadIdx.x;
    const unsigned a = shared_address(tiles[0]), b = shared_address(tiles[1]);
    for (int i = lane; i < LINES * PIECES; i += 32) {
        int left = 2 * (p.elements - i % PIECES * 8);
        int bytes = left <= 0 ? 0 : left < 16 ? left : 16;
        copy_async(a + swizzled(i / PIECES, i % PIECES, PIECES), (const uint4 *)p.a + i, bytes);
        copy_async(b + swizzled(i / PIECES, i % PIECES, PIECES), (const uint4 *)p.b + i, bytes);
    }
    copy_commit();
    COPY_WAIT(0);
    __syncwarp();

    // Order of the matrices of a (m, k) = (0, 0), (8, 0), (0, 8), (8, 8); of b (k, n) = (0, 0), (8, 0), (0, 8), (8, 8).
    unsigned x[4], y[4];
    int row = lane & 7, second = lane >> 3 & 1, third = lane >> 4, first = p.step * 2;
    if (p.a_is_mn)
        load_matrices_transposed(x, a + swizzled(third * 8 + row, second, PIECES));
    else
        load_matrices(x, a + swizzled(second * 8 + row, first + third, PIECES));
    if (p.b_is_mn)
        load_matrices_transposed(y, b + swizzled(second * 8 + row, third, PIECES));
    else
        load_matrices(y, b + swizzled(third * 8 + row, first + second, PIECES));
    for (int i = 0; i < 4; i++) p.raw[lane * 4 + i] = x[i];

    for (int half = 0; half < 2; half++) {
        float c[4] = {0, 0, 0, 0};
        mma(c, x, y[half * 2], y[half * 2 + 1]);
        for (int i = 0; i < 4; i++)
            p.c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = c[i];
    }
}
