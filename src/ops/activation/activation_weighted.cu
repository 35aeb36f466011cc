// SPDX-License-Identifier: Apache-2.0
// Backward of rows that have weights w: dx = w dy act'(x) (up), dup = w dy act(x), weighted_y = w act(x) (up) and each row's
// sum of dy act(x) (up), in one pass. A block takes a long row, a warp a shorter one or AT_ONCE rows of a unit for each lane. A
// thread loads AT_ONCE units before it uses the first, and no other thread touches its elements, so outputs may be inputs. A
// thread's columns depend on cols alone: so does the order of the sum. Rows that are not aligned move element by element.
// Floor: x, dy (and up) read once, dx (dup, weighted_y) written once: 12 bytes an element of bf16 with all of them.
// Limit: memory.
// Figures: docs/kernels/elementwise.md.
// The host defines
//     DTYPE
#include "ops/activation/activation_params.h"
#define UNIT GROUP
#define AT_ONCE ACTIVATION_WEIGHTED_AT_ONCE
#include "cuda/device/activation.cuh"
#include "cuda/device/elements.cuh"

#define WARPS (ACTIVATION_WEIGHTED_THREADS / 32)

// x, dy and up become dup, weighted_y and dx. kind: a constant.
DEVICE void weigh_unit(int kind, float x[UNIT], float dy[UNIT], float up[UNIT], float weight,
                       float *sum) {
    EACH_ELEMENT(i) {
        float grad;
        const float value = activate_dtype_with_grad(kind, x[i], &grad), scaled = weight * dy[i],
                    of_up = gate(kind, up[i]), y = value * of_up;
        *sum = fmaf(dy[i], y, *sum);
        dy[i] = weight * y;
        x[i] = scaled * (value * gate_slope(kind, up[i]));
        up[i] = scaled * (grad * 0.5f) * of_up * 2.0f; // halved first, as in activation_backward.cu
    }
}

// Unit u of a thread is in row + u * row_step, from column first + (thread + u * col_step) UNIT on; one of the steps is 0.
struct units {
    long long row, first;
    int row_step, col_step, thread;
};

// Adds each unit's share of its row's sum.
DEVICE void weighted_units(const struct activation_weighted_params *p, const struct units *at,
                           const float weight[AT_ONCE], float sum[AT_ONCE]) {
    struct spot spots[AT_ONCE];
    uint4 x_raw[AT_ONCE], dy_raw[AT_ONCE], up_raw[AT_ONCE];
    EACH_SPOT(u) {
        const long long col = at->first + (at->thread + u * at->col_step) * UNIT;
        const int has_row = at->row + u * at->row_step < p->rows;
        const struct spot spot = {at->row, has_row ? col : p->cols, u * at->row_step, 1,
                                  has_row && p->is_aligned && col + UNIT <= p->cols};
        spots[u] = spot;
        x_raw[u] = fetch_unit(&spots[u], &p->x);
        dy_raw[u] = fetch_unit(&spots[u], &p->dy);
        if (p->up.data != 0) up_raw[u] = fetch_unit(&spots[u], &p->up);
    }
    EACH_SPOT(u) {
        float x[UNIT], dy[UNIT], up[UNIT];
        widen_unit(x, x_raw[u], &spots[u], p->cols, &p->x);
        widen_unit(dy, dy_raw[u], &spots[u], p->cols, &p->dy);
        if (p->up.data != 0)
            widen_unit(up, up_raw[u], &spots[u], p->cols, &p->up);
        else
            EACH_ELEMENT(i) up[i] = 1.0f;
        WITH_CONSTANT_KIND(p->kind, weigh_unit, x, dy, up, weight[u], &sum[u]);
        store_unit(up, &spots[u], p->cols, &p->dx);
        if (p->dup.data != 0) store_unit(x, &spots[u], p->cols, &p->dup);
        if (p->weighted_y.data != 0) store_unit(dy, &spots[u], p->cols, &p->weighted_y);
    }
}

DEVICE float weight_of(const struct activation_weighted_params *p, long long row) {
    if (p->row_weights.data == 0 || row >= p->rows) return 1.0f;
    return ((const float *)p->row_weights.data)[row * p->row_weights.stride];
}

// This thread's share of the row's sum, with `width` threads side by side.
DEVICE float weighted_row(const struct activation_weighted_params *p, long long row, int thread,
                          int width) {
    struct units at = {row, 0, 0, width, thread};
    float weight[AT_ONCE], sum[AT_ONCE], total = 0.0f;
    EACH_SPOT(u) {
        weight[u] = weight_of(p, row);
        sum[u] = 0.0f;
    }
    for (; at.first < p->cols; at.first += AT_ONCE * UNIT * width)
        weighted_units(p, &at, weight, sum);
    EACH_SPOT(u) total += sum[u];
    return total;
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

DEVICE void put_sum(const struct activation_weighted_params *p, long long row, float sum) {
    if (p->drow_weights.data != 0 && row < p->rows)
        ((float *)p->drow_weights.data)[row * p->drow_weights.stride] = sum;
}

extern "C" __global__ void __launch_bounds__(ACTIVATION_WEIGHTED_THREADS)
    activation_weighted(const struct activation_weighted_params p) {
    __shared__ float sums[WARPS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const long long step = (long long)gridDim.x * p.rows_of_block;
    begin_early();
    for (long long first = (long long)blockIdx.x * p.rows_of_block; first < p.rows; first += step) {
        if (p.rows_of_block == 1) {
            const float sum =
                warp_sum(weighted_row(&p, first, thread, ACTIVATION_WEIGHTED_THREADS));
            if (lane == 0) sums[warp] = sum;
            __syncthreads();
            if (thread == 0) {
                float total = 0.0f;
#pragma unroll
                for (int i = 0; i < WARPS; i++) total += sums[i];
                put_sum(&p, first, total);
            }
            __syncthreads();
        } else if (p.rows_of_block == WARPS) {
            const float sum = warp_sum(weighted_row(&p, first + warp, lane, 32));
            if (lane == 0) put_sum(&p, first + warp, sum);
        } else {
            const struct units at = {first + warp * AT_ONCE, 0, 1, 0, lane};
            float weight[AT_ONCE], sum[AT_ONCE];
            EACH_SPOT(u) {
                weight[u] = weight_of(&p, at.row + u);
                sum[u] = 0.0f;
            }
            weighted_units(&p, &at, weight, sum);
            EACH_SPOT(u) {
                const float total = warp_sum(sum[u]);
                if (lane == 0) put_sum(&p, at.row + u, total);
            }
        }
    }
}
