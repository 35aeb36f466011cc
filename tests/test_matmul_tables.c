// SPDX-License-Identifier: Apache-2.0
// Where the CPU's choice of a variant changes, product by product: the tables of src/ops/matmul, either side of each boundary.
#include "context/op_table.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

#include <string.h>

enum side { M, N, K };
enum layout { ROWS, COLUMNS }; // of b, contiguous

// What serves a product, and what serves it where one of its sides is one less.
struct boundary {
    int64_t m, n, k;
    enum side side;
    const char *below, *from;
    int64_t row; // from row to row of b, or 0: contiguous
};

static const char *choice_in(struct machine machine, tsr_dtype dtype, enum layout layout,
                             const struct boundary *b, bool is_below) {
    int64_t m = b->m - (is_below && b->side == M), n = b->n - (is_below && b->side == N);
    struct matmul_problem p = product_of(dtype, m, n, b->k - (is_below && b->side == K));
    if (b->row != 0) p.b.row = b->row;
    if (layout == COLUMNS) p.b = (struct matmul_matrix){NULL, dtype, 1, p.k, {0}};
    return choice_of(&p, machine);
}

static void check(struct machine machine, tsr_dtype dtype, enum layout layout,
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

// Few rows in bf16 against columns in place, which tiles take as rows of the product that is turned.
static void turned_tiles(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {2, 4096, 1024, M, "skinny", "skinny"},   {3, 4096, 1024, M, "skinny", "amx_bf16"},
        {3, 256, 256, N, "skinny", "amx_bf16"},   {3, 256, 256, K, "skinny", "amx_bf16"},
        {3, 256, 2049, K, "amx_bf16", "skinny"},  {3, 4096, 2049, K, "amx_bf16", "skinny"},
        {4, 64, 256, N, "skinny", "amx_bf16"},    {4, 512, 2049, K, "amx_bf16", "amx_bf16"},
        {4, 513, 2049, K, "amx_bf16", "skinny"},  {4, 513, 2049, N, "amx_bf16", "skinny"},
        {5, 48, 256, N, "skinny", "amx_bf16"},    {5, 513, 2049, K, "amx_bf16", "amx_bf16"},
        {6, 48, 256, N, "skinny", "amx_bf16"},    {6, 48, 1023, N, "skinny", "amx_bf16"},
        {6, 32, 1024, N, "skinny", "amx_bf16"},   {6, 32, 1024, K, "skinny", "amx_bf16"},
        {7, 16, 256, N, "skinny", "amx_bf16"},    {7, 16, 256, K, "skinny", "amx_bf16"},
        {7, 16, 256, M, "skinny", "amx_bf16"},    {16, 16, 256, N, "skinny", "amx_bf16"},
        {16, 16, 256, K, "amx_bf16", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, COLUMNS, cases);
}

// The same against columns that are packed: dot products serve what is long.
static void tiles_of_columns(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {5, 256, 64, M, "skinny", "amx_bf16"},  {5, 256, 64, N, "skinny", "amx_bf16"},
        {5, 300, 128, K, "amx_bf16", "skinny"}, {6, 64, 64, M, "skinny", "amx_bf16"},
        {6, 64, 64, N, "skinny", "amx_bf16"},   {6, 64, 128, K, "amx_bf16", "skinny"},
        {7, 64, 200, M, "skinny", "amx_bf16"},  {7, 48, 64, N, "local", "amx_bf16"},
        {7, 33, 96, K, "local", "amx_bf16"},    {7, 33, 96, N, "skinny", "amx_bf16"},
        {10, 33, 64, M, "local", "amx_bf16"},   {10, 33, 64, N, "local", "amx_bf16"},
        {10, 17, 96, M, "skinny", "amx_bf16"},  {10, 17, 96, N, "skinny", "amx_bf16"},
        {10, 32, 96, K, "local", "amx_bf16"},   {12, 16, 64, M, "skinny", "amx_bf16"},
        {12, 16, 64, N, "skinny", "amx_bf16"},  {12, 16, 256, K, "amx_bf16", "amx_bf16"},
        {13, 15, 384, M, "skinny", "amx_bf16"}, {13, 15, 384, K, "skinny", "amx_bf16"},
        {13, 5, 384, N, "skinny", "amx_bf16"},  {8, 64, 64, K, "local", "amx_bf16"},
        {13, 512, 16, M, "local", "amx_bf16"},  {13, 512, 16, N, "local", "amx_bf16"},
        {13, 512, 16, K, "local", "amx_bf16"},  {17, 5, 128, N, "skinny", "amx_bf16"},
        {17, 4, 128, K, "amx_bf16", "skinny"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, COLUMNS, cases);
}

// Against rows of b: the deeper, the fewer rows; up to 16 columns, up to 47, and more. One column
// with a stride is no product for tiles.
static void tiles_of_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {13, 16, 95, M, "skinny", "amx_bf16"},  {12, 16, 96, M, "skinny", "amx_bf16"},
        {12, 16, 191, M, "skinny", "amx_bf16"}, {8, 16, 192, M, "skinny", "amx_bf16"},
        {8, 16, 383, M, "skinny", "amx_bf16"},  {7, 16, 384, M, "skinny", "amx_bf16"},
        {7, 16, 1023, M, "skinny", "amx_bf16"}, {6, 16, 1024, M, "skinny", "amx_bf16"},
        {10, 17, 95, M, "skinny", "amx_bf16"},  {8, 17, 96, M, "skinny", "amx_bf16"},
        {8, 47, 191, M, "skinny", "amx_bf16"},  {7, 47, 192, M, "skinny", "amx_bf16"},
        {7, 47, 255, M, "skinny", "amx_bf16"},  {6, 47, 256, M, "skinny", "amx_bf16"},
        {6, 47, 383, M, "skinny", "amx_bf16"},  {5, 47, 384, M, "skinny", "amx_bf16"},
        {5, 17, 384, N, "skinny", "amx_bf16"},  {13, 2, 64, N, "skinny", "amx_bf16", 64},
        {4, 96, 384, M, "skinny", "amx_bf16"},  {4, 96, 384, N, "skinny", "amx_bf16"},
        {4, 96, 384, K, "skinny", "amx_bf16"},  {4, 257, 384, N, "amx_bf16", "skinny"},
        {5, 255, 384, K, "skinny", "amx_bf16"}, {5, 256, 192, K, "skinny", "amx_bf16"},
        {5, 256, 192, N, "skinny", "amx_bf16"}, {6, 48, 192, K, "skinny", "amx_bf16"},
        {6, 96, 64, N, "skinny", "amx_bf16"},   {7, 48, 64, N, "skinny", "amx_bf16"},
        {7, 48, 64, M, "skinny", "amx_bf16"},   {7, 48, 64, K, "skinny", "amx_bf16"},
        {11, 512, 16, M, "local", "amx_bf16"},  {11, 512, 16, N, "local", "amx_bf16"},
        {11, 512, 16, K, "local", "amx_bf16"},  {17, 255, 64, K, "local", "amx_bf16"},
        {17, 256, 16, N, "local", "amx_bf16"},  {17, 256, 16, K, "local", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, ROWS, cases);
}

