// SPDX-License-Identifier: Apache-2.0
// How the CPU cuts products into tasks.
#include "context/op_table.h"
#include "cpu/gemm.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

static struct tsri_plan plan_as(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, int num_threads) {
    struct matmul_problem p = product_of(dtype, m, n, k);
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = num_threads};
    struct tsri_plan plan = {0};
    (dtype == TSR_BF16 ? matmul_plan_mixed : matmul_plan_blocked)(&p, &limits, &plan);
    return plan;
}

static struct tsri_plan plan_of(int64_t m, int64_t n, int64_t k, int num_threads) {
    return plan_as(TSR_BF16, m, n, k, num_threads);
}

// One task per thread if they are equal, else two or more. One thread takes all columns at once if they are few.
static void tasks_of_f32(void **state) {
    (void)state;
    if (gemm_kernels(TSR_ISA_AVX512)->nr != 64) skip(); // another architecture
    struct tsri_plan plan = plan_as(TSR_F32, 512, 512, 512, 3);
    assert_int_equal(plan.num_tasks, 8);
    assert_int_equal(plan.block_m, 132);
    // Many threads: several tasks each, and larger tasks if all data come from memory.
    plan = plan_as(TSR_F32, 512, 512, 512, 16);
    assert_int_equal(plan.num_tasks, 64);
    assert_int_equal(plan.block_m, 66);
    assert_int_equal(plan.block_n, 64);
    plan = plan_as(TSR_F32, 2048, 2048, 2048, 16);
    assert_int_equal(plan.block_m, 132);
    assert_int_equal(plan.block_n, 64);
    plan = plan_as(TSR_F32, 4096, 4096, 4096, 16);
    assert_int_equal(plan.block_m, 258);
    assert_int_equal(plan.block_n, 256);
    assert_int_equal(plan_as(TSR_F32, 17, 4096, 4096, 16).num_tasks, 64);
    assert_int_equal(plan_as(TSR_F32, 384, 384, 384, 2).num_tasks, 2);
    assert_int_equal(plan_as(TSR_F32, 384, 384, 384, 2).block_n, 192);
    assert_int_equal(plan_as(TSR_F32, 1000, 448, 1000, 2).num_tasks, 4); // unequal columns
    assert_int_equal(plan_as(TSR_F32, 512, 512, 512, 1).block_n, 512);
    assert_int_equal(plan_as(TSR_F32, 512, 576, 512, 1).block_n, 256);
    assert_int_equal(plan_as(TSR_F32, 1024, 1024, 1024, 2).block_n, 256);
    // One panel is cut by rows until each thread has a task.
    struct matmul_problem p = product_of(TSR_F32, 200, 17, 512);
    for (int threads = 1; threads <= 3; threads++) {
        struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = threads};
        matmul_plan_local(&p, &limits, &plan);
        assert_int_equal(plan.num_tasks, threads == 3 ? 4 : threads);
        assert_int_equal(plan.block_m, threads == 3 ? 54 : threads == 2 ? 102 : 204);
    }
}

typedef void planner(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan);

static void check_tasks(planner *plan_as_variant, tsr_dtype dtype, int num_threads, int64_t m,
                        int64_t n, int64_t k, int64_t block_m, int64_t block_n, int64_t num_tasks) {
    struct matmul_problem p = product_of(dtype, m, n, k);
    struct tsri_limits limits = {
        .isa = TSR_ISA_AVX2, .num_threads = num_threads, .l2_bytes = 512 << 10};
    struct tsri_plan plan = {0};
    plan_as_variant(&p, &limits, &plan);
    assert_int_equal(plan.block_m, block_m);
    assert_int_equal(plan.block_n, block_n);
    assert_int_equal(plan.num_tasks, num_tasks);
    assert_in_range(plan.grain, 1, plan.block_m);
}

// Each thread gets the same work: by columns, where each thread packs its part of B, or by rows if that costs less.
// Rows in place use a task's panels 96 at a time.
static void tasks_of_few_threads(void **state) {
    (void)state;
    if (gemm_kernels(TSR_ISA_AVX2)->nr != 16) skip(); // another architecture
    check_tasks(matmul_plan_local, TSR_F32, 2, 384, 384, 384, 384, 96, 4);
    check_tasks(matmul_plan_local, TSR_F32, 1, 384, 384, 384, 384, 128, 3);
    check_tasks(matmul_plan_local, TSR_F32, 2, 200, 48, 600, 102, 48, 2);
    check_tasks(matmul_plan_local, TSR_F32, 3, 384, 384, 384, 384, 128, 3);
    check_tasks(matmul_plan_local, TSR_F32, 2, 4096, 64, 4096, 258, 64, 16); // A exceeds the caches
    check_tasks(matmul_plan_local, TSR_BF16, 2, 400, 48, 600, 204, 48, 2);
    check_tasks(matmul_plan_packed, TSR_BF16, 2, 400, 48, 600, 72, 48, 6);
    check_tasks(matmul_plan_blocked, TSR_F32, 2, 500, 896, 600, 504, 112, 8);
    check_tasks(matmul_plan_local, TSR_F32, 2, 0, 384, 384, 6, 128, 0);
    check_tasks(matmul_plan_direct, TSR_F32, 2, 40, 260, 256, 42, 80, 4);
    struct matmul_problem p = product_of(TSR_F32, 384, 384, 384);
    struct tsri_limits limits = {.isa = TSR_ISA_AVX2, .num_threads = 2};
    struct tsri_plan plan = {0};
    matmul_plan_local(&p, &limits, &plan);
    assert_int_equal(plan.grain, 96);
}

