// SPDX-License-Identifier: Apache-2.0
// The outputs of routing that sum over tokens, from the parts of moe_route_forward.cu's blocks. One block: each of its warps adds
// some of the parts of 32 experts, in order; then the warps' sums are added in order, and the losses over the experts.
// Floor: the parts, 12 bytes an expert and block, read once.
// Limit: the latency of one block's reads.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: not used)
#include "cuda/device/numbers.cuh"
#include "ops/moe_route/moe_route_params.h"

enum { WARPS = MOE_ROUTE_LOSSES_THREADS / 32, MOST_EXPERTS = 1024 };
#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))

enum { BALANCE, VARIANCE, Z, NANS, NUM_SUMS };

DEVICE double add_lanes(double x) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(0xffffffffu, x, half);
    return x;
}

extern "C" __global__ void __launch_bounds__(MOE_ROUTE_LOSSES_THREADS)
    moe_route_losses(const struct moe_route_losses_params p) {
    __shared__ double all_probs[WARPS][32];
    __shared__ int all_counts[WARPS][32];
    __shared__ double all_sums[NUM_SUMS][WARPS];
    const int chunks = (p.num_experts + 31) / 32, shares = WARPS / chunks;
    const int chunk = WARP / shares, share = WARP % shares, e = chunk * 32 + LANE;
    const double tokens = p.tokens > 0 ? (double)p.tokens : 1, experts = p.num_experts;
    double probs = 0, sums[NUM_SUMS] = {0};
    int count = 0;
    begin_early();
    if (e < p.num_experts)
#pragma unroll 8
        for (int b = share; b < p.num_blocks; b += shares) {
            if (p.parts.probs != 0) probs += p.parts.probs[(long long)b * p.num_experts + e];
            count += p.parts.counts[(long long)b * p.num_experts + e];
        }
    for (int b = threadIdx.x; b < p.num_blocks; b += MOE_ROUTE_LOSSES_THREADS) {
        sums[Z] += p.parts.z[b];
        sums[NANS] += p.parts.nans[b];
    }
    all_probs[WARP][LANE] = probs;
    all_counts[WARP][LANE] = count;
    __syncthreads();
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
        sums[BALANCE] = experts * f * mean;
        if (p.tokens > 0) sums[VARIANCE] = (f - 1 / experts) * (f - 1 / experts);
        if (p.tokens_per_expert != 0) p.tokens_per_expert[mine] = count;
        if (p.mean_probs != 0) p.mean_probs[mine] = (float)mean;
    }
#pragma unroll
    for (int i = 0; i < NUM_SUMS; i++) {
        const double sum = add_lanes(sums[i]);
        if (LANE == 0) all_sums[i][WARP] = sum;
    }
    __syncthreads();
    if (WARP >= NUM_SUMS) return;
    const double sum = add_lanes(all_sums[WARP][LANE]);
    if (LANE != 0) return;
    if (WARP == BALANCE && p.balance_loss != 0) *p.balance_loss = (float)sum;
    if (WARP == VARIANCE && p.usage_variance != 0) *p.usage_variance = (float)(sum / experts);
    if (WARP == Z && p.z_loss != 0) *p.z_loss = (float)(sum / tokens);
    if (WARP == NANS && p.num_nan_rows != 0)
        *p.num_nan_rows = sum > 2147483647 ? 2147483647 : (int)sum;
}
