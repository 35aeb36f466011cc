// SPDX-License-Identifier: Apache-2.0
// Products by quantised weights on the CPU, against sums in double over the numbers of tsr_dequantize, where a may be rounded by
// 2^-15 of the largest of its 32 columns; the bits for any threads and, under the flag, for any rows; and what a call refuses.
// test_dequantize.c and gguf say what the numbers are.
#include <math.h>

#include "test_support.h"

enum { MOST_M = 40, MOST_N = 60, MOST_K = 1024, GUARD = 16, POISON = 0xa5, LINE = MOST_K + 40 };

static float a[MOST_M * LINE], numbers[MOST_N * MOST_K], scale[MOST_N * 40], zero[MOST_N * 40];
static uint8_t b[MOST_N * (MOST_K * 2)];
static struct outputs { float before[GUARD], c[MOST_M * MOST_N], after[GUARD]; } out, other;

struct call {
    int m, n, k, group;
    tsr_quant_format quant;
    bool has_zero;
};

static bool is_of_groups(const struct call *c) {
    return c->quant == TSR_QUANT_INT8 || c->quant == TSR_QUANT_INT4;
}

// Bytes of Q8_0 and so on hold f16 scales of at most 2 where this puts them; others are any bytes.
static void fill(const struct call *c, uint64_t *random) {
    const int64_t unit = tsr_quant_row_bytes(c->quant, 32) < 0 ? 256 : 32,
                  block = tsr_quant_row_bytes(c->quant, unit),
                  bytes = tsr_quant_row_bytes(c->quant, c->k);
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) a[i] = NAN;
    for (int i = 0; i < c->m; i++)
        for (int s = 0; s < c->k; s++) a[i * LINE + s] = test_float(random);
    for (int64_t i = 0; i < c->n * bytes; i++) {
        const int64_t at = i % block, f16 = c->quant == TSR_QUANT_Q6_K ? 208 : 0;
        const bool is_high =
            at == f16 + 1 ||
            (at == 3 && (c->quant == TSR_QUANT_Q4_1 || c->quant == TSR_QUANT_Q4_K));
        b[i] = (uint8_t)test_below(random, 256);
        if (c->quant == TSR_QUANT_MXFP4_GGUF)
            b[i] = at == 0 ? (uint8_t)(120 + test_below(random, 10)) : b[i];
        else if (is_high && !is_of_groups(c) && c->quant != TSR_QUANT_MXFP4)
            b[i] = (uint8_t)(0x20 + test_below(random, 0x20));
    }
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++) {
        scale[i] = test_float(random) / 8;
        zero[i] = (float)test_below(random, 16);
    }
    if (c->quant == TSR_QUANT_MXFP4) // powers in bytes
        for (size_t i = 0; i < sizeof scale; i++)
            ((uint8_t *)scale)[i] = (uint8_t)(120 + test_below(random, 10));
}

static int groups_of(const struct call *c) {
    const int group = c->quant == TSR_QUANT_MXFP4 ? 32 : c->group > 0 ? c->group : c->k;
    return (c->k + group - 1) / group;
}

static struct call draw(uint64_t *random) {
    struct call c = {.quant = (tsr_quant_format)(1 + test_below(random, TSR_QUANT_COUNT - 1))};
    const int unit = is_of_groups(&c) ? 1 : tsr_quant_row_bytes(c.quant, 32) < 0 ? 256 : 32;
    c.k = unit * (1 + test_below(random, MOST_K / unit));
    c.n = 1 + test_below(random, MOST_N);
    c.m = 1 + test_below(random, test_below(random, 2) == 0 ? 5 : MOST_M);
    if (is_of_groups(&c))
        c.group = 32 * test_below(random, 4), c.has_zero = test_below(random, 2) == 0;
    fill(&c, random);
    return c;
}