// As many columns as keep their sums in the L1 cache (on AVX2 with many rows in L2), and enough tasks for every thread.
static void tasks_of_few_rows(void **state) {
    (void)state;
    struct matmul_problem p = product_of(TSR_F32, 17, 4096, 4096);
    struct tsri_limits limits = {.isa = TSR_ISA_AVX2, .num_threads = 1};
    struct tsri_plan plan = {0};
    if (gemm_kernels(TSR_ISA_AVX2)->nr != 16) skip(); // another architecture
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_m, 17);
    assert_int_equal(plan.block_n, 688);
    assert_int_equal(plan.num_tasks, 6);
    assert_int_equal(plan.workspace_bytes, 17 * (688 + 16) * 4);
    limits.l2_bytes = 512 << 10;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_n, 2048);
    limits.num_threads = 2, p.m = 4; // long runs: one task per thread
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_n, 2048);
    p.n = 11008; // equally many per thread
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.num_tasks, 4);
    p.n = 4096, limits.num_threads = 4;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.num_tasks, 16);
    limits.num_threads = 1, p.m = 3;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_n, 4096);
    p.m = 1;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_n, 4096);
    limits.num_threads = 2;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.num_tasks, 4);
    limits.isa = TSR_ISA_AVX512, p.m = 32;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_n, 256);
    limits.num_threads = 16, p.m = 4;
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.num_tasks, 64);
    p.m = 50, limits.block[1] = 100; // columns from a tuning row
    matmul_plan_streamed(&p, &limits, &plan);
    assert_int_equal(plan.block_m, 25);
    assert_int_equal(plan.block_n, 128);
}

// Tasks become narrower first. If they are still too few they get fewer rows, but at least 128. Many threads get
// several tasks each.
static void tasks_for_every_thread(void **state) {
    (void)state;
    struct tsri_plan plan = plan_of(512, 512, 512, 3);
    assert_int_equal(plan.num_tasks, 3);
    assert_int_equal(plan.block_m, 512);
    assert_int_equal(plan.block_k, 512);
    assert_int_equal(plan_of(512, 512, 512, 2).block_n, 256);
    assert_int_equal(plan_of(64, 64, 64, 16).num_tasks, 1); // little work
    plan = plan_of(512, 512, 512, 16);
    assert_int_equal(plan.num_tasks, 64);
    assert_int_equal(plan.block_m, 64);
    assert_int_equal(plan.block_n, 64);
    assert_int_equal(plan.block_k, 512);
    assert_int_equal(plan.grain, 0); // each packs its own panels
    plan = plan_of(1024, 1024, 1024, 16);
    assert_int_equal(plan.num_tasks, 64);
    assert_int_equal(plan.block_m, 128);
    plan = plan_of(4096, 4096, 4096, 16);
    assert_int_equal(plan.block_m, 256);
    assert_int_equal(plan.block_n, 256);
    plan = plan_of(4096, 64, 4096, 16);
    assert_int_equal(plan.num_tasks, 64);
    assert_int_equal(plan.block_m, 64);
    assert_int_equal(plan.grain, 1); // few columns are packed for all tasks
    assert_int_equal(plan_of(16, 4096, 4096, 16).num_tasks, 32);
}

// If no other task reads the same part of B, tasks are cut down to tiles and parts of panels to give every thread work,
// but only while it pays.
static void tiles_for_every_thread(void **state) {
    (void)state;
    if (gemm_kernels(TSR_ISA_AVX512)->nr != 64) skip(); // another architecture
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 16};
    struct {
        planner *plan;
        int64_t m, n, k, num_tasks;
    } cases[] = {{matmul_plan_direct, 31, 64, 1024, 12},   {matmul_plan_direct, 31, 100, 1024, 24},
                 {matmul_plan_direct, 200, 100, 1024, 24}, {matmul_plan_direct, 40, 64, 100, 1},
                 {matmul_plan_direct, 7, 64, 1024, 4},     {matmul_plan_packed, 31, 64, 1024, 1},
                 {matmul_plan_local, 31, 64, 1024, 8},     {matmul_plan_local, 31, 100, 1024, 14},
                 {matmul_plan_local, 31, 3, 256, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct matmul_problem p = product_of(TSR_F32, cases[i].m, cases[i].n, cases[i].k);
        struct tsri_plan plan = {0};
        cases[i].plan(&p, &limits, &plan);
        assert_int_equal(plan.num_tasks, cases[i].num_tasks);
    }
}

