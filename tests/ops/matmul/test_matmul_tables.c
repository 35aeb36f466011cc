// SPDX-License-Identifier: Apache-2.0
// The boundaries of the CPU's choice of a variant, from the tables of src/ops/matmul.
#include "context/op_table.h"
#include "matmul_boundaries.h"

// Few rows in bf16 with b by columns in place: tiles take the columns as rows of the transposed product.
static void turned_tiles(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {3, 4096, 1024, M, "skinny_bf16", "amx_bf16"}, {3, 256, 256, N, "skinny_bf16", "amx_bf16"},
        {3, 256, 256, K, "skinny_bf16", "amx_bf16"},   {3, 256, 2049, K, "amx_bf16", "skinny_bf16"},
        {3, 4096, 2049, K, "amx_bf16", "skinny_bf16"}, {4, 64, 256, N, "skinny_bf16", "amx_bf16"},
        {4, 512, 2049, K, "amx_bf16", "amx_bf16"},     {4, 513, 2049, K, "amx_bf16", "skinny_bf16"},
        {4, 513, 2049, N, "amx_bf16", "skinny_bf16"},  {5, 48, 256, N, "skinny_bf16", "amx_bf16"},
        {5, 513, 2049, K, "amx_bf16", "amx_bf16"},     {6, 48, 256, N, "skinny_bf16", "amx_bf16"},
        {6, 48, 1023, N, "skinny_bf16", "amx_bf16"},   {6, 32, 1024, N, "skinny_bf16", "amx_bf16"},
        {6, 32, 1024, K, "skinny_bf16", "amx_bf16"},   {16, 16, 256, N, "skinny_bf16", "amx_bf16"},
        {16, 16, 256, K, "amx_bf16", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, COLUMNS, cases);
}

