// SPDX-License-Identifier: Apache-2.0
// How many threads a product on the CPU uses, by its cost model: the boundaries of each number.
#include "context/op_table.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

// The cost models: tiles with B in place, with packed B, skinny's loops, those of skinny_bf16, and tiles of bf16.
enum account { IN_PLACE, PACKED, SKINNY, UNITS, MIXED };
enum layout { ROWS, COLUMNS }; // of b, which is contiguous

static int threads_of(enum account account, const struct matmul_problem *p, int num_threads) {
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = num_threads};
    switch (account) {
    case SKINNY: return matmul_skinny_threads(p, &limits, false);
    case UNITS: return matmul_skinny_threads(p, &limits, true);
    case MIXED: return matmul_mixed_threads(p, &limits);
    default: return matmul_threads(p, &limits, account == PACKED);
    }
}

// The threads for k steps and for k - 1. In bf16 c has an epilogue.
struct boundary {
    tsr_dtype dtype;
    enum layout layout;
    int64_t m, n, k;
    int num_threads, below, from;
};

static void check(enum account account, const struct boundary *cases, int num_cases) {
    for (int i = 0; i < num_cases; i++) {
        const struct boundary *b = &cases[i];
        for (int64_t k = b->k - 1; k <= b->k; k++) {
            struct matmul_problem p = product_of(b->dtype, b->m, b->n, k);
            int threads, expected = k == b->k ? b->from : b->below;
            if (b->layout == COLUMNS) p.b.row = 1, p.b.col = k;
            threads = threads_of(account, &p, b->num_threads);
            if (threads != expected)
                fail_msg("%d x %d x %d: %d threads of %d instead of %d", (int)b->m, (int)b->n,
                         (int)k, threads, b->num_threads, expected);
        }
    }
}

// Reading or packing an element of b costs as much as multiplying it with some rows, and most if columns are transposed
// for many threads. Columns are rounded up to vectors, and few columns cost more.
static void tiles_of_floats(void **state) {
    (void)state;
    static const struct boundary in_place[] = {
        {TSR_F32, ROWS, 7, 64, 577, 16, 1, 5},    {TSR_F32, ROWS, 7, 64, 1136, 16, 6, 7},
        {TSR_F32, ROWS, 7, 16, 771, 16, 1, 5},    {TSR_F32, ROWS, 7, 48, 771, 16, 1, 5},
        {TSR_F32, ROWS, 7, 49, 577, 16, 1, 5},    {TSR_F32, ROWS, 100, 48, 111, 16, 5, 6},
        {TSR_F32, COLUMNS, 7, 64, 577, 16, 1, 5},
    };
    static const struct boundary packed[] = {
        {TSR_F32, ROWS, 17, 64, 251, 16, 1, 5},
        {TSR_F32, ROWS, 17, 64, 1019, 16, 9, 10},
        {TSR_F32, COLUMNS, 17, 64, 83, 2, 1, 2},
        {TSR_F32, COLUMNS, 17, 64, 83, 3, 1, 3},
        {TSR_F32, COLUMNS, 17, 64, 78, 4, 1, 4},
        {TSR_F32, COLUMNS, 17, 64, 78, 16, 1, 5},
        {TSR_F32, COLUMNS, 17, 64, 113, 16, 5, 6},
        {TSR_BF16, ROWS, 100, 64, 87, 16, 6, 7},
        {TSR_BF16, ROWS, 100, 64, 163, 16, 8, 9},
        // With few steps, columns are transposed before another thread could start.
        {TSR_F32, COLUMNS, 17, 256, 40, 16, 1, 5},
        {TSR_F32, COLUMNS, 1, 256, 65, 16, 1, 8},
        {TSR_BF16, COLUMNS, 1, 256, 65, 4, 1, 4},
    };
    check(IN_PLACE, in_place, COUNT(in_place));
    check(PACKED, packed, COUNT(packed));
}

// Dot products of floats, of a single row, and of 16 bits; rows of 16 bits, which are widened or wait for the step
// before.
static void few_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {TSR_F32, COLUMNS, 4, 64, 96, 2, 1, 2},
        {TSR_F32, COLUMNS, 4, 64, 256, 16, 1, 5},
        {TSR_F32, COLUMNS, 4, 64, 564, 16, 6, 7},
        {TSR_F32, COLUMNS, 4, 61, 256, 16, 1, 5},
        {TSR_F32, COLUMNS, 1, 64, 1500, 2, 1, 2},
        {TSR_F32, COLUMNS, 1, 64, 3100, 16, 1, 5},
        {TSR_BF16, COLUMNS, 4, 64, 320, 16, 1, 5},
        {TSR_BF16, COLUMNS, 1, 64, 1520, 16, 1, 5},
        {TSR_BF16, ROWS, 4, 64, 571, 16, 1, 5},
        {TSR_BF16, ROWS, 4, 64, 1129, 16, 6, 7},
        {TSR_BF16, ROWS, 7, 16, 976, 16, 1, 5},
        {TSR_BF16, ROWS, 1, 16, 1967, 16, 1, 5},
        {TSR_BF16, ROWS, 1, 17, 3192, 16, 1, 5},
        {TSR_F32, ROWS, 7, 64, 577, 16, 1, 5}, // like tiles in place
    };
    static const struct boundary units[] = {
        {TSR_BF16, COLUMNS, 1, 2048, 18, 16, 1, 5},
        {TSR_BF16, COLUMNS, 4, 64, 368, 16, 1, 5},
        {TSR_BF16, ROWS, 4, 64, 571, 16, 1, 5},
    };
    check(SKINNY, cases, COUNT(cases));
    check(UNITS, units, COUNT(units));
}

static void tiles_of_bf16(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {TSR_BF16, ROWS, 64, 64, 182, 16, 1, 5},
        {TSR_BF16, ROWS, 64, 49, 182, 16, 1, 5},
        {TSR_BF16, ROWS, 64, 64, 299, 16, 5, 6},
        {TSR_BF16, ROWS, 64, 64, 48, 3, 1, 3},
    };
    check(MIXED, cases, COUNT(cases));
}

// Batches count as work. No work uses one thread.
static void batches(void **state) {
    (void)state;
    struct matmul_problem p = product_of(TSR_F32, 7, 64, 577);
    assert_int_equal(threads_of(IN_PLACE, &p, 1), 1);
    p.num_batches = 2;
    assert_int_equal(threads_of(IN_PLACE, &p, 16), 7);
    p.n = 0;
    assert_int_equal(threads_of(IN_PLACE, &p, 16), 1);
    p = product_of(TSR_BF16, 64, 64, 182);
    p.num_batches = 2;
    assert_int_equal(threads_of(MIXED, &p, 16), 7);
    assert_int_equal(threads_of(SKINNY, &p, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_of_floats),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(tiles_of_bf16),
        cmocka_unit_test(batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