static tsr_matmul_quant_args args_of(const struct call *c, int first, int m, float *to) {
    const int64_t bytes = tsr_quant_row_bytes(c->quant, c->k);
    tsr_matmul_quant_args args =
        TSR_MATMUL_QUANT_ARGS(.a = TSR_TENSOR(a + first * LINE, TSR_F32, m, c->k),
                              .b = TSR_TENSOR(b, TSR_U8, c->n, bytes),
                              .c = TSR_TENSOR(to, TSR_F32, m, c->n), .quant = c->quant,
                              .group = c->group);
    args.a.stride[0] = LINE;
    if (c->quant == TSR_QUANT_MXFP4)
        args.b_scale = TSR_TENSOR(scale, TSR_U8, c->n, groups_of(c));
    else if (is_of_groups(c))
        args.b_scale = TSR_TENSOR(scale, TSR_F32, c->n, groups_of(c));
    if (c->has_zero) args.b_zero = TSR_TENSOR(zero, TSR_F32, c->n, groups_of(c));
    return args;
}

static void widen(tsr_context *ctx, const tsr_matmul_quant_args *args, const struct call *c) {
    assert_ok(tsr_dequantize(
        ctx, &TSR_DEQUANTIZE_ARGS(.x = args->b, .scale = args->b_scale, .zero = args->b_zero,
                                  .y = TSR_TENSOR(numbers, TSR_F32, c->n, c->k), .quant = c->quant,
                                  .group = c->group)));
}

static void check(const struct call *c) {
    assert_true(test_all_bytes_are(out.before, POISON, sizeof out.before) &&
                test_all_bytes_are(out.after, POISON, sizeof out.after));
    for (int i = 0; i < c->m; i++)
        for (int j = 0; j < c->n; j++) {
            double sum = 0, magnitude = 0, rounded = 0, largest = 0;
            for (int s = 0; s < c->k; s++) {
                for (int t = s; s % 32 == 0 && t < c->k && t < s + 32; t++)
                    largest = fmax(t == s ? 0 : largest, fabs((double)a[i * LINE + t]));
                rounded += 0x1.02p-15 * largest * fabs((double)numbers[j * c->k + s]);
                const double term = (double)a[i * LINE + s] * (double)numbers[j * c->k + s];
                sum += term;
                magnitude += fabs(term);
            }
            const double limit =
                (8 + 4 * sqrt(c->k)) * 0x1p-24 * magnitude + 0x1p-24 * fabs(sum) + rounded;
            if (!(fabs((double)out.c[i * c->n + j] - sum) <= limit))
                fail_msg("%s, %d x %d x %d: c[%d][%d] is %.9g, expected %.9g",
                         tsr_quant_format_name(c->quant), c->m, c->n, c->k, i, j,
                         (double)out.c[i * c->n + j], sum);
        }
}

static void random_products(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 20 : 150);
    uint64_t random = test_seed(20261201);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_matmul_quant_args args = args_of(&c, 0, c.m, out.c);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            ctx = test_context_of(isa, 1 + isa);
            widen(ctx, &args, &c);
            assert_ok(tsr_matmul_quant(ctx, &args));
            tsr_context_destroy(ctx);
            check(&c);
        }
    }
}

static void any_number_of_threads(void **state) {
    uint64_t random = 11;
    (void)state;
    for (int i = 0; i < 12; i++) {
        const struct call c = draw(&random);
        for (int threads = 1; threads < 9; threads++) {
            tsr_context *ctx = test_context(threads);
            struct outputs *outputs = threads == 1 ? &out : &other;
            memset(outputs, POISON, sizeof *outputs);
            const tsr_matmul_quant_args args = args_of(&c, 0, c.m, outputs->c);
            assert_ok(tsr_matmul_quant(ctx, &args));
            tsr_context_destroy(ctx);
            assert_memory_equal(outputs, &out, sizeof out);
        }
    }
}

