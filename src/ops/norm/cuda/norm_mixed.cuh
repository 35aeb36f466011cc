// SPDX-License-Identifier: Apache-2.0
// Rows of tensors whose dtype is known at run time (struct norm_view), in fp32 in registers: a tile is FLOATS_PER_THREAD
// columns of each thread of a row. A row of one tile is read once, a wider one tile by tile, anew in every sweep.
#ifndef TSRI_NORM_MIXED_CUH
#define TSRI_NORM_MIXED_CUH

#ifndef FLOATS_PER_THREAD
#define FLOATS_PER_THREAD 16
#endif
#include "cuda/device/any_dtype.cuh"
#include "cuda/device/row_groups.cuh"
#include "cuda/device/rows.cuh"
#include "ops/norm/cuda/norm_device.cuh"

#define TILE_COLS (THREADS_PER_ROW * FLOATS_PER_THREAD)
#define EACH_TILE(first, cols)                                                                     \
    _Pragma("unroll 1") for (int first = 0; first < (cols); first += TILE_COLS)

// The columns of a tile from `first` on, of a row that begins at `at`; 0 beyond the row. The dtype is tested once, so that all
// loads are under way before the first is used.
DEVICE void load_tile(float x[FLOATS_PER_THREAD], const struct norm_view *t, long long at,
                      int first, int cols, int is_aligned) {
    const int left = cols - first;
    at += first;
    if (!is_aligned) {
        EACH_FLOAT(e)
        x[e] = column_of(e, 1) < left ? load_any(t->rows.data, at + column_of(e, 1), t->dtype) : 0;
    } else if (t->dtype == DTYPE_F32) {
        uint4 raw[NUM_GROUPS];
        load_groups(raw, t->rows.data, at, left, 0);
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) widen(raw[v], x + v * GROUP);
    } else {
        uint2 raw[NUM_GROUPS];
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            raw[v] = make_uint2(0, 0);
            if (column_of(v * GROUP, 1) < left)
                raw[v] = *(const uint2 *)((const unsigned short *)t->rows.data + at +
                                          column_of(v * GROUP, 1));
        }
        EACH_FLOAT(e) {
            const unsigned word = e % GROUP < 2 ? raw[e / GROUP].x : raw[e / GROUP].y;
            const unsigned bits = e % 2 == 0 ? word & 0xffff : word >> 16;
            x[e] = t->dtype == DTYPE_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
        }
    }
}

DEVICE void store_tile(const float x[FLOATS_PER_THREAD], const struct norm_view *t, long long at,
                       int first, int cols, int is_aligned) {
    const int left = cols - first;
    at += first;
    if (!is_aligned) {
        EACH_FLOAT(e)
        if (column_of(e, 1) < left) store_any(t->rows.data, at + column_of(e, 1), x[e], t->dtype);
        return;
    }
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++)
        if (column_of(v * GROUP, 1) < left)
            store_four_any(t->rows.data, at + column_of(v * GROUP, 1), x + v * GROUP, t->dtype);
}

// x times weight (1 if there is none), of a tile.
DEVICE void scale_tile(float x[FLOATS_PER_THREAD], const struct norm_mixed_params *p, int first,
                       int cols) {
    float weight[FLOATS_PER_THREAD];
    if (p->weight.rows.data == 0) return;
    load_tile(weight, &p->weight, 0, first, cols, p->is_aligned);
    EACH_FLOAT(e) x[e] *= weight[e] + p->weight_offset;
}

#endif
