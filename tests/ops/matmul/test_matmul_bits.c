// SPDX-License-Identifier: Apache-2.0
// Products on the CPU whose bits depend neither on the number of threads nor, above 16 rows, on the other rows. Also
// the error bound of deep sums in bf16.
#include <math.h>
#include <string.h>

#include "core/core_dtype.h"
#include "cpu/gemm_bf16.h"
#include "ops/matmul/matmul_problem.h"
#include "test_support.h"

static float *random_floats(int64_t count, uint64_t seed) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = test_float(&seed);
    return x;
}

static void multiply(int num_threads, const char *variant, tsr_dtype dtype, bool is_transposed,
                     const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k) {
    tsr_context *ctx = test_context(num_threads);
    assert_ok(tsr_matmul_forward(
        ctx,
        &TSR_MATMUL_FORWARD_ARGS(.variant = variant, .a = TSR_TENSOR((void *)a, dtype, m, k),
                                 .b = TSR_TENSOR((void *)b, dtype, is_transposed ? n : k,
                                                 is_transposed ? k : n),
                                 .c = TSR_TENSOR(c, dtype, m, n), .transpose_b = is_transposed)));
    tsr_context_destroy(ctx);
}

// Rounds in place.
static void round_to_dtype(tsr_dtype dtype, float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        tsr_store(dtype, x, i, x[i]); // never overwrites values still to be read
}

static void check_same_as(tsr_dtype dtype, bool is_transposed, const char *variant,
                          const char *other, int64_t m, int64_t n, int64_t k) {
    static const int threads[] = {1, 2, 5, 9, 16};
    float *a = random_floats(m * k, 1), *b = random_floats(k * n, 2);
    float *c = random_floats(m * n, 3), *expected = random_floats(m * n, 4);
    size_t bytes = (size_t)(m * n * tsri_dtype_bytes(dtype));
    round_to_dtype(dtype, a, m * k);
    round_to_dtype(dtype, b, k * n);
    multiply(1, other, dtype, is_transposed, a, b, expected, m, n, k);
    for (int i = 0; i < COUNT(threads); i++) {
        memset(c, 0xff, bytes);
        multiply(threads[i], variant, dtype, is_transposed, a, b, c, m, n, k);
        assert_memory_equal(c, expected, bytes);
    }
    free(a), free(b), free(c), free(expected);
}

static void check_same_of(tsr_dtype dtype, const char *variant, const char *other, int64_t m,
                          int64_t n, int64_t k) {
    check_same_as(dtype, false, variant, other, m, n, k);
}

static void check_same(const char *variant, const char *other, int64_t m, int64_t n, int64_t k) {
    check_same_of(TSR_F32, variant, other, m, n, k);
}

// Past the caches several threads also cut k, and add the parts in the order of one thread.
static void skinny_cuts_depth(void **state) {
    (void)state;
    struct matmul_problem p = {
        .m = 3, .n = 1100, .k = 4000, .num_batches = 1, .b = {.dtype = TSR_BF16, .col = 1}};
    assert_false(matmul_splits_depth(&p, 1));
    assert_true(matmul_splits_depth(&p, 4));
    p.m = 7;
    assert_false(matmul_splits_depth(&p, 4));
    p.m = 3, p.b.dtype = TSR_F32;
    assert_false(matmul_splits_depth(&p, 9));
    p.m = 2;
    assert_true(matmul_splits_depth(&p, 9));
    p.n = 512, p.k = 2048;
    assert_true(matmul_splits_depth(&p, 8));
    assert_false(matmul_splits_depth(&p, 7));
    p.k = 2047;
    assert_false(matmul_splits_depth(&p, 8));
    check_same("skinny", "skinny", 2, 1100, 4000);
    check_same("skinny", "skinny", 1, 4200, 1025);
    check_same("skinny", "skinny", 2, 100, 4700);
    check_same_of(TSR_F16, "skinny", "skinny", 1, 33, 9000);
    check_same(NULL, NULL, 2, 1, 50000); // one column uses dot products
    check_same_of(TSR_BF16, "skinny", "skinny", 6, 1024,
                  4096); // fewer blocks of columns than threads
}