// Skinny divides rows if columns are too few for the threads, or k is too small. A task has at most 16 rows.
static void rows_of_skinny(void **state) {
    (void)state;
    static const struct {
        tsr_dtype dtype;
        int64_t m, n, k;
        int num_threads;
        int64_t block_m, num_tasks;
    } cases[] = {{TSR_BF16, 6, 16, 1024, 16, 6, 1},    {TSR_BF16, 8, 16, 1024, 16, 2, 4},
                 {TSR_BF16, 16, 16, 1024, 16, 3, 6},   {TSR_BF16, 8, 1000, 16, 16, 2, 4},
                 {TSR_BF16, 2, 64, 1024, 2, 1, 2},     {TSR_BF16, 8, 1000, 16, 1, 8, 1},
                 {TSR_F32, 6, 4096, 4096, 1, 6, 1},    {TSR_F32, 0, 100, 100, 16, 1, 0},
                 {TSR_BF16, 6, 1024, 4096, 16, 6, 16}, {TSR_F32, 100, 1, 4096, 1, 15, 7},
                 {TSR_BF16, 6, 1024, 4096, 4, 6, 8},   {TSR_BF16, 2, 8192, 1024, 4, 2, 16},
                 {TSR_F32, 2, 512, 2048, 16, 2, 32},   {TSR_BF16, 1, 100, 5000, 16, 1, 20},
                 {TSR_F32, 1000, 1, 4096, 16, 16, 63}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct matmul_problem p = product_of(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);
        struct tsri_limits limits = {.isa = TSR_ISA_AVX2, .num_threads = cases[i].num_threads};
        struct tsri_plan plan = {0};
        matmul_plan_skinny(&p, &limits, &plan);
        assert_int_equal(plan.block_m, cases[i].block_m);
        assert_int_equal(plan.num_tasks, cases[i].num_tasks);
    }
}

// The blocks and tasks of a plan in bf16.
struct bf16_tasks {
    planner *plan;
    int64_t m, n, k;
    int num_threads;
    int64_t block_m, block_n, num_tasks;
};

static void check_bf16(const struct bf16_tasks *cases, int num_cases, bool is_by_columns) {
    for (const struct bf16_tasks *t = cases; t < cases + num_cases; t++) {
        struct matmul_problem p = product_of(TSR_BF16, t->m, t->n, t->k);
        if (is_by_columns) p.b.row = 1, p.b.col = p.k;
        struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = t->num_threads};
        struct tsri_plan plan = {0};
        t->plan(&p, &limits, &plan);
        if (plan.block_m != t->block_m || plan.block_n != t->block_n ||
            plan.num_tasks != t->num_tasks)
            fail_msg("%d x %d x %d on %d threads: %d tasks of %d x %d", (int)p.m, (int)p.n,
                     (int)p.k, t->num_threads, (int)plan.num_tasks, (int)plan.block_m,
                     (int)plan.block_n);
    }
}

// With few rows of a, columns of b are rows of the transposed product. With few long columns, blocks of k are tasks.
static void tasks_of_turned_tiles(void **state) {
    (void)state;
    static const struct bf16_tasks cases[] = {
        {matmul_plan_tiles, 8, 256, 1024, 1, 256, 64, 1}, // 256 x 8 in all
        {matmul_plan_tiles, 8, 256, 1024, 16, 32, 64, 8},
        {matmul_plan_tiles, 8, 256, 200, 1, 32, 256, 1},
        {matmul_plan_mixed, 8, 256, 1024, 1, 32, 256, 1},
        {matmul_plan_tiles, 8, 64, 4096, 16, 64, 16, 8},
        {matmul_plan_mixed, 17, 8, 4096, 16, 32, 16, 8},
        {matmul_plan_mixed, 17, 8, 4096, 1, 32, 64, 1},
        {matmul_plan_mixed, 65, 8, 4096, 4, 32, 64, 3},
        {matmul_plan_mixed, 17, 8, 2047, 16, 32, 32, 1},
        {matmul_plan_tiles, 64, 100, 1024, 1, 128, 64, 1},
        {matmul_plan_tiles, 65, 100, 1024, 1, 96, 128, 1},
        {matmul_plan_tiles, 17, 2048, 1024, 16, 64, 64, 32},
        {matmul_plan_tiles, 17, 2047, 1024, 16, 32, 64, 32},
    };
    check_bf16(cases, COUNT(cases), true);
}

