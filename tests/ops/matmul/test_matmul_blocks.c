// SPDX-License-Identifier: Apache-2.0
// How the CPU cuts a product of floats into blocks for few threads and for groups.
#include "context/op_table.h"
#include "cpu/gemm.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

typedef void planner(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan);

// How many rows and columns each task of a plan has.
struct blocks {
    planner *plan;
    tsr_isa isa;
    int64_t m, n, k;
    int num_threads;
    int64_t block_m, block_n, num_tasks;
    int64_t given[2]; // from a tuning row
};

static bool has_usual_tiles(void) { // other architectures have other tiles
    return gemm_kernels(TSR_ISA_AVX512)->nr == 64 && gemm_kernels(TSR_ISA_AVX2)->nr == 16;
}

static void check_blocks(const struct blocks *cases, int num_cases, const int32_t *groups) {
    if (!has_usual_tiles()) skip();
    for (const struct blocks *b = cases; b < cases + num_cases; b++) {
        struct matmul_problem p = product_of(TSR_F32, b->m, b->n, b->k);
        struct tsri_limits limits = {
            .isa = b->isa, .num_threads = b->num_threads, .block = {b->given[0], b->given[1]}};
        struct tsri_plan plan = {0};
        p.groups.starts.data = groups;
        b->plan(&p, &limits, &plan);
        if (plan.block_m != b->block_m || plan.block_n != b->block_n ||
            plan.num_tasks != b->num_tasks)
            fail_msg("%d x %d x %d on %d threads: %d tasks of %d x %d", (int)p.m, (int)p.n,
                     (int)p.k, b->num_threads, (int)plan.num_tasks, (int)plan.block_m,
                     (int)plan.block_n);
    }
}

// Rows and panels are cut until each thread has two tasks, or one if all are equal. One thread cuts nothing.
static void blocks_of_few_threads(void **state) {
    (void)state;
    static const struct blocks cases[] = {
        // One panel: cut by rows only, down to 48.
        {matmul_plan_local, TSR_ISA_AVX512, 48, 17, 4096, 2, 48, 64, 1},
        {matmul_plan_local, TSR_ISA_AVX512, 49, 17, 4096, 2, 30, 64, 2},
        {matmul_plan_local, TSR_ISA_AVX512, 102, 64, 4096, 3, 30, 64, 4},
        {matmul_plan_direct, TSR_ISA_AVX512, 49, 17, 4096, 2, 30, 64, 2},
        // More than 256 rows are cut first, then panels.
        {matmul_plan_blocked, TSR_ISA_AVX512, 252, 192, 512, 2, 252, 64, 3},
        {matmul_plan_blocked, TSR_ISA_SCALAR, 256, 12, 512, 2, 256, 4, 3},
        {matmul_plan_blocked, TSR_ISA_AVX512, 258, 192, 512, 2, 132, 192, 2},
        {matmul_plan_local, TSR_ISA_AVX512, 512, 100, 512, 2, 132, 128, 4},
        // One task per thread if at most an eighth of the columns is idle.
        {matmul_plan_blocked, TSR_ISA_AVX512, 200, 512, 512, 3, 204, 192, 3},
        {matmul_plan_blocked, TSR_ISA_AVX512, 200, 511, 512, 3, 204, 64, 8},
        {matmul_plan_local, TSR_ISA_AVX512, 200, 100, 512, 1, 204, 128, 1},
        {matmul_plan_blocked, TSR_ISA_AVX512, 2048, 384, 512, 2, 1026, 256, 4},
        {matmul_plan_blocked, TSR_ISA_AVX512, 2048, 576, 512, 2, 1026, 256, 6},
        {matmul_plan_local, TSR_ISA_AVX512, 200, 0, 512, 2, 204, 64, 0},
        // Many threads; also a few vectors of columns, in tasks with fewer rows if k is large.
        {matmul_plan_local, TSR_ISA_AVX512, 512, 512, 512, 4, 132, 64, 32},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 16, 383, 16, 18, 16, 4},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 16, 384, 16, 12, 16, 6},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 17, 639, 16, 18, 16, 8},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 17, 640, 16, 12, 16, 12},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 48, 1500, 16, 12, 16, 18},
        {matmul_plan_local, TSR_ISA_AVX512, 64, 49, 1500, 16, 18, 16, 16},
        // Small k: rows are cut first, to whole cache lines of c, and columns if rows are too few.
        {matmul_plan_direct, TSR_ISA_AVX512, 348, 681, 48, 16, 6, 704, 58},
        {matmul_plan_direct, TSR_ISA_AVX512, 348, 681, 49, 16, 48, 64, 88},
        {matmul_plan_direct, TSR_ISA_AVX512, 20, 2000, 16, 16, 6, 1024, 8},
        {matmul_plan_direct, TSR_ISA_AVX512, 20, 5000, 16, 16, 6, 1728, 12},
        {matmul_plan_direct, TSR_ISA_AVX512, 5000, 100, 16, 4, 48, 128, 105},
        {matmul_plan_direct, TSR_ISA_AVX512, 512, 512, 64, 1, 48, 512, 11},
        {matmul_plan_direct, TSR_ISA_AVX512, 511, 512, 64, 1, 258, 512, 2},
        {matmul_plan_direct, TSR_ISA_AVX512, 512, 512, 65, 1, 90, 128, 24},
        {matmul_plan_direct, TSR_ISA_AVX512, 512, 5000, 8, 1, 48, 2048, 33},
        {matmul_plan_direct, TSR_ISA_AVX2, 512, 513, 64, 1, 48, 528, 11},
        {matmul_plan_local, TSR_ISA_AVX512, 512, 1000, 64, 1, 258, 1024, 2},
        {matmul_plan_local, TSR_ISA_AVX512, 32, 1000, 16, 16, 6, 512, 12},
        {matmul_plan_local, TSR_ISA_AVX512, 31, 1000, 16, 16, 36, 128, 8},
        {matmul_plan_local, TSR_ISA_AVX512, 768, 1024, 8, 16, 12, 1024, 64},
        {matmul_plan_local, TSR_ISA_AVX512, 767, 1024, 8, 16, 132, 64, 96},
        {matmul_plan_local, TSR_ISA_AVX512, 768, 1024, 9, 16, 132, 64, 96},
        {matmul_plan_local, TSR_ISA_AVX512, 300, 1000, 17, 16, 78, 64, 64},
    };
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 1};
    struct matmul_problem p = product_of(TSR_F32, 48, 64, 512);
    struct tsri_plan plan = {0};
    check_blocks(cases, COUNT(cases), NULL);
    matmul_plan_local(&p, &limits, &plan);
    assert_int_equal(plan.block_k, 512);
    p.k = 513;
    matmul_plan_local(&p, &limits, &plan);
    assert_int_equal(plan.block_k, 264);
}

