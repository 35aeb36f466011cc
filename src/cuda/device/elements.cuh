// SPDX-License-Identifier: Apache-2.0
// Element-wise work on views (rows, cols). A thread loads AT_ONCE units of UNIT elements before it uses the first. Rows
// may start at any address. If the alignment of all views agrees, whole units move at once and only the ends of a row
// element by element. Otherwise every element moves alone, with neighbours in neighbouring threads.
#ifndef TSRI_DEVICE_ELEMENTS_CUH
#define TSRI_DEVICE_ELEMENTS_CUH

#include "cuda/device/elements_params.h"
#include "cuda/device/numbers.cuh"
#include "cuda/device/row_groups.cuh"

#ifndef HAS_GROUPS // 1: rows of two strides
#define HAS_GROUPS 0
#endif
#if !defined(UNIT) || !defined(AT_ONCE)
#error "UNIT or AT_ONCE is not defined: elements of a unit, a power of two, and units of a thread"
#endif

// Element i of the unit is in column col + i * step, if the row has that column. The row is the sum of `row`, that of
// the thread's first unit, and row_step, which is the same for all threads. So an address is one product per thread
// plus a uniform one.
struct spot {
    long long row, col;
    int row_step;
    int step;
    int is_whole; // the whole unit exists, contiguous and aligned to its size
};

#define EACH_SPOT(u) _Pragma("unroll") for (int u = 0; u < AT_ONCE; u++)
#define EACH_ELEMENT(i) _Pragma("unroll") for (int i = 0; i < UNIT; i++)
#define EACH_TILE(tile, grid)                                                                      \
    for (long long tile = blockIdx.x; tile < (grid).tiles; tile += gridDim.x)

// Unit u of this thread in a tile.
DEVICE struct spot find_spot(const struct elements_grid *g, long long tile, int u) {
    int width = 1 << g->log_width, lane = threadIdx.x & (width - 1);
    struct spot s;
    long long down, across;
    if (tile >> 32 == 0 && g->tiles_per_row >> 32 == 0) {
        down = (unsigned)tile / (unsigned)g->tiles_per_row;
        across = (unsigned)tile % (unsigned)g->tiles_per_row;
    } else {
        down = tile / g->tiles_per_row;
        across = tile % g->tiles_per_row;
    }
    s.row = down * g->tile_rows + (threadIdx.x >> g->log_width);
    s.row_step = u * g->row_step;
    s.col = (across * g->tile_units + (long long)u * g->unit_step) * UNIT;
    int has_row = s.row + s.row_step < g->rows;
    if (g->is_apart) {
        s.col += lane;
        s.step = width;
        s.is_whole = 0;
    } else {
        unsigned shift = g->base + (unsigned)(s.row + s.row_step) * g->growth;
        s.col += lane * UNIT - (int)(shift & (UNIT - 1));
        s.step = 1;
        s.is_whole = has_row && s.col >= 0 && s.col + UNIT <= g->cols;
    }
    if (!has_row) s.col = g->cols; // no elements
    return s;
}

// The same for a flat grid.
DEVICE struct spot find_flat_spot(const struct elements_grid *g, long long tile, int u) {
    struct spot s = {0, (tile * AT_ONCE * ELEMENTS_THREADS + threadIdx.x) * UNIT, 0, 1, 0};
    long long left = g->cols - s.col;
    int near = left < 0x7fffffff ? (int)left : 0x7fffffff;
    s.col += u * ELEMENTS_THREADS * UNIT;
    s.is_whole = near >= (u * ELEMENTS_THREADS + 1) * UNIT;
    return s;
}

// is_flat is a constant: a kernel has its body twice, because most tensors are contiguous, and then addresses are
// almost free.
DEVICE void find_spots(struct spot spots[AT_ONCE], const struct elements_grid *g, long long tile,
                       int is_flat) {
    EACH_SPOT(u) spots[u] = is_flat ? find_flat_spot(g, tile, u) : find_spot(g, tile, u);
}

// Whether the row has element i of the unit, and the element's place in a view.
DEVICE int has_element(const struct spot *s, int i, long long cols) {
    long long col = s->col + (long long)i * s->step;
    return col >= 0 && col < cols;
}
DEVICE long long row_of(const struct spot *s) { return s->row + s->row_step; }
DEVICE long long place_of(const struct spot *s, int i, const struct elements_view *view) {
#if HAS_GROUPS
    return row_at(view, s->row + s->row_step) + s->col + (long long)i * s->step;
#else
    return s->row * view->stride + s->row_step * view->stride + s->col + (long long)i * s->step;
#endif
}

#if UNIT == GROUP
// A unit that is one group of DTYPE: fetch_unit starts the load, widen_unit uses it.
DEVICE uint4 fetch_unit(const struct spot *s, const struct elements_view *view) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (s->is_whole) raw = load_bytes(view->data, place_of(s, 0, view));
    return raw;
}
DEVICE void widen_unit(float x[UNIT], uint4 raw, const struct spot *s, long long cols,
                       const struct elements_view *view) {
    if (s->is_whole)
        widen(raw, x);
    else
        EACH_ELEMENT(i) x[i] = has_element(s, i, cols) ? load(view->data, place_of(s, i, view)) : 0;
}
DEVICE void store_unit(const float x[UNIT], const struct spot *s, long long cols,
                       const struct elements_view *view) {
    if (s->is_whole)
        store_bytes(view->data, place_of(s, 0, view), narrow(x));
    else
        EACH_ELEMENT(i) if (has_element(s, i, cols)) store(view->data, place_of(s, i, view), x[i]);
}
#endif

#endif
