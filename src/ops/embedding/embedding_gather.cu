// SPDX-License-Identifier: Apache-2.0
// y[t] = weight[ids[t]] for all tokens t, weight (vocab, hidden): copies rows bit by bit, with the widest access that
// all of them allow. An id outside the table gives a row with all bits set, which is NaN in every format.
// Floor: each token's row read and written, 2 tokens hidden elements.
// Limit: memory.
// Figures: docs/kernels/embedding.md.
#include "ops/embedding/embedding_params.h"
#define DTYPE 2 // no element has it; numbers.cuh needs one
#define UNIT 1
#define AT_ONCE EMBEDDING_GATHER_AT_ONCE
#include "cuda/device/elements.cuh"

DEVICE uint4 fetch(const void *data, long long at, int bytes) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    switch (bytes) {
    case 16: return ((const uint4 *)data)[at];
    case 8: {
        uint2 two = ((const uint2 *)data)[at];
        raw.x = two.x;
        raw.y = two.y;
        return raw;
    }
    case 4: raw.x = ((const unsigned *)data)[at]; return raw;
    default: raw.x = ((const unsigned short *)data)[at]; return raw;
    }
}

DEVICE void put(void *data, long long at, uint4 raw, int bytes) {
    switch (bytes) {
    case 16: ((uint4 *)data)[at] = raw; break;
    case 8: ((uint2 *)data)[at] = make_uint2(raw.x, raw.y); break;
    case 4: ((unsigned *)data)[at] = raw.x; break;
    default: ((unsigned short *)data)[at] = (unsigned short)raw.x;
    }
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS)
    embedding_gather(const struct embedding_gather_params p) {
    EACH_TILE(tile, p.grid) {
        struct spot spots[AT_ONCE];
        uint4 raw[AT_ONCE];
        int ids[AT_ONCE];
        find_spots(spots, &p.grid, tile, 0);
        EACH_SPOT(u) { ids[u] = spots[u].is_whole ? p.ids[row_of(&spots[u]) * p.ids_stride] : 0; }
        EACH_SPOT(u) {
            raw[u] = make_uint4(~0u, ~0u, ~0u, ~0u);
            if (spots[u].is_whole && ids[u] >= 0 && ids[u] < p.vocab)
                raw[u] = fetch(p.weight.data, ids[u] * p.weight.stride + spots[u].col, p.bytes);
        }
        EACH_SPOT(u)
        if (spots[u].is_whole) put(p.y.data, place_of(&spots[u], 0, &p.y), raw[u], p.bytes);
    }
}
