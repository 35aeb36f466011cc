// SPDX-License-Identifier: Apache-2.0
// Products of f32 by b of 16 bits: each variant gives the bits that it gives for b widened beforehand, groups and gates too, and
// what such calls refuse.
#include "test_support.h"

enum { MOST_M = 70, MOST_N = 140, MOST_K = 530, GROUPS = 3, GUARD = 16, POISON = 0xa5 };

static float a[MOST_M * MOST_K], wide[2][GROUPS * MOST_N * MOST_K];
static uint16_t narrow[2][GROUPS * MOST_N * MOST_K];
static struct { float before[GUARD], c[MOST_M * MOST_N], after[GUARD]; } out, expected;

static void fill(tsr_dtype dtype, uint64_t *random) {
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) a[i] = test_float(random);
    for (int w = 0; w < 2; w++)
        for (int64_t i = 0; i < (int64_t)GROUPS * MOST_N * MOST_K; i++) {
            tsr_store(dtype, narrow[w], i, (double)test_float(random));
            wide[w][i] = (float)tsr_load(dtype, narrow[w], i);
        }
}

static void check_guards(void) {
    assert_true(test_all_bytes_are(out.before, POISON, sizeof out.before) &&
                test_all_bytes_are(out.after, POISON, sizeof out.after));
}

static void bits_of_wide_b(void **state) {
    (void)state;
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261201);
    const int cases = TEST_IS_SLOW ? 8 : 40;
    int served = 0;
    for (int i = 0; i < cases; i++) {
        const tsr_dtype dtype = i % 2 == 0 ? TSR_BF16 : TSR_F16;
        const int m = 1 + (int)(test_bits(&random) % (i % 4 < 2 ? 6 : MOST_M)),
                  n = 1 + (int)(test_bits(&random) % MOST_N),
                  k = 1 + (int)(test_bits(&random) % MOST_K);
        const bool is_transposed = test_bits(&random) & 1, has_up = test_bits(&random) & 1;
        fill(dtype, &random);
        for (int v = 0; v < tsr_variant_count("matmul_forward"); v++) {
            tsr_variant_info info;
            tsr_context *ctx = test_context(2);
            assert_ok(tsr_variant_info_get("matmul_forward", v, &info));
            tsr_matmul_forward_args args =
                TSR_MATMUL_FORWARD_ARGS(.variant = info.name, .a = TSR_TENSOR(a, TSR_F32, m, k),
                                        .c = TSR_TENSOR(out.c, TSR_F32, m, n),
                                        .transpose_b = is_transposed);
            for (int w = 0; w < 2; w++) {
                memset(&out, POISON, sizeof out);
                args.b = is_transposed ? TSR_TENSOR(wide[0], TSR_F32, n, k)
                                       : TSR_TENSOR(wide[0], TSR_F32, k, n);
                if (has_up) args.b_up = args.b, args.b_up.data = wide[1];
                if (w == 0) {
                    if (tsr_matmul_forward(ctx, &args) != TSR_OK) break; // not such a product
                    expected = out;
                    continue;
                }
                args.b.data = narrow[0], args.b.dtype = dtype;
                if (has_up) args.b_up.data = narrow[1], args.b_up.dtype = dtype;
                const tsr_status status = tsr_matmul_forward(ctx, &args);
                if (status == TSR_UNSUPPORTED) break; // b would be read in place
                assert_ok(status);
                check_guards();
                served++;
                if (strcmp(info.name, "skinny") == 0) { // its blocks follow the bytes of b
                    for (int j = 0; j < m * n; j++)
                        assert_true(out.c[j] - expected.c[j] < 1e-5f * (float)k &&
                                    expected.c[j] - out.c[j] < 1e-5f * (float)k);
                    continue;
                }
                assert_memory_equal(&out, &expected, sizeof out);
            }
            tsr_context_destroy(ctx);
        }
    }
    assert_true(served > 4 * cases);
}

static void groups(void **state) {
    (void)state;
    enum { N = 33, K = 260 };
    static const int32_t offsets[GROUPS + 1] = {0, 3, 3, 60};
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261201);
    fill(TSR_BF16, &random);
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        tsr_context *ctx;
        if (!test_has_isa(isa)) continue;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa), &ctx));
        memset(&out, POISON, sizeof out);
        tsr_matmul_grouped_forward_args args =
            TSR_MATMUL_GROUPED_FORWARD_ARGS(.flags = TSR_BATCH_INVARIANT,
                                            .a = TSR_TENSOR(a, TSR_F32, 60, K),
                                            .b = TSR_TENSOR(wide[0], TSR_F32, GROUPS, K, N),
                                            .c = TSR_TENSOR(out.c, TSR_F32, 60, N),
                                            .offsets = TSR_TENSOR(offsets, TSR_I32, GROUPS + 1));
        assert_ok(tsr_matmul_grouped_forward(ctx, &args));
        expected = out;
        memset(&out, POISON, sizeof out);
        args.b = TSR_TENSOR(narrow[0], TSR_BF16, GROUPS, K, N);
        assert_ok(tsr_matmul_grouped_forward(ctx, &args));
        assert_memory_equal(&out, &expected, sizeof out);
        tsr_context_destroy(ctx);
    }
}

static void refusals(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    const tsr_matmul_forward_args good =
        TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, 4, 8),
                                .b = TSR_TENSOR(narrow[0], TSR_BF16, 8, 6),
                                .b_up = TSR_TENSOR(narrow[1], TSR_BF16, 8, 6),
                                .c = TSR_TENSOR(out.c, TSR_F32, 4, 6));
    tsr_matmul_forward_args args;
    memset(&out, POISON, sizeof out);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_matmul_forward(ctx, &args), TSR_INVALID_ARGUMENT,                            \
                  "matmul_forward: ", __VA_ARGS__);                                                \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.b.dtype = TSR_E4M3, "b.dtype is e4m3", "f32, bf16 or f16 beside a of f32");
    REFUSES(args.b.dtype = TSR_U8, "b.dtype is u8", "f32, bf16 or f16 beside a of f32");
    REFUSES(args.b.dtype = TSR_F64, "b.dtype is f64", "f32, bf16 or f16 beside a of f32");
    REFUSES(args.b_up.dtype = TSR_F16, "b_up.dtype is f16", "bf16 as b");
    REFUSES((args.a.dtype = TSR_F16, args.a.data = narrow[0]), "b.dtype is bf16", "f16 as a");
    REFUSES(args.c.dtype = TSR_BF16, "c.dtype is bf16", "f32");
    assert_ok(tsr_matmul_forward(ctx, &good));
    const tsr_matmul_backward_args backward =
        TSR_MATMUL_BACKWARD_ARGS(.a = good.a, .b = good.b, .dc = TSR_TENSOR(wide[0], TSR_F32, 4, 6),
                                 .da = TSR_TENSOR(out.c, TSR_F32, 4, 8));
    assert_status(tsr_matmul_backward(ctx, &backward), TSR_INVALID_ARGUMENT,
                  "matmul_backward: b.dtype is bf16", "f32 as a");
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_wide_b),
        cmocka_unit_test(groups),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("matmul narrow b", tests, NULL, NULL);
}
