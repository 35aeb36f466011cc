// SPDX-License-Identifier: Apache-2.0
// Blocks and workspace of products in bf16. Pure.
//
// A task is block_m rows by block_n columns of c, in steps of block_k. The panels of B of that depth and the fp32 sums
// stay in the second-level cache, a strip of 32 rows of A in the first. See docs/kernels/matmul_cpu_bf16.md.
#include "ops/matmul/cpu/matmul_cpu_choice.h"

#include "cpu/gemm_bf16.h"

enum {
    BLOCK_M = 256,
    PRIVATE_M = 512,            // rows for which one task packs B
    LEAST_M = 128,              // minimum of rows to which a task is cut
    LEAST_N = 2 * GEMM_BF16_NR, // columns below which rows are cut: every task packs its rows of A
    BLOCK_N = 512,
    LOW_BLOCK_N = 256, // with two sets of sums and panels; with few rows and short columns
    FEW_ROWS = 32,
    BLOCK_K = 512,
    STRIP = 96,               // A's rows are padded to whole strips of either unit
    PADDING = 32,             // elements; avoids strides that are powers of two
    STRIPE_FLOATS = 16 << 20, // shared panels of B: at most 64 MiB, except for very large k
    TURNED_K = 256,
    TURNED_DEEP_K = 1024, // for more rows than skinny's,
    TURNED_CROWD_M = 48,  // for so many rows with many threads,
    TURNED_CROWD_N = 128, // and so many columns per thread
    CROWD_TASKS = 4,      // tasks of each of many threads, of at most so many rows
    CROWD_M = 256,        // and columns,
    CROWD_N = 256,
    LEAST_CROWD_M = 64, // and at least so many rows; columns: at least LEAST_N, or one panel
    IN_PLACE_M = 1536,
    FLAT_K = 64,    // so few steps that rows are cut first (matmul_cut_by_rows),
    FLAT_UNIT = 32, // half of them if n is whole lines of c, which no two tasks share
    // Blocks of k that are summed separately: maximum of columns (more with few rows), minimum of k, and maximum of
    // rows for separate tasks.
    APART_N = GEMM_BF16_PART,
    APART_WIDE_N = 64,
    APART_K = 2048,
    APART_M = 64,
    // Costs in multiplications of fp32 tiles; STEPS steps of k take one. Packing an element of b costs as much as so
    // many rows; then the cost of an element of c, and the number of elements of b from which one packing serves all
    // threads.
    STEPS = 4,
    ROWS_OF_PACKING = 32,
    FINISHING = 32,
    SHARED_ELEMENTS = 32 << 10,
};

// Contiguous columns of b are rows of the transposed product: tiles use them in place, and a few rows of a are less to
// pack than b. Shallow products would spend their time transposing results; many threads, each of which packs a, on
// packing, unless there are many columns. Sums are added in the same order (except up to skinny's rows if blocks of k
// are summed separately), so the choice may depend on the number of threads.
bool matmul_is_turned(const struct matmul_problem *p, uint32_t flags, int num_threads) {
    bool is_by_columns = p->b.col != 1 && (p->b_up.data == NULL || p->b_up.col != 1);
    bool is_crowded = num_threads >= MATMUL_CROWD;
    if ((flags & TSR_BATCH_INVARIANT) != 0 || !is_by_columns || p->groups.starts.data != NULL ||
        p->n < p->m)
        return false;
    if (p->m <= MATMUL_SKINNY_M) return p->k >= TURNED_K;
    if (is_crowded && p->n < TURNED_CROWD_N * num_threads) return false;
    return p->k >= TURNED_DEEP_K && p->m <= (is_crowded ? TURNED_CROWD_M : MATMUL_TURNED_M);
}

