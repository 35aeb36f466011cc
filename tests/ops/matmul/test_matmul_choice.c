// SPDX-License-Identifier: Apache-2.0
// Which variant serves a product on the CPU.
#include "context/op_table.h"
#include "core/core_dtype.h"
#include "cpu/gemm.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

// B in place while it is small. On AVX2, whose panels are narrow, it must be smaller for many rows.
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
    assert_string_equal(choice(two, TSR_F32, false, 300, 1024, 512), "blocked"); // page stride
    assert_string_equal(choice(two, TSR_F32, false, 512, 700, 512), "blocked");  // partial vector
    assert_string_equal(choice(large_2, TSR_F32, false, 512, 700, 512), "local");
    assert_string_equal(choice(large_2, TSR_F32, false, 1000, 1281, 512), "blocked");
    assert_string_equal(choice(large_2, TSR_F32, false, 1025, 1280, 512), "blocked");
    assert_string_equal(choice(avx512, TSR_F32, false, 1000, 512, 512), "blocked");
    assert_string_equal(choice(large, TSR_F32, false, 1000, 512, 512), "blocked");
    assert_string_equal(choice(large_2, TSR_F32, false, 1000, 512, 512), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 1000, 576, 512), "local");
}

// B is streamed if it exceeds the L2 cache; with many threads only for fewer rows.
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
    assert_string_equal(choice(avx512, TSR_F32, false, 6, 2048, 4096), "streamed");
    assert_string_equal(choice(amd, TSR_F32, false, 6, 2048, 4096), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 7, 2048, 4096), "direct");
    assert_string_equal(choice(avx512, TSR_F32, false, 7, 2048, 4097), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 17, 512, 1025), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 17, 512, 1024), "direct");
    assert_string_equal(choice(avx2, TSR_F32, true, 3, 4096, 4096), "skinny");
    assert_string_equal(choice(avx2, TSR_BF16, false, 3, 4096, 4096), "skinny");
    // AVX-512 except AMD: few rows past the L2 cache, and any size for three rows.
    assert_string_equal(choice(large, TSR_F32, false, 2, 1000, 127), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 2, 1000, 128), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 2, 1024, 128), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 3, 300, 64), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 4, 1000, 2047), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 4, 1000, 2048), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 5, 300, 1747), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 5, 300, 1748), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 6, 999, 2048), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 3, 1024, 2048), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 3, 1000, 64), "streamed");
    assert_string_equal(choice(large_2, TSR_F32, false, 5, 1024, 1024), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 5, 4096, 257), "streamed");
    assert_string_equal(choice(large_2, TSR_F32, false, 10, 999, 4096), "direct");
    // AMD: few rows, and rows of B that map to the same cache sets.
    assert_string_equal(choice(avx512, TSR_F32, false, 1, 1024, 1000), "direct");
    assert_string_equal(choice(amd, TSR_F32, false, 1, 1024, 1000), "streamed");
    assert_string_equal(choice(amd, TSR_F32, false, 1, 700, 64), "streamed");
    assert_string_equal(choice(amd, TSR_F32, false, 2, 700, 127), "direct");
    assert_string_equal(choice(amd, TSR_F32, false, 4, 4096, 1000), "streamed");
    assert_string_equal(choice(amd, TSR_F32, false, 4, 4000, 1000), "direct");
    assert_string_equal(choice(amd_2, TSR_F32, false, 1, 1536, 1000), "streamed");
    assert_string_equal(choice(amd_2, TSR_F32, false, 1, 700, 1000), "direct");
    assert_string_equal(choice(amd_2, TSR_F32, false, 3, 4096, 1000), "direct");
}

// Many threads also cut k, or use tiles, which add in the same order.
static void many_threads(void **state) {
    (void)state;
    assert_string_equal(choice(many, TSR_F32, false, 3, 4096, 4096), "direct");
    assert_string_equal(choice(avx2_16, TSR_F32, false, 3, 1025, 4096), "streamed");
    assert_string_equal(choice(avx2_16, TSR_F32, false, 3, 1024, 4096), "direct");
    assert_string_equal(choice(avx2_16, TSR_F32, false, 9, 1024, 4096), "streamed");
    assert_string_equal(choice(many, TSR_F32, false, 32, 1000, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 33, 1000, 4096), "local");
    assert_string_equal(choice(many, TSR_F32, false, 6, 128, 60000), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 6, 128, 70000), "skinny"); // like one thread
    assert_string_equal(choice(many, TSR_F32, false, 7, 128, 70000), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 47, 2048, 1000), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 48, 2048, 1000), "local");
    assert_string_equal(choice(many, TSR_F32, false, 48, 2047, 1000), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 4, 4096, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 8, 4096, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 8, 2048, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 16, 4096, 4096), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 96, 2000, 1024), "direct");
    assert_string_equal(choice(many, TSR_F32, false, 97, 1000, 1024), "local");
    assert_string_equal(choice(many, TSR_F32, false, 256, 1000, 257), "direct");
    assert_string_equal(choice(four, TSR_F32, false, 256, 1000, 257), "local");
    assert_string_equal(choice(four, TSR_F32, false, 256, 1008, 257), "direct");
    for (int64_t m = 1; m <= 2; m++) { // skinny adds in another order
        assert_string_equal(choice(large, TSR_F32, false, m, 512, 20000), "skinny");
        assert_string_equal(choice(many, TSR_F32, false, m, 512, 20000), "skinny");
    }
    struct matmul_problem p = product_of(TSR_F32, 3, 4096, 1030); // on AVX2
    assert_true(matmul_streams_parts(&p, 4));
    assert_false(matmul_streams_parts(&p, 3));
    p.is_accumulating = true;
    assert_false(matmul_streams_parts(&p, 4));
}

