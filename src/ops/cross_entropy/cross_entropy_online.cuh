// SPDX-License-Identifier: Apache-2.0
// The sum of a row's exponentials in one read, for rows of any width and address. Each thread keeps a running maximum,
// the sum relative to it and, for smoothed labels, the sum of the differences (arXiv:1805.02867).
#ifndef TSRI_CROSS_ENTROPY_ONLINE_CUH
#define TSRI_CROSS_ENTROPY_ONLINE_CUH

#include "cuda/device/reduce.cuh"

#define AT_ONCE 4
#define EACH_GROUP(v) _Pragma("unroll") for (int v = 0; v < AT_ONCE; v++)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// The sums of exp(x - max) and of x - max over `count` logits; relative to 0 if all of them are -inf.
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

// The elements of a row in front of the first multiple of 16 bytes.
DEVICE int head_of(const char *row, int cols) {
    const int head = (int)(-(long long)row & 15) / ELEMENT_BYTES;
    return head < cols ? head : cols;
}

// A row may start at any address: first the elements before the next multiple of 16 bytes, then groups, then the rest.
// Skips column `but` unless it is negative.
DEVICE struct online take_row(const void *logits, long long at, int cols, int is_smoothed,
                              int but) {
    struct online o = {-INFINITE, 0, 0, 0};
    const char *row = (const char *)logits + at * ELEMENT_BYTES;
    const int head = head_of(row, cols);
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
            if (but >= 0) {
                int place = but - head - (first + v * THREADS_PER_ROW) * GROUP;
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i == place) x[i] = -INFINITE;
            }
            take(&o, x, GROUP, is_smoothed);
        }
    }
    if (ROW_THREAD < head && ROW_THREAD != but) {
        float x = load(row, ROW_THREAD);
        take(&o, &x, 1, is_smoothed);
    }
    if (ROW_THREAD < tail && cols - tail + ROW_THREAD != but) {
        float x = load(row, cols - tail + ROW_THREAD);
        take(&o, &x, 1, is_smoothed);
    }
    return o;
}

#endif