// Computed in double, because the product of the sizes may overflow an integer.
int matmul_mixed_threads(const struct matmul_problem *p, const struct tsri_limits *limits) {
    double m = (double)p->m;
    double of_column = (m + ROWS_OF_PACKING) * (double)p->k / STEPS + m * FINISHING;
    double cols = (double)tsri_round_up((size_t)p->n, GEMM_BF16_PART);
    return tsri_worth_threads(limits, (double)p->num_batches * cols * of_column);
}

// Many threads have small tasks, which would pack a row of a for few columns. With large m and n, a packed row serves
// many.
bool matmul_has_a_in_place(const struct matmul_problem *p, int num_threads) {
    return num_threads >= MATMUL_CROWD && p->a.col == 1 && (p->m <= IN_PLACE_M || p->n <= LEAST_N);
}

// A few long columns give few tasks. Their blocks of k are summed separately and added in order, so that the blocks can
// be tasks too. Above skinny's rows this depends on n and k only, and is not used under the flag.
static bool sums_apart(const struct matmul_problem *p, uint32_t flags) {
    if ((flags & TSR_BATCH_INVARIANT) != 0 || p->b_up.data != NULL ||
        p->groups.starts.data != NULL || p->k < APART_K)
        return false;
    return p->n <= (p->m <= MATMUL_SKINNY_M ? APART_WIDE_N : APART_N);
}

static int64_t round_to(int64_t n, int64_t unit) {
    return (int64_t)tsri_round_up((size_t)n, (size_t)unit);
}

// The size of each of `parts` equal blocks.
static int64_t block_of(int64_t size, int64_t parts, int64_t unit) {
    return round_to(tsri_max(tsri_ceil_div(size, tsri_max(parts, 1)), 1), unit);
}

static int64_t num_blocks(const struct matmul_problem *p, const struct tsri_plan *plan) {
    return p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
}

struct matmul_mixed_layout matmul_mixed_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan) {
    struct matmul_mixed_layout l = {.stripe_cols = round_to(p->n, plan->block_n),
                                    .stripe_batches = p->num_batches};
    int64_t depth = round_to(p->k, GEMM_BF16_DEPTH), num_b = p->b_up.data != NULL ? 2 : 1;
    bool is_shared = plan->grain != 0;
    l.panel_floats = (is_shared ? depth : plan->block_k) * GEMM_BF16_NR / 2;
    if (is_shared) {
        int64_t col_floats = tsri_max(depth / 2, 1);
        int64_t blocks = tsri_max(STRIPE_FLOATS / col_floats / plan->block_n, 1);
        l.stripe_cols = tsri_min(l.stripe_cols, blocks * plan->block_n);
        int64_t batches = STRIPE_FLOATS / col_floats / tsri_max(l.stripe_cols, 1);
        l.stripe_batches = tsri_max(tsri_min(batches, p->num_batches), 1);
        l.stripe_floats = round_to(l.stripe_batches * l.stripe_cols * (depth / 2), 16);
    } else {
        l.private_floats = round_to(plan->block_n, GEMM_BF16_NR) * plan->block_k / 2;
    }
    l.a_stride = plan->block_k + PADDING;
    l.a_floats = STRIP * l.a_stride / 2;
    l.tile_stride = plan->block_n + PADDING / 2;
    l.tile_floats = round_to(plan->block_m, STRIP) * l.tile_stride;
    if (sums_apart(p, plan->flags)) l.part_floats = STRIP * l.tile_stride;
    l.num_parts = plan->num_tasks > num_blocks(p, plan) ? tsri_ceil_div(p->k, plan->block_k) : 1;
    if (l.num_parts > 1) l.sums_floats = plan->block_m * l.tile_stride;
    l.thread_floats =
        round_to(l.private_floats + l.a_floats + num_b * l.tile_floats + l.part_floats, 16);
    return l;
}

// Whether so few tasks leave threads idle for long: fewer than two per thread, and not one for each.
static bool is_uneven(int64_t num_tasks, int num_threads) {
    return num_tasks < 2 * (int64_t)num_threads && num_tasks % num_threads != 0;
}