// Checks that above 16 rows the bits depend neither on the other rows nor on the number of threads.
static void check_rows_same(tsr_dtype dtype, int64_t n, int64_t k) {
    enum { MOST = 203 };
    static const int64_t rows[] = {17, 33, MOST};
    const int64_t bytes = tsri_dtype_bytes(dtype);
    float *a = random_floats(MOST * k, 1), *b = random_floats(n * k, 2);
    float *all = random_floats(MOST * n, 3), *some = random_floats(MOST * n, 4);
    round_to_dtype(dtype, a, MOST * k);
    round_to_dtype(dtype, b, n * k);
    multiply(1, NULL, dtype, true, a, b, all, MOST, n, k);
    for (int i = 0; i < COUNT(rows); i++)
        for (int threads = 1; threads <= 7; threads += 3) {
            int64_t first = MOST - rows[i];
            multiply(threads, NULL, dtype, true, (char *)a + first * k * bytes, b, some, rows[i], n,
                     k);
            assert_memory_equal(some, (char *)all + first * n * bytes,
                                (size_t)(rows[i] * n * bytes));
        }
    free(a), free(b), free(all), free(some);
}

// The bits do not depend on how rows and columns are divided. Above 16 rows, long columns do not depend on the other
// rows either.
static void skinny_cuts_rows(void **state) {
    (void)state;
    check_same_of(TSR_BF16, "skinny", "naive", 9, 16, 1024);
    check_same_of(TSR_BF16, "skinny", "naive", 13, 1000, 16);
    check_same_of(TSR_F16, "skinny", "naive", 16, 100, 257);
    check_same("skinny", "naive", 70, 1, 1100);
    check_rows_same(TSR_F32, 1, 128);
    check_rows_same(TSR_F32, 3, 300);
    check_rows_same(TSR_F32, 4, 1030);
}

// If columns are few and long and rows are few, blocks of k are separate tasks.
static void parts_are_added_in_order(void **state) {
    (void)state;
    check_same_of(TSR_BF16, NULL, NULL, 12, 60, 2100);
    check_same_of(TSR_BF16, NULL, NULL, 64, 16, 4096);
    check_rows_same(TSR_BF16, 5, 2048);
    check_rows_same(TSR_BF16, 16, 2100);
}

// Tiles transpose the product for few rows and threads, or for many columns. The bits are the same.
static void turned_products_are_the_same(void **state) {
    (void)state;
    check_rows_same(TSR_BF16, 260, 1056);
    check_same_as(TSR_BF16, true, NULL, NULL, 4, 70, 260);
    check_same_as(TSR_BF16, true, NULL, NULL, 7, 100, 300);
    check_same_as(TSR_BF16, true, NULL, NULL, 9, 33, 2080);
    check_same_as(TSR_BF16, true, NULL, NULL, 16, 40, 1030);
}

static void tiles_add_in_one_order(void **state) {
    (void)state;
    for (int64_t m = 6; m <= 14; m++) check_same("direct", "local", m, 150, 600);
    for (int64_t m = 1; m <= 50; m += 7) check_same("streamed", "local", m, 150, 603);
    // Every remainder of steps, odd rows, and less than two vectors.
    for (int64_t i = 0; i < 12; i++) check_same("streamed", "local", 4 + i, 512 + 3 * i, 595 + i);
    check_same("streamed", "local", 97, 33, 515);
    tsr_context *ctx = test_context(1);
    bool is_avx2 = tsr_context_isa(ctx) == TSR_ISA_AVX2; // only AVX2 streams 16 bits
    tsr_context_destroy(ctx);
    if (is_avx2)
        for (int64_t i = 0; i < 6; i++) {
            check_same_of(TSR_BF16, "streamed", "local", 1 + 3 * i, 600 + 5 * i, 531 - i);
            check_same_of(TSR_F16, "streamed", "local", 2 + 3 * i, 600 + 3 * i, 526 + i);
        }
    check_same("streamed", "local", 17, 1031, 1030);
    check_same("streamed", "local", 3, 4100, 1030); // past the caches, so k is cut
    check_same("packed", "local", 130, 70, 1300);
    check_same(NULL, "local", 200, 300, 700);
}

