// SPDX-License-Identifier: Apache-2.0
// The gradients of the weighted sum: a block takes a token. For AT_ONCE assignments at a time, a lane loads 16 bytes of dy and
// of each row before it uses the first, multiplies dy with each row, and stores the weighted dy. Products are added over lanes
// and warps in one order. The threads of a block follow from hidden alone, so a token's bits do not depend on others.
// Floor: dy and rows read once, drows written once.
// Limit: memory.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE: the dtype of dy, rows, shared and their gradients
#include "ops/moe_combine/moe_combine_device.cuh"

#define NUM_WARPS ((int)(blockDim.x / 32))
#define EACH_TILE(base, p)                                                                         \
    for (int base = WARP * 32 * GROUP; base < (p)->hidden; base += NUM_WARPS * 32 * GROUP)

DEVICE float add_lanes(float x) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(ALL_LANES, x, half);
    return x;
}

// Sums of each of AT_ONCE numbers over the block's threads; thread j gets the j-th.
DEVICE float add_threads(float x[AT_ONCE]) {
    __shared__ float sums[MOE_COMBINE_BACKWARD_WARPS][AT_ONCE];
    float sum = 0;
    EACH_ROW(j) {
        x[j] = add_lanes(x[j]);
        if (LANE == 0) sums[WARP][j] = x[j];
    }
    __syncthreads();
    for (int w = 0; w < NUM_WARPS && threadIdx.x < AT_ONCE; w++) sum += sums[w][threadIdx.x];
    __syncthreads();
    return sum;
}

DEVICE float product_of(const float a[GROUP], uint4 raw, float sum) {
    float b[GROUP];
    widen(raw, b);
    EACH_ELEMENT(i) sum = fmaf(a[i], b[i], sum);
    return sum;
}

// drows alone: two tiles of dy are loaded beside the numbers of rows.
DEVICE void scatter_row(const struct moe_combine_backward_params *p, long long token) {
    const int second = NUM_WARPS * 32 * GROUP;
    for (int base = WARP * 32 * GROUP; base < p->hidden; base += 2 * second) {
        uint4 raw[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const int col = base + t * second + LANE * GROUP;
            raw[t] = fetch(p->dy.data, token * p->dy.stride + col, count_at(col, p->hidden),
                           p->is_aligned);
        }
        for (int k = 0; k < p->assignments.top_k; k += AT_ONCE) {
            struct batch batch;
            spread_rows(&batch, hold_rows(&p->assignments, token, k), 0);
            EACH_ROW(j) {
                if (batch.row[j] < 0) continue;
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    const int col = base + t * second + LANE * GROUP;
                    float x[GROUP];
                    widen(raw[t], x);
                    EACH_ELEMENT(i) x[i] *= batch.weight[j];
                    put(p->drows.data, batch.row[j] * p->drows.stride + col, x,
                        count_at(col, p->hidden), p->is_aligned, p->is_past);
                }
            }
        }
    }
}

// Assignments [k, k + AT_ONCE).
DEVICE void take_rows(const struct moe_combine_backward_params *p, long long token, int k) {
    const int left = p->assignments.top_k - k;
    const struct held held = hold_rows(&p->assignments, token, k);
    struct batch batch;
    float dot[AT_ONCE] = {0};
    spread_rows(&batch, held, 0);
    EACH_TILE(base, p) {
        const int col = base + LANE * GROUP, count = count_at(col, p->hidden);
        const uint4 raw_dy = fetch(p->dy.data, token * p->dy.stride + col, count, p->is_aligned);
        uint4 raw[AT_ONCE];
        float dy[GROUP], x[GROUP];
        fetch_rows(raw, AT_ONCE, &p->rows, &batch, col, count, p->is_aligned);
        widen(raw_dy, dy);
        EACH_ROW(j) {
            if (j < left) dot[j] = product_of(dy, raw[j], dot[j]);
        }
        if (p->drows.data == 0) continue;
        EACH_ROW(j) {
            if (batch.row[j] < 0) continue;
            EACH_ELEMENT(i) x[i] = batch.weight[j] * dy[i];
            put(p->drows.data, batch.row[j] * p->drows.stride + col, x, count, p->is_aligned,
                p->is_past);
        }
    }
    const float sum = add_threads(dot);
    if (threadIdx.x < AT_ONCE && (int)threadIdx.x < left) // a weight without a row is 0 or NaN
        ((float *)p->dweights.data)[token * p->dweights.stride + k + threadIdx.x] =
            held.row >= 0 ? sum : held.weight;
}

// The shared expert, last, as dshared may be dy.
DEVICE void take_shared(const struct moe_combine_backward_params *p, long long token) {
    float dot[AT_ONCE] = {0}, gate = 1, slope = 0;
    if (p->shared_gate != 0) gate = sigmoid_of(p->shared_gate[token * p->gate_stride], &slope);
    EACH_TILE(base, p) {
        const int col = base + LANE * GROUP, count = count_at(col, p->hidden);
        float dy[GROUP];
        widen(fetch(p->dy.data, token * p->dy.stride + col, count, p->is_aligned), dy);
        if (p->dshared_gate.data != 0)
            dot[0] = product_of(
                dy, fetch(p->shared.data, token * p->shared.stride + col, count, p->is_aligned),
                dot[0]);
        EACH_ELEMENT(i) dy[i] *= gate;
        if (p->dshared.data != 0)
            put(p->dshared.data, token * p->dshared.stride + col, dy, count, p->is_aligned, 0);
    }
    if (p->dshared_gate.data == 0) return;
    const float sum = add_threads(dot);
    if (threadIdx.x == 0)
        ((float *)p->dshared_gate.data)[token * p->dshared_gate.stride] = sum * slope;
}

extern "C" __global__ void __launch_bounds__(32 * MOE_COMBINE_BACKWARD_WARPS, 3)
    moe_combine_backward(const struct moe_combine_backward_params p) {
    begin_early();
    for (long long token = blockIdx.x; token < p.tokens; token += gridDim.x) {
        if (p.dweights.data != 0)
            for (int k = 0; k < p.assignments.top_k; k += AT_ONCE) take_rows(&p, token, k);
        else if (p.drows.data != 0)
            scatter_row(&p, token);
        if (p.dshared.data != 0 || p.dshared_gate.data != 0) take_shared(&p, token);
    }
}
