// SPDX-License-Identifier: Apache-2.0
// Which variant serves a product on the CPU, and that what is chosen by the number of threads gives the same bits.
#include <string.h>

#include "context/op_table.h"
#include "core/core_dtype.h"
#include "cpu/gemm.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

struct machine {
    tsr_isa isa;
    int num_threads;
    bool has_tiles;
    int64_t l2_bytes;
};

static const char *choice(struct machine machine, tsr_dtype dtype, bool is_transposed, int64_t m,
                          int64_t n, int64_t k) {
    struct matmul_problem p = product_of(dtype, m, n, k);
    if (is_transposed) p.b = (struct matmul_matrix){NULL, dtype, 1, k, {0}};
    struct tsri_limits limits = {
        .isa = machine.isa, .num_threads = machine.num_threads, .l2_bytes = machine.l2_bytes};
    if (machine.has_tiles)
        limits.bf16 = (struct tsri_bf16_units){.has_dot = true, .has_tiles = true};
    return matmul_prefer(&p, &limits);
}

static const struct machine avx2 = {TSR_ISA_AVX2, 1, false, 512 << 10},
                            avx2_2 = {TSR_ISA_AVX2, 2, false, 512 << 10},
                            avx512 = {TSR_ISA_AVX512, 1, false, 1 << 20},
                            two = {TSR_ISA_AVX512, 2, false, 1 << 20},
                            large = {TSR_ISA_AVX512, 1, false, 2 << 20},
                            four = {TSR_ISA_AVX512, 4, false, 2 << 20},
                            many = {TSR_ISA_AVX512, 16, false, 2 << 20},
                            amx = {TSR_ISA_AVX512, 1, true, 2 << 20};

// B in place while it is small; on AVX2, where its panels are narrow, smaller for many rows.
static void b_in_place(void **state) {
    (void)state;
    assert_string_equal(choice(avx512, TSR_F32, false, 256, 256, 256), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 256, 100, 256), "packed");
    assert_string_equal(choice(avx512, TSR_F32, false, 256, 17, 256), "direct");
    assert_string_equal(choice(avx2, TSR_F32, false, 17, 1024, 1024), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 16, 200, 1024), "direct");
    assert_string_equal(choice(avx2, TSR_F32, false, 256, 256, 256), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 256, 256, 256), "local");
    assert_string_equal(choice(avx2, TSR_F32, false, 48, 256, 256), "direct");
    assert_string_equal(choice(avx2, TSR_F32, false, 256, 200, 200), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 512, 512, 512), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 512, 512, 512), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 768, 768, 768), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 896, 896, 896), "blocked");
    assert_string_equal(choice(two, TSR_F32, false, 896, 896, 896), "direct");
    assert_string_equal(choice(two, TSR_F32, false, 300, 1024, 512), "blocked"); // a page a step
    assert_string_equal(choice(two, TSR_F32, false, 512, 700, 512), "blocked");  // rows off vectors
    assert_string_equal(choice(avx512, TSR_F32, false, 1000, 512, 512), "blocked");
    assert_string_equal(choice(large, TSR_F32, false, 1000, 512, 512), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 1000, 576, 512), "blocked");
}