// With vdpbf16ps an element's bits do not depend on how tasks, strips of columns and passes of rows are cut. By columns
// and above 16 rows they do not depend on the other rows either.
static void few_rows_of_bf16(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 15, 16, 17, 33, 100, 129, 300, 1031};
    if (!tsri_bf16_units().has_dot) skip();
    for (int by_columns = 0; by_columns < 2; by_columns++) {
        for (int64_t m = 1; m <= 16; m += 3)
            for (int i = 0; i < COUNT(columns); i++)
                check_same_as(TSR_BF16, by_columns, "skinny_bf16", "skinny_bf16", m, columns[i],
                              m % 2 == 0 ? 257 : 9000 / columns[i]);
        check_same_as(TSR_BF16, by_columns, "skinny_bf16", "skinny_bf16", 7, 2100, 2011); // past L2
        check_same_as(TSR_BF16, by_columns, "skinny_bf16", "skinny_bf16", 2, 4203, 2011); // larger
    }
    check_same_as(TSR_BF16, true, "skinny_bf16", "skinny_bf16", 300, 16, 1031);
}

// Missing if the compiler does not know the instruction. Processors then report that they lack it.
extern __attribute__((weak)) void tsri_gemm_bf16_few(const struct gemm_bf16_few *product);

// The order in which b is read, and prefetching, change no bits.
static void reading_of_bf16(void **state) {
    (void)state;
    enum { MOST_M = 9, N = 37, C_STRIDE = 48, K = 1003, STRIDE = 1024 };
    if (!tsri_bf16_units().has_dot) skip();
    float *a = random_floats(MOST_M * STRIDE, 1), *b = random_floats(N * STRIDE + K * 64, 2);
    round_to_dtype(TSR_BF16, a, MOST_M * STRIDE);
    round_to_dtype(TSR_BF16, b, N * STRIDE + K * 64);
    for (int i = 0; i < 4 * MOST_M; i++) {
        float c[MOST_M * C_STRIDE], expected[MOST_M * C_STRIDE];
        struct gemm_bf16_few product = {.m = i % MOST_M + 1,
                                        .n = N,
                                        .k = K,
                                        .a = (void *)a,
                                        .b = (void *)b,
                                        .c = expected,
                                        .a_stride = STRIDE,
                                        .c_stride = C_STRIDE,
                                        .by_columns = i / MOST_M % 2,
                                        .is_far = i / MOST_M / 2};
        product.b_stride = product.by_columns ? STRIDE : 64;
        memset(c, 0xff, sizeof c);
        memset(expected, 0xff, sizeof expected);
        tsri_gemm_bf16_few(&product);
        product.c = c;
        product.is_in_order = true;
        tsri_gemm_bf16_few(&product);
        assert_memory_equal(c, expected, sizeof c);
    }
    free(a), free(b);
}

