// SPDX-License-Identifier: Apache-2.0
// dlogits = dloss (exp(logits - lse) - q) from the lse that forward gave: nothing is left to sum, so that it is element-wise,
// one read and one write, in place too. The host defines
//     DTYPE
#include "ops/cross_entropy/cross_entropy_params.h"
#define UNIT GROUP
#define AT_ONCE CROSS_ENTROPY_AT_ONCE
#include "cuda/device/elements.cuh"

#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// What the elements of a row share.
struct row_facts {
    float lse, dloss;
    int target, is_zero;
};

DEVICE struct row_facts facts_of(const struct cross_entropy_backward_params *p, long long row) {
    struct row_facts facts = {0, 0, -1, 1};
    if (row >= p->grid.rows) return facts;
    facts.lse = p->lse[row];
    facts.dloss = p->dloss[row];
    facts.target = p->targets[row * p->targets_stride];
    facts.is_zero = facts.target == p->ignore_index || facts.lse == -INFINITE;
    if (facts.target < 0 || facts.target >= p->grid.cols) facts.dloss = NOT_A_NUMBER;
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
            float rest = -facts.dloss * p.q_other;
            EACH_ELEMENT(i)
            x[i] = fmaf(facts.dloss, exp2_fast((x[i] - facts.lse) * LOG2_E), rest);
            // From the unit's first element to the target, which few units have.
            long long ahead = facts.target - spots[u].col;
            if (ahead >= 0 && ahead <= (UNIT - 1) * spots[u].step) EACH_ELEMENT(i)
            x[i] -= ahead == i * spots[u].step ? facts.dloss * p.q_target : 0;
            if (facts.is_zero) EACH_ELEMENT(i) x[i] = 0;
            store_unit(x, &spots[u], p.grid.cols, &p.dlogits);
        }
    }
}
