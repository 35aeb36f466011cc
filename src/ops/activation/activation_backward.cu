// SPDX-License-Identifier: Apache-2.0
// dx = dy act'(x) (gate(up)), and for gated calls dup = dy act(x) gate'(up), in one pass; all of (rows, cols). dx and dup may
// each be an input.
// Floor: x, dy (and up) read once, dx (and dup) written once: 6 bytes an element of bf16, 12 of f32, gated 10 and 20.
// Limit: memory.
// Figures: docs/kernels/elementwise.md.
// The host defines
//     DTYPE, IS_GATED: whether the call has up, 0 or 1
#include "ops/activation/activation_params.h"
#define UNIT GROUP
#define AT_ONCE ACTIVATION_BACKWARD_AT_ONCE
#include "cuda/device/activation.cuh"
#include "cuda/device/elements.cuh"

// act(x) and act'(x).
#define ACTIVATE(kind)                                                                             \
    EACH_SPOT(u) { EACH_ELEMENT(i) x[u][i] = activate_with_grad(kind, x[u][i], &grad[u][i]); }     \
    break

DEVICE void backward_tile(const struct activation_params *p, long long tile, int is_flat) {
    struct spot spots[AT_ONCE];
    uint4 x_raw[AT_ONCE], dy_raw[AT_ONCE], up_raw[AT_ONCE];
    float x[AT_ONCE][UNIT], grad[AT_ONCE][UNIT], dy[UNIT], up[UNIT];
    find_spots(spots, &p->grid, tile, is_flat);
    EACH_SPOT(u) {
        x_raw[u] = fetch_unit(&spots[u], &p->x);
        dy_raw[u] = fetch_unit(&spots[u], &p->dy);
        if (IS_GATED) up_raw[u] = fetch_unit(&spots[u], &p->up);
    }
    EACH_SPOT(u) widen_unit(x[u], x_raw[u], &spots[u], p->grid.cols, &p->x);
    switch (p->kind) {
    case ACTIVATION_GELU: ACTIVATE(ACTIVATION_GELU);
    case ACTIVATION_GELU_TANH: ACTIVATE(ACTIVATION_GELU_TANH);
    case ACTIVATION_SILU: ACTIVATE(ACTIVATION_SILU);
    case ACTIVATION_RELU: ACTIVATE(ACTIVATION_RELU);
    case ACTIVATION_RELU2: ACTIVATE(ACTIVATION_RELU2);
#if IS_GATED
    case ACTIVATION_SWIGLU_CLAMPED: ACTIVATE(ACTIVATION_SWIGLU_CLAMPED);
#endif
    default: ACTIVATE(ACTIVATION_NONE);
    }
    EACH_SPOT(u) {
        widen_unit(dy, dy_raw[u], &spots[u], p->grid.cols, &p->dy);
        if (IS_GATED) {
            widen_unit(up, up_raw[u], &spots[u], p->grid.cols, &p->up);
            EACH_ELEMENT(i) {
                x[u][i] *= dy[i] * gate_slope(p->kind, up[i]);
                // Halved first: |act'| may exceed 1, and the partial product must not overflow unless the whole product
                // does.
                grad[u][i] = dy[i] * (grad[u][i] * 0.5f) * gate(p->kind, up[i]) * 2.0f;
            }
            store_unit(x[u], &spots[u], p->grid.cols, &p->dup);
        } else {
            EACH_ELEMENT(i) grad[u][i] *= dy[i];
        }
        store_unit(grad[u], &spots[u], p->grid.cols, &p->y);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS)
    activation_backward(const struct activation_params p) {
    EACH_TILE(tile, p.grid) {
        if (p.grid.is_flat)
            backward_tile(&p, tile, 1);
        else
            backward_tile(&p, tile, 0);
    }
}
