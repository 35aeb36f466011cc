// SPDX-License-Identifier: Apache-2.0
// One step of AdamW on param, grad, m, v and perhaps master, all of (rows, cols). A unit is four elements, 16 bytes of
// fp32 state.
// Floor: each tensor read once and, but for grad, written once: 28 bytes an element in f32, 22 with bf16 param and grad, 28 of
// those with a master.
// Limit: memory; root and division, rounded right, hide behind it.
// Figures: docs/kernels/elementwise.md.
// The host defines
//     DTYPE: the dtype of param. The dtype of grad and the presence of a master are branches that all threads take alike
#include "ops/adamw/adamw_params.h"
#define UNIT ADAMW_UNIT
#define AT_ONCE ADAMW_AT_ONCE
#include "cuda/device/elements.cuh"

// Four raw elements of DTYPE or fp32.
DEVICE uint4 fetch_four(const struct spot *s, const struct elements_view *view, int is_f32) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (!s->is_whole) return raw;
    long long at = place_of(s, 0, view);
    if (is_f32 || ELEMENT_BYTES == 4) return load_bytes((const char *)view->data + 4 * at, 0);
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(raw.x), "=r"(raw.y)
                 : "l"((const char *)view->data + 2 * at)
                 : "memory");
    return raw;
}

DEVICE void widen_four(float x[4], uint4 raw, const struct spot *s, long long cols,
                       const struct elements_view *view, int is_f32) {
    if (!s->is_whole) {
        EACH_ELEMENT(i)
        x[i] = has_element(s, i, cols) ? load_either(view->data, place_of(s, i, view), is_f32) : 0;
    } else if (is_f32 || ELEMENT_BYTES == 4) {
        x[0] = __uint_as_float(raw.x);
        x[1] = __uint_as_float(raw.y);
        x[2] = __uint_as_float(raw.z);
        x[3] = __uint_as_float(raw.w);
    } else {
        x[0] = float_of_half(raw.x & 0xffff);
        x[1] = float_of_half(raw.x >> 16);
        x[2] = float_of_half(raw.y & 0xffff);
        x[3] = float_of_half(raw.y >> 16);
    }
}

DEVICE void store_four(const float x[4], const struct spot *s, long long cols,
                       const struct elements_view *view, int is_f32) {
    long long at = place_of(s, 0, view);
    if (!s->is_whole) {
        EACH_ELEMENT(i)
        if (has_element(s, i, cols)) store_either(view->data, place_of(s, i, view), x[i], is_f32);
    } else if (is_f32 || ELEMENT_BYTES == 4) {
        *(float4 *)((float *)view->data + at) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        *(uint2 *)((unsigned short *)view->data + at) =
            make_uint2(pair_of_floats(x[0], x[1]), pair_of_floats(x[2], x[3]));
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS)
    adamw_step(const struct adamw_params p) {
    const int has_master = p.master.data != 0;
    EACH_TILE(tile, p.grid) {
        struct spot spots[AT_ONCE];
        uint4 grad_raw[AT_ONCE], m_raw[AT_ONCE], v_raw[AT_ONCE], x_raw[AT_ONCE];
        long long cols = p.grid.cols;
        find_spots(spots, &p.grid, tile, 0);
        EACH_SPOT(u) {
            grad_raw[u] = fetch_four(&spots[u], &p.grad, p.grad_is_f32);
            m_raw[u] = fetch_four(&spots[u], &p.m, 1);
            v_raw[u] = fetch_four(&spots[u], &p.v, 1);
            x_raw[u] = has_master ? fetch_four(&spots[u], &p.master, 1)
                                  : fetch_four(&spots[u], &p.param, 0);
        }
        EACH_SPOT(u) {
            const struct spot *s = &spots[u];
            float g[4], m[4], v[4], x[4];
            widen_four(g, grad_raw[u], s, cols, &p.grad, p.grad_is_f32);
            widen_four(m, m_raw[u], s, cols, &p.m, 1);
            widen_four(v, v_raw[u], s, cols, &p.v, 1);
            if (has_master)
                widen_four(x, x_raw[u], s, cols, &p.master, 1);
            else
                widen_four(x, x_raw[u], s, cols, &p.param, 0);
            EACH_ELEMENT(i) {
                float scaled = g[i] * p.grad_scale;
                m[i] = p.beta1 * m[i] + p.rest1 * scaled;
                // In an order that overflows only if the product does.
                v[i] = p.beta2 * v[i] + (p.rest2 * scaled) * scaled;
                float quotient = p.rate * m[i] / (sqrtf(v[i]) * p.root_factor + p.eps);
                x[i] -= p.decay * x[i] + quotient; // rounded once
            }
            store_four(m, s, cols, &p.m, 1);
            store_four(v, s, cols, &p.v, 1);
            if (has_master) store_four(x, s, cols, &p.master, 1);
            store_four(x, s, cols, &p.param, 0);
        }
    }
}