// B passes by where it is past the second-level cache; with many threads for fewer rows.
static void b_passes_by(void **state) {
    (void)state;
    for (int64_t m = 1; m <= 17; m += 16)
        assert_string_equal(choice(avx2, TSR_F32, false, m, 4096, 4096), "streamed");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 32, 2048, 2048), "streamed");
    assert_string_equal(choice(avx2, TSR_F32, false, 33, 1024, 4096), "blocked");
    assert_string_equal(choice(avx2, TSR_F32, false, 3, 512, 256), "streamed");
    assert_string_equal(choice(avx2, TSR_F32, false, 3, 512, 255), "direct");
    assert_string_equal(choice(avx2, TSR_F32, false, 4, 1024, 1024), "direct");
    assert_string_equal(choice(avx2, TSR_F32, false, 8, 1024, 1024), "streamed");
    assert_string_equal(choice(avx2, TSR_F32, false, 24, 1024, 1536), "streamed");
    assert_string_equal(choice(avx2, TSR_BF16, false, 4, 4096, 4096), "streamed");
    assert_string_equal(choice(avx2_2, TSR_F16, false, 16, 512, 512), "streamed");
    assert_string_equal(choice(avx2, TSR_BF16, false, 32, 1024, 256), "streamed");
    assert_string_equal(choice(avx2, TSR_BF16, false, 32, 1040, 255), "blocked");
    assert_string_equal(choice(avx2, TSR_BF16, false, 4, 2048, 2047), "skinny");
    assert_string_equal(choice(avx2, TSR_BF16, false, 7, 512, 512), "streamed");
    assert_string_equal(choice(avx2, TSR_BF16, true, 8, 4096, 4096), "skinny");
    assert_string_equal(choice(avx512, TSR_F32, false, 32, 4096, 4096), "streamed");
    assert_string_equal(choice(two, TSR_F32, false, 48, 4096, 4096), "streamed");
    assert_string_equal(choice(avx512, TSR_F32, false, 6, 4096, 4096), "streamed");
    assert_string_equal(choice(avx512, TSR_F32, false, 6, 2048, 4096), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 7, 2048, 4096), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 17, 512, 1025), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 17, 512, 1024), "direct");
    assert_string_equal(choice(avx2, TSR_F32, true, 3, 4096, 4096), "skinny");
    assert_string_equal(choice(avx2, TSR_BF16, false, 3, 4096, 4096), "skinny");
}

// Many threads cut k of it too, or have tiles, which add in the same order.
static void many_threads(void **state) {
    (void)state;
    assert_string_equal(choice(many, TSR_F32, false, 3, 4096, 4096), "streamed");
    assert_string_equal(choice(many, TSR_F32, false, 3, 1024, 4096), "streamed");
    assert_string_equal(choice(many, TSR_F32, false, 3, 1024, 4000), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 4, 4096, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 8, 4096, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 8, 2048, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 9, 4096, 4096), "local");
    assert_string_equal(choice(many, TSR_F32, false, 96, 2000, 1024), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 97, 1000, 1024), "local");
    assert_string_equal(choice(many, TSR_F32, false, 256, 1000, 257), "direct");
    assert_string_equal(choice(four, TSR_F32, false, 256, 1000, 257), "local");
    assert_string_equal(choice(four, TSR_F32, false, 256, 1008, 257), "direct");
    for (int64_t m = 1; m <= 2; m++) { // skinny adds in another order
        assert_string_equal(choice(large, TSR_F32, false, m, 512, 20000), "skinny");
        assert_string_equal(choice(many, TSR_F32, false, m, 512, 20000), "skinny");
    }
    struct matmul_problem p = product_of(TSR_F32, 3, 4096, 1030);
    assert_true(matmul_streams_parts(&p, 4));
    assert_false(matmul_streams_parts(&p, 3));
    p.is_accumulating = true;
    assert_false(matmul_streams_parts(&p, 4));
}

