// SPDX-License-Identifier: Apache-2.0
// The sum of the weights of each slice of logits (rows, vocab): of tokens with keys above the state's, and the number of those and
// of tokens with that key, which all weigh the same. Groups below are not read.
// Floor: the logits read once, from the second-level cache.
// Limit: exponentials without FMA.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE
#include "ops/sample/sample_device.cuh"

struct sums {
    unsigned long long weights;
    unsigned equal, above;
};

// Whether the row's sums are wanted, with what they need.
struct task {
    float max, scale, least, least_weight; // least: of the state's key
    int is_plain;                          // all weights, and no numbers of tokens
};

DEVICE int begin_task(const struct sample_params *p, long long row, struct task *task) {
    const struct sample_options o = options_of(p, row);
    const unsigned largest = largest_key(p, &p->z, row);
    task->max = float_of_key(largest);
    task->scale = SAMPLE_LOG2E;
    task->least = -INFINITE;
    task->least_weight = 0;
    if (p->is_raw) {
        task->is_plain = 1;
        return largest != (unsigned)KEY_OF_NAN && largest > KEY_OF_MINUS_INF;
    }
    if (!is_drawn(&o, largest)) return 0;
    task->scale = sample_scale(o.temperature);
    task->least = float_of_key(p->states[row].key);
    if (p->has_min_p) task->least_weight = SAMPLE_MUL(o.min_p, SAMPLE_ONE);
    task->is_plain = task->least == -INFINITE && task->least_weight == 0 && p->kept == 0;
    return 1;
}

// The sum of a unit's weights, which round to integers here. A weight is a multiple of 2^20 and a rest; a sum with 1.5 2^43 has the
// first in its low bits, one with 1.5 2^23 the second, rounded. So each is a few additions; conversions to integers take as
// long as sixteen.
DEVICE long long add_unit(const float w[GROUP]) {
    const float of_high = 0x1.8p43f, of_low = 0x1.8p23f;
    unsigned high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float t = __fadd_rn(w[i], of_high), rest = __fadd_rn(w[i], -__fadd_rn(t, -of_high));
        high += __float_as_uint(t);
        low += __float_as_uint(__fadd_rn(rest, of_low));
    }
    high -= GROUP * __float_as_uint(of_high);
    low -= GROUP * __float_as_uint(of_low);
    return ((long long)high << 20) + (int)low;
}

DEVICE void take_slice(const struct sample_params *p, const struct slice *s,
                       const struct task *task, struct sums *of_warps) {
    enum { WARPS = SAMPLE_THREADS / 32 };
    const int lead = lead_of(&p->z, s->row);
    const unsigned key = key_of(task->least);
    struct sums sums = {0, 0, 0};
    for (int g = s->first + WARP; g < s->last; g += WARPS) {
        float z[GROUP], w[GROUP];
        if (p->z.group_key[s->row * p->num_groups + g] < key) continue;
        load_numbers(z, &p->z, s->row, col_of(g, lead), p->vocab);
#pragma unroll
        for (int i = 0; i < GROUP; i++) w[i] = sample_real_weight(z[i], task->max, task->scale);
        if (!task->is_plain) {
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                const int is_above = z[i] > task->least && rintf(w[i]) >= task->least_weight;
                if (!is_above) w[i] = 0;
                sums.above += is_above;
                sums.equal += z[i] == task->least;
            }
        }
        sums.weights += (unsigned long long)add_unit(w);
    }
    sums.weights = add_lanes(sums.weights);
    sums.above = __reduce_add_sync(ALL_LANES, sums.above);
    sums.equal = __reduce_add_sync(ALL_LANES, sums.equal);
    if (LANE == 0) of_warps[WARP] = sums;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) {
        sums.weights += of_warps[w].weights;
        sums.above += of_warps[w].above;
        sums.equal += of_warps[w].equal;
    }
    const long long at = s->row * p->num_slices + s->index;
    p->z.slice_sum[at] = sums.weights;
    p->z.slice_above[at] = sums.above;
    p->z.slice_equal[at] = sums.equal;
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_weigh(const struct sample_params p) {
    __shared__ struct sums of_warps[SAMPLE_THREADS / 32];
    begin_early();
    for (long long i = blockIdx.x; i < p.rows * p.num_slices; i += gridDim.x) {
        const struct slice s = slice_of(&p, i);
        struct task task;
        if (!begin_task(&p, s.row, &task)) continue;
        take_slice(&p, &s, &task, of_warps);
        __syncthreads();
    }
}
