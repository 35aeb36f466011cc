// SPDX-License-Identifier: Apache-2.0
// The boundaries of the CPU's choice among the variants for few rows.
#include "context/op_table.h"
#include "matmul_boundaries.h"

// Few rows of floats on Intel with one thread: streamed if B exceeds the L2 cache, and for three rows always.
static void streamed_alone(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1000, 4096, N, "direct", "streamed"},
        {1, 1000, 4096, K, "direct", "streamed"},
        {2, 1000, 128, N, "direct", "streamed"},
        {2, 1000, 128, K, "direct", "streamed"},
        {2, 1024, 4096, K, "direct", "streamed"},
        {2, 1025, 128, N, "direct", "streamed"},
        {2, 1000, 128, M, "direct", "streamed"},
        {3, 257, 64, N, "direct", "streamed"},
        {3, 257, 64, K, "direct", "streamed"},
        {3, 1024, 64, K, "direct", "streamed"},
        {4, 257, 2048, K, "direct", "streamed"},
        {4, 257, 2048, N, "direct", "streamed"},
        {4, 300, 64, M, "streamed", "direct"},
        {5, 512, 1025, K, "direct", "streamed"},
        {5, 257, 4096, N, "direct", "streamed"},
        {6, 1000, 600, N, "direct", "streamed"},
        {7, 300, 2000, M, "direct", "streamed"},
        // One tile covers all rows if rows of B are 4 KiB apart.
        {3, 1024, 513, K, "streamed", "direct"},
        {4, 1024, 4097, K, "direct", "streamed"},
        {6, 1025, 600, N, "direct", "streamed"},
        {9, 2048, 600, M, "direct", "streamed"},
        // Rows of B that are or are not 4 KiB apart.
        {2, 1100, 128, K, "direct", "direct", 2048},
        {2, 1100, 4096, K, "direct", "streamed", 3072},
        {2, 1100, 128, K, "direct", "streamed", 2047},
    };
    CHECK(large, TSR_F32, ROWS, cases);
}

// The same on two and three threads, whose runs are shorter. Four threads have other rules.
static void streamed_by_few_threads(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1000, 4096, N, "direct", "direct"},
        {2, 1500, 128, N, "direct", "streamed"},
        {2, 1500, 128, K, "direct", "streamed"},
        {2, 2048, 4096, K, "direct", "streamed"},
        {3, 1000, 64, N, "direct", "streamed"},
        {3, 1000, 64, K, "direct", "streamed"},
        {3, 1024, 64, N, "streamed", "direct"},
        {3, 1500, 64, N, "direct", "streamed", 2048},
        {3, 2048, 64, K, "direct", "streamed"},
        {4, 1000, 600, N, "direct", "streamed"},
        {4, 1000, 525, K, "direct", "streamed"},
        {4, 1024, 600, N, "streamed", "direct"},
        {4, 4096, 200, N, "direct", "streamed", 4096},
        {4, 4096, 129, K, "direct", "streamed"},
        {5, 1000, 600, N, "direct", "streamed"},
        {5, 1000, 525, K, "direct", "streamed"},
        {5, 1024, 600, N, "streamed", "direct"},
        {5, 4096, 200, N, "direct", "streamed", 4096},
        {5, 4096, 129, K, "direct", "streamed"},
        {6, 4096, 200, N, "direct", "streamed"},
        {6, 4096, 129, K, "direct", "streamed"},
    };
    CHECK(large_2, TSR_F32, ROWS, cases);
    CHECK(large_3, TSR_F32, ROWS, cases);
    assert_string_equal(choice(four, TSR_F32, false, 3, 1000, 64), "direct");
    assert_string_equal(choice(amd_2, TSR_F32, false, 3, 1000, 64), "direct");
}

