// SPDX-License-Identifier: Apache-2.0
// Shared by the choices on the CPU: matmul_cpu_choice.c (tiles) and matmul_rows_choice.c (small m).
#ifndef TSRI_MATMUL_CPU_CHOICE_H
#define TSRI_MATMUL_CPU_CHOICE_H

#include "ops/matmul/matmul_problem.h"

enum {
    SHALLOW_K = 64,
    DIRECT_M = 16,                // rows up to which b is used in place (packing never pays),
    DIRECT_ROWS_FLOATS = 8 << 20, // if it has at most so many floats; beyond, panels miss the TLB
    STREAMED_PERIOD = 1024,       // floats
    STREAMED_WIDE_N = 256,        // columns, with registers of 16 floats,
    STREAMED_WIDE_M = 32,         // and rows
};

// Whether skinny is best: up to 16 rows or with a few long columns; and with long columns of b that are streamed from
// memory.
bool matmul_suits_skinny(const struct matmul_problem *p, const struct tsri_limits *limits,
                         bool is_in_place);
bool matmul_suits_skinny_bf16(const struct matmul_problem *p, const struct tsri_limits *limits);
bool matmul_streams_columns(const struct matmul_problem *p, const struct tsri_limits *limits);
// Whether streaming B in place, in long runs, is best: B must exceed the second-level cache.
bool matmul_suits_streamed(const struct matmul_problem *p, const struct tsri_limits *limits);
// Whether tiles with B in place, which each tile fetches again, are best: some rows, few threads.
bool matmul_suits_fetched(const struct matmul_problem *p, const struct tsri_limits *limits);
// Whether blocks of k as tasks of many threads are best.
bool matmul_suits_parts(const struct matmul_problem *p, const struct tsri_limits *limits);

// The number of steps from which a variant is best: for at least m rows (entries in falling order down to 0), by bands
// of columns.
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

// Whether rows of b map to the same cache sets.
static inline bool matmul_is_falling(const struct matmul_problem *p) {
    return p->b.row % STREAMED_PERIOD == 0;
}

static inline bool matmul_is_past_l2(const struct matmul_problem *p,
                                     const struct tsri_limits *limits) {
    return p->k * p->n * (int64_t)sizeof(float) > limits->l2_bytes;
}

#endif
