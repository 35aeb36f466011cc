// SPDX-License-Identifier: Apache-2.0
// Adds the sums of parts of the experts that have several: a block takes an expert and a span of columns, four a lane, a warp every
// WARPS-th part; then the warps' sums are added in order.
// Floor: sums of parts read once, dbias written once.
// Limit: latency.
// Figures: docs/kernels/moe_rows.md.
// The host defines
//     DTYPE: f32, that of the sums
#include "ops/moe_bias/moe_bias_device.cuh"

enum { SPAN = MOE_BIAS_MERGE_COLS };

extern "C" __global__ void __launch_bounds__(32 * MOE_BIAS_WARPS)
    moe_bias_merge(const struct moe_bias_params p) {
    __shared__ float sums[WARPS][SPAN];
    begin_early();
    for (long long unit = blockIdx.x; unit < p.num_units; unit += gridDim.x) {
        const int expert = (int)(unit / p.spans), begin = (int)(unit % p.spans) * SPAN;
        const struct range range = rows_of(&p, expert);
        const int parts = (range.count + PART - 1) / PART, col = begin + LANE * 4;
        const float *place = place_of(&p, range, 0) + col;
        float4 all = make_float4(0, 0, 0, 0);
        if (parts <= 1) continue;
        if (col < p.cols)
#pragma unroll 8
            for (int part = WARP; part < parts; part += WARPS) {
                const float4 x = *(const float4 *)(const void *)(place + part * p.sums_stride);
                all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
            }
        *(float4 *)(void *)&sums[WARP][LANE * 4] = all;
        __syncthreads();
        if (threadIdx.x < SPAN && begin + (int)threadIdx.x < p.cols) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
            store_any(p.dbias, expert * p.dbias_stride + begin + threadIdx.x, sum, p.dbias_dtype);
        }
        __syncthreads();
    }
}
