// SPDX-License-Identifier: Apache-2.0
// Blocks and grids of matmul's variants on the CPU. Pure.
//
// A task is block_m rows by block_n columns of c over all of k, in steps of block_k. A panel of B of that depth (nr
// columns) and the rows of A fit the second-level cache together; plan->grain is the number of rows that go through all
// panels of a task at a time. If a task passes all rows of a small A (matmul_is_passing), A stays there without that.
// Sizes follow docs/kernels/matmul_cpu.md.
#include <math.h>

#include "ops/matmul/matmul_problem.h"

#include "cpu/gemm.h"

enum {
    BLOCK_M = 96,
    LOCAL_BLOCK_M = 256,    // many rows, so that a task's packing pays
    BLOCK_N = 128,          // narrow, so two threads seldom read the same panel of B at once
    BLOCKED_M = 1024,       // rows of "blocked", all of which use a packed panel of B,
    BLOCKED_ALONE_M = 2048, // with one thread, which needs no tasks to share
    BLOCKED_TALL_M = 4096,
    BLOCKED_LOW_M = 512, // if the sums need a tile of their own
    BLOCKED_LEAST_M = 256,
    NARROW_LEAST_M = 48,    // minimum of rows with a single panel,
    PART_N = 32,            // which is halved with fewer rows and more columns than this
    BLOCKED_N = 256,        // columns of "blocked"; their B stays in the second-level cache
    BLOCKED_WHOLE_N = 512,  // with one thread: rows of A are then packed once
    BLOCKED_NARROW_N = 128, // with a small second-level cache
    BLOCKED_SMALL_L2 = 768 << 10,
    SHALLOW_K = 64, // so few steps that a task of the usual size has little work
    SHALLOW_N = 512,
    PASSING_FLOATS = 1 << 20, // size of an A that stays in the caches
    // Costs of a task's packing, in rows and columns of products; A in place is read again.
    PACKED_B_ROWS = 8,
    PACKED_A_COLS = 4,
    PLACED_A_COLS = 1,
    EVEN_TASKS = 8, // tasks per thread (two or three threads); more balance by themselves
    CROWD_M = 132,  // with many threads: rows
    CROWD_N = 64,   // and columns of a task,
    // minimum of rows if threads would be idle: half with a tiny b, a quarter with a quarter of that.
    CROWD_LEAST_M = 48,
    CROWD_CHEAP_B = 16 << 10,
    FLAT_K = 48,                   // so few steps that rows are cut first;
    FLAT_N = 2048,                 // then the columns of a task,
    FLAT_M = 48,                   // the maximum of rows,
    FLAT_LEAST_FLOATS = 256 << 10, // and with few threads the minimum size of c
    FLAT_PACKED_K = 16, // the same if each task packs b: maximum of steps, minimum of rows
    FLAT_PACKED_M = 32,
    CROWD_WORK = 512 << 10, // multiplications of a task, about 10 us, that are worth two threads,
    CROWD_PART_WORK = 64 << 10, // and of one with large k, which is cut to parts of a panel
    CROWD_PART_K = 128,
    CROWD_PART_TILES = 2,   // tiles of rows that are cut further,
    CROWD_PACKED_TILES = 4, // and if each task packs its part,
    CROWD_LONG_K = 384,     // except with so many steps and up to a vector of columns,
    CROWD_LONGER_K = 640,   // or with so many and so many columns
    CROWD_LONG_N = 48,
    CROWD_FAR_M = 512, // twice the rows, four times the columns, with so large an m and B
    CROWD_FAR_FLOATS = 8 << 20,
    COLUMNS_OF_VECTOR = 16,
};

