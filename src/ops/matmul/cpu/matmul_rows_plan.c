// SPDX-License-Identifier: Apache-2.0
// Tasks and workspace for small m: streamed, skinny and naive, and blocks of k as tasks, which direct uses too. Pure.
// Sizes follow docs/kernels/matmul_cpu_rows.md.
#include <math.h>

#include "cpu/gemm.h"
#include "ops/matmul/matmul_problem.h"

enum {
    STREAMED_M = 48,                // a streamed task has at most so many rows,
    STREAMED_FLOATS = 12 << 10,     // sums
    STREAMED_N = 4096,              // and columns;
    STREAMED_WIDE_FLOATS = 8 << 10, // the same with registers of 16 floats,
    STREAMED_WIDE_N = 1024,         // and half the columns for more rows than a pass has
    STREAMED_PARTS_M = 3,
    STREAMED_MANY_M = 4,   // AVX2: from so many rows on, sums may fill half of the L2 cache
    STREAMED_LEAST_N = 64, // minimum of columns if tasks are cut for several threads:
    STREAMED_TASKS = 2,    // per thread, one with many rows; many threads: MATMUL_CROWD_TASKS
    SKINNY_N = 4096,       // columns of a skinny task: at most so many (long rows stream best),
    // and at least so many. Many threads: half of that if columns are contiguous or b has at most SKINNY_NEAR elements,
    // and SKINNY_LEAST_STEP if it has at most SKINNY_LEAST_NEAR.
    SKINNY_STEP = 128,
    SKINNY_NEAR = 2 << 20,
    SKINNY_LEAST_STEP = 16,
    SKINNY_LEAST_NEAR = 256 << 10,
    SKINNY_FOR_ROWS_N = 128,  // up to so many columns, rows are divided instead
    SHALLOW_K = 16,           // up to so many steps, rows are divided before columns
    SPLIT_ELEMENTS = 4 << 20, // of b, outside the caches: k is cut too,
    SPLIT_N = 1024,           // by tasks of at most so many columns (a page of each f32 row)
    // Narrower tasks for one or two rows: maximum of columns; only from SPLIT_NARROW_WORK on.
    SPLIT_NARROW_N = 512,
    SPLIT_NARROW_TASKS = 2, // about so many tasks per thread; others have one
    // Parts of tiles: minimum of k, except for few rows; tasks per thread, about; maximum of columns of a task, and
    // their unit.
    PARTS_LEAST_K = 1024,
    PARTS_TASKS = 3,
    PARTS_MOST_N = 512,
    PARTS_UNIT = 32,
    // Up to so many columns per thread, the parts stay in its second-level cache: maximum of rows; minimum of work,
    // less for half the rows; twice as many rows with so large a b.
    PARTS_NEAR_N = 64,
    PARTS_M = 16,
    PARTS_WORK = 192 << 20,
    PARTS_WORK_OF_MORE = 3 * PARTS_WORK,
    PARTS_MANY_M = 32,
    PARTS_MANY_ELEMENTS = 1000 << 10,
    // With more columns: maximum of rows if b is outside the caches; more rows with so many threads.
    PARTS_FEW_M = 4,
    PARTS_SWARM = 16,
    ELEMENTS_OF_NAIVE_TASK = 4096, // multiplications
    // Costs of skinny in multiplications of tiles: a vector of b (for one row), a vector alone, a step of an f32 dot
    // product (for one row) and of a 16-bit one, and the end of a dot product (for one row of f32).
    WORK_OF_WIDENING = 3,
    WORK_OF_LONE_WIDENING = 2,
    WORK_OF_WAITING = 13,
    WORK_OF_STEP = 5,
    WORK_OF_LONE_STEP = 2,
    WORK_OF_WIDE_STEP = 4,
    WORK_OF_DOT = 320,
    WORK_OF_LONE_DOT = 200,
    WORK_OF_UNIT_DOT = 128, // of skinny_bf16
    FINISHING = 32,
    COLUMNS_OF_VECTOR = 16,
    COLUMNS_OF_DOTS = 4,
};

// Parts gain with the size of b and with k.
static const double SPLIT_NARROW_WORK = 2147483648.0;
static double work_of_depth(const struct matmul_problem *p) {
    return (double)p->n * (double)p->k * (double)p->k;
}

static bool is_one_product(const struct matmul_problem *p) {
    return p->num_batches == 1 && p->groups.starts.data == NULL && p->b_up.data == NULL && p->m > 0;
}