// Few steps: tasks divide rows and take whole cache lines of c. If no two tasks share a line anyway, only half as many
// steps count as few. If there are too few rows for half of the threads, tasks are cut as with large k.
static void tasks_of_few_steps(void **state) {
    (void)state;
    static const struct bf16_tasks cases[] = {
        {matmul_plan_mixed, 600, 1001, 64, 16, 32, 1024, 19},
        {matmul_plan_mixed, 600, 1001, 65, 16, 128, 64, 80},
        {matmul_plan_mixed, 600, 1024, 32, 16, 32, 1024, 19},
        {matmul_plan_mixed, 600, 1024, 33, 16, 128, 64, 80},
        {matmul_plan_mixed, 600, 5000, 16, 4, 128, 1728, 15},
        {matmul_plan_mixed, 64, 3000, 20, 16, 64, 64, 47},
    };
    check_bf16(cases, COUNT(cases), false);
}

// Two or three threads split a single panel into halves if rows are few. Intel requires enough work for that and does
// not split tiles.
static void halves_of_a_panel(void **state) {
    (void)state;
    static const struct {
        planner *plan;
        tsr_dtype dtype;
        bool is_amd, is_by_columns;
        int64_t m, n, k, block_n;
    } cases[] = {
        {matmul_plan_direct, TSR_F32, true, false, 16, 64, 256, 32},
        {matmul_plan_direct, TSR_F32, true, false, 16, 33, 512, 32},
        {matmul_plan_direct, TSR_F32, true, false, 16, 32, 1024, 64},
        {matmul_plan_direct, TSR_F32, false, false, 16, 64, 512, 64},
        {matmul_plan_direct, TSR_F32, false, false, 16, 64, 513, 32},
        {matmul_plan_local, TSR_F32, true, true, 16, 64, 256, 32},
        {matmul_plan_packed, TSR_F32, true, true, 16, 64, 256, 64}, // shared
        {matmul_plan_mixed, TSR_BF16, true, false, 100, 64, 256, 32},
        {matmul_plan_mixed, TSR_BF16, true, false, 100, 48, 256, 32},
        {matmul_plan_mixed, TSR_BF16, true, false, 100, 48, 64, 64},
        {matmul_plan_mixed, TSR_BF16, true, false, 100, 32, 1024, 64},
    };
    if (gemm_kernels(TSR_ISA_AVX512)->nr != 64) skip();
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = product_of(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);
        struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 2};
        struct tsri_plan plan = {0};
        if (cases[i].is_by_columns) p.b = (struct matmul_matrix){NULL, cases[i].dtype, 1, p.k, {0}};
        limits.bf16.has_dot = limits.bf16.is_dot_fast = cases[i].is_amd;
        cases[i].plan(&p, &limits, &plan);
        if (plan.block_n != cases[i].block_n || plan.num_tasks != tsri_ceil_div(p.n, plan.block_n))
            fail_msg("%d x %d x %d: %d tasks of %d columns", (int)p.m, (int)p.n, (int)p.k,
                     (int)plan.num_tasks, (int)plan.block_n);
    }
}

// Groups use private panels for each task: rows are not cut.
static void rows_of_groups_stay(void **state) {
    (void)state;
    static const int32_t offsets[] = {0, 256};
    struct matmul_problem p = {.m = 256,
                               .n = 128,
                               .k = 512,
                               .num_batches = 1,
                               .batch = {1, 1, 1},
                               .a = {NULL, TSR_BF16, 512, 1, {0}},
                               .b = {NULL, TSR_BF16, 128, 1, {0}},
                               .c = {NULL, TSR_BF16, 128, 1, {0}},
                               .alpha = 1};
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 16};
    struct tsri_plan plan = {0};
    matmul_plan_mixed(&p, &limits, &plan);
    assert_int_equal(plan.block_m, 64);
    p.groups.starts.data = offsets;
    matmul_plan_mixed(&p, &limits, &plan);
    assert_int_equal(plan.block_m, 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_for_every_thread), cmocka_unit_test(tasks_of_f32),
        cmocka_unit_test(tasks_of_few_threads),   cmocka_unit_test(tasks_of_few_rows),
        cmocka_unit_test(tiles_for_every_thread), cmocka_unit_test(rows_of_skinny),
        cmocka_unit_test(rows_of_groups_stay),    cmocka_unit_test(tasks_of_turned_tiles),
        cmocka_unit_test(tasks_of_few_steps),     cmocka_unit_test(halves_of_a_panel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