void matmul_cut_by_rows(const struct matmul_problem *p, int64_t num_tasks, int64_t most_m,
                        int64_t unit_m, int64_t unit_n, struct tsri_plan *plan) {
    plan->block_n = matmul_even_block(p->n, FLAT_N, unit_n);
    int64_t cols = tsri_max(p->num_batches * tsri_ceil_div(p->n, plan->block_n), 1);
    int64_t rows = tsri_max(tsri_ceil_div(num_tasks, cols), tsri_ceil_div(p->m, most_m));
    plan->block_m = matmul_even_block(p->m, tsri_ceil_div(p->m, rows), unit_m);
}

// Whether low, wide tasks pay although each packs b: needs so many rows, and more if no two tasks share a line.
static bool is_flat_packed(const struct matmul_problem *p, int threads) {
    if (p->n % COLUMNS_OF_VECTOR != 0) return p->k <= FLAT_PACKED_K && p->m >= FLAT_PACKED_M;
    return p->k <= FLAT_PACKED_K / 2 && p->m >= (int64_t)FLAT_M * threads;
}

// Many threads seldom run equally fast, so each gets several tasks of few columns, whose panels stay in its part of the
// second-level cache. If both A and B come from memory, tasks are larger and read them less often. Without packing,
// tasks may be cut down to tiles, so that each thread has one. has_parts: what no other task reads of B may be cut to
// parts of a panel, and by rows as long as packing the part again costs less than the idle threads.
static void cut_for_crowd(const struct matmul_problem *p, const struct tsri_limits *limits,
                          const struct gemm_kernels *gemm, bool packs, bool has_parts, int threads,
                          struct tsri_plan *plan) {
    // Little work: fewer tasks; one per thread if it packs a panel.
    int64_t of_thread = threads == limits->num_threads ? MATMUL_CROWD_TASKS : packs ? 1 : 2;
    int64_t wanted = of_thread * threads;
    bool is_far = p->m >= CROWD_FAR_M && p->n * p->k > CROWD_FAR_FLOATS;
    bool is_given = matmul_has_given_blocks(limits);
    // Packing a few vectors of columns again takes less time than their tiles wait for their sums, if k is large.
    int64_t long_k = p->n <= COLUMNS_OF_VECTOR ? CROWD_LONG_K : CROWD_LONGER_K;
    bool packs_much = packs && (p->n > CROWD_LONG_N || p->k < long_k);
    int64_t part_m = (packs_much ? CROWD_PACKED_TILES : CROWD_PART_TILES) * gemm->mr;
    int64_t most_m = is_far ? 2 * CROWD_M : CROWD_M, most_n = is_far ? 4 * CROWD_N : CROWD_N;
    if (!is_given && p->k > SHALLOW_K) {
        plan->block_m = tsri_min(plan->block_m, matmul_even_block(p->m, most_m, gemm->mr));
        plan->block_n = matmul_even_block(p->n, most_n, gemm->nr);
    }
    bool is_flat = packs ? is_flat_packed(p, threads) : p->k <= FLAT_K;
    if (is_flat && !is_given) {
        matmul_cut_by_rows(p, wanted, FLAT_M, gemm->mr, gemm->nr, plan);
        wanted = threads;
    }
    for (;;) {
        int64_t rows = tsri_ceil_div(p->m, plan->block_m),
                cols = tsri_ceil_div(p->n, plan->block_n);
        plan->num_tasks = p->num_batches * rows * cols;
        if (plan->num_tasks >= wanted) return;
        bool is_idle = plan->num_tasks < threads;
        int64_t width =
            tsri_min(plan->block_n, (int64_t)tsri_round_up((size_t)p->n, COLUMNS_OF_VECTOR));
        int64_t work = tsri_min(plan->block_m, p->m) * width * p->k;
        bool is_short = !packs && is_idle && work > CROWD_WORK;
        bool is_cheap = packs && is_idle && width * p->k <= CROWD_CHEAP_B;
        bool is_narrow = is_cheap && width * p->k <= CROWD_CHEAP_B / 4;
        bool is_deep = is_idle && p->k >= CROWD_PART_K && work > CROWD_PART_WORK && !is_given;
        int64_t least_m = is_short    ? gemm->mr
                          : is_narrow ? CROWD_LEAST_M / 4
                          : is_cheap  ? CROWD_LEAST_M / 2
                                      : CROWD_LEAST_M;
        if (plan->block_n > CROWD_N && plan->block_n > gemm->nr)
            plan->block_n = matmul_even_block(p->n, plan->block_n / 2, gemm->nr);
        else if (plan->block_m > least_m)
            plan->block_m = matmul_even_block(p->m, plan->block_m / 2, gemm->mr);
        else if (is_short && plan->block_n > gemm->nr)
            plan->block_n = matmul_even_block(p->n, plan->block_n / 2, gemm->nr);
        else if (is_deep && has_parts && plan->block_n > COLUMNS_OF_VECTOR)
            plan->block_n = matmul_even_block(p->n, plan->block_n / 2, COLUMNS_OF_VECTOR);
        else if (is_deep && has_parts && plan->block_m > part_m)
            plan->block_m = matmul_even_block(p->m, plan->block_m / 2, gemm->mr);
        else
            return;
    }
}