// More rows: with one thread from 256 columns on; with two and three threads ten rows need 1000 columns. Past the
// caches several threads stream up to 48 rows.
static void streamed_beside_more_rows(void **state) {
    (void)state;
    static const struct boundary alone[] = {
        {7, 256, 4096, N, "direct", "streamed"},  {10, 999, 4096, M, "streamed", "streamed"},
        {17, 512, 1025, K, "direct", "streamed"}, {33, 4096, 4096, M, "streamed", "blocked"},
        {1, 513, 20000, N, "skinny", "streamed"}, {2, 513, 20000, N, "skinny", "streamed"},
        {3, 512, 20000, M, "skinny", "streamed"},
    };
    static const struct boundary shared[] = {
        {7, 256, 4096, N, "direct", "streamed"},    {10, 999, 4096, M, "streamed", "direct"},
        {10, 1000, 4096, N, "direct", "streamed"},  {7, 2048, 600, M, "direct", "streamed"},
        {6, 2048, 4097, K, "direct", "streamed"},   {33, 4096, 1024, M, "streamed", "blocked"},
        {33, 4096, 2049, K, "blocked", "streamed"}, {49, 4096, 4096, M, "streamed", "blocked"},
    };
    static const struct boundary of_amd[] = {
        {6, 2048, 4097, K, "direct", "streamed"},
        {6, 2796203, 3, K, "direct", "streamed"}, // just above 8 Mi floats
    };
    CHECK(large, TSR_F32, ROWS, alone);
    CHECK(amd, TSR_F32, ROWS, of_amd);
    CHECK(two, TSR_F32, ROWS, shared);
    assert_string_equal(choice(amd_2, TSR_F32, false, 10, 999, 4096), "streamed");
}

// More rows: tiles with b in place are faster than streamed or panels while b fits the caches.
static void placed_on_amd(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {7, 1000, 3146, K, "direct", "streamed"},  {10, 1000, 3146, K, "direct", "streamed"},
        {11, 1000, 3146, M, "streamed", "direct"}, {32, 1000, 4719, K, "direct", "streamed"},
        {33, 1000, 4719, M, "streamed", "direct"}, {97, 3000, 2048, M, "direct", "blocked"},
        {97, 1000, 3146, K, "direct", "blocked"},  {129, 1000, 2098, K, "direct", "blocked"},
        {257, 1000, 1000, M, "direct", "blocked"}, {32, 1024, 2049, K, "direct", "streamed"},
        {33, 1024, 1025, M, "direct", "local"},    {65, 1024, 1024, M, "direct", "local"},
    };
    CHECK(amd, TSR_F32, ROWS, cases);
    CHECK(amd_2, TSR_F32, ROWS, cases);
}

// Dot products along columns with AVX-512: the least k, by rows and columns.
enum { BANDS = 10 };
struct dots {
    int64_t first_m, last_m, least_k[BANDS];
};

static void check_dots(struct machine machine, const int64_t first_n[BANDS + 1], tsr_dtype dtype,
                       const struct dots *tables, int num_tables) {
    for (int i = 0; i < num_tables; i++) {
        for (int band = 0; band < BANDS && first_n[band + 1] > 0; band++) {
            for (int end = 0; end < 4; end++) {
                int64_t m = end & 1 ? tables[i].last_m : tables[i].first_m;
                int64_t n = end & 2 ? first_n[band + 1] - 1 : first_n[band];
                int64_t k = tables[i].least_k[band];
                if (strcmp(choice(machine, dtype, true, m, n, tsri_max(k, 2)), "skinny") != 0)
                    fail_msg("%d x %d x %d is not skinny's", (int)m, (int)n, (int)k);
                if (k > 2 && strcmp(choice(machine, dtype, true, m, n, k - 1), "local") != 0)
                    fail_msg("%d x %d x %d is not local's", (int)m, (int)n, (int)k - 1);
            }
        }
    }
}