// One thread shares panels with none; many threads share none either.
static void panels(void **state) {
    (void)state;
    assert_string_equal(choice(avx2, TSR_F32, false, 512, 512, 512), "local");
    assert_string_equal(choice(avx2, TSR_F32, false, 4000, 512, 512), "packed");
    assert_string_equal(choice(avx2, TSR_BF16, false, 512, 200, 512), "packed");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 512, 512), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 768, 512), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 768, 520), "blocked");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 512, 512, 512), "blocked");
    // Two threads: own panels of floats; A of 16 bits is widened once where panels come out equal.
    assert_string_equal(choice(avx2_2, TSR_F32, false, 256, 500, 600), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 257, 500, 600), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 1000, 1152, 256), "local");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 1000, 1152, 128), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 256, 2048, 64), "local");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 200, 64, 600), "blocked");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 200, 64, 48), "local");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 200, 48, 600), "packed");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 64, 1024, 64), "local");
    assert_string_equal(choice(avx2, TSR_F32, false, 64, 1024, 64), "direct");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 64, 600, 64), "direct");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 256, 260, 600), "local");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 48, 2048, 512), "blocked");
    assert_string_equal(choice(avx2, TSR_F32, false, 1024, 1024, 1024), "blocked");
    assert_string_equal(choice(avx2, TSR_BF16, false, 129, 384, 256), "blocked");
    assert_string_equal(choice(avx512, TSR_F32, true, 256, 17, 65), "local");
    assert_string_equal(choice(avx512, TSR_F32, false, 33, 4096, 4096), "blocked");
    assert_string_equal(choice(many, TSR_F32, false, 17, 4096, 4096), "local");
    assert_string_equal(choice(many, TSR_F32, false, 2048, 2048, 2048), "local");
}

static void few_rows(void **state) {
    (void)state;
    assert_string_equal(choice(avx2, TSR_BF16, false, 7, 1000, 64), "skinny");
    assert_string_equal(choice(avx2, TSR_F32, true, 12, 64, 1024), "local");
    assert_string_equal(choice(avx2, TSR_F32, true, 9, 64, 1024), "skinny");
    assert_string_equal(choice(avx512, TSR_F32, false, 4, 1000, 1), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 2, 16, 64), "skinny");
    assert_string_equal(choice(avx512, TSR_F32, true, 12, 100, 257), "skinny");
    assert_string_equal(choice(avx512, TSR_F32, true, 15, 100, 257), "local");
    assert_string_equal(choice(avx512, TSR_F32, false, 1, 1000, 8), "direct");
    // A lone row of little work has skinny's loop without its tasks.
    assert_string_equal(choice(avx512, TSR_F32, false, 1, 100, 8), "naive");
    assert_string_equal(choice(avx512, TSR_BF16, false, 1, 1000, 16), "naive");
    assert_string_equal(choice(many, TSR_BF16, false, 1, 1000, 16), "naive");
    assert_string_equal(choice(many, TSR_BF16, false, 1, 1000, 17), "naive"); // for one thread
    assert_string_equal(choice(many, TSR_BF16, false, 1, 1000, 66), "skinny");
    assert_string_equal(choice(avx512, TSR_BF16, false, 2, 100, 8), "skinny");
    assert_string_equal(choice(avx512, TSR_BF16, false, 1, 1 << 20, 0), "skinny"); // in few columns
}

// Dot products, beside any number of rows, which therefore do not count; one column that is contiguous is one as well.
static void long_columns(void **state) {
    (void)state;
    for (int64_t m = 17; m <= 1700; m *= 10) {
        assert_string_equal(choice(avx2, TSR_F32, true, m, 4, 128), "skinny");
        assert_string_equal(choice(many, TSR_F32, true, m, 8, 256), "skinny");
        assert_string_equal(choice(avx512, TSR_BF16, true, m, 16, 1024), "skinny");
        assert_string_equal(choice(avx2, TSR_BF16, true, m, 8, 256), "skinny");
        assert_string_equal(choice(avx512, TSR_F32, false, m, 1, 128), "skinny");
        assert_string_not_equal(choice(avx2, TSR_F32, true, m, 5, 4096), "skinny");
        assert_string_not_equal(choice(avx2, TSR_F32, true, m, 4, 127), "skinny");
        assert_string_not_equal(choice(avx512, TSR_F32, false, m, 2, 4096), "skinny");
    }
}

