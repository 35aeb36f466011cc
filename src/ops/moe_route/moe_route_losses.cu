// SPDX-License-Identifier: Apache-2.0
// The outputs of routing that sum over tokens, from the parts of moe_route_forward.cu's blocks. One block: each of its warps adds
// some of the parts of 32 experts, in order; then the warps' sums are added in order, and the losses over the experts.
// Floor: the parts, 12 bytes an expert and block, read once.
// Limit: the latency of one block's reads.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: not used)
#define THREADS_PER_ROW 1024
#include "cuda/device/reduce.cuh"
#include "ops/moe_route/moe_route_params.h"

enum { WARPS = MOE_ROUTE_LOSSES_THREADS / 32, MOST_EXPERTS = 1024 };
#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))

extern "C" __global__ void __launch_bounds__(MOE_ROUTE_LOSSES_THREADS)
    moe_route_losses(const struct moe_route_losses_params p) {
    __shared__ double all_probs[WARPS][32];
    __shared__ int all_counts[WARPS][32];
    DECLARE_REDUCER(reducer);
    const int chunks = (p.num_experts + 31) / 32, shares = WARPS / chunks;
    const int chunk = WARP / shares, share = WARP % shares, e = chunk * 32 + LANE;
    const double tokens = p.tokens > 0 ? (double)p.tokens : 1, experts = p.num_experts;
    double probs = 0;
    int count = 0;
    begin_early();
    if (e < p.num_experts)
#pragma unroll 8
        for (int b = share; b < p.num_blocks; b += shares) {
            if (p.parts.probs != 0) probs += p.parts.probs[(long long)b * p.num_experts + e];
            count += p.parts.counts[(long long)b * p.num_experts + e];
        }
    all_probs[WARP][LANE] = probs;
    all_counts[WARP][LANE] = count;
    __syncthreads();
    double balance = 0, variance = 0, z = 0;
    int nans = 0;
    const int mine = threadIdx.x, first = mine / 32 * shares; // this thread's expert
    if (mine < p.num_experts) {
        double mean = 0;
        count = 0;
        for (int i = 0; i < shares; i++) {
            mean += all_probs[first + i][LANE];
            count += all_counts[first + i][LANE];
        }
        mean /= tokens;
        const double f = count / (tokens * p.top_k);
        balance = experts * f * mean;
        if (p.tokens > 0) variance = (f - 1 / experts) * (f - 1 / experts);
        if (p.tokens_per_expert != 0) p.tokens_per_expert[mine] = count;
        if (p.mean_probs != 0) p.mean_probs[mine] = (float)mean;
    }
    for (int b = threadIdx.x; b < p.num_blocks; b += MOE_ROUTE_LOSSES_THREADS) {
        z += p.parts.z[b];
        nans += p.parts.nans[b];
    }
    balance = reduce_sum_double(balance, &reducer);
    variance = reduce_sum_double(variance, &reducer);
    z = reduce_sum_double(z, &reducer);
    const double num_nan = reduce_sum_double(nans, &reducer);
    if (threadIdx.x != 0) return;
    if (p.balance_loss != 0) *p.balance_loss = (float)balance;
    if (p.usage_variance != 0) *p.usage_variance = (float)(variance / experts);
    if (p.z_loss != 0) *p.z_loss = (float)(z / tokens);
    if (p.num_nan_rows != 0) *p.num_nan_rows = num_nan > 2147483647 ? 2147483647 : (int)num_nan;
}