// With accumulation, c would have to be added before the first part, not after the last.
bool matmul_streams_parts(const struct matmul_problem *p, int num_threads) {
    return num_threads >= MATMUL_CROWD && is_one_product(p) && !p->is_accumulating &&
           p->b.dtype == TSR_F32 && p->m <= STREAMED_PARTS_M && p->k > MATMUL_BLOCK_K &&
           p->n >= SPLIT_N && p->k * p->n >= SPLIT_ELEMENTS;
}

// As many columns as have their sums in the first-level cache, or the second, so that runs of b's rows are long.
void matmul_plan_streamed(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    if (matmul_streams_parts(p, limits->num_threads)) {
        matmul_plan_parts(p, limits, MATMUL_PARTS_STREAMED, plan);
        return;
    }
    bool is_wide = limits->isa == TSR_ISA_AVX512;
    bool is_many = limits->isa == TSR_ISA_AVX2 && p->m >= STREAMED_MANY_M;
    int64_t threads = matmul_threads(p, limits, false), each = is_many ? 1 : STREAMED_TASKS;
    int64_t floats = is_wide ? STREAMED_WIDE_FLOATS : STREAMED_FLOATS;
    if (is_many) floats = tsri_max(floats, limits->l2_bytes / (2 * (int64_t)sizeof(float)));
    plan->block_m =
        matmul_even_block(p->m, limits->block[0] > 0 ? limits->block[0] : STREAMED_M, 1);
    plan->block_k = matmul_even_block(p->k, MATMUL_BLOCK_K, 8);
    int64_t cols = tsri_max(floats / plan->block_m, 1);
    int64_t wide = p->m <= MATMUL_ROWS_OF_PASS ? STREAMED_WIDE_N : STREAMED_WIDE_N / 2;
    cols = tsri_min(cols, is_wide ? wide : STREAMED_N);
    if (threads > 1) {
        int64_t tasks = (threads >= MATMUL_CROWD ? MATMUL_CROWD_TASKS : each) * threads;
        cols = tsri_min(cols, tsri_max(tsri_ceil_div(p->n, tasks), STREAMED_LEAST_N));
        int64_t parts = tsri_ceil_div(tsri_ceil_div(p->n, cols), threads) * threads;
        if (is_many)
            cols = tsri_max(tsri_ceil_div(p->n, parts), STREAMED_LEAST_N); // as many for each
    }
    if (limits->block[1] > 0) cols = limits->block[1];
    plan->block_n = matmul_even_block(p->n, cols, gemm_kernels(limits->isa)->nr);
    plan->num_tasks =
        p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
    struct matmul_layout l = matmul_layout(problem, plan, MATMUL_STREAMED, false);
    plan->workspace_bytes = matmul_layout_bytes(problem, &l, limits);
}

bool matmul_splits_depth(const struct matmul_problem *p, int num_threads) {
    if (num_threads < MATMUL_CROWD || !is_one_product(p) || matmul_has_columns(p)) return false;
    if (p->k <= MATMUL_SKINNY_DEPTH) return false;
    // Measured: with 16 threads, two f32 rows gain; with 4 threads, four rows lose; 16 bits gain from 4 threads on.
    bool is_f32 = p->b.dtype == TSR_F32, is_swarm = num_threads >= 2 * MATMUL_CROWD;
    if (p->m <= 2 && is_swarm && p->n <= SPLIT_NARROW_N && work_of_depth(p) >= SPLIT_NARROW_WORK)
        return true;
    return (is_f32 ? p->m <= 2 && is_swarm : p->m <= MATMUL_ROWS_OF_PASS) && p->n >= SPLIT_N &&
           p->k * p->n >= SPLIT_ELEMENTS;
}

static bool can_cut_depth(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_in_place = matmul_is_rows_of_floats(&p->a) && matmul_is_rows_of_floats(&p->b);
    bool is_given = matmul_has_given_blocks(limits);
    // With accumulation, c would have to be added before the first part, not after the last.
    return is_in_place && is_one_product(p) && !p->is_accumulating && p->k > MATMUL_BLOCK_K &&
           !is_given && limits->isa != TSR_ISA_SCALAR &&
           matmul_threads(p, limits, false) >= MATMUL_CROWD;
}