static void few_rows_on_tiles(void **state) {
    (void)state;
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    assert_string_equal(choice(amx, TSR_BF16, false, 13, 1, 257), "skinny"); // a long column
    assert_string_equal(choice(amx, TSR_BF16, false, 13, 2, 257), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 500, 4, 128), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 500, 8, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 14, 16, 257), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 10, 16, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 11, 1000, 16), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 13, 1, 257), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, false, 8, 64, 64), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 7, 64, 64), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 64, 64), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 6, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 12, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 4096, 4096), "amx_bf16"); // turned
    assert_string_equal(choice(amx, TSR_BF16, true, 5, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 4, 4096, 4096), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 4, 256, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 16, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 15, 4096), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 32, 256), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 32, 255), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 3, 256, 2048), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 3, 256, 2049), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 100, 384, 16), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 100, 100, 16), "local");
}

// ---- The same bits ----------------------------------------------------------------------------

static float *random_floats(int64_t count, unsigned seed) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

static void multiply_as(int num_threads, const char *variant, tsr_dtype dtype, bool is_transposed,
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

static void multiply(int num_threads, const char *variant, tsr_dtype dtype, const void *a,
                     const void *b, void *c, int64_t m, int64_t n, int64_t k) {
    multiply_as(num_threads, variant, dtype, false, a, b, c, m, n, k);
}

// In place.
static void round_to_dtype(tsr_dtype dtype, float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        tsr_store(dtype, x, i, x[i]); // never beyond what is still to be read
}

static void check_same_of(tsr_dtype dtype, const char *variant, const char *other, int64_t m,
                          int64_t n, int64_t k) {
    static const int threads[] = {1, 2, 5, 9, 16};
    float *a = random_floats(m * k, 1), *b = random_floats(k * n, 2);
    float *c = random_floats(m * n, 3), *expected = random_floats(m * n, 4);
    size_t bytes = (size_t)(m * n * tsri_dtype_bytes(dtype));
    round_to_dtype(dtype, a, m * k);
    round_to_dtype(dtype, b, k * n);
    multiply(1, other, dtype, a, b, expected, m, n, k);
    for (int i = 0; i < COUNT(threads); i++) {
        memset(c, 0xff, bytes);
        multiply(threads[i], variant, dtype, a, b, c, m, n, k);
        assert_memory_equal(c, expected, bytes);
    }
    free(a), free(b), free(c), free(expected);
}

static void check_same(const char *variant, const char *other, int64_t m, int64_t n, int64_t k) {
    check_same_of(TSR_F32, variant, other, m, n, k);
}

// Past the caches several threads cut k too, and add up what each has in the order of one.
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
    check_same("skinny", "skinny", 2, 1100, 4000);
    check_same("skinny", "skinny", 1, 4200, 1025);
    check_same_of(TSR_BF16, "skinny", "skinny", 6, 1024,
                  4096); // fewer blocks of columns than threads
}

// Beyond 16 rows their bits follow neither what is beside them nor the number of threads.
static void check_rows_same(tsr_dtype dtype, int64_t n, int64_t k) {
    enum { MOST = 203 };
    static const int64_t rows[] = {17, 33, MOST};
    const int64_t bytes = tsri_dtype_bytes(dtype);
    float *a = random_floats(MOST * k, 1), *b = random_floats(n * k, 2);
    float *all = random_floats(MOST * n, 3), *some = random_floats(MOST * n, 4);
    round_to_dtype(dtype, a, MOST * k);
    round_to_dtype(dtype, b, n * k);
    multiply_as(1, NULL, dtype, true, a, b, all, MOST, n, k);
    for (int i = 0; i < COUNT(rows); i++)
        for (int threads = 1; threads <= 7; threads += 3) {
            int64_t first = MOST - rows[i];
            multiply_as(threads, NULL, dtype, true, (char *)a + first * k * bytes, b, some, rows[i],
                        n, k);
            assert_memory_equal(some, (char *)all + first * n * bytes,
                                (size_t)(rows[i] * n * bytes));
        }
    free(a), free(b), free(all), free(some);
}

// However rows and columns are dealt out, and whatever rows are beside: those of long columns beyond 16 too.
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

