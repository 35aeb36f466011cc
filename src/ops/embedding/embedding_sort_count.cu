// SPDX-License-Identifier: Apache-2.0
// First half of a pass that sorts tokens by id: counts each digit in each block's tokens. It uses integer atomics in
// shared memory, whose result does not depend on their order.
// Floor: 4 bytes a token read, and the counts written, 4 bytes a digit and block.
// Figures of the whole sort: docs/kernels/embedding.md.
#include "ops/embedding/embedding_sort_device.cuh"

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_sort_count(const struct embedding_sort_params p) {
    __shared__ int count[EMBEDDING_MAX_DIGITS];
    int first = blockIdx.x * p.chunk;
    int last = p.tokens - first < p.chunk ? p.tokens : first + p.chunk;
    for (int d = threadIdx.x; d < p.digits; d += EMBEDDING_THREADS) count[d] = 0;
    __syncthreads();
    for (int t = first + threadIdx.x; t < last; t += EMBEDDING_THREADS)
        atomicAdd(&count[digit_of(&p, key_of(&p, t))], 1);
    __syncthreads();
    for (int d = threadIdx.x; d < p.digits; d += EMBEDDING_THREADS)
        p.counts[(long long)blockIdx.x * p.digits + d] = count[d];
}