// On AVX2 the thread with the most tasks gets the least possible work, with up to eight tasks per thread. With B in
// place this needs two tasks per thread already.
static void blocks_that_come_out_even(void **state) {
    (void)state;
    static const struct blocks cases[] = {
        {matmul_plan_local, TSR_ISA_AVX2, 384, 400, 384, 1, 384, 128, 4},
        {matmul_plan_local, TSR_ISA_AVX2, 100, 400, 384, 3, 102, 80, 5},
        {matmul_plan_direct, TSR_ISA_AVX2, 40, 400, 512, 2, 42, 112, 4},
        {matmul_plan_direct, TSR_ISA_AVX2, 40, 136, 512, 2, 42, 32, 5},
        {matmul_plan_packed, TSR_ISA_AVX2, 96, 1800, 512, 2, 48, 112, 34}, // not 15 of 128 columns
        {matmul_plan_packed, TSR_ISA_AVX2, 96, 2000, 512, 2, 96, 128, 16},
    };
    check_blocks(cases, COUNT(cases), NULL);
}

// A tuning row's blocks are rounded up to tiles and not made equal.
static void blocks_that_are_given(void **state) {
    (void)state;
    static const struct blocks cases[] = {
        {matmul_plan_local, TSR_ISA_AVX512, 200, 200, 512, 1, 6, 128, 68, {1, 0}},
        {matmul_plan_local, TSR_ISA_AVX512, 200, 200, 512, 1, 204, 64, 4, {0, 1}},
        {matmul_plan_local, TSR_ISA_AVX512, 200, 200, 512, 1, 102, 192, 4, {102, 129}},
        {matmul_plan_packed, TSR_ISA_AVX2, 6, 400, 512, 2, 6, 128, 4, {1, 0}},
        {matmul_plan_packed, TSR_ISA_AVX2, 96, 100, 512, 2, 96, 16, 7, {0, 1}},
        {matmul_plan_packed, TSR_ISA_AVX2, 96, 400, 512, 2, 96, 112, 4, {0, 100}},
    };
    check_blocks(cases, COUNT(cases), NULL);
}

// Groups' sizes are known later: either one thread works or all do, and many threads cut tasks like few.
static void blocks_of_groups(void **state) {
    (void)state;
    static const int32_t offsets[] = {0, 1};
    static const struct blocks cases[] = {
        {matmul_plan_local, TSR_ISA_AVX512, 256, 128, 512, 16, 36, 64, 16},
        {matmul_plan_local, TSR_ISA_AVX512, 512, 64, 8, 16, 36, 64, 15},
        {matmul_plan_local, TSR_ISA_AVX512, 100, 64, 16, 3, 102, 64, 1},
        {matmul_plan_local, TSR_ISA_AVX2, 100, 384, 384, 16, 102, 16, 24},
        {matmul_plan_local, TSR_ISA_AVX2, 100, 392, 384, 4, 102, 48, 9},
    };
    check_blocks(cases, COUNT(cases), offsets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_few_threads),
        cmocka_unit_test(blocks_that_come_out_even),
        cmocka_unit_test(blocks_that_are_given),
        cmocka_unit_test(blocks_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
