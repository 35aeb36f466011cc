// SPDX-License-Identifier: Apache-2.0
// dlogits = dloss (exp(logits - lse) - q), (rows, classes), in place too, where a warp or a block has a row: it finds what the
// elements share (cross_entropy_facts.cuh) while its first logits are on their way. Rows begin anywhere: their ends move as single
// elements, everything between in groups of 16 bytes; so does an output that is aligned as its logits are.
// Floor: logits read once, dlogits written once.
// Limit: memory.
// Figures: docs/kernels/cross_entropy.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "ops/cross_entropy/cross_entropy_facts.cuh"

struct gradient {
    struct cross_entropy_row row;
    float rest;
};

DEVICE float gradient_of(float x, int col, const struct gradient *g) {
    const float d = fmaf(g->row.factor, exp2_fast((x - g->row.shift) * LOG2_E), g->rest);
    return g->row.target < 0 ? 0 : col == g->row.target ? g->row.at_target : d;
}

// Columns [col, col + GROUP).
DEVICE void store_gradients(uint4 raw, int col, const struct gradient *g, void *dlogits,
                            long long to, int is_alike) {
    float x[GROUP];
    widen(raw, x);
    if (g->row.target < 0) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] = 0;
    } else {
        const int place = g->row.target - col;
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            x[i] = fmaf(g->row.factor, exp2_fast((x[i] - g->row.shift) * LOG2_E), g->rest);
        if (place >= 0 && place < GROUP) { // few groups contain the target
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i == place) x[i] = g->row.at_target;
        }
    }
    if (is_alike) {
        store_bytes(dlogits, to + col, narrow(x));
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; i++) store(dlogits, to + col + i, x[i]);
    }
}

// This thread's first groups.
DEVICE void load_first(uint4 raw[AT_ONCE], const char *row, int head, int groups) {
    EACH_GROUP(v) {
        const int group = ROW_THREAD + v * THREADS_PER_ROW;
        if (group < groups) raw[v] = load_bytes(row, head + (long long)group * GROUP);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1024 / BLOCK_THREADS)
    cross_entropy_gradient(const struct cross_entropy_gradient_params p) {
    DECLARE_REDUCER(reducer);
    const int cols = p.rows.cols;
    begin_early();
    const long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    if (row >= p.rows.rows) return; // such a row has its own warp
    const long long at = row * p.rows.logits_stride, to = row * p.dlogits_stride;
    const char *x = (const char *)p.rows.logits + at * ELEMENT_BYTES;
    const int head = head_of(x, cols), groups = (cols - head) / GROUP;
    const int is_alike =
        ((unsigned long long)x - (unsigned long long)p.dlogits - to * ELEMENT_BYTES) % 16 == 0;
    uint4 raw[AT_ONCE];
    load_first(raw, x, head, groups);
    struct gradient g = {{0, 0, 0, 0}, -p.rows.dloss[row] * (float)p.rows.other};
    if (facts_of_row(&g.row, &p.rows, row)) { // rare
        g.row = row_of_sums(&p.rows, row, &reducer);
        load_first(raw, x, head, groups); // they have made room for the sums
    }
    // The columns of single elements: those in front of the groups, then those behind them; else none.
    int single = ROW_THREAD < head ? ROW_THREAD : head + groups * GROUP + ROW_THREAD - head;
    if (ROW_THREAD >= head && ROW_THREAD - head >= cols - head - groups * GROUP) single = cols;
    float alone = single < cols ? load(x, single) : 0;
    if (THREADS_PER_ROW == 32) // all have read the target's logit
        __syncwarp();
    else
        row_barrier();
    for (int first = ROW_THREAD; first < groups; first += AT_ONCE * THREADS_PER_ROW) {
        EACH_GROUP(v) {
            const int group = first + v * THREADS_PER_ROW, next = group + AT_ONCE * THREADS_PER_ROW;
            if (group < groups)
                store_gradients(raw[v], head + group * GROUP, &g, p.dlogits, to, is_alike);
            if (next < groups) raw[v] = load_bytes(x, head + (long long)next * GROUP);
        }
    }
    if (single < cols) store(p.dlogits, to + single, gradient_of(alone, single, &g));
}
