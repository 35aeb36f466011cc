// SPDX-License-Identifier: Apache-2.0
// Copies a stack of matrices element by element into lines that other kernels can use: aligned lines for 16-byte
// copies, padded with zeros; the lines of all batches as one matrix; or transposed ones.
// Floor: each element read once and written once.
// See docs/kernels/matmul_cuda.md.
// The host defines DTYPE, of which only the size matters, and SOURCE (BF16 or F16) if f32 is to be made of 16 bits.
#include "cuda/device/numbers.cuh"
#include "ops/matmul/cuda/matmul_tiles.cuh"
#include "ops/matmul/matmul_params.h"

#if DTYPE == DTYPE_F32
typedef unsigned element;
#else
typedef unsigned short element;
#endif

#ifdef SOURCE
typedef unsigned short source;
DEVICE element copied(source x) {
    return __float_as_uint(SOURCE == DTYPE_BF16 ? float_of_bf16(x) : float_of_f16(x));
}
#else
typedef element source;
DEVICE element copied(source x) { return x; }
#endif

// A warp takes 128 elements of a line: enough loads in flight, and no line is too short for a block.
extern "C" __global__ void __launch_bounds__(256) matmul_copy(const struct matmul_copy_params p) {
    enum { EACH = 4 };
    wait_for_primary();
    start_dependents();
    long long pieces = (p.filled + 32 * EACH - 1) / (32 * EACH);
    long long all = p.num_batches * p.lines * pieces, step = (long long)gridDim.x * 8;
    for (long long i = (long long)blockIdx.x * 8 + threadIdx.x / 32; i < all; i += step) {
        long long line = i / pieces % p.lines, batch = i / pieces / p.lines, index[3];
        long long first = i % pieces * (32 * EACH) + threadIdx.x % 32;
        batch_index(index, p.batch, batch);
        const source *from = (const source *)p.source + line * p.source_line +
                             index[0] * p.source_batch[0] + index[1] * p.source_batch[1] +
                             index[2] * p.source_batch[2];
        element *to =
            (element *)p.destination + batch * p.destination_batch + line * p.destination_line;
        element x[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            x[e] = first + e * 32 < p.width ? copied(from[(first + e * 32) * p.source_step]) : 0;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (first + e * 32 < p.filled) to[first + e * 32] = x[e];
    }
}