bool matmul_cuts_depth(const struct matmul_problem *p, const struct tsri_limits *limits) {
    if (!can_cut_depth(p, limits)) return false;
    bool is_wide = limits->isa == TSR_ISA_AVX512, is_low = p->m <= PARTS_M / 2;
    int64_t threads = limits->num_threads, elements = p->k * p->n;
    bool is_near = threads >= 2 * MATMUL_CROWD && p->n <= PARTS_NEAR_N * threads;
    if (!is_near && is_wide && p->m <= PARTS_FEW_M && elements >= SPLIT_ELEMENTS) return true;
    if (p->k < PARTS_LEAST_K) return false;
    if (is_near && p->m > PARTS_M)
        return is_wide && p->m <= PARTS_MANY_M && elements >= PARTS_MANY_ELEMENTS;
    if (is_near)
        return (is_wide || is_low) &&
               work_of_depth(p) >= (is_low ? PARTS_WORK : PARTS_WORK_OF_MORE);
    return is_wide && threads >= PARTS_SWARM && p->m >= PARTS_FEW_M && p->m <= PARTS_M &&
           p->n <= 2 * PARTS_NEAR_N * threads;
}

struct matmul_parts_layout matmul_parts_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               enum matmul_parts_kernel kernel) {
    bool is_in_place = matmul_is_rows_of_floats(&p->a);
    struct matmul_parts_layout l = {.num_parts = tsri_ceil_div(p->k, plan->block_k),
                                    .sums_stride = (int64_t)tsri_round_up((size_t)p->n, 16) + 16};
    if (kernel == MATMUL_PARTS_SKINNY && !is_in_place) l.rows_floats = p->m * plan->block_k;
    return l;
}

void matmul_plan_parts(const struct matmul_problem *p, const struct tsri_limits *limits,
                       enum matmul_parts_kernel kernel, struct tsri_plan *plan) {
    bool is_skinny = kernel == MATMUL_PARTS_SKINNY;
    plan->block_m = plan->grain = p->m;
    plan->block_k = is_skinny ? MATMUL_SKINNY_DEPTH : matmul_even_block(p->k, MATMUL_BLOCK_K, 8);
    int64_t parts = tsri_ceil_div(p->k, plan->block_k);
    // As many columns as leave each thread its tasks; tiles take no more, others want long runs.
    bool is_tiles = kernel == MATMUL_PARTS_TILES;
    int64_t of_thread = is_tiles ? PARTS_TASKS : p->n <= SPLIT_NARROW_N ? SPLIT_NARROW_TASKS : 1;
    int64_t tasks = of_thread * limits->num_threads;
    int64_t most = is_tiles ? PARTS_MOST_N : is_skinny && p->m > 1 ? SPLIT_N : SPLIT_N / 2;
    int64_t cols = tsri_min(tsri_ceil_div(p->n, tsri_max(tasks / parts, 1)), most);
    plan->block_n = matmul_even_block(p->n, cols, PARTS_UNIT);
    int64_t blocks = tsri_ceil_div(p->n, plan->block_n);
    plan->num_tasks = parts * blocks;
    struct matmul_parts_layout l = matmul_parts_layout(p, plan, kernel);
    int64_t floats = l.rows_floats * limits->num_threads + parts * p->m * l.sums_stride;
    plan->workspace_bytes =
        (size_t)(blocks * MATMUL_PARTS_COUNT_BYTES) + (size_t)floats * sizeof(float);
}

// skinny's loops over 16-bit rows or along columns take several times as long as tiles.
int matmul_skinny_threads(const struct matmul_problem *p, const struct tsri_limits *limits,
                          bool by_units) {
    bool is_f32 = p->b.dtype == TSR_F32, is_by_rows = !matmul_has_columns(p);
    if (is_f32 && is_by_rows) return matmul_threads(p, limits, false);
    double m = (double)p->m, k = (double)p->k, of_column, passes = ceil(m / MATMUL_ROWS_OF_PASS);
    double least = p->n <= COLUMNS_OF_VECTOR ? WORK_OF_WAITING : 0; // latency of each step
    double step = !is_f32 ? WORK_OF_WIDE_STEP : p->m == 1 ? WORK_OF_LONE_STEP : WORK_OF_STEP;
    double cols =
        (double)tsri_round_up((size_t)p->n, is_by_rows ? COLUMNS_OF_VECTOR : COLUMNS_OF_DOTS);
    if (is_by_rows)
        of_column =
            k * fmax((p->m == 1 ? WORK_OF_LONE_WIDENING : WORK_OF_WIDENING) * passes + 2 * m,
                     least * passes) +
            m * FINISHING;
    else
        of_column = m * (k * step + (by_units              ? WORK_OF_UNIT_DOT
                                     : is_f32 && p->m == 1 ? WORK_OF_LONE_DOT
                                                           : WORK_OF_DOT));
    return tsri_worth_threads(limits, (double)p->num_batches * cols * of_column);
}