// Blocks of k of few long columns are tasks of their own where rows are few.
static void parts_are_added_in_order(void **state) {
    (void)state;
    check_same_of(TSR_BF16, NULL, NULL, 12, 60, 2100);
    check_same_of(TSR_BF16, NULL, NULL, 64, 16, 4096);
    check_rows_same(TSR_BF16, 5, 2048);
    check_rows_same(TSR_BF16, 16, 2100);
}

// Tiles turn the product where rows are few and threads, or columns many: the bits are the same.
static void turned_products_are_the_same(void **state) {
    (void)state;
    check_rows_same(TSR_BF16, 260, 1056);
    static const int64_t shapes[][3] = {{4, 70, 260}, {7, 100, 300}, {9, 33, 2080}, {16, 40, 1030}};
    static const int threads[] = {2, 5, 9, 16};
    for (int s = 0; s < COUNT(shapes); s++) {
        int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        float *a = random_floats(m * k, 1), *b = random_floats(n * k, 2);
        float *one = random_floats(m * n, 3), *c = random_floats(m * n, 4);
        round_to_dtype(TSR_BF16, a, m * k);
        round_to_dtype(TSR_BF16, b, n * k);
        multiply_as(1, NULL, TSR_BF16, true, a, b, one, m, n, k);
        for (int i = 0; i < COUNT(threads); i++) {
            multiply_as(threads[i], NULL, TSR_BF16, true, a, b, c, m, n, k);
            assert_memory_equal(c, one, (size_t)(m * n * tsri_dtype_bytes(TSR_BF16)));
        }
        free(a), free(b), free(one), free(c);
    }
}

static void tiles_add_in_one_order(void **state) {
    (void)state;
    for (int64_t m = 6; m <= 14; m++) check_same("direct", "local", m, 150, 600);
    for (int64_t m = 1; m <= 50; m += 7) check_same("streamed", "local", m, 150, 603);
    // Each number of steps that is left, odd rows, and what is less than two vectors.
    for (int64_t i = 0; i < 12; i++) check_same("streamed", "local", 4 + i, 512 + 3 * i, 595 + i);
    check_same("streamed", "local", 97, 33, 515);
    tsr_context *ctx = test_context(1);
    bool is_avx2 = tsr_context_isa(ctx) == TSR_ISA_AVX2; // 16 bits are streamed there alone
    tsr_context_destroy(ctx);
    if (is_avx2)
        for (int64_t i = 0; i < 6; i++) {
            check_same_of(TSR_BF16, "streamed", "local", 1 + 3 * i, 600 + 5 * i, 531 - i);
            check_same_of(TSR_F16, "streamed", "local", 2 + 3 * i, 600 + 3 * i, 526 + i);
        }
    check_same("streamed", "local", 17, 1031, 1030);
    check_same("streamed", "local", 3, 4100, 1030); // past the caches: k is cut
    check_same("packed", "local", 130, 70, 1300);
    check_same(NULL, "local", 200, 300, 700);
}

static void few_panels_are_cut(void **state) {
    (void)state;
    assert_int_equal(matmul_pack_depth(4096, 1, 16), 128);
    assert_int_equal(matmul_pack_depth(4096, 8, 16), 1024);
    assert_int_equal(matmul_pack_depth(1000, 1, 1), 1024);
    assert_int_equal(matmul_pack_depth(100, 64, 2), 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b_in_place),
        cmocka_unit_test(b_passes_by),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(panels),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(long_columns),
        cmocka_unit_test(few_rows_on_tiles),
        cmocka_unit_test(skinny_cuts_depth),
        cmocka_unit_test(skinny_cuts_rows),
        cmocka_unit_test(tiles_add_in_one_order),
        cmocka_unit_test(parts_are_added_in_order),
        cmocka_unit_test(turned_products_are_the_same),
        cmocka_unit_test(few_panels_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