static void dots_on_amd(void **state) {
    (void)state;
    static const int64_t first_n[BANDS + 1] = {2, 5, 9, 17, 25, 33, 65, 129, 2000};
    static const struct dots of_floats[] = {
        {2, 2, {1, 1, 1, 1, 1, 1, 16, 16}},
        {3, 3, {1, 1, 1, 1, 1, 16, 24, 24}},
        {4, 4, {1, 1, 1, 16, 48, 32, 32, 48}},
        {5, 5, {1, 1, 1, 16, 32, 48, 48, 48}},
        {6, 6, {1, 1, 16, 24, 48, 48, 48, 64}},
        {7, 7, {1, 32, 80, 80, 192, 192, 192, 192}},
        {8, 9, {8, 48, 128, 80, 192, 192, 192, 256}},
        {10, 10, {16, 48, 192, 96, 256, 192, 256, 256}},
        {11, 11, {24, 48, 192, 96, 256, 192, 256, 256}},
        {12, 12, {16, 64, 192, 128, 256, 256, 256, 384}},
        {13, 15, {24, 64, 192, 128, 384, 256, 384, 384}},
        {16, 16, {32, 80, 256, 128, 384, 384, 384, 384}},
    };
    static const struct dots of_16_bits[] = {
        {2, 2, {1, 1, 1, 1, 1, 1, 1, 16}},
        {3, 3, {1, 1, 1, 1, 1, 1, 16, 32}},
        {4, 4, {1, 1, 1, 1, 1, 16, 32, 48}},
        {5, 5, {1, 1, 1, 1, 1, 32, 32, 48}},
        {6, 6, {1, 1, 1, 1, 24, 32, 48, 48}},
        {7, 7, {1, 1, 32, 48, 96, 96, 128, 128}},
        {8, 8, {1, 1, 48, 48, 128, 128, 192, 192}},
        {9, 9, {1, 1, 64, 64, 128, 128, 192, 192}},
        {10, 10, {1, 1, 64, 64, 192, 192, 192, 256}},
        {11, 15, {1, 24, 80, 80, 192, 192, 256, 256}},
        {16, 16, {1, 48, 128, 96, 256, 256, 384, 384}},
    };
    // One column: panels with b in place, or private panels if it is stored as a row.
    static const struct boundary lone[] = {
        {7, 1, 32, K, "direct", "skinny"},
        {8, 1, 48, K, "direct", "skinny"},
    };
    static const struct boundary lone_row[] = {{8, 1, 8, K, "local", "skinny"}};
    check_dots(amd, first_n, TSR_F32, of_floats, COUNT(of_floats));
    check_dots(amd, first_n, TSR_F16, of_16_bits, COUNT(of_16_bits));
    CHECK(amd, TSR_F32, ROWS, lone);
    CHECK(amd, TSR_F32, COLUMNS, lone_row);
    assert_string_equal(choice(amd, TSR_F32, true, 1, 257, 15), "local");
    assert_string_equal(choice(amd, TSR_F32, true, 1, 257, 16), "naive");
}

static void dots_on_intel(void **state) {
    (void)state;
    static const int64_t first_n[BANDS + 1] = {2, 5, 9, 17, 21, 25, 33, 41, 65, 129, 2000};
    static const struct dots of_floats[] = {
        {2, 2, {1, 1, 1, 1, 1, 1, 24, 24, 24, 24}},
        {3, 3, {1, 1, 1, 1, 32, 32, 32, 32, 32, 32}},
        {4, 4, {1, 1, 1, 16, 32, 32, 32, 48, 48, 48}},
        {5, 5, {1, 1, 1, 32, 32, 64, 64, 64, 64, 64}},
        {6, 6, {1, 1, 24, 32, 32, 64, 64, 64, 64, 64}},
        {7, 7, {1, 24, 64, 64, 128, 128, 128, 192, 192, 192}},
        {8, 8, {1, 32, 64, 64, 128, 128, 128, 240, 240, 240}},
        {9, 9, {8, 48, 64, 64, 128, 128, 128, 240, 240, 240}},
        {10, 10, {8, 48, 64, 128, 128, 192, 192, 192, 192, 192}},
        {11, 12, {16, 48, 64, 128, 128, 192, 192, 192, 192, 192}},
        {13, 13, {16, 48, 64, 128, 320, 320, 320, 320, 320, 320}},
        {14, 16, {24, 64, 128, 128, 320, 320, 320, 320, 320, 320}},
    };
    static const struct dots of_16_bits[] = {
        {2, 2, {1, 1, 1, 1, 1, 1, 1, 8, 8, 24}},
        {3, 3, {1, 1, 1, 1, 1, 1, 1, 16, 32, 32}},
        {4, 4, {1, 1, 1, 1, 1, 16, 16, 48, 48, 48}},
        {5, 5, {1, 1, 1, 1, 32, 32, 32, 56, 56, 56}},
        {6, 6, {1, 1, 1, 1, 32, 32, 32, 64, 64, 64}},
        {7, 8, {1, 1, 48, 64, 80, 80, 128, 128, 128, 128}},
        {9, 9, {1, 24, 64, 64, 80, 80, 128, 128, 128, 128}},
        {10, 12, {1, 24, 64, 128, 192, 192, 192, 384, 384, 384}},
        {13, 16, {1, 32, 128, 128, 192, 192, 192, 384, 384, 384}},
    };
    check_dots(avx512, first_n, TSR_F32, of_floats, COUNT(of_floats));
    check_dots(avx512, first_n, TSR_BF16, of_16_bits, COUNT(of_16_bits));
    check_dots(avx512, first_n, TSR_F16, of_16_bits, COUNT(of_16_bits));
}

