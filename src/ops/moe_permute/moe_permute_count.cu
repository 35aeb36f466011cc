// SPDX-License-Identifier: Apache-2.0
// First half of the permutation: each block counts the experts of its assignments. It uses integer atomics, whose result does not
// depend on their order, in shared memory, or with many experts in its own row of the counts.
// Floor: 4 bytes an assignment read, and the counts written, 4 bytes an expert and block.
// Figures: docs/kernels/moe.md.
#include "ops/moe_permute/moe_permute_device.cuh"

DEVICE void count(const struct moe_permute_params *p, int *counts) {
    enum { AHEAD = 4 };
    const int first = (int)blockIdx.x * p->chunk;
    const unsigned last =
        end_of(p, first, p->chunk); // unsigned: a step beyond it does not overflow
    for (int e = threadIdx.x; e < p->num_experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (unsigned i = first + threadIdx.x; i < last; i += AHEAD * blockDim.x) {
        int id[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const unsigned at = blockDim.x * a;
            id[a] = last - i > at ? id_of(p, (int)(i + at)) : -1;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (is_expert(p, id[a])) atomicAdd(&counts[id[a]], 1);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(MOE_PERMUTE_THREADS)
    moe_permute_count(const struct moe_permute_params p) {
    __shared__ int shared[MOE_PERMUTE_SHARED];
    int *const counts = p.counts + (long long)blockIdx.x * p.num_experts;
    begin_early();
    if (p.num_experts > MOE_PERMUTE_SHARED) {
        count(&p, counts);
        return;
    }
    count(&p, shared);
    for (int e = threadIdx.x; e < p.num_experts; e += blockDim.x) counts[e] = shared[e];
}
