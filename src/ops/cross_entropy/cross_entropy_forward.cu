// SPDX-License-Identifier: Apache-2.0
// Loss and log-sum-exp of rows of any width and place, in one read: each thread keeps a running maximum, the sum of
// exponentials relative to it and, for smoothed labels, that of the differences (arXiv:1805.02867); the row's threads join
// theirs in double. A target that is neither a class nor ignore_index gives NaN. The host defines
//     DTYPE, THREADS_PER_ROW
#include "cuda/device/reduce.cuh"
#include "ops/cross_entropy/cross_entropy_params.h"

#define AT_ONCE 4
#define EACH_GROUP(v) _Pragma("unroll") for (int v = 0; v < AT_ONCE; v++)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// sum of exp(x - max) and of x - max over `count` logits; relative to 0 where all of them are -inf.
struct online {
    float max, sum, spread;
    int count;
};

DEVICE float finite_max(float max) { return max == -INFINITE ? 0 : max; }

// n is a constant.
DEVICE void take(struct online *o, const float *x, int n, int is_smoothed) {
    float larger = o->max;
#pragma unroll
    for (int i = 0; i < n; i++) larger = fmaxf(larger, x[i]);
    float zero = finite_max(larger);
    o->sum *= exp2_fast((o->max - zero) * LOG2_E);
#pragma unroll
    for (int i = 0; i < n; i++) o->sum += exp2_fast((x[i] - zero) * LOG2_E);
    if (is_smoothed) {
        o->spread += (float)o->count * (finite_max(o->max) - zero);
#pragma unroll
        for (int i = 0; i < n; i++) o->spread += x[i] - zero;
    }
    o->max = larger;
    o->count += n;
}

// A row may start anywhere: its elements before the first multiple of 16 bytes, groups, and the rest.
DEVICE struct online take_row(const void *logits, long long at, int cols, int is_smoothed) {
    struct online o = {-INFINITE, 0, 0, 0};
    const char *row = (const char *)logits + at * ELEMENT_BYTES;
    int head = (int)(-(long long)row & 15) / ELEMENT_BYTES;
    head = head < cols ? head : cols;
    int groups = (cols - head) / GROUP, tail = cols - head - groups * GROUP;
    for (int first = ROW_THREAD; first < groups; first += AT_ONCE * THREADS_PER_ROW) {
        uint4 raw[AT_ONCE];
        EACH_GROUP(v) {
            int group = first + v * THREADS_PER_ROW;
            if (group < groups) raw[v] = load_bytes(row, head + (long long)group * GROUP);
        }
        EACH_GROUP(v) {
            float x[GROUP];
            if (first + v * THREADS_PER_ROW >= groups) break;
            widen(raw[v], x);
            take(&o, x, GROUP, is_smoothed);
        }
    }
    if (ROW_THREAD < head) {
        float x = load(row, ROW_THREAD);
        take(&o, &x, 1, is_smoothed);
    }
    if (ROW_THREAD < tail) {
        float x = load(row, cols - tail + ROW_THREAD);
        take(&o, &x, 1, is_smoothed);
    }
    return o;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cross_entropy_forward(const struct cross_entropy_forward_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    int is_smoothed = p.label_smoothing != 0;
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows; base += step) {
        long long row = base + ROW_OF_BLOCK, at = row * p.logits_stride;
        if (row >= p.rows) continue; // a warp of its own
        int target = p.targets[row * p.targets_stride], is_ignored = target == p.ignore_index;
        if (is_ignored && p.lse == 0) {
            if (ROW_THREAD == 0) p.loss[row] = 0;
            continue;
        }
        struct online o = take_row(p.logits, at, p.cols, is_smoothed);
        float max = finite_max(reduce_max(o.max, &reducer));
        double sum = reduce_sum_double(o.sum * exp2_fast((o.max - max) * LOG2_E), &reducer);
        double spread = 0;
        if (is_smoothed) {
            spread = o.spread + (double)o.count * ((double)finite_max(o.max) - max);
            spread = reduce_sum_double(spread, &reducer);
        }
        if (ROW_THREAD != 0) continue;
        double over_max = sum == 0 ? -INFINITE : log(sum), loss = 0; // lse - max
        if (p.lse != 0) p.lse[row] = (float)(max + over_max);
        if (!is_ignored) {
            if (target < 0 || target >= p.cols || over_max != over_max)
                loss = NOT_A_NUMBER;
            else if (sum == 0)
                loss = INFINITE;
            else
                loss = (1 - p.label_smoothing) *
                       (over_max + ((double)max - load(p.logits, at + target)));
            if (is_smoothed && sum != 0) loss += p.label_smoothing * (over_max - spread / p.cols);
        }
        p.loss[row] = (float)loss;
    }
}
