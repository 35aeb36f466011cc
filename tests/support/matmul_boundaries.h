// SPDX-License-Identifier: Apache-2.0
// Boundaries of a choice: products on both sides of each.
#ifndef MATMUL_BOUNDARIES_H
#define MATMUL_BOUNDARIES_H

#include "matmul_cpu_case.h"
#include "test_support.h"

#include <string.h>

enum side { M, N, K };
enum layout { ROWS, COLUMNS }; // of b, which is contiguous

// The variant that serves a product, and the one that serves it if `side` is one less.
struct boundary {
    int64_t m, n, k;
    enum side side;
    const char *below, *from;
    int64_t row; // elements between rows of b; 0: contiguous
};

static inline const char *choice_in(struct machine machine, tsr_dtype dtype, enum layout layout,
                                    const struct boundary *b, bool is_below) {
    int64_t m = b->m - (is_below && b->side == M), n = b->n - (is_below && b->side == N);
    struct matmul_problem p = product_of(dtype, m, n, b->k - (is_below && b->side == K));
    if (b->row != 0) p.b.row = b->row;
    if (layout == COLUMNS) p.b = (struct matmul_matrix){NULL, dtype, 1, p.k, {0}};
    return choice_of(&p, machine);
}

static inline void check(struct machine machine, tsr_dtype dtype, enum layout layout,
                         const struct boundary *cases, int num_cases) {
    static const char sides[] = "mnk";
    for (int i = 0; i < num_cases; i++) {
        const struct boundary *b = &cases[i];
        const char *below = choice_in(machine, dtype, layout, b, true);
        const char *from = choice_in(machine, dtype, layout, b, false);
        if (strcmp(below, b->below) != 0 || strcmp(from, b->from) != 0)
            fail_msg("%d x %d x %d by %c: %s, then %s instead of %s, then %s", (int)b->m, (int)b->n,
                     (int)b->k, sides[b->side], below, from, b->below, b->from);
    }
}
#define CHECK(machine, dtype, layout, cases) check(machine, dtype, layout, cases, COUNT(cases))

#endif
