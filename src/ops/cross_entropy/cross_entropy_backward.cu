// SPDX-License-Identifier: Apache-2.0
// dlogits = dloss (exp(logits - lse) - q), (rows, classes), from the values that cross_entropy_rows.cu computes for
// each row: element by element, in place too.
// Floor: logits read once, dlogits written once.
// Limit: memory, and rows that do not begin at a multiple of 16 bytes.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE
#include "ops/cross_entropy/cross_entropy_params.h"
#define UNIT GROUP
#define AT_ONCE CROSS_ENTROPY_AT_ONCE
#include "cuda/device/elements.cuh"

// Values that the elements of a row share.
struct row_facts {
    struct cross_entropy_row row;
    float rest;
};

DEVICE struct row_facts facts_of(const struct cross_entropy_backward_params *p, long long row) {
    struct row_facts facts = {{0, 0, 0, -1}, 0};
    if (row >= p->grid.rows) return facts;
    float4 all = ((const float4 *)p->rows)[row];
    facts.row.shift = all.x;
    facts.row.factor = all.y;
    facts.row.at_target = all.z;
    facts.row.target = __float_as_int(all.w);
    facts.rest = -p->dloss[row] * p->q_other;
    return facts;
}

extern "C" __global__ void __launch_bounds__(ELEMENTS_THREADS)
    cross_entropy_backward(const struct cross_entropy_backward_params p) {
    EACH_TILE(tile, p.grid) {
        struct spot spots[AT_ONCE];
        uint4 raw[AT_ONCE];
        find_spots(spots, &p.grid, tile, 0);
        EACH_SPOT(u) raw[u] = fetch_unit(&spots[u], &p.logits);
        struct row_facts facts = facts_of(&p, row_of(&spots[0]));
        EACH_SPOT(u) {
            float x[UNIT];
            if (u > 0 && p.grid.row_step != 0) facts = facts_of(&p, row_of(&spots[u]));
            widen_unit(x, raw[u], &spots[u], p.grid.cols, &p.logits);
            EACH_ELEMENT(i)
            x[i] = fmaf(facts.row.factor, exp2_fast((x[i] - facts.row.shift) * LOG2_E), facts.rest);
            // Distance from the unit's first element to the target; few units contain the target.
            long long ahead = facts.row.target - spots[u].col;
            if (ahead >= 0 && ahead <= (UNIT - 1) * spots[u].step) EACH_ELEMENT(i)
            if (ahead == i * spots[u].step) x[i] = facts.row.at_target;
            if (facts.row.target < 0) EACH_ELEMENT(i) x[i] = 0;
            store_unit(x, &spots[u], p.grid.cols, &p.dlogits);
        }
    }
}
