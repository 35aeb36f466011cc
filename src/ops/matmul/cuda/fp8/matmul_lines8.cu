// SPDX-License-Identifier: Apache-2.0
// Copies a stack of matrices of 8-bit elements to lines along k that the copy engine can read. If the elements of a
// source line are not adjacent, adjacent elements belong to adjacent lines: a block then transposes tiles of 64 x 64
// through shared memory.
// Floor: each element read once and written once, 2 bytes.
// See docs/kernels/matmul_cuda_fp8.md.
#define DTYPE 3 // irrelevant here
#include "cuda/device/numbers.cuh"
#include "ops/matmul/cuda/matmul_tiles.cuh"

enum { TILE = 64, PITCH = 68 };

// 16 bytes from `at` on, of which `count` exist.
DEVICE void load_sixteen(unsigned word[4], const unsigned char *at, long long count) {
    if (count >= 16 && (unsigned long long)at % 16 == 0) {
        const uint4 four = *(const uint4 *)at;
        word[0] = four.x, word[1] = four.y, word[2] = four.z, word[3] = four.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < count) word[i / 4] |= (unsigned)at[i] << i % 4 * 8;
}

// Destination lines start at multiples of 16 bytes, so the padding between them may be written too.
extern "C" __global__ void __launch_bounds__(256) matmul_lines8(const struct matmul_copy_params p) {
    __shared__ unsigned tile[TILE * PITCH / 4];
    const int slow = threadIdx.x / 4, fast = threadIdx.x % 4 * 16;
    const long long across = (p.width + TILE - 1) / TILE, down = (p.lines + TILE - 1) / TILE;
    for (long long i = blockIdx.x; i < across * down * p.num_batches; i += gridDim.x) {
        const long long x = i % across * TILE, line = i / across % down * TILE,
                        batch = i / across / down;
        const bool is_transposed = p.source_step != 1;
        long long index[3];
        batch_index(index, p.batch, batch);
        const unsigned char *from = (const unsigned char *)p.source + index[0] * p.source_batch[0] +
                                    index[1] * p.source_batch[1] + index[2] * p.source_batch[2];
        unsigned char *to = (unsigned char *)p.destination + batch * p.destination_batch;
        unsigned word[4] = {0, 0, 0, 0};
        if (is_transposed) {
            if (x + slow < p.width && line + fast < p.lines)
                load_sixteen(word,
                             from + (x + slow) * p.source_step + (line + fast) * p.source_line,
                             p.lines - line - fast);
            __syncthreads(); // the previous tile has been read
#pragma unroll
            for (int j = 0; j < 4; j++) tile[(slow * PITCH + fast) / 4 + j] = word[j];
            __syncthreads();
            const unsigned char *bytes = (const unsigned char *)tile;
#pragma unroll
            for (int j = 0; j < 4; j++)
                word[j] = bytes[(fast + 4 * j) * PITCH + slow] |
                          bytes[(fast + 4 * j + 1) * PITCH + slow] << 8 |
                          bytes[(fast + 4 * j + 2) * PITCH + slow] << 16 |
                          (unsigned)bytes[(fast + 4 * j + 3) * PITCH + slow] << 24;
        } else if (x + fast < p.width && line + slow < p.lines) {
            load_sixteen(word, from + (line + slow) * p.source_line + x + fast, p.width - x - fast);
        }
        if (x + fast < p.width && line + slow < p.lines)
            *(uint4 *)(to + (line + slow) * p.destination_line + x + fast) =
                make_uint4(word[0], word[1], word[2], word[3]);
    }
}