// Many threads seldom run equally fast: four tasks per thread if these are large enough, else two or more. If the work
// is worth fewer threads, one task each.
static void cut_for_crowd(const struct matmul_problem *p, int threads, bool is_small,
                          struct tsri_plan *plan) {
    int64_t most_m = CROWD_M, most_n = CROWD_N;
    // Short columns and few rows of a are cheap to pack again.
    int64_t least_n = p->b.col != 1 && p->m <= LEAST_CROWD_M ? GEMM_BF16_NR : LEAST_N;
    int64_t least_m = p->n <= LEAST_N ? LEAST_CROWD_M : LEAST_M;
    // If rows are not packed again, cutting columns costs nothing for them, but columns are packed in shorter runs.
    bool is_cheap = p->m > LEAST_CROWD_M && matmul_has_a_in_place(p, threads);
    int64_t enough = (is_small ? 1 : is_cheap ? 3 : 2) * threads;
    int64_t wanted = (is_small ? 1 : CROWD_TASKS) * threads;
    if (p->k <= (p->n % FLAT_UNIT == 0 ? FLAT_K / 2 : FLAT_K)) {
        matmul_cut_by_rows(p, 2 * threads, LEAST_M, GEMM_BF16_DEPTH, GEMM_BF16_NR, plan);
        if (2 * num_blocks(p, plan) > threads) return;
    }
    for (;;) {
        int64_t unit = most_n < GEMM_BF16_NR ? GEMM_BF16_WIDTH : GEMM_BF16_NR;
        plan->block_m = block_of(p->m, tsri_ceil_div(p->m, most_m), GEMM_BF16_DEPTH);
        plan->block_n = block_of(p->n, tsri_ceil_div(p->n, most_n), unit);
        int64_t tasks = num_blocks(p, plan);
        if (tasks >= wanted) return;
        bool may_cut_n = most_n > least_n && p->n > least_n;
        if (may_cut_n && (p->n > p->m || most_m <= least_m)) // the longer side first
            most_n /= 2;
        else if (most_m > least_m)
            most_m /= 2;
        else if (tasks >= enough)
            return;
        else if (most_n > GEMM_BF16_NR && p->n > GEMM_BF16_NR)
            most_n /= 2;
        else if (most_m > (p->n <= GEMM_BF16_PART ? GEMM_BF16_DEPTH : LEAST_CROWD_M))
            most_m /= 2;
        // Half a panel is a line of c; one task has all rows, so nothing is packed twice.
        else if (tasks < threads && p->m <= plan->block_m && most_n > GEMM_BF16_WIDTH)
            most_n /= 2;
        else
            return;
    }
}

// If there are fewer blocks of c than threads, each block of k is a task.
static bool cut_depth(const struct matmul_problem *p, int threads, struct tsri_plan *plan) {
    struct tsri_plan cut = *plan;
    int64_t most_n = p->b.col == 1 ? GEMM_BF16_WIDTH : GEMM_BF16_PART;
    cut.block_m = block_of(p->m, 1, GEMM_BF16_DEPTH);
    cut.block_n = block_of(p->n, tsri_ceil_div(p->n, most_n), GEMM_BF16_PART);
    cut.num_tasks = num_blocks(p, &cut) * tsri_ceil_div(p->k, plan->block_k);
    if (threads == 1 || p->m > APART_M || num_blocks(p, &cut) >= threads) return false;
    *plan = cut;
    return true;
}

// num_stripes: number of matrices with shared panels.
static size_t workspace_of(const struct matmul_problem *p, const struct tsri_limits *limits,
                           const struct tsri_plan *plan, int64_t num_stripes) {
    struct matmul_mixed_layout l = matmul_mixed_layout(p, plan);
    int64_t floats = l.stripe_floats * num_stripes + l.thread_floats * limits->num_threads +
                     l.sums_floats * plan->num_tasks;
    return (size_t)floats * sizeof(float);
}