// Rows of 16 bits, which packing also widens: fewer rows and columns allow more steps.
static void widened_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {9, 85, 49, M, "skinny", "local"},  {9, 85, 49, K, "skinny", "local"},
        {9, 86, 48, N, "skinny", "local"},  {9, 100, 17, K, "skinny", "local"},
        {10, 76, 25, K, "skinny", "local"}, {10, 77, 24, N, "skinny", "local"},
        {12, 64, 25, K, "skinny", "local"}, {12, 100, 9, K, "skinny", "local"},
        {13, 59, 24, M, "skinny", "local"}, {15, 100, 9, K, "skinny", "local"},
        {16, 48, 9, K, "skinny", "local"},  {16, 49, 8, N, "skinny", "local"},
        {16, 100, 2, K, "skinny", "local"}, {16, 17, 9, N, "skinny", "local"},
    };
    CHECK(avx512, TSR_F16, ROWS, cases);
}

// One row with little work uses skinny's loop without tasks.
static void lone_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1024, 33, K, "naive", "skinny"},
        {1, 32769, 1, N, "naive", "skinny"},
        {2, 1024, 32, M, "naive", "skinny"},
        {1, 1024, 1, K, "skinny", "naive"},
    };
    // Floats: up to one vector of columns panels are faster from some depth on, but not if rows of B are unaligned.
    static const struct boundary of_floats[] = {
        {1, 15, 129, K, "naive", "direct"},   {1, 3, 129, K, "naive", "direct"},
        {2, 15, 129, K, "skinny", "direct"},  {1, 65, 253, K, "direct", "naive"},
        {1, 260, 64, K, "direct", "naive"},   {1, 257, 64, N, "direct", "naive"},
        {1, 1001, 64, K, "direct", "skinny"}, {1, 1001, 262, K, "skinny", "direct"},
        {1, 1000, 64, N, "skinny", "direct"}, {2, 1001, 130, M, "skinny", "streamed"},
    };
    // On AMD b in place is faster from a k that falls with the columns, except for one row and one vector of columns.
    static const struct boundary of_amd[] = {
        {1, 15, 48, K, "naive", "direct"},      {1, 16, 4000, K, "skinny", "skinny"},
        {1, 32, 48, K, "naive", "direct"},      {1, 33, 32, K, "naive", "direct"},
        {1, 65, 16, K, "naive", "direct"},      {1, 129, 8, K, "naive", "direct"},
        {1, 257, 2, K, "naive", "direct"},      {2, 17, 24, K, "skinny", "direct"},
        {2, 33, 16, K, "skinny", "direct"},     {2, 129, 2, N, "skinny", "direct"},
        {3, 16, 48, K, "skinny", "direct"},     {3, 33, 8, K, "skinny", "direct"},
        {4, 15, 24, K, "skinny", "direct"},     {5, 16, 16, K, "skinny", "direct"},
        {6, 16, 4, K, "skinny", "direct"},      {7, 16, 2, M, "skinny", "direct"},
        {2, 256, 16384, K, "direct", "skinny"}, {1, 512, 8192, K, "direct", "skinny"},
        {3, 512, 8192, M, "skinny", "direct"},
    };
    struct matmul_problem p = product_of(TSR_BF16, 1, 100, 8);
    CHECK(avx512, TSR_BF16, ROWS, cases);
    CHECK(avx512, TSR_F32, ROWS, of_floats);
    CHECK(amd, TSR_F32, ROWS, of_amd);
    p.num_batches = 2;
    assert_string_equal(choice_of(&p, avx512), "skinny");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_alone),
        cmocka_unit_test(streamed_by_few_threads),
        cmocka_unit_test(streamed_beside_more_rows),
        cmocka_unit_test(placed_on_amd),
        cmocka_unit_test(dots_on_amd),
        cmocka_unit_test(dots_on_intel),
        cmocka_unit_test(widened_rows),
        cmocka_unit_test(lone_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