// How a variant wants its tasks: maximum of rows and columns, and what a task packs again besides its products: B,
// expressed as rows, and A, as columns.
struct cut {
    int64_t rows, cols, b_rows, a_cols;
    bool packs;     // B is packed before it is multiplied
    bool has_parts; // B is in place, or in private panels
};

// Balances some tasks over the threads of AVX2: chooses rows and columns so that the thread with the most tasks has the
// least work. 896 columns by 128 would give four tasks to one thread and three to the other. B in place is not cut by
// rows here, because all tasks would read it; only plan_blocks cuts a single panel.
static void even_out(const struct matmul_problem *p, const struct gemm_kernels *gemm,
                     const struct cut *cut, int64_t threads, struct tsri_plan *plan) {
    int64_t rows = tsri_ceil_div(p->m, plan->block_m), cols = tsri_ceil_div(p->n, plan->block_n);
    bool is_by_rows = cut->packs && threads < MATMUL_CROWD;
    double least = INFINITY;
    for (int64_t r = rows; r <= rows + (is_by_rows ? threads : 0); r++) {
        int64_t m = matmul_even_block(p->m, tsri_ceil_div(p->m, r), gemm->mr);
        int64_t rows_of_tasks = p->num_batches * tsri_ceil_div(p->m, m);
        for (int64_t c = cols; c <= cols + threads; c++) {
            int64_t n = matmul_even_block(p->n, tsri_ceil_div(p->n, c), gemm->nr);
            int64_t tasks = rows_of_tasks * tsri_ceil_div(p->n, n);
            double most = (double)tsri_ceil_div(tasks, threads) * (double)(m + cut->b_rows) *
                          (double)(n + cut->a_cols);
            if (most >= least) continue;
            least = most;
            plan->block_m = m;
            plan->block_n = n;
        }
    }
}

