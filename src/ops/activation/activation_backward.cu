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

// x, dy and up become dx, and x dup. kind: a constant.
DEVICE void gradients_of_unit(int kind, float x[UNIT], float dy[UNIT], const float up[UNIT]) {
    EACH_ELEMENT(i) {
        float grad;
        const float value = activate_dtype_with_grad(kind, x[i], &grad);
        if (!IS_GATED) {
            dy[i] *= grad;
            continue;
        }
        x[i] = value * (dy[i] * gate_slope(kind, up[i]));
        // Halved first: |act'| may exceed 1, and the partial product must not overflow unless the whole product does.
        dy[i] = dy[i] * (grad * 0.5f) * gate(kind, up[i]) * 2.0f;
    }
}

DEVICE void backward_tile(const struct activation_params *p, long long tile, int is_flat) {
    struct spot spots[AT_ONCE];
    uint4 x_raw[AT_ONCE], dy_raw[AT_ONCE], up_raw[AT_ONCE];
    find_spots(spots, &p->grid, tile, is_flat);
    EACH_SPOT(u) {
        x_raw[u] = fetch_unit(&spots[u], &p->x);
        dy_raw[u] = fetch_unit(&spots[u], &p->dy);
        if (IS_GATED) up_raw[u] = fetch_unit(&spots[u], &p->up);
    }
    EACH_SPOT(u) {
        float x[UNIT], dy[UNIT], up[UNIT];
        widen_unit(x, x_raw[u], &spots[u], p->grid.cols, &p->x);
        widen_unit(dy, dy_raw[u], &spots[u], p->grid.cols, &p->dy);
        if (IS_GATED) widen_unit(up, up_raw[u], &spots[u], p->grid.cols, &p->up);
        WITH_CONSTANT_KIND(p->kind, gradients_of_unit, x, dy, up);
        if (IS_GATED) store_unit(x, &spots[u], p->grid.cols, &p->dup);
        store_unit(dy, &spots[u], p->grid.cols, &p->y);
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
