// SPDX-License-Identifier: Apache-2.0
// The largest number of each group of logits (rows, vocab), and of each slice with its column. A NaN is larger than all. Leaves
// the states and sums of the selections as they begin.
// Floor: the logits read once.
// Limit: memory.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE
#include "ops/sample/sample_device.cuh"

// Of the numbers that a lane has seen.
struct best {
    float z;
    unsigned index;
    int is_nan;
};

DEVICE void begin_row(const struct sample_params *p, const struct slice *s) {
    if (s->index == 0 && threadIdx.x == 0) {
        struct sample_state state = {0};
        state.key = KEY_OF_MINUS_INF;
        p->states[s->row] = state;
    }
    if (p->sums == 0) return;
    for (int d = s->index * SAMPLE_THREADS + (int)threadIdx.x; d < SAMPLE_NUM_DIGITS;
         d += p->num_slices * SAMPLE_THREADS)
        p->sums[s->row * SAMPLE_NUM_DIGITS + d] = 0;
}

// Returns the unit's largest number.
DEVICE float see(struct best *best, const float z[GROUP], int col) {
    float most = -INFINITE;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float number = fminf(z[i], SAMPLE_LARGEST);
        best->is_nan |= z[i] != z[i];
        most = fmaxf(most, number);
        if (number > best->z) best->z = number, best->index = (unsigned)(col + i);
    }
    return most;
}

DEVICE void take_slice(const struct sample_params *p, const struct slice *s,
                       unsigned (*of_warps)[2]) {
    enum { WARPS = SAMPLE_THREADS / 32 };
    const struct sample_numbers *n = &p->z;
    const int lead = lead_of(n, s->row);
    struct best best = {-INFINITE, ~0u, 0};
#pragma unroll 2
    for (int g = s->first + WARP; g < s->last; g += WARPS) {
        float z[GROUP];
        const int col = col_of(g, lead);
        load_unit(z, n, s->row, col, p->vocab);
        const unsigned key = __reduce_max_sync(ALL_LANES, key_of(see(&best, z, col)));
        if (LANE == 0) n->group_key[s->row * p->num_groups + g] = key;
    }
    const unsigned mine = best.is_nan ? (unsigned)KEY_OF_NAN : key_of(best.z);
    const unsigned most = __reduce_max_sync(ALL_LANES, mine);
    const unsigned first = __reduce_min_sync(ALL_LANES, mine == most ? best.index : ~0u);
    if (LANE == 0) of_warps[WARP][0] = most, of_warps[WARP][1] = first;
    __syncthreads();
    if (WARP > 0) return;
    const unsigned of_warp = LANE < WARPS ? of_warps[LANE][0] : 0;
    const unsigned of_all = __reduce_max_sync(ALL_LANES, of_warp);
    const unsigned index =
        __reduce_min_sync(ALL_LANES, LANE < WARPS && of_warp == of_all ? of_warps[LANE][1] : ~0u);
    if (LANE == 0) {
        n->slice_key[s->row * p->num_slices + s->index] = of_all;
        n->slice_index[s->row * p->num_slices + s->index] = index;
    }
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 6)
    sample_maxima(const struct sample_params p) {
    __shared__ unsigned of_warps[SAMPLE_THREADS / 32][2];
    begin_early();
    if (!p.is_raw && p.num_nan_rows != 0 && blockIdx.x == 0 && threadIdx.x == 0)
        *p.num_nan_rows = 0;
    for (long long task = blockIdx.x; task < p.rows * p.num_slices; task += gridDim.x) {
        const struct slice s = slice_of(&p, task);
        if (!p.is_raw) begin_row(&p, &s);
        take_slice(&p, &s, of_warps);
        __syncthreads();
    }
}