static void plan_blocks(const struct matmul_problem *p, const struct tsri_limits *limits,
                        const struct cut *cut, struct tsri_plan *plan) {
    const struct gemm_kernels *gemm = gemm_kernels(limits->isa);
    int64_t most_rows = cut->rows, block_n = cut->cols;
    bool packs = cut->packs;
    // A tuning row may set blocks, except block_k, which fixes the order of sums.
    if (limits->block[0] > 0) most_rows = limits->block[0];
    if (limits->block[1] > 0)
        block_n = (int64_t)tsri_round_up((size_t)limits->block[1], (size_t)gemm->nr);
    plan->block_m = matmul_even_block(p->m, most_rows, gemm->mr);
    plan->block_n =
        tsri_min(block_n, (int64_t)tsri_round_up((size_t)tsri_max(p->n, 1), (size_t)gemm->nr));
    plan->block_k = matmul_even_block(p->k, MATMUL_BLOCK_K, 8);
    // Few tasks: make them smaller and equal, so that every thread has some. One per thread is better than two, which
    // pack more. Tall tasks are cut first, because panels of A are shared; a single panel is cut by rows only, with b
    // in place too.
    int64_t rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m);
    int64_t cols = tsri_max(tsri_ceil_div(p->n, plan->block_n), 1);
    bool has_groups = p->groups.starts.data != NULL; // their sizes are not known yet
    int threads = matmul_threads(p, limits, packs);
    if (has_groups && threads > 1) threads = limits->num_threads;
    if (threads >= MATMUL_CROWD && !has_groups) {
        cut_for_crowd(p, limits, gemm, packs, cut->has_parts, threads, plan);
        plan->grain = plan->block_m;
        return;
    }
    bool is_given = matmul_has_given_blocks(limits);
    bool is_cut = (packs && threads < MATMUL_CROWD && rows > 0) || rows * cols >= 2 * threads;
    if (threads > 1 && limits->isa == TSR_ISA_AVX2 && is_cut && !is_given) {
        if (rows * cols < EVEN_TASKS * threads) even_out(p, gemm, cut, threads, plan);
        cols = 0;
    } else if (threads == 1 || rows * cols >= 2 * threads) {
        cols = 0;
    }
    while (cols > 0) {
        plan->block_n = matmul_even_block(p->n, tsri_ceil_div(p->n, cols), gemm->nr);
        int64_t tasks = rows * tsri_ceil_div(p->n, plan->block_n),
                idle = cols * plan->block_n - p->n;
        bool is_narrow = plan->block_n <= gemm->nr;
        int64_t least_m = is_narrow ? NARROW_LEAST_M : BLOCKED_LEAST_M;
        if (tasks >= (is_narrow ? 1 : 2) * threads) break;
        if (tasks % threads == 0 && idle * 8 <= p->n) break;
        if (plan->block_m > least_m) {
            plan->block_m = matmul_even_block(p->m, plan->block_m / 2, gemm->mr);
            rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m);
        } else if (is_narrow) {
            break;
        } else {
            cols++;
        }
    }
    // A single panel that no other task reads, with few rows: cut it in half. Intel's threads take longer to wake.
    double work = (double)p->m * (double)p->n * (double)p->k;
    bool is_worth = work > CROWD_WORK || !tsri_is_intel_avx512(limits);
    if (cols > 0 && cut->has_parts && !is_given && rows == 1 && p->n <= plan->block_n &&
        p->n > PART_N && limits->isa == TSR_ISA_AVX512 && is_worth)
        plan->block_n = matmul_even_block(p->n, plan->block_n / 2, COLUMNS_OF_VECTOR);
    plan->num_tasks =
        p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
    plan->grain = plan->block_m;
}

// The cost of packing A, if it is not in place, in columns of a task.
static int64_t columns_of_a(const struct matmul_problem *p, bool is_packed) {
    return is_packed || !matmul_is_rows_of_floats(&p->a) ? PACKED_A_COLS : PLACED_A_COLS;
}

void matmul_plan_packed(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    struct cut cut = {
        .rows = BLOCK_M, .cols = BLOCK_N, .a_cols = columns_of_a(problem, false), .packs = true};
    plan_blocks(problem, limits, &cut, plan);
    struct matmul_layout l = matmul_layout(problem, plan, MATMUL_SHARED_PANELS, false);
    plan->workspace_bytes = matmul_layout_bytes(problem, &l, limits);
}

// Small k and a large c: tasks are low and wide, because in a tall task every row is on another page.
static bool goes_by_rows(const struct matmul_problem *p) {
    return p->k <= SHALLOW_K && p->m * p->n >= FLAT_LEAST_FLOATS;
}

static int64_t columns_of_task(const struct matmul_problem *p, bool is_by_rows) {
    return is_by_rows ? FLAT_N : p->k <= SHALLOW_K ? SHALLOW_N : BLOCK_N;
}

