// SPDX-License-Identifier: Apache-2.0
// y = x of one dtype, of (rows, cols): copies bits. If x and y have the same address modulo 16, an element is a byte
// and 16 of them move at once; else it is an element of the dtype.
// Floor: x read once, y written once.
// Limit: memory.
// Figures: docs/kernels/elementwise.md.
#include "ops/cast/cast_params.h"
#define DTYPE 2 // no element has it; numbers.cuh needs one
#define UNIT CAST_COPY_UNIT
#define AT_ONCE CAST_COPY_AT_ONCE
#include "cuda/device/elements.cuh"

// Loads an element of p.from bytes.
DEVICE unsigned long long load_bits(const void *data, long long at, int bytes) {
    switch (bytes) {
    case 1: return ((const unsigned char *)data)[at];
    case 2: return ((const unsigned short *)data)[at];
    case 4: return ((const unsigned *)data)[at];
    default: return ((const unsigned long long *)data)[at];
    }
}
DEVICE void store_bits(void *data, long long at, unsigned long long bits, int bytes) {
    switch (bytes) {
    case 1: ((unsigned char *)data)[at] = (unsigned char)bits; break;
    case 2: ((unsigned short *)data)[at] = (unsigned short)bits; break;
    case 4: ((unsigned *)data)[at] = (unsigned)bits; break;
    default: ((unsigned long long *)data)[at] = bits;
    }
}

DEVICE void copy_elements(const struct cast_params *p, const struct spot *s) {
    enum { AT_A_TIME = 4 };
#pragma unroll 1
    for (int first = 0; first < UNIT; first += AT_A_TIME) {
        unsigned long long bits[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
            if (has_element(s, first + i, p->grid.cols))
                bits[i] = load_bits(p->x.data, place_of(s, first + i, &p->x), p->from);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
            if (has_element(s, first + i, p->grid.cols))
                store_bits(p->y.data, place_of(s, first + i, &p->y), bits[i], p->from);
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS, CAST_COPY_BLOCKS)
    cast_copy(const struct cast_params p) {
    EACH_TILE(tile, p.grid) {
        struct spot spots[AT_ONCE];
        uint4 raw[AT_ONCE];
        int are_whole = 1;
        find_spots(spots, &p.grid, tile, 0);
        EACH_SPOT(u) {
            are_whole &= spots[u].is_whole;
            if (spots[u].is_whole)
                raw[u] = load_bytes((const char *)p.x.data + place_of(&spots[u], 0, &p.x), 0);
        }
        EACH_SPOT(u)
        if (spots[u].is_whole)
            store_bytes((char *)p.y.data + place_of(&spots[u], 0, &p.y), 0, raw[u]);
        if (are_whole) continue;
#pragma unroll 1
        for (int u = 0; u < AT_ONCE; u++) {
            struct spot s = find_spot(&p.grid, tile, u);
            if (!s.is_whole) copy_elements(&p, &s);
        }
    }
}