// vdpbf16ps wants some depth, rows and work.
static void dot_products(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {7, 512, 96, M, "skinny", "avx512_bf16"},  {7, 512, 96, N, "skinny", "avx512_bf16"},
        {7, 512, 96, K, "skinny", "avx512_bf16"},  {7, 4096, 96, K, "skinny", "avx512_bf16"},
        {7, 23, 2138, K, "skinny", "avx512_bf16"},
    };
    CHECK(amd, TSR_BF16, ROWS, cases);
}

// Under batch invariance depth alone counts, whatever the rows and columns are.
static void invariant_units(void **state) {
    (void)state;
    static const struct boundary by_dots[] = {
        {1, 1, 96, K, "local", "avx512_bf16"},
        {200, 64, 96, K, "local", "avx512_bf16"},
    };
    static const struct boundary by_tiles[] = {
        {1, 1, 64, K, "local", "amx_bf16"},
        {17, 4, 128, K, "amx_bf16", "amx_bf16"},
        {200, 64, 64, K, "local", "amx_bf16"},
    };
    struct machine machine = amd;
    machine.flags = TSR_BATCH_INVARIANT;
    CHECK(machine, TSR_BF16, ROWS, by_dots);
    CHECK(machine, TSR_BF16, COLUMNS, by_dots);
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    machine = amx;
    machine.flags = TSR_BATCH_INVARIANT;
    CHECK(machine, TSR_BF16, COLUMNS, by_tiles);
}

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

