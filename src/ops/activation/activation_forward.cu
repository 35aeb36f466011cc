// SPDX-License-Identifier: Apache-2.0
// y = act(x), or act(x) gate(up); all of (rows, cols). A thread loads everything before its first store, and no other thread
// touches its elements, so y may be an input.
// Floor: each input read once, y written once: 4 bytes an element of bf16, 8 of f32, gated 6 and 12.
// Limit: memory; the second floor is instruction issue, about 30 instructions for a bf16 element at the rate of a copy.
// Figures: docs/kernels/elementwise.md.
// The host defines
//     DTYPE, IS_GATED: whether the call has up, 0 or 1
#include "ops/activation/activation_params.h"
#define UNIT GROUP
#define AT_ONCE ACTIVATION_FORWARD_AT_ONCE
#include "cuda/device/activation.cuh"
#include "cuda/device/elements.cuh"

// x becomes y. kind: a constant.
DEVICE void activate_unit(int kind, float x[UNIT], const float up[UNIT]) {
    EACH_ELEMENT(i) {
        x[i] = activate_dtype(kind, x[i]);
        if (IS_GATED) x[i] *= gate(kind, up[i]);
    }
}

DEVICE void forward_tile(const struct activation_params *p, long long tile, int is_flat) {
    struct spot spots[AT_ONCE];
    uint4 x_raw[AT_ONCE], up_raw[AT_ONCE];
    find_spots(spots, &p->grid, tile, is_flat);
    EACH_SPOT(u) {
        x_raw[u] = fetch_unit(&spots[u], &p->x);
        if (IS_GATED) up_raw[u] = fetch_unit(&spots[u], &p->up);
    }
    EACH_SPOT(u) {
        float x[UNIT], up[UNIT];
        widen_unit(x, x_raw[u], &spots[u], p->grid.cols, &p->x);
        if (IS_GATED) widen_unit(up, up_raw[u], &spots[u], p->grid.cols, &p->up);
        WITH_CONSTANT_KIND(p->kind, activate_unit, x, up);
        store_unit(x, &spots[u], p->grid.cols, &p->y);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS)
    activation_forward(const struct activation_params p) {
    EACH_TILE(tile, p.grid) {
        if (p.grid.is_flat)
            forward_tile(&p, tile, 1);
        else
            forward_tile(&p, tile, 0);
    }
}
