// SPDX-License-Identifier: Apache-2.0
// Rows in registers: THREADS_PER_ROW threads hold a row, each FLOATS_PER_THREAD of its elements, read once and
// written once. Up to a warp's width several rows share a block; beyond it a block has one row.
//
// Aligned rows (16 bytes: addresses, strides and the width itself) move in groups of 16 bytes: element i of a thread's
// group v is column (thread + v THREADS_PER_ROW) GROUP + i. Others move element by element, and element e is column
// thread + e THREADS_PER_ROW. Both are coalesced; what is done between knows neither.
#ifndef TSRI_DEVICE_ROWS_CUH
#define TSRI_DEVICE_ROWS_CUH

#include "cuda/device/numbers.cuh"
#include "cuda/device/reduce.cuh"

#ifndef FLOATS_PER_THREAD
#error "FLOATS_PER_THREAD is not defined: a multiple of 8"
#endif

#define NUM_GROUPS (FLOATS_PER_THREAD / GROUP)
#define EACH_FLOAT(e) _Pragma("unroll") for (int e = 0; e < FLOATS_PER_THREAD; e++)

// The column of a thread's element; beyond cols where it has none.
DEVICE int column_of(int e, int is_aligned) {
    return is_aligned ? (ROW_THREAD + e / GROUP * THREADS_PER_ROW) * GROUP + e % GROUP
                      : ROW_THREAD + e * THREADS_PER_ROW;
}

// An aligned row on its way, as it lies in memory: asked for long before it is looked at.
struct raw_row {
    uint4 group[NUM_GROUPS];
};

DEVICE void fetch_row(struct raw_row *raw, const void *data, long long at, int cols) {
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++) {
        int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
        if (col < cols) raw->group[v] = load_bytes(data, at + col);
    }
}

DEVICE void widen_row(float x[FLOATS_PER_THREAD], const struct raw_row *raw, int cols, float fill) {
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++) {
        int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
        float group[GROUP];
        widen(raw->group[v], group);
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[v * GROUP + i] = col < cols ? group[i] : fill;
    }
}

// Elements that the row does not have are `fill`.
DEVICE void load_row(float x[FLOATS_PER_THREAD], const void *data, long long at, int cols,
                     int is_aligned, float fill) {
    if (is_aligned) {
        // All of them are on their way before the first is looked at. Not by way of raw_row, with which the
        // assembler spills.
        uint4 raw[NUM_GROUPS];
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
            if (col < cols) raw[v] = load_bytes(data, at + col);
        }
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
            float group[GROUP];
            widen(raw[v], group);
#pragma unroll
            for (int i = 0; i < GROUP; i++) x[v * GROUP + i] = col < cols ? group[i] : fill;
        }
    } else {
        EACH_FLOAT(e) {
            int col = ROW_THREAD + e * THREADS_PER_ROW;
            x[e] = col < cols ? load(data, at + col) : fill;
        }
    }
}

DEVICE void store_row(const float x[FLOATS_PER_THREAD], void *data, long long at, int cols,
                      int is_aligned) {
    if (is_aligned) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
            if (col < cols) store_bytes(data, at + col, narrow(x + v * GROUP));
        }
    } else {
        EACH_FLOAT(e) {
            int col = ROW_THREAD + e * THREADS_PER_ROW;
            if (col < cols) store(data, at + col, x[e]);
        }
    }
}

// x weight + bias, group by group, so that no row of either is held; bias may be absent.
DEVICE void scale_and_shift(float x[FLOATS_PER_THREAD], const void *weight, const void *bias,
                            int cols, int is_aligned, int is_f32) {
    if (is_aligned) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
            float scale[GROUP], shift[GROUP] = {0};
            if (col >= cols) continue;
            load_group_beside(scale, weight, col, is_f32);
            if (bias != 0) load_group_beside(shift, bias, col, is_f32);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                x[v * GROUP + i] = x[v * GROUP + i] * scale[i] + shift[i];
        }
    } else {
        EACH_FLOAT(e) {
            int col = ROW_THREAD + e * THREADS_PER_ROW;
            if (col >= cols) continue;
            float shift = bias != 0 ? load_either(bias, col, is_f32) : 0;
            x[e] = x[e] * load_either(weight, col, is_f32) + shift;
        }
    }
}

#endif