// One thread needs no shared panels, and many threads share none either.
static void panels(void **state) {
    (void)state;
    assert_string_equal(choice(avx2, TSR_F32, false, 512, 512, 512), "local");
    assert_string_equal(choice(avx2, TSR_F32, false, 4000, 512, 512), "packed");
    assert_string_equal(choice(avx2, TSR_BF16, false, 512, 200, 512), "packed");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 512, 512), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 768, 512), "local");
    assert_string_equal(choice(avx2_2, TSR_F32, false, 512, 768, 520), "blocked");
    assert_string_equal(choice(avx2_2, TSR_BF16, false, 512, 512, 512), "blocked");
    // Two threads: floats have private panels; 16-bit A is widened once if panels divide equally.
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
    assert_string_equal(choice(avx512, TSR_F32, true, 512, 256, 768), "local");
    assert_string_equal(choice(avx512, TSR_F32, true, 512, 256, 767), "packed");
    assert_string_equal(choice(avx512, TSR_F32, true, 513, 256, 768), "packed");
    assert_string_equal(choice(two, TSR_F32, true, 512, 100, 1000), "local");
    assert_string_equal(choice(two, TSR_F32, true, 513, 100, 129), "packed");
    assert_string_equal(choice(two, TSR_F32, true, 4000, 100, 128), "local");
    assert_string_equal(choice(two, TSR_F16, true, 300, 100, 1000), "packed");
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
    assert_string_equal(choice(avx512, TSR_F32, true, 12, 100, 192), "skinny");
    assert_string_equal(choice(avx512, TSR_F32, true, 15, 100, 255), "local");
    assert_string_equal(choice(avx512, TSR_F32, false, 1, 1000, 8), "direct");
    // One row with little work uses skinny's loop without tasks.
    assert_string_equal(choice(avx512, TSR_F32, false, 1, 100, 8), "naive");
    assert_string_equal(choice(avx512, TSR_BF16, false, 1, 1000, 32), "naive");
    assert_string_equal(choice(many, TSR_BF16, false, 1, 1000, 32), "naive");
    assert_string_equal(choice(many, TSR_BF16, false, 1, 1000, 33), "skinny");
    assert_string_equal(choice(avx512, TSR_BF16, false, 2, 100, 8), "skinny");
    assert_string_equal(choice(avx512, TSR_BF16, false, 1, 1 << 20, 0), "skinny"); // few columns
}

// Dot products for any number of rows, so m does not matter. One contiguous column also counts as a long column.
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
    assert_string_equal(choice(amx, TSR_BF16, false, 13, 1, 257), "skinny_bf16"); // one long column
    assert_string_equal(choice(amx, TSR_BF16, false, 13, 2, 257), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 500, 4, 128), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 500, 8, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 14, 16, 257), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 10, 16, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 11, 1000, 24), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 13, 1, 257), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 8, 64, 64), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 5, 64, 383), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 5, 64, 384), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 7, 16, 1023), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 6, 16, 1023), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 7, 47, 255), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 7, 47, 191), "skinny");
    assert_string_equal(choice(amx, TSR_BF16, true, 13, 5, 384), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 13, 4, 384), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 7, 33, 96), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 7, 32, 96), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 64, 64), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 6, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 12, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 4096, 4096), "amx_bf16"); // transposed
    assert_string_equal(choice(amx, TSR_BF16, true, 5, 4096, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 4, 4096, 4096), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 4, 256, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 16, 4096), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 8, 15, 4096), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 48, 256), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 48, 255), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 32, 1023), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 6, 32, 1024), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 3, 256, 2048), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 3, 256, 2049), "skinny_bf16");
    assert_string_equal(choice(amx, TSR_BF16, true, 100, 384, 16), "amx_bf16");
    assert_string_equal(choice(amx, TSR_BF16, false, 100, 100, 16), "local");
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
        cmocka_unit_test(b_in_place),        cmocka_unit_test(b_passes_by),
        cmocka_unit_test(many_threads),      cmocka_unit_test(panels),
        cmocka_unit_test(few_rows),          cmocka_unit_test(long_columns),
        cmocka_unit_test(few_rows_on_tiles), cmocka_unit_test(few_panels_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