// Panels of a task's own with registers of 16 floats: of one thread where B is large, of two and three up to 512 rows or 128 steps,
// and where the second-level cache is large, more columns.
static void own_panels(void **state) {
    (void)state;
    static const struct boundary alone[] = {
        {512, 256, 768, K, "packed", "local"},
        {512, 383, 768, N, "local", "local"},
        {512, 384, 768, N, "local", "blocked"},
        {513, 256, 768, M, "local", "packed"},
    };
    static const struct boundary shared[] = {
        {513, 100, 129, M, "local", "packed"},  {513, 100, 129, K, "local", "packed"},
        {512, 384, 768, N, "local", "blocked"}, {1024, 1280, 512, N, "blocked", "blocked"},
        {97, 100, 17, K, "local", "local"},
    };
    static const struct boundary of_large[] = {
        {1025, 1280, 512, M, "local", "blocked"},
        {1024, 1281, 512, N, "local", "blocked"},
        {1024, 384, 512, N, "packed", "local"},
    };
    struct machine less = large_2;
    struct matmul_problem p = product_of(TSR_F32, 300, 100, 1000);
    CHECK(avx512, TSR_F32, COLUMNS, alone);
    CHECK(two, TSR_F32, COLUMNS, shared);
    CHECK(large_2, TSR_F32, COLUMNS, of_large);
    CHECK(large_3, TSR_F32, COLUMNS, of_large);
    assert_string_equal(choice(large_2, TSR_F32, true, 1024, 1280, 512), "local");
    less.l2_bytes--;
    assert_string_equal(choice(less, TSR_F32, true, 1024, 1280, 512), "blocked");
    // Registers of 8 floats share them.
    assert_string_equal(choice(avx2, TSR_F32, true, 512, 300, 4000), "packed");
    assert_string_equal(choice(avx2_2, TSR_F32, true, 512, 300, 8000), "packed");
    // A that is widened, or stored by columns, is packed.
    assert_string_equal(choice(two, TSR_F16, true, 300, 100, 1000), "packed");
    p.b.row = 1, p.b.col = p.k;
    assert_string_equal(choice_of(&p, two), "local");
    p.a.row = 1, p.a.col = p.m;
    assert_string_equal(choice_of(&p, two), "packed");
}

// One thread of Intel's beside a large second-level cache: B in place is smaller than elsewhere, panels are packed once for all rows.
static void alone_on_intel(void **state) {
    (void)state;
    static const struct boundary in_place[] = {
        {200, 512, 769, M, "direct", "local"},    {200, 512, 769, K, "direct", "local"},
        {480, 512, 512, M, "direct", "local"},    {480, 512, 385, K, "direct", "local"},
        {480, 400, 984, K, "direct", "local"},    {300, 1024, 65, K, "direct", "local"},
        {300, 65, 200, N, "direct", "local"},     {300, 320, 200, N, "local", "direct"},
        {300, 768, 100, N, "local", "direct"},    {300, 768, 100, N, "local", "local", .row = 784},
        {640, 640, 615, K, "direct", "blocked"},  {576, 576, 576, N, "blocked", "direct"},
        {4000, 256, 1025, K, "direct", "packed"},
    };
    static const struct boundary panels[] = {
        {513, 384, 512, M, "local", "blocked"},  {769, 383, 512, M, "local", "packed"},
        {512, 1281, 512, N, "local", "blocked"}, {512, 384, 2049, K, "local", "blocked"},
        {512, 256, 2049, K, "local", "local"},   {2000, 384, 128, N, "local", "blocked"},
    };
    struct machine less = large;
    CHECK(large, TSR_F32, ROWS, in_place);
    CHECK(large, TSR_F32, COLUMNS, panels);
    less.l2_bytes--;
    assert_string_equal(choice(less, TSR_F32, true, 512, 384, 512), "blocked");
    assert_string_equal(choice(less, TSR_F32, false, 512, 512, 512), "direct");
    assert_string_equal(choice(large, TSR_F16, true, 512, 384, 512), "blocked");
}

// Panels that are shared cost more than each task's own where there are few steps.
static void shallow_panels(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {97, 100, 17, K, "local", "packed"},
        {97, 384, 17, K, "local", "blocked"},
    };
    CHECK(two, TSR_F16, COLUMNS, cases);
}

