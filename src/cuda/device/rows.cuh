// SPDX-License-Identifier: Apache-2.0
// Rows in registers: THREADS_PER_ROW threads hold a row, each FLOATS_PER_THREAD of its elements. A row is read once and
// written once. Rows up to a warp's width share a block; a wider row has its own block.
//
// Aligned rows (addresses, strides and width are multiples of 16 bytes) move in groups of 16 bytes: element i of a
// thread's group v is column (thread + v THREADS_PER_ROW) GROUP + i. Other rows move in words (row_words.cuh). Both are
// coalesced, and the work on registers is the same for both.
#ifndef TSRI_DEVICE_ROWS_CUH
#define TSRI_DEVICE_ROWS_CUH

#include "cuda/device/numbers.cuh"
#include "cuda/device/reduce.cuh"

#ifndef FLOATS_PER_THREAD
#error "FLOATS_PER_THREAD is not defined: a multiple of 8"
#endif

#include "cuda/device/row_words.cuh"

#define NUM_GROUPS (FLOATS_PER_THREAD / GROUP)
#define EACH_FLOAT(e) _Pragma("unroll") for (int e = 0; e < FLOATS_PER_THREAD; e++)

// The column of a thread's element; at least cols if the element does not exist.
DEVICE int column_of(int e, int is_aligned) {
    return is_aligned ? (ROW_THREAD + e / GROUP * THREADS_PER_ROW) * GROUP + e % GROUP
                      : word_column(e / PER_WORD) + e % PER_WORD;
}

// Loads all groups of an aligned row before the first is used. Groups beyond the row hold the word `fill`, which is
// written to the registers before the loads.
DEVICE void load_groups(uint4 raw[NUM_GROUPS], const void *data, long long at, int cols,
                        unsigned fill) {
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++) {
        int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
        raw[v] = make_uint4(fill, fill, fill, fill);
        load_bytes_if(&raw[v], data, at + col, col < cols);
    }
}

// A row in pairs of columns, for widen_word.
DEVICE void load_pairs(unsigned pairs[NUM_WORDS + 1], const void *data, long long at, int cols,
                       unsigned fill) {
    const int odd = is_odd(data, at);
    load_words(pairs, data, at, odd, cols, fill);
    join_words(pairs, odd);
}

// Elements beyond the row become `fill`, 0 or -inf. All lanes of a warp call it.
DEVICE void load_row(float x[FLOATS_PER_THREAD], const void *data, long long at, int cols,
                     int is_aligned, float fill) {
    if (is_aligned) {
        uint4 raw[NUM_GROUPS];
        load_groups(raw, data, at, cols, fill_of(fill));
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) widen(raw[v], x + v * GROUP);
    } else {
        unsigned raw[NUM_WORDS + 1];
        load_pairs(raw, data, at, cols, fill_of(fill));
        EACH_WORD(v) widen_word(raw[v], x + v * PER_WORD);
    }
}

// Prefetches an aligned row into the second-level cache. Allowed before wait_for_primary(): later writes of the
// previous kernel remain visible.
DEVICE void fetch_row(const void *data, long long at, int cols) {
#if __CUDA_ARCH__ >= 900
    if (ROW_THREAD == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char *)data +
                                                                        at * ELEMENT_BYTES),
                     "r"(cols * ELEMENT_BYTES)
                     : "memory");
#endif
}

DEVICE void store_row(const float x[FLOATS_PER_THREAD], void *data, long long at, int cols,
                      int is_aligned, int is_past) {
    if (is_aligned) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) {
            int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;
            if (col >= cols) continue;
            if (is_past)
                store_bytes_past(data, at + col, narrow(x + v * GROUP));
            else
                store_bytes(data, at + col, narrow(x + v * GROUP));
        }
    } else {
        unsigned pairs[NUM_WORDS];
        EACH_WORD(v) pairs[v] = narrow_word(x + v * PER_WORD);
        store_pairs(pairs, data, at, cols);
    }
}

// Subtracts `number` from an aligned row's elements. Elements beyond the row's end, which must be 0, stay 0.
DEVICE void subtract(float x[FLOATS_PER_THREAD], float number, int cols) {
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++) { // one test per group
        float here = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP < cols ? number : 0;
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[v * GROUP + i] -= here;
    }
}

// x * weight + bias of an aligned row, group by group, so that neither is held as a whole row. bias may be absent. Both start at
// `first`.
#define SCALE_GROUPS(is_f32)                                                                       \
    _Pragma("unroll") for (int v = 0; v < NUM_GROUPS; v++) {                                       \
        int col = (ROW_THREAD + v * THREADS_PER_ROW) * GROUP;                                      \
        float scale[GROUP], shift[GROUP] = {0};                                                    \
        if (col >= cols) continue;                                                                 \
        load_group_beside(scale, weight, first + col, is_f32);                                     \
        if (bias != 0) load_group_beside(shift, bias, first + col, is_f32);                        \
        NOT_ALL_AT_ONCE;                                                                           \
        _Pragma("unroll") for (int i = 0; i < GROUP; i++) x[v * GROUP + i] =                       \
            x[v * GROUP + i] * scale[i] + shift[i];                                                \
    }

DEVICE void scale_and_shift(float x[FLOATS_PER_THREAD], const void *weight, const void *bias,
                            int first, int cols, int is_f32) {
    if (DTYPE == DTYPE_F32 || is_f32) { // one branch per row, not per group
        SCALE_GROUPS(1)
    } else {
        SCALE_GROUPS(0)
    }
}

#endif