struct matmul_problem matmul_turned(const struct matmul_problem *p) {
    struct matmul_problem turned = *p;
    turned.m = p->n;
    turned.n = p->m;
    turned.a = matmul_transposed(p->b);
    turned.b_up = matmul_transposed(p->b_up);
    turned.b = matmul_transposed(p->a);
    return turned;
}

void matmul_plan_mixed(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    int64_t num_b = p->b_up.data != NULL ? 2 : 1;
    bool is_low = num_b > 1 || (p->b.col != 1 && p->m <= FEW_ROWS);
    int64_t most_n = is_low ? LOW_BLOCK_N : BLOCK_N;
    int64_t parts_m = p->m <= PRIVATE_M ? 1 : tsri_ceil_div(p->m, BLOCK_M);
    int64_t parts_n = tsri_max(tsri_ceil_div(p->n, most_n), 1);
    bool has_groups = p->groups.starts.data != NULL; // their sizes are not known yet
    int threads = matmul_mixed_threads(p, limits);
    if (has_groups && threads > 1) threads = limits->num_threads;
    plan->block_m = block_of(p->m, parts_m, GEMM_BF16_DEPTH);
    plan->block_n = block_of(p->n, parts_n, GEMM_BF16_NR);
    plan->block_k = block_of(p->k, tsri_ceil_div(p->k, BLOCK_K), GEMM_BF16_DEPTH);
    if (sums_apart(p, limits->flags) && cut_depth(p, threads, plan)) {
        plan->workspace_bytes = workspace_of(p, limits, plan, num_b);
        return;
    }
    // Few tasks: make them narrower, so that every thread has some. One per thread is better than two, which pack A
    // twice.
    int64_t rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m);
    // If even narrow tasks are fewer than threads: make them lower and share their panels. A group's panels are not
    // shared.
    bool may_share = !has_groups && threads > 1;
    while (may_share && plan->block_m > LEAST_M && rows * tsri_ceil_div(p->n, LEAST_N) < threads) {
        plan->block_m = block_of(p->m, ++parts_m, GEMM_BF16_DEPTH);
        rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m);
    }
    while (threads > 1 && plan->block_n > GEMM_BF16_NR &&
           is_uneven(rows * tsri_ceil_div(p->n, plan->block_n), threads))
        plan->block_n = block_of(p->n, ++parts_n, GEMM_BF16_NR);
    // One panel for all rows: half panels, unless tiles want it whole.
    bool is_worth = p->n > GEMM_BF16_WIDTH + GEMM_BF16_PART ||
                    (p->n > GEMM_BF16_WIDTH && p->k > 2 * GEMM_BF16_DEPTH);
    if (may_share && rows == 1 && plan->block_m >= p->m && p->n <= GEMM_BF16_NR && is_worth &&
        !tsri_can_use_tiles(limits->bf16))
        plan->block_n = GEMM_BF16_WIDTH;
    bool is_crowded = matmul_is_crowded(limits);
    if (threads >= MATMUL_CROWD && may_share)
        cut_for_crowd(p, threads, threads < limits->num_threads, plan);
    plan->num_tasks = num_blocks(p, plan);
    // Panels that another thread wrote are slow to read: with many threads each task has its own, except for few
    // columns.
    bool is_narrow = p->n > GEMM_BF16_PART && p->n <= LEAST_N;
    bool shares = !is_crowded || (is_narrow && p->n * p->k > SHARED_ELEMENTS);
    plan->grain = p->m > plan->block_m && shares;
    plan->workspace_bytes = workspace_of(p, limits, plan, num_b);
}

void matmul_plan_tiles(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    if (!matmul_is_turned(p, limits->flags, limits->num_threads)) {
        matmul_plan_mixed(p, limits, plan);
        return;
    }
    const struct matmul_problem turned = matmul_turned(p);
    matmul_plan_mixed(&turned, limits, plan);
    plan->workspace_bytes = workspace_of(&turned, limits, plan, 1); // panels of a serve b and b_up
}