// Dot products along columns with registers of 16 floats, beside a few rows: of 16 bits sooner where columns are few.
static void dots_of_columns(void **state) {
    (void)state;
    static const struct boundary of_16_bits[] = {
        {9, 4, 7, M, "skinny", "local"},      {9, 4, 8, K, "local", "skinny"},
        {9, 5, 8, N, "skinny", "local"},      {7, 8, 63, M, "skinny", "local"},
        {7, 16, 64, K, "local", "skinny"},    {14, 8, 64, K, "local", "skinny"},
        {14, 9, 64, N, "skinny", "local"},    {14, 9, 128, K, "local", "skinny"},
        {14, 16, 127, M, "skinny", "local"},  {7, 21, 64, N, "skinny", "local"},
        {2, 128, 8, K, "local", "skinny"},    {2, 129, 63, N, "skinny", "local"},
        {2, 129, 64, K, "local", "skinny"},   {3, 128, 16, K, "local", "skinny"},
        {3, 128, 15, M, "skinny", "local"},   {3, 129, 63, N, "skinny", "local"},
        {3, 129, 64, K, "local", "skinny"},   {1, 257, 15, N, "naive", "naive"},
        {4, 128, 63, M, "skinny", "local"},   {4, 128, 64, K, "local", "skinny"},
        {6, 128, 64, K, "local", "skinny"},   {7, 32, 80, K, "local", "skinny"},
        {7, 128, 64, M, "skinny", "local"},   {7, 33, 255, N, "skinny", "local"},
        {9, 33, 256, K, "local", "skinny"},   {10, 32, 256, M, "skinny", "local"},
        {10, 100, 768, K, "local", "skinny"}, {16, 100, 768, K, "local", "skinny"},
        {3, 41, 15, N, "skinny", "local"},    {4, 40, 1, M, "skinny", "local"},
        {4, 25, 1, N, "skinny", "local"},     {4, 40, 16, K, "local", "skinny"},
        {5, 24, 1, M, "skinny", "local"},     {5, 21, 1, N, "skinny", "local"},
        {6, 40, 32, K, "local", "skinny"},    {7, 20, 1, M, "skinny", "local"},
        {7, 20, 64, K, "local", "skinny"},    {9, 20, 64, K, "local", "skinny"},
        {10, 20, 128, M, "skinny", "local"},
    };
    static const struct boundary of_floats[] = {
        {1, 257, 15, N, "naive", "local"},    {1, 257, 16, K, "local", "naive"},
        {14, 8, 128, K, "local", "skinny"},   {14, 8, 127, M, "skinny", "local"},
        {2, 100, 64, K, "local", "skinny"},   {9, 40, 128, K, "local", "skinny"},
        {10, 64, 767, M, "skinny", "local"},  {10, 64, 768, K, "local", "skinny"},
        {10, 65, 256, K, "local", "skinny"},  {10, 65, 256, N, "local", "skinny"},
        {12, 129, 256, N, "skinny", "local"}, {13, 128, 256, M, "skinny", "local"},
        {13, 128, 768, K, "local", "skinny"}, {2, 33, 31, N, "skinny", "local"},
        {2, 40, 32, K, "local", "skinny"},    {3, 32, 31, M, "skinny", "local"},
        {3, 21, 31, N, "skinny", "local"},    {3, 40, 32, K, "local", "skinny"},
        {4, 20, 16, K, "local", "skinny"},    {4, 21, 31, N, "skinny", "local"},
        {4, 40, 32, K, "local", "skinny"},    {6, 24, 32, K, "local", "skinny"},
        {5, 25, 63, N, "skinny", "local"},    {5, 25, 63, M, "skinny", "local"},
        {6, 40, 64, K, "local", "skinny"},    {7, 24, 63, M, "skinny", "local"},
        {9, 20, 64, K, "local", "skinny"},    {9, 21, 127, N, "skinny", "local"},
        {10, 20, 127, M, "skinny", "local"},  {13, 24, 128, K, "local", "skinny"},
        {13, 25, 128, N, "skinny", "local"},  {14, 24, 128, M, "skinny", "local"},
        {16, 20, 128, K, "local", "skinny"},  {16, 21, 128, N, "skinny", "local"},
        {9, 41, 128, N, "skinny", "local"},   {16, 40, 768, K, "local", "skinny"},
    };
    CHECK(avx512, TSR_BF16, COLUMNS, of_16_bits);
    CHECK(avx512, TSR_F16, COLUMNS, of_16_bits);
    CHECK(avx512, TSR_F32, COLUMNS, of_floats);
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
    struct matmul_problem p = product_of(TSR_BF16, 1, 100, 8);
    CHECK(avx512, TSR_BF16, ROWS, cases);
    p.num_batches = 2;
    assert_string_equal(choice_of(&p, avx512), "skinny");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turned_tiles),
        cmocka_unit_test(tiles_of_columns),
        cmocka_unit_test(tiles_of_rows),
        cmocka_unit_test(dot_products),
        cmocka_unit_test(invariant_units),
        cmocka_unit_test(streamed_alone),
        cmocka_unit_test(streamed_by_few_threads),
        cmocka_unit_test(streamed_beside_more_rows),
        cmocka_unit_test(own_panels),
        cmocka_unit_test(alone_on_intel),
        cmocka_unit_test(shallow_panels),
        cmocka_unit_test(dots_of_columns),
        cmocka_unit_test(widened_rows),
        cmocka_unit_test(lone_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