// If there are too few columns for the threads, or k is so small that each task's rows are short, rows are divided. A
// row's sums are added in the same order among any other rows.
static void cut_rows(const struct matmul_problem *p, int threads, struct tsri_plan *plan) {
    if (threads > 1 && !matmul_has_columns(p) && p->k <= SHALLOW_K)
        plan->block_n = tsri_min((int64_t)tsri_round_up((size_t)p->n, COLUMNS_OF_VECTOR), SKINNY_N);
    int64_t cols = tsri_max(p->num_batches * tsri_ceil_div(p->n, plan->block_n), 1);
    int64_t parts = tsri_max(threads / cols, tsri_ceil_div(p->m, MATMUL_SKINNY_M));
    plan->block_m = tsri_max(tsri_ceil_div(p->m, tsri_max(parts, 1)), 1);
}

// Tasks of all of k. A thread has its rows of A in fp32 (except for skinny_bf16) and one or two tiles of products. Two
// tasks for each of several threads, so that a late thread leaves work to the others.
static void plan_whole_depth(const struct matmul_problem *p, const struct tsri_limits *limits,
                             bool by_units, struct tsri_plan *plan) {
    int64_t num_b = p->b_up.data != NULL ? 2 : 1;
    int threads = matmul_skinny_threads(p, limits, by_units);
    bool is_crowded = threads >= MATMUL_CROWD;
    int64_t of_thread = is_crowded && threads < limits->num_threads ? 1 // little work
                        : is_crowded && p->b.col != 1               ? MATMUL_CROWD_TASKS
                                                                    : 2;
    int64_t tasks = threads > 1 ? of_thread * threads : 1;
    int64_t tasks_of_batch = tsri_ceil_div(tasks, tsri_max(p->num_batches, 1));
    int64_t share = tsri_ceil_div(tsri_max(p->n, 1), tasks_of_batch);
    int64_t step = SKINNY_STEP, elements = p->k * p->n;
    if (is_crowded && (p->b.col != 1 || elements <= SKINNY_NEAR)) step /= 2;
    bool is_for_rows = !matmul_has_columns(p) && p->m > 1 && p->n <= SKINNY_FOR_ROWS_N;
    if (is_crowded && elements <= SKINNY_LEAST_NEAR && !is_for_rows) step = SKINNY_LEAST_STEP;
    plan->block_n = tsri_min((int64_t)tsri_round_up((size_t)share, (size_t)step), SKINNY_N);
    plan->block_m = tsri_max(p->m, 1);
    cut_rows(p, threads, plan);
    plan->block_k = by_units ? 0 : (int64_t)tsri_round_up((size_t)p->k, 16);
    plan->num_tasks =
        p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
    plan->grain = plan->block_m * (plan->block_k + num_b * plan->block_n); // floats per thread
    plan->grain = (int64_t)tsri_round_up((size_t)plan->grain, 16);
    plan->workspace_bytes = (size_t)(plan->grain * limits->num_threads) * sizeof(float);
}

void matmul_plan_skinny(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    if (matmul_splits_depth(problem, limits->num_threads))
        matmul_plan_parts(problem, limits, MATMUL_PARTS_SKINNY, plan);
    else
        plan_whole_depth(problem, limits, false, plan);
}

void matmul_plan_skinny_bf16(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    plan_whole_depth(problem, limits, true, plan);
}

// Per thread: a row of A in fp32, one or two rows of products, and one for a block of k.
void matmul_plan_naive(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    int64_t row_work = tsri_max(p->n * p->k, 1), rows = p->m * p->num_batches;
    plan->block_n = (int64_t)tsri_round_up((size_t)p->n, 16);
    plan->grain = tsri_max(ELEMENTS_OF_NAIVE_TASK / row_work, 1);
    plan->num_tasks = tsri_ceil_div(rows, plan->grain);
    plan->block_k = (int64_t)tsri_round_up((size_t)p->k, 16);
    plan->workspace_bytes =
        (size_t)((plan->block_k + 3 * plan->block_n) * limits->num_threads) * sizeof(float);
}
