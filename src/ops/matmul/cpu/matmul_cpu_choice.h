// SPDX-License-Identifier: Apache-2.0
// What the tables of choice on the CPU share: matmul_cpu_choice.c of tiles, matmul_rows_choice.c of few rows.
#ifndef TSRI_MATMUL_CPU_CHOICE_H
#define TSRI_MATMUL_CPU_CHOICE_H

#include "ops/matmul/matmul_problem.h"

enum {
    SHALLOW_K = 64,
    DIRECT_M = 16,                // b in place for so few rows, which never pay for packing b, of
    DIRECT_ROWS_FLOATS = 8 << 20, // this: past it, panels of b miss the translation caches
    STREAMED_PERIOD = 1024,       // floats
    STREAMED_WIDE_N = 256,        // with registers of 16 floats, columns
    STREAMED_WIDE_M = 32,         // and rows
};

// Whether skinny serves best, up to 16 rows or beside a few long columns; beside long columns of b that pass through memory.
bool matmul_suits_skinny(const struct matmul_problem *p, const struct tsri_limits *limits,
                         bool is_in_place);
bool matmul_suits_skinny_bf16(const struct matmul_problem *p, const struct tsri_limits *limits);
bool matmul_streams_columns(const struct matmul_problem *p, const struct tsri_limits *limits);
// B in place that passes by in long runs: where it is past the second-level cache.
bool matmul_suits_streamed(const struct matmul_problem *p, const struct tsri_limits *limits);
// Tiles with a B in place that each of them fetches again: some rows, few threads.
bool matmul_suits_fetched(const struct matmul_problem *p, const struct tsri_limits *limits);
// Blocks of k as tasks of many threads.
bool matmul_suits_parts(const struct matmul_problem *p, const struct tsri_limits *limits);

// The steps from which on a variant serves: of so many rows and more, in falling order down to 0, by columns from which on.
enum { MATMUL_DEPTH_BANDS = 10 };
struct matmul_depths {
    int64_t m, least_k[MATMUL_DEPTH_BANDS];
};
static inline bool matmul_is_deep(const struct matmul_problem *p,
                                  const struct matmul_depths *depths,
                                  const int64_t cols[MATMUL_DEPTH_BANDS]) {
    while (p->m < depths->m) depths++;
    return p->k >= depths->least_k[tsri_band_of(p->n, cols, MATMUL_DEPTH_BANDS)];
}

// Rows of b that fall on the same lines of the caches.
static inline bool matmul_is_falling(const struct matmul_problem *p) {
    return p->b.row % STREAMED_PERIOD == 0;
}

static inline bool matmul_is_past_l2(const struct matmul_problem *p,
                                     const struct tsri_limits *limits) {
    return p->k * p->n * (int64_t)sizeof(float) > limits->l2_bytes;
}

#endif
