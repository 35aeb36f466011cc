// SPDX-License-Identifier: Apache-2.0
// Copies a stack of fp32 matrices to lines that the copy engine can read, padded with zeros. If the elements of a
// source line are not adjacent, adjacent elements belong to adjacent lines: a block then transposes tiles of 64 x 64
// through shared memory.
// Floor: each number read once and written once, 8 bytes.
// Limit: memory.
// Figures: docs/kernels/matmul_cuda_fp32.md.
#define DTYPE 2
#include "cuda/device/numbers.cuh"
#include "ops/matmul/cuda/matmul_lines.cuh"

enum { TILE = 64, PITCH = TILE + 1, ROWS = 256 / TILE };

extern "C" __global__ void __launch_bounds__(256, 6)
    matmul_lines32(const __grid_constant__ struct matmul_lines_params p) {
    __shared__ float tile[TILE * PITCH];
    const int fast = threadIdx.x % TILE, slow = threadIdx.x / TILE;
    wait_for_primary();
    start_dependents();
    for (unsigned item = blockIdx.x; item < p.end[MATMUL_LINES_OPERANDS - 1]; item += gridDim.x) {
        unsigned i = item;
        const struct matmul_copy_params *c = &find_lines(&p, &i)->copy;
        const unsigned across = (unsigned)((c->filled + TILE - 1) / TILE);
        const unsigned down = (unsigned)((c->lines + TILE - 1) / TILE);
        const unsigned row_of_tiles = i / across, batch = row_of_tiles / down;
        const bool is_transposed = c->source_step != 1;
        const long long x = (long long)(i - row_of_tiles * across) * TILE;
        const long long line = (long long)(row_of_tiles - batch * down) * TILE;
        long long index[3];
        batch_index(index, c->batch, batch);
        const float *from = (const float *)c->source + index[0] * c->source_batch[0] +
                            index[1] * c->source_batch[1] + index[2] * c->source_batch[2];
        float *to = (float *)c->destination + batch * c->destination_batch;
        float v[TILE / ROWS];
#pragma unroll
        for (int j = 0; j < TILE / ROWS; j++) { // adjacent in the source
            const int row = slow + j * ROWS;
            const long long at_x = x + (is_transposed ? row : fast),
                            at_line = line + (is_transposed ? fast : row);
            v[j] = at_x < c->width && at_line < c->lines
                       ? from[at_line * c->source_line + at_x * c->source_step]
                       : 0;
        }
        if (is_transposed) {
            __syncthreads(); // the previous tile has been read
#pragma unroll
            for (int j = 0; j < TILE / ROWS; j++) tile[(slow + j * ROWS) * PITCH + fast] = v[j];
            __syncthreads();
#pragma unroll
            for (int j = 0; j < TILE / ROWS; j++) v[j] = tile[fast * PITCH + slow + j * ROWS];
        }
#pragma unroll
        for (int j = 0; j < TILE / ROWS; j++) {
            const long long at_line = line + slow + j * ROWS;
            if (x + fast < c->filled && at_line < c->lines)
                to[at_line * c->destination_line + x + fast] = v[j];
        }
    }
}