// The same with packed columns. Dot products serve large k.
static void tiles_of_columns(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {5, 256, 64, M, "skinny_bf16", "amx_bf16"},  {5, 256, 64, N, "skinny_bf16", "amx_bf16"},
        {5, 300, 128, K, "amx_bf16", "skinny_bf16"}, {7, 64, 200, M, "skinny_bf16", "amx_bf16"},
        {7, 48, 64, N, "local", "amx_bf16"},         {7, 33, 96, K, "local", "amx_bf16"},
        {7, 33, 96, N, "skinny_bf16", "amx_bf16"},   {10, 33, 64, M, "local", "amx_bf16"},
        {10, 33, 64, N, "skinny_bf16", "amx_bf16"},  {12, 16, 256, K, "amx_bf16", "amx_bf16"},
        {13, 15, 384, M, "skinny_bf16", "amx_bf16"}, {13, 15, 384, K, "skinny_bf16", "amx_bf16"},
        {8, 64, 40, K, "local", "amx_bf16"},         {13, 256, 16, M, "local", "amx_bf16"},
        {13, 256, 16, N, "local", "amx_bf16"},       {13, 256, 16, K, "local", "amx_bf16"},
        {17, 5, 128, N, "skinny_bf16", "amx_bf16"},  {17, 4, 128, K, "amx_bf16", "skinny_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, COLUMNS, cases);
}

// With b by rows: larger k allows fewer rows. Up to 16 columns, up to 47, and more. One column with a stride does not
// use tiles.
static void tiles_of_rows(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {7, 16, 1023, M, "skinny_bf16", "amx_bf16"}, {8, 47, 191, M, "skinny", "amx_bf16"},
        {7, 47, 192, M, "skinny", "amx_bf16"},       {7, 47, 255, M, "skinny", "amx_bf16"},
        {6, 47, 256, M, "skinny_bf16", "amx_bf16"},  {6, 47, 383, M, "skinny_bf16", "amx_bf16"},
        {4, 257, 384, N, "amx_bf16", "skinny"},      {5, 255, 384, K, "skinny", "amx_bf16"},
        {5, 256, 192, K, "skinny", "amx_bf16"},      {5, 256, 192, N, "skinny", "amx_bf16"},
        {6, 48, 192, K, "skinny", "amx_bf16"},       {6, 96, 64, N, "skinny", "amx_bf16"},
        {17, 255, 20, K, "local", "amx_bf16"},       {17, 256, 16, N, "local", "amx_bf16"},
        {17, 256, 16, K, "local", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, ROWS, cases);
}

// Fewer than 64 steps: by rows of A, columns, and B's layout; above 16 rows only by columns.
static void tiles_of_few_steps(void **state) {
    (void)state;
    static const struct boundary both[] = {
        {17, 16, 56, K, "local", "amx_bf16"},    {17, 17, 48, N, "local", "amx_bf16"},
        {100, 32, 48, K, "local", "amx_bf16"},   {17, 33, 40, N, "local", "amx_bf16"},
        {17, 63, 40, K, "local", "amx_bf16"},    {17, 64, 24, N, "local", "amx_bf16"},
        {17, 64, 24, K, "local", "amx_bf16"},    {17, 96, 20, N, "local", "amx_bf16"},
        {17, 255, 20, K, "local", "amx_bf16"},   {17, 256, 16, N, "local", "amx_bf16"},
        {100, 1000, 16, K, "local", "amx_bf16"},
    };
    static const struct boundary rows[] = {
        {9, 512, 48, K, "local", "amx_bf16"},       {10, 96, 32, K, "skinny_bf16", "amx_bf16"},
        {13, 33, 48, N, "skinny_bf16", "amx_bf16"}, {13, 96, 24, M, "skinny_bf16", "amx_bf16"},
        {16, 192, 20, K, "local", "amx_bf16"},      {16, 512, 16, N, "local", "amx_bf16"},
        {17, 16, 63, M, "skinny_bf16", "amx_bf16"},
    };
    static const struct boundary cols[] = {
        {7, 512, 48, K, "local", "amx_bf16"},       {8, 192, 24, M, "local", "amx_bf16"},
        {12, 96, 32, N, "local", "amx_bf16"},       {13, 17, 48, M, "local", "amx_bf16"},
        {13, 17, 48, N, "skinny_bf16", "amx_bf16"}, {16, 256, 16, K, "local", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, ROWS, both);
    CHECK(amx, TSR_BF16, COLUMNS, both);
    CHECK(amx, TSR_BF16, ROWS, rows);
    CHECK(amx, TSR_BF16, COLUMNS, cols);
}

// Few rows of bf16 with b in place on Intel: fewer steps and columns allow more rows.
static void dots_beside_tiles(void **state) {
    (void)state;
    static const struct boundary by_rows[] = {
        {16, 2, 5000, K, "skinny_bf16", "skinny_bf16"},
        {13, 129, 15, M, "skinny_bf16", "local"},
        {9, 64, 64, M, "skinny_bf16", "amx_bf16"},
        {7, 32, 256, M, "skinny_bf16", "amx_bf16"},
        {5, 64, 4096, M, "skinny_bf16", "amx_bf16"},
        {2, 128, 3000, K, "skinny_bf16", "skinny_bf16"},
        {2, 129, 3000, K, "skinny_bf16", "skinny"},
        {4, 1501, 512, N, "skinny", "skinny_bf16"},
        {1, 4096, 2999, K, "skinny_bf16", "skinny_bf16"},
    };
    static const struct boundary by_columns[] = {
        {16, 8, 5000, K, "skinny_bf16", "skinny_bf16"},
        {16, 16, 127, K, "skinny_bf16", "skinny_bf16"},
        {16, 16, 128, K, "skinny_bf16", "amx_bf16"},
        {10, 16, 8, M, "skinny_bf16", "local"},
        {2, 129, 15, M, "skinny_bf16", "local"},
        {7, 128, 100, M, "skinny_bf16", "amx_bf16"},
        {3, 1000, 1024, M, "skinny_bf16", "amx_bf16"},
        {1, 128256, 4096, N, "skinny_bf16", "skinny_bf16"},
        {300, 4, 1024, N, "skinny_bf16", "skinny_bf16"}, // a few long columns
        {300, 5, 1024, N, "skinny_bf16", "amx_bf16"},
    };
    struct tsri_limits no_tiles = {
        .isa = TSR_ISA_AVX512, .num_threads = 1, .l2_bytes = 1 << 20, .bf16.has_dot = true};
    struct matmul_problem p = product_of(TSR_BF16, 3, 100, 1000);
    assert_string_equal(matmul_prefer(&p, &no_tiles), "skinny_bf16");
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    CHECK(amx, TSR_BF16, ROWS, by_rows);
    CHECK(amx, TSR_BF16, COLUMNS, by_columns);
}

// vdpbf16ps with few rows: b in place. By rows this excludes three passes over rows that map to the same cache sets; by
// columns it requires some k. Otherwise, and if a is by columns, panels serve. More rows always use panels.
static void dot_products(void **state) {
    (void)state;
    static const struct boundary by_rows[] = {
        {1, 7, 1, K, "skinny_bf16", "skinny_bf16"},
        {16, 1000, 16, K, "skinny_bf16", "skinny_bf16"},
        {13, 2048, 2048, M, "skinny_bf16", "avx512_bf16"},
        {13, 2048, 2049, K, "avx512_bf16", "skinny_bf16"},
        {17, 1000, 100, M, "skinny_bf16", "avx512_bf16"},
        {17, 63, 24, K, "local", "avx512_bf16"},
        {17, 64, 16, K, "local", "avx512_bf16"},
        {200, 3, 24, K, "local", "avx512_bf16"},
    };
    static const struct boundary by_columns[] = {
        {16, 24, 2, K, "skinny_bf16", "skinny_bf16"},
        {16, 25, 64, K, "avx512_bf16", "skinny_bf16"},
        {15, 25, 48, K, "avx512_bf16", "skinny_bf16"},
        {12, 33, 64, K, "avx512_bf16", "skinny_bf16"},
        {10, 128, 64, K, "avx512_bf16", "skinny_bf16"},
        {10, 129, 80, K, "avx512_bf16", "skinny_bf16"},
        {16, 129, 128, K, "avx512_bf16", "skinny_bf16"},
        {7, 33, 48, K, "avx512_bf16", "skinny_bf16"},
        {7, 48, 48, K, "avx512_bf16", "skinny_bf16"},
        {5, 100, 16, K, "local", "skinny_bf16"},
        {5, 129, 48, K, "avx512_bf16", "skinny_bf16"},
        {4, 129, 16, K, "local", "skinny_bf16"},
        {3, 129, 16, K, "local", "skinny_bf16"},
        {2, 5000, 2, K, "skinny_bf16", "skinny_bf16"},
        {17, 4, 128, K, "avx512_bf16", "skinny_bf16"}, // a few long columns
        {17, 16, 1024, K, "avx512_bf16", "skinny_bf16"},
        {17, 17, 1024, N, "skinny_bf16", "avx512_bf16"},
    };
    CHECK(amd, TSR_BF16, ROWS, by_rows);
    CHECK(amd, TSR_BF16, COLUMNS, by_columns);
    CHECK(amd_2, TSR_BF16, COLUMNS, by_columns);
    struct matmul_problem p = product_of(TSR_BF16, 7, 65, 24);
    p.a = (struct matmul_matrix){NULL, TSR_BF16, 1, 7, {0}};
    assert_string_equal(choice_of(&p, amd), "avx512_bf16");
    p.m = 6;
    assert_string_equal(choice_of(&p, amd), "skinny");
}

// Under batch invariance only k counts, not the rows and columns.
static void invariant_units(void **state) {
    (void)state;
    static const struct boundary by_dots[] = {
        {1, 1, 24, K, "local", "avx512_bf16"},
        {200, 64, 24, K, "local", "avx512_bf16"},
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

// Private panels with AVX-512: for one thread if B is large, for two and three up to 512 rows or 128 steps. A large L2
// cache allows more columns.
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
    // AVX2 shares panels.
    assert_string_equal(choice(avx2, TSR_F32, true, 512, 300, 4000), "packed");
    assert_string_equal(choice(avx2_2, TSR_F32, true, 512, 300, 8000), "packed");
    // A is packed if it is widened or stored by columns.
    assert_string_equal(choice(two, TSR_F16, true, 300, 100, 1000), "packed");
    p.b.row = 1, p.b.col = p.k;
    assert_string_equal(choice_of(&p, two), "local");
    p.a.row = 1, p.a.col = p.m;
    assert_string_equal(choice_of(&p, two), "packed");
}

// One thread on Intel with a large L2 cache: B in place must be smaller than elsewhere, and panels are packed once for
// all rows.
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

// Shared panels cost more than private ones if there are few steps.
static void shallow_panels(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {97, 100, 17, K, "local", "packed"},
        {97, 384, 17, K, "local", "blocked"},
    };
    CHECK(two, TSR_F16, COLUMNS, cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turned_tiles),      cmocka_unit_test(tiles_of_columns),
        cmocka_unit_test(tiles_of_rows),     cmocka_unit_test(tiles_of_few_steps),
        cmocka_unit_test(dots_beside_tiles), cmocka_unit_test(dot_products),
        cmocka_unit_test(invariant_units),   cmocka_unit_test(own_panels),
        cmocka_unit_test(alone_on_intel),    cmocka_unit_test(shallow_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
