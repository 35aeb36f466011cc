// SPDX-License-Identifier: Apache-2.0
// Shared by plans and runs on the CPU: the number of threads that a product is worth, blocks of equal size, and the
// workspace of the tiled variants. Pure.
#include "ops/matmul/matmul_problem.h"

enum {
    STRIPE_FLOATS = 16 << 20, // shared panels of B: at most 64 MiB, except for very large k
    // Costs in multiplications. An element of b costs as much as so many rows if it is packed or read. An element of c
    // costs so many multiplications if it is stored or goes through an epilogue. Columns are rounded up to panels or
    // vectors.
    ROWS_OF_PACKING = 8,
    ROWS_OF_TURNING = 20, // if the columns of b are contiguous,
    // and if each of many threads has few columns, with more steps than these.
    ROWS_OF_TURNING_FEW = 64,
    TURNING_SHALLOW_K = 64,
    ROWS_OF_READING = 4,
    STORING = 8,
    FINISHING = 32,
    COLUMNS_OF_VECTOR = 16,
    LEAST_COLUMNS = 48, // fewer columns do not fill the tiles' pipelines
};

// Computed in double, because the product of the sizes may overflow an integer.
int matmul_threads(const struct matmul_problem *p, const struct tsri_limits *limits, bool packs) {
    if (limits->num_threads == 1 || p->n == 0) return 1;
    bool is_dear = matmul_is_crowded(limits) && p->k > TURNING_SHALLOW_K;
    int turning = is_dear ? ROWS_OF_TURNING_FEW : ROWS_OF_TURNING;
    int of_b = !packs ? ROWS_OF_READING : p->b.col == 1 ? ROWS_OF_PACKING : turning;
    double m = (double)p->m;
    double of_column = (m + of_b) * (double)p->k + m * (matmul_is_plain(p) ? STORING : FINISHING);
    double cols =
        (double)tsri_max((int64_t)tsri_round_up((size_t)p->n, COLUMNS_OF_VECTOR), LEAST_COLUMNS);
    return tsri_worth_threads(limits, (double)p->num_batches * cols * of_column);
}

int64_t matmul_even_block(int64_t size, int64_t most, int64_t unit) {
    int64_t parts = tsri_max(tsri_ceil_div(size, tsri_max(most, 1)), 1);
    return (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(size, parts), 1), (size_t)unit);
}

int64_t matmul_pack_depth(int64_t k, int64_t panels, int num_threads) {
    enum { LEAST_DEPTH = MATMUL_SCALE_BLOCK };
    int64_t parts = num_threads > 1 ? tsri_ceil_div(2 * (int64_t)num_threads, panels) : 1;
    int64_t depth = tsri_max(tsri_ceil_div(k, parts), 1);
    return (int64_t)tsri_round_up((size_t)depth, LEAST_DEPTH);
}

struct matmul_layout matmul_layout(const struct matmul_problem *p, const struct tsri_plan *plan,
                                   enum matmul_b_source source, bool is_blocked) {
    enum { PANEL_ROWS = 8, PANEL_COLS = 64 }; // upper bounds of the panels of A and B
    bool is_a_shared = is_blocked && p->n > MATMUL_PASSING_N;
    struct matmul_layout l = {.is_a_shared = is_a_shared,
                              .is_a_passing = is_blocked && !is_a_shared};
    int64_t num_b = p->b_up.data != NULL ? 2 : 1, depth = tsri_max(p->k, 1);
    bool has_listed_steps = p->groups.are_depths && matmul_is_listed(&p->groups.of_a);
    l.is_a_packed = is_blocked || !matmul_is_rows_of_floats(&p->a) || has_listed_steps;
    l.stripe_rows = (int64_t)tsri_round_up((size_t)p->m, (size_t)plan->block_m);
    l.stripe_cols = (int64_t)tsri_round_up((size_t)p->n, (size_t)plan->block_n);
    l.stripe_batches = p->num_batches;
    if (source == MATMUL_SHARED_PANELS || is_a_shared) {
        int64_t *lines = is_a_shared ? &l.stripe_rows : &l.stripe_cols;
        int64_t unit = is_a_shared ? plan->block_m : plan->block_n;
        *lines = tsri_min(*lines, tsri_max(STRIPE_FLOATS / depth / unit, 1) * unit);
        int64_t batches = STRIPE_FLOATS / depth / tsri_max(*lines, 1);
        l.stripe_batches = tsri_max(tsri_min(batches, p->num_batches), 1);
        l.stripe_floats = l.stripe_batches * *lines * p->k;
    }
    if (source == MATMUL_PRIVATE_PANELS)
        l.panels_floats = tsri_max(plan->block_n, PANEL_COLS) * plan->block_k;
    if (source == MATMUL_STREAMED) {
        l.sums_stride = (int64_t)tsri_round_up((size_t)plan->block_n, 16) + 16;
        l.panels_floats = plan->block_m * l.sums_stride;
    }
    if (l.is_a_packed && !is_a_shared)
        l.a_floats = (l.is_a_passing ? PANEL_ROWS : plan->block_m) * plan->block_k;
    else if (matmul_is_listed(&p->groups.of_a)) // copied in the order of the list
        l.a_floats = plan->block_m * (plan->block_k + MATMUL_LIST_PADDING);
    if (!matmul_is_plain(p)) l.tile_floats = plan->block_m * plan->block_n;
    int64_t thread = l.panels_floats + l.a_floats + l.tile_floats * num_b;
    l.thread_floats = (int64_t)tsri_round_up((size_t)thread, 16);
    return l;
}

size_t matmul_layout_bytes(const struct matmul_problem *p, const struct matmul_layout *l,
                           const struct tsri_limits *limits) {
    int64_t num_b = p->b_up.data != NULL && !l->is_a_shared ? 2 : 1;
    size_t shared = tsri_round_up((size_t)(l->stripe_floats * num_b), 16);
    return (shared + (size_t)(l->thread_floats * limits->num_threads)) * sizeof(float);
}
