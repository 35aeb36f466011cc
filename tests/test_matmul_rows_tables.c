// SPDX-License-Identifier: Apache-2.0
// Where the CPU's choice among the variants for few rows changes, either side of each boundary.
#include "context/op_table.h"
#include "matmul_boundaries.h"

// Few rows of floats on Intel, one thread: where B is past the second-level cache, three rows anywhere.
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
        // One tile of all rows, where rows of B are 4 KiB apart.
        {3, 1024, 513, K, "streamed", "direct"},
        {4, 1024, 4097, K, "direct", "streamed"},
        {6, 1025, 600, N, "direct", "streamed"},
        {9, 2048, 600, M, "direct", "streamed"},
        // Rows of B that are 4 KiB apart, or not.
        {2, 1100, 128, K, "direct", "direct", 2048},
        {2, 1100, 4096, K, "direct", "streamed", 3072},
        {2, 1100, 128, K, "direct", "streamed", 2047},
    };
    CHECK(large, TSR_F32, ROWS, cases);
}

// The same on two and three threads, whose runs are shorter; four have other rules.
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

// More rows: of one thread from 256 columns on, of two and three from 1000 where they are ten; past the caches up to 48 rows of
// several threads.
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
        {6, 2796203, 3, K, "direct", "streamed"}, // 8 Mi floats and one
    };
    CHECK(large, TSR_F32, ROWS, alone);
    CHECK(amd, TSR_F32, ROWS, of_amd);
    CHECK(two, TSR_F32, ROWS, shared);
    assert_string_equal(choice(amd_2, TSR_F32, false, 10, 999, 4096), "streamed");
}

// Dot products along columns with registers of 16 floats of AMD's, beside a few rows: of 16 bits sooner where columns are few.
static void dots_on_amd(void **state) {
    (void)state;
    static const struct boundary of_16_bits[] = {
        {9, 4, 7, M, "skinny", "local"},      {9, 4, 8, K, "local", "skinny"},
        {9, 5, 8, N, "skinny", "local"},      {7, 8, 63, M, "skinny", "local"},
        {7, 16, 64, K, "local", "skinny"},    {14, 8, 64, K, "local", "skinny"},
        {14, 9, 64, N, "skinny", "local"},    {14, 9, 128, K, "local", "skinny"},
        {14, 16, 127, M, "skinny", "local"},  {7, 17, 64, N, "skinny", "local"},
        {2, 128, 8, K, "local", "skinny"},    {2, 129, 63, N, "skinny", "local"},
        {2, 129, 64, K, "local", "skinny"},   {3, 128, 16, K, "local", "skinny"},
        {3, 128, 15, M, "skinny", "local"},   {3, 129, 63, N, "skinny", "local"},
        {3, 129, 64, K, "local", "skinny"},   {1, 257, 15, N, "naive", "naive"},
        {4, 128, 63, M, "skinny", "local"},   {4, 128, 64, K, "local", "skinny"},
        {6, 128, 64, K, "local", "skinny"},   {7, 32, 80, K, "local", "skinny"},
        {7, 128, 64, M, "skinny", "local"},   {7, 33, 255, N, "skinny", "local"},
        {9, 33, 256, K, "local", "skinny"},   {10, 32, 256, M, "skinny", "local"},
        {10, 100, 768, K, "local", "skinny"}, {16, 100, 768, K, "local", "skinny"},
    };
    static const struct boundary of_floats[] = {
        {1, 257, 15, N, "naive", "local"},    {1, 257, 16, K, "local", "naive"},
        {14, 8, 128, K, "local", "skinny"},   {14, 8, 127, M, "skinny", "local"},
        {2, 100, 64, K, "local", "skinny"},   {9, 32, 256, K, "local", "skinny"},
        {10, 64, 767, M, "skinny", "local"},  {10, 64, 768, K, "local", "skinny"},
        {10, 65, 256, K, "local", "skinny"},  {10, 65, 256, N, "local", "skinny"},
        {12, 129, 256, N, "skinny", "local"}, {13, 128, 256, M, "skinny", "local"},
        {13, 128, 768, K, "local", "skinny"},
    };
    CHECK(amd, TSR_F16, COLUMNS, of_16_bits);
    CHECK(amd, TSR_F32, COLUMNS, of_floats);
}

// The same on Intel: the steps from which on, by rows and columns.
enum { BANDS = 10 };
struct dots {
    int64_t first_m, last_m, least_k[BANDS];
};

static void check_dots(tsr_dtype dtype, const struct dots *tables, int num_tables) {
    static const int64_t first_n[BANDS + 1] = {2, 5, 9, 17, 21, 25, 33, 41, 65, 129, 2000};
    for (int i = 0; i < num_tables; i++) {
        for (int band = 0; band < BANDS; band++) {
            for (int end = 0; end < 4; end++) {
                int64_t m = end & 1 ? tables[i].last_m : tables[i].first_m;
                int64_t n = end & 2 ? first_n[band + 1] - 1 : first_n[band];
                int64_t k = tables[i].least_k[band];
                if (strcmp(choice(avx512, dtype, true, m, n, tsri_max(k, 2)), "skinny") != 0)
                    fail_msg("%d x %d x %d is not skinny's", (int)m, (int)n, (int)k);
                if (k > 2 && strcmp(choice(avx512, dtype, true, m, n, k - 1), "local") != 0)
                    fail_msg("%d x %d x %d is not local's", (int)m, (int)n, (int)k - 1);
            }
        }
    }
}

static void dots_on_intel(void **state) {
    (void)state;
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
    check_dots(TSR_F32, of_floats, COUNT(of_floats));
    check_dots(TSR_BF16, of_16_bits, COUNT(of_16_bits));
    check_dots(TSR_F16, of_16_bits, COUNT(of_16_bits));
}

// Rows of 16 bits, which packing widens too: up to so many steps the more, the fewer rows and columns there are.
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

// A lone row of little work has skinny's loop without its tasks.
static void lone_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1024, 33, K, "naive", "skinny"},
        {1, 32769, 1, N, "naive", "skinny"},
        {2, 1024, 32, M, "naive", "skinny"},
        {1, 1024, 1, K, "skinny", "naive"},
    };
    // Floats: up to a vector of columns panels are better from some depth on; rows of B that start anywhere in a line are not.
    static const struct boundary of_floats[] = {
        {1, 15, 129, K, "naive", "direct"},   {1, 3, 129, K, "naive", "direct"},
        {2, 15, 129, K, "skinny", "direct"},  {1, 65, 253, K, "direct", "naive"},
        {1, 260, 64, K, "direct", "naive"},   {1, 257, 64, N, "direct", "naive"},
        {1, 1001, 64, K, "direct", "skinny"}, {1, 1001, 262, K, "skinny", "direct"},
        {1, 1000, 64, N, "skinny", "direct"}, {2, 1001, 130, M, "skinny", "streamed"},
    };
    static const struct boundary of_amd[] = {
        {1, 16, 4000, K, "skinny", "skinny"},
        {2, 16, 321, K, "skinny", "direct"},
        {1, 301, 131, K, "direct", "direct"},
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
        cmocka_unit_test(dots_on_amd),
        cmocka_unit_test(dots_on_intel),
        cmocka_unit_test(widened_rows),
        cmocka_unit_test(lone_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