bool matmul_is_passing(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_few = limits->isa == TSR_ISA_AVX2 && !matmul_is_crowded(limits);
    return (is_few || matmul_is_alone_on_intel(limits)) && matmul_is_rows_of_floats(&p->a) &&
           matmul_is_plain(p) && p->groups.starts.data == NULL && p->m * p->k <= PASSING_FLOATS;
}

void matmul_plan_local(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    bool is_by_rows = goes_by_rows(p) && matmul_is_plain(p);
    struct cut cut = {.rows = LOCAL_BLOCK_M,
                      .cols = columns_of_task(p, is_by_rows),
                      .b_rows = PACKED_B_ROWS,
                      .a_cols = columns_of_a(p, false),
                      .packs = true,
                      .has_parts = true};
    bool is_passing = matmul_is_passing(p, limits);
    if (is_passing) cut.rows = tsri_max(p->m, 1);
    plan_blocks(problem, limits, &cut, plan);
    if (is_passing || is_by_rows)
        plan->grain = matmul_even_block(plan->block_m, is_by_rows ? FLAT_M : BLOCK_M,
                                        gemm_kernels(limits->isa)->mr);
    struct matmul_layout l = matmul_layout(problem, plan, MATMUL_PRIVATE_PANELS, false);
    plan->workspace_bytes = matmul_layout_bytes(problem, &l, limits);
}

void matmul_plan_blocked(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    // A product with an epilogue has a tile of sums as tall as its task, which must stay in the second-level cache.
    int64_t rows = !matmul_is_plain(p)        ? BLOCKED_LOW_M
                   : limits->num_threads == 1 ? BLOCKED_ALONE_M
                                              : BLOCKED_M;
    // So must many rows, if that cache is large.
    bool is_tall = limits->num_threads == 1 && p->m >= BLOCKED_TALL_M && matmul_is_plain(p) &&
                   limits->l2_bytes >= MATMUL_LARGE_L2;
    if (is_tall) rows = BLOCKED_TALL_M;
    bool is_whole = limits->num_threads == 1 && (p->n <= BLOCKED_WHOLE_N || is_tall);
    // A few rows use a panel of B only a few times; then long runs of its rows count.
    bool is_narrow =
        limits->isa == TSR_ISA_AVX2 && p->m > BLOCK_M && limits->l2_bytes < BLOCKED_SMALL_L2;
    int64_t cols = is_whole ? BLOCKED_WHOLE_N : is_narrow ? BLOCKED_NARROW_N : BLOCKED_N;
    struct cut cut = {.rows = rows, .cols = cols, .b_rows = PACKED_B_ROWS, .packs = true};
    if (p->n <= MATMUL_PASSING_N) cut.a_cols = columns_of_a(p, true);
    plan_blocks(problem, limits, &cut, plan);
    struct matmul_layout l = matmul_layout(problem, plan, MATMUL_PRIVATE_PANELS, true);
    plan->workspace_bytes = matmul_layout_bytes(problem, &l, limits);
}

void matmul_plan_direct(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    if (matmul_cuts_depth(problem, limits)) {
        matmul_plan_parts(problem, limits, MATMUL_PARTS_TILES, plan);
        return;
    }
    const struct matmul_problem *p = problem;
    bool is_by_rows = goes_by_rows(p);
    struct cut cut = {.rows = is_by_rows          ? FLAT_M
                              : p->k <= SHALLOW_K ? LOCAL_BLOCK_M
                                                  : BLOCK_M,
                      .cols = columns_of_task(p, is_by_rows),
                      .a_cols = columns_of_a(p, false),
                      .has_parts = true};
    plan_blocks(problem, limits, &cut, plan);
    struct matmul_layout l = matmul_layout(problem, plan, MATMUL_IN_PLACE, false);
    plan->workspace_bytes = matmul_layout_bytes(problem, &l, limits);
}