static void a_row_alone_and_among_others(void **state) {
    uint64_t random = 5;
    for (int i = 0; i < 12; i++) {
        const struct call c = draw(&random);
        tsr_matmul_quant_args args = args_of(&c, 0, c.m, out.c);
        args.flags = TSR_BATCH_INVARIANT;
        assert_ok(tsr_matmul_quant(*state, &args));
        for (int r = 0; r < c.m; r++) {
            args = args_of(&c, r, 1, other.c);
            args.flags = TSR_BATCH_INVARIANT;
            assert_ok(tsr_matmul_quant(*state, &args));
            assert_memory_equal(other.c, out.c + r * c.n, sizeof *out.c * (size_t)c.n);
        }
    }
}

static void refusals(void **state) {
    static const struct call small = {4, 6, 96, 32, TSR_QUANT_INT4, true};
    static const tsr_tensor none;
    uint64_t random = 3;
    fill(&small, &random);
    memset(&out, POISON, sizeof out);
    tsr_matmul_quant_args args, good = args_of(&small, 0, 4, out.c);
    good.b_up = good.b;
    good.b_up_scale = good.b_scale;
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_matmul_quant(*state, &args), TSR_INVALID_ARGUMENT,                           \
                  "matmul_quant: ", __VA_ARGS__);                                                  \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.a = none, "a");
    REFUSES(args.a.dtype = TSR_E4M3, "a.dtype is e4m3");
    REFUSES(args.a.stride[1] = 2, "a.stride[1] is 2", "expected 1");
    REFUSES(args.a.shape[1] = 97, "b.shape[1] is 48", "49 bytes of 97 columns of int4");
    REFUSES(args.b = none, "b is absent");
    REFUSES(args.b.dtype = TSR_F32, "b.dtype is f32", "u8");
    REFUSES(args.b.shape[1] = 47, "b.shape[1] is 47", "48 bytes of 96 columns of int4");
    REFUSES((args.b.ndim = 3, args.b.shape[2] = 48, args.b.shape[1] = 1, args.b.stride[1] = 48,
             args.b.stride[2] = 1),
            "b.ndim is 3", "expected 2");
    REFUSES(args.quant = TSR_QUANT_NONE, "quant is 0");
    REFUSES(args.quant = TSR_QUANT_COUNT, "quant is 10");
    REFUSES(args.quant = TSR_QUANT_Q4_K, "a.shape[1] is 96", "multiple of 256 for q4_k");
    REFUSES(args.group = 31, "group is 31", "0 or a multiple of 32");
    REFUSES(args.b_scale = none, "b_scale is absent", "int4");
    REFUSES(args.b_scale.shape[1] = 2, "b_scale has shape (6, 2)", "(6, 3)");
    REFUSES(args.b_zero.dtype = TSR_F16, "b_zero.dtype is f16", "f32 as b_scale");
    REFUSES(args.b_up_scale = none, "b_up_scale is absent");
    REFUSES(args.b_up.shape[0] = 5, "b_up");
    REFUSES((args.b_up = none, args.b_up_scale = good.b_scale), "b_up_scale is given without b_up");
    REFUSES(args.bias_up = TSR_TENSOR(scale, TSR_F32, 7), "bias_up");
    REFUSES(args.bias = TSR_TENSOR(scale, TSR_F32, 7), "bias");
    REFUSES(args.residual = TSR_TENSOR(numbers, TSR_F32, 4, 7), "residual has shape (4, 7)",
            "(4, 6)");
    REFUSES(args.c = none, "c is absent");
    REFUSES(args.c.shape[0] = 3, "c has shape (3, 6)", "(4, 6)");
    REFUSES(args.c.dtype = TSR_BF16, "c.dtype is bf16", "f32");
    REFUSES(args.c.data = b, "c overlaps b");
    REFUSES(args.c.data = a, "c overlaps a");
    REFUSES(args.c.data = scale, "c overlaps b_scale");
    REFUSES(args.activation = TSR_ACTIVATION_COUNT, "activation is 7");
    REFUSES(args.alpha = 2, "alpha");
    args = good;
    assert_ok(tsr_matmul_quant(*state, &args));
}

static int setup(void **state) {
    *state = test_context(2);
    return 0;
}
static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_products),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(a_row_alone_and_among_others),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("matmul quant", tests, setup, teardown);
}