// Groups with few rows use the same kernel: their bits are those of a single product with this variant.
static void groups_of_few_rows_of_bf16(void **state) {
    (void)state;
    static const struct {
        int by_columns;
        int64_t m, n, k;
    } cases[] = {
        {0, 1, 256, 3001}, {0, 4, 256, 600}, {0, 6, 100, 64}, {1, 2, 64, 256}, {1, 5, 256, 600}};
    const struct tsri_bf16_units units = tsri_bf16_units();
    if (!units.has_dot) skip();
    // With slow dot products and no tiles the default is a variant that adds in floats.
    const bool is_chosen = units.is_dot_fast || tsri_can_use_tiles(units);
    for (int i = 0; i < COUNT(cases); i++) {
        int64_t m = cases[i].m, n = cases[i].n, k = cases[i].k;
        float *a = random_floats(3 * m * k, 1), *b = random_floats(2 * k * n, 2);
        float *c = random_floats(3 * m * n, 3), *expected = random_floats(m * n, 4);
        size_t bytes = (size_t)(m * n) * sizeof(uint16_t);
        round_to_dtype(TSR_BF16, a, 3 * m * k);
        round_to_dtype(TSR_BF16, b, 2 * k * n);
        uint16_t *of_group = (uint16_t *)(void *)b + k * n,
                 *rows = (uint16_t *)(void *)a + 2 * m * k;
        multiply(1, "skinny_bf16", TSR_BF16, cases[i].by_columns, rows, of_group, expected, m, n,
                 k);
        int32_t place[] = {0, (int32_t)(2 * m), (int32_t)(3 * m)};
        tsr_context *ctx = test_context(2);
        assert_ok(tsr_matmul_grouped_forward(
            ctx, &TSR_MATMUL_GROUPED_FORWARD_ARGS(.variant = is_chosen ? NULL : "avx512_bf16",
                                                  .a = TSR_TENSOR(a, TSR_BF16, 3 * m, k),
                                                  .b = cases[i].by_columns
                                                           ? TSR_TENSOR(b, TSR_BF16, 2, n, k)
                                                           : TSR_TENSOR(b, TSR_BF16, 2, k, n),
                                                  .c = TSR_TENSOR(c, TSR_BF16, 3 * m, n),
                                                  .transpose_b = cases[i].by_columns,
                                                  .offsets = TSR_TENSOR(place, TSR_I32, 3))));
        tsr_context_destroy(ctx);
        assert_memory_equal((uint16_t *)(void *)c + 2 * m * n, expected, bytes);
        free(a), free(b), free(c), free(expected);
    }
}

// Sums of one sign drift the most. They must keep the header's bound for c in fp32, near and past the caches, in blocks
// of both lengths.
static void deep_sums_of_bf16(void **state) {
    (void)state;
    static const int64_t columns[] = {20, 80}, depths[] = {4096, 4098, 65536};
    enum { M = 2, MOST_N = 1040 };
    const double of_a = 135.0 / 128.0, of_b = 248.0 / 128.0; // each step loses the same
    if (!tsri_bf16_units().has_dot) skip();
    tsr_context *ctx = test_context(1);
    for (int i = 0; i < 2 * COUNT(depths); i++) {
        int64_t k = depths[i / 2], n = columns[i % 2] * (k < 65536 ? 13 : 1);
        uint16_t *x = malloc((size_t)((M + n) * k) * sizeof *x), *b = x + M * k;
        float c[M * MOST_N];
        assert_non_null(x);
        for (int64_t j = 0; j < (M + n) * k; j++)
            tsr_store(TSR_BF16, x, j, j < M * k ? of_a : of_b);
        memset(c, 0xff, sizeof c);
        assert_ok(
            tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.variant = "skinny_bf16",
                                                             .a = TSR_TENSOR(x, TSR_BF16, M, k),
                                                             .b = TSR_TENSOR(b, TSR_BF16, k, n),
                                                             .c = TSR_TENSOR(c, TSR_F32, M, n))));
        double sum = (double)k * of_a * of_b;
        for (int64_t j = 0; j < M * n; j++)
            assert_true(fabs(c[j] - sum) <= (8 + 4 * sqrt((double)k)) * 0x1p-24 * sum);
        free(x);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_sums_of_bf16),
        cmocka_unit_test(few_rows_of_bf16),
        cmocka_unit_test(groups_of_few_rows_of_bf16),
        cmocka_unit_test(reading_of_bf16),
        cmocka_unit_test(skinny_cuts_depth),
        cmocka_unit_test(skinny_cuts_rows),
        cmocka_unit_test(tiles_add_in_one_order),
        cmocka_unit_test(parts_are_added_in_order),
        cmocka_unit_test(turned_products_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
