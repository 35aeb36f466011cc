// SPDX-License-Identifier: Apache-2.0
// Products of few rows whose k many threads cut into tasks, and tiles that prefetch B: when, into which tasks, and that
// the bits stay the same.
#include <string.h>

#include "context/op_table.h"
#include "cpu/gemm.h"
#include "matmul_cpu_case.h"
#include "test_support.h"

static struct tsri_limits limits_of(tsr_isa isa, int num_threads) {
    return (struct tsri_limits){.isa = isa, .num_threads = num_threads, .l2_bytes = 2 << 20};
}

// Sizes that are cut, and neighbours with one row more or one step or column more or less, which are not.
struct boundary {
    tsr_isa isa;
    int num_threads;
    int64_t m, n, k, other_m, other_n, other_k;
};

static void where_depth_is_cut(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        // Few columns per thread.
        {TSR_ISA_AVX512, 16, 1, 1024, 1024, 1, 1024, 1023},
        {TSR_ISA_AVX512, 16, 8, 48, 2048, 8, 47, 2048},
        {TSR_ISA_AVX512, 16, 8, 300, 1024, 9, 300, 1024},
        {TSR_ISA_AVX512, 16, 9, 144, 2048, 9, 143, 2048},
        {TSR_ISA_AVX512, 16, 16, 250, 2048, 17, 250, 2048},
        {TSR_ISA_AVX512, 16, 32, 500, 2048, 33, 500, 2048},
        {TSR_ISA_AVX512, 16, 17, 500, 2048, 17, 499, 2048},
        {TSR_ISA_AVX512, 8, 6, 512, 2048, 6, 513, 2048},
        {TSR_ISA_AVX512, 8, 3, 512, 2048, 3, 512, 1023},
        {TSR_ISA_AVX2, 16, 8, 1024, 2048, 9, 1024, 2048},
        {TSR_ISA_AVX2, 16, 3, 1024, 2048, 3, 1025, 4096},
        // More columns, past the caches, and on more threads.
        {TSR_ISA_AVX512, 4, 4, 1024, 4096, 4, 1024, 4095},
        {TSR_ISA_AVX512, 4, 4, 4096, 1024, 5, 4096, 1024},
        {TSR_ISA_AVX512, 16, 3, 8192, 513, 3, 8192, 511},
        {TSR_ISA_AVX512, 16, 4, 1200, 1024, 3, 1200, 1024},
        {TSR_ISA_AVX512, 16, 16, 2048, 1024, 16, 2049, 1024},
        {TSR_ISA_AVX512, 16, 16, 2048, 1024, 17, 2048, 1024},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const struct boundary *c = &cases[i];
        struct tsri_limits limits = limits_of(c->isa, c->num_threads);
        struct matmul_problem p = product_of(TSR_F32, c->m, c->n, c->k);
        struct matmul_problem other = product_of(TSR_F32, c->other_m, c->other_n, c->other_k);
        if (!matmul_cuts_depth(&p, &limits)) fail_msg("case %d is not cut", i);
        if (matmul_cuts_depth(&other, &limits)) fail_msg("case %d: its like is cut too", i);
    }
}

// Products that are not cut: those that accumulate into c, batches, gates, groups, or operands that are not floats in
// place. Scalar code, few threads and a tuning row's blocks do not cut either.
static void what_is_not_cut(void **state) {
    (void)state;
    static const float b_up[1];
    static const int32_t starts[2];
    const struct matmul_problem plain = product_of(TSR_F32, 4, 1000, 2000);
    struct tsri_limits limits = limits_of(TSR_ISA_AVX512, 16);
    assert_true(matmul_cuts_depth(&plain, &limits));
    struct matmul_problem p = plain;
    p.is_accumulating = true;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.num_batches = 2;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.a.dtype = TSR_BF16;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.a.col = 4, p.a.row = 1;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.b.col = 2000, p.b.row = 1;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.b_up.data = (char *)(uintptr_t)b_up;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.m = 0;
    assert_false(matmul_cuts_depth(&p, &limits));
    p = plain, p.groups.starts.data = starts;
    assert_false(matmul_cuts_depth(&p, &limits));
    for (int i = 0; i < 2; i++) {
        limits.block[0] = i == 0 ? 64 : 0, limits.block[1] = i == 0 ? 0 : 64;
        assert_false(matmul_cuts_depth(&plain, &limits));
    }
    limits = limits_of(TSR_ISA_SCALAR, 16);
    assert_false(matmul_cuts_depth(&plain, &limits));
    limits = limits_of(TSR_ISA_AVX512, 3);
    assert_false(matmul_cuts_depth(&plain, &limits));
}

// About three tasks per thread, with 32 columns or multiples up to 512. One thread would cut k into the same parts.
static void tasks_of_parts(void **state) {
    (void)state;
    static const struct {
        int64_t m, n, k, block_n, block_k, num_tasks;
    } cases[] = {
        {8, 1024, 1024, 64, 512, 2 * 16},   {3, 1000, 4096, 192, 512, 8 * 6},
        {16, 64, 5000, 32, 504, 10 * 2},    {2, 33, 30000, 64, 512, 59},
        {4, 11008, 4096, 512, 512, 8 * 22}, {1, 513, 1025, 64, 344, 3 * 9},
    };
    struct tsri_limits limits = limits_of(TSR_ISA_AVX512, 16);
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = product_of(TSR_F32, cases[i].m, cases[i].n, cases[i].k);
        struct tsri_plan plan = {0};
        assert_true(matmul_cuts_depth(&p, &limits));
        matmul_plan_direct(&p, &limits, &plan);
        assert_true(matmul_has_parts(&p, &plan));
        if (plan.block_n != cases[i].block_n || plan.block_k != cases[i].block_k ||
            plan.num_tasks != cases[i].num_tasks)
            fail_msg("case %d: %d tasks of %d columns, %d steps", i, (int)plan.num_tasks,
                     (int)plan.block_n, (int)plan.block_k);
    }
}

struct shape {
    tsr_isa isa;
    int64_t m, n, k, row; // row: floats between rows of b
};

// Runs with an epilogue, a guard zone after c, and a workspace of exactly the requested size.
static float *multiply(const struct shape *s, int num_threads, const char *variant) {
    uint64_t seed = 7;
    int64_t a_floats = s->m * s->k, b_floats = s->k * s->row, c_floats = s->m * s->n;
    float *x = malloc((size_t)(a_floats + b_floats + c_floats + s->n) * sizeof *x);
    float *c = malloc((size_t)(c_floats + 16) * sizeof *c);
    assert_non_null(x), assert_non_null(c);
    for (int64_t i = 0; i < a_floats + b_floats + c_floats + s->n; i++) x[i] = test_float(&seed);
    memset(c, 0xff, (size_t)(c_floats + 16) * sizeof *c);
    float *a = x, *b = a + a_floats, *residual = b + b_floats, *bias = residual + c_floats;
    tsr_context *ctx = NULL;
    assert_ok(tsr_context_create(
        &TSR_CONTEXT_OPTIONS(.num_threads = num_threads, .isa = s->isa, .tuning_file = ""), &ctx));
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.variant = variant, .a = TSR_TENSOR(a, TSR_F32, s->m, s->k),
                                .b = TSR_TENSOR(b, TSR_F32, s->k, s->n),
                                .c = TSR_TENSOR(c, TSR_F32, s->m, s->n),
                                .residual = TSR_TENSOR(residual, TSR_F32, s->m, s->n),
                                .bias = TSR_TENSOR(bias, TSR_F32, s->n),
                                .activation = TSR_ACTIVATION_SILU, .has_alpha = true,
                                .alpha = 0.25f);
    args.b.stride[0] = s->row;
    size_t bytes = 0;
    assert_ok(tsr_matmul_forward_prepare(ctx, &args, &bytes));
    char *space = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(space);
    memset(space, 0xff, bytes + 64);
    args.workspace = space, args.workspace_bytes = bytes;
    assert_ok(tsr_matmul_forward(ctx, &args));
    for (int i = 0; i < 64; i++) assert_int_equal((unsigned char)space[bytes + (size_t)i], 0xff);
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, c + c_floats + i, sizeof bits);
        assert_int_equal(bits, 0xffffffffu);
    }
    tsr_context_destroy(ctx);
    free(space), free(x);
    return c;
}

static void bits_are_those_of_one_thread(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {TSR_ISA_AUTO, 1, 600, 1024, 600},    {TSR_ISA_AUTO, 2, 1000, 1031, 1001},
        {TSR_ISA_AUTO, 3, 1024, 4100, 1024},  {TSR_ISA_AUTO, 5, 70, 6000, 70},
        {TSR_ISA_AUTO, 8, 33, 5000, 40},      {TSR_ISA_AUTO, 13, 513, 2049, 1024},
        {TSR_ISA_AUTO, 16, 1100, 1500, 2048}, {TSR_ISA_AUTO, 31, 700, 1600, 1024},
        {TSR_ISA_AVX2, 3, 600, 1700, 600},    {TSR_ISA_AVX2, 8, 1024, 2050, 1024},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        float *expected = multiply(&shapes[i], 1, "direct");
        for (int threads = 4; threads <= 16; threads += 4) {
            float *c = multiply(&shapes[i], threads, "direct");
            assert_memory_equal(c, expected, (size_t)(shapes[i].m * shapes[i].n) * sizeof *c);
            free(c);
        }
        free(expected);
    }
}

// Several tiles that each prefetch B, and tall tiles, give the same bits as panels of B.
static void fetched_is_the_same_as_packed(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {TSR_ISA_AUTO, 9, 300, 520, 1000},  {TSR_ISA_AUTO, 16, 100, 300, 1024},
        {TSR_ISA_AUTO, 17, 129, 512, 2048}, {TSR_ISA_AUTO, 23, 64, 257, 3072},
        {TSR_ISA_AUTO, 40, 513, 260, 1024}, {TSR_ISA_AUTO, 96, 48, 700, 1024},
        {TSR_ISA_AVX2, 13, 333, 500, 1000}, {TSR_ISA_AVX2, 25, 65, 300, 1024},
        {TSR_ISA_SCALAR, 9, 40, 270, 1024},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        float *expected = multiply(&shapes[i], 1, "local"), *c = multiply(&shapes[i], 1, "direct");
        assert_memory_equal(c, expected, (size_t)(shapes[i].m * shapes[i].n) * sizeof *c);
        free(c), free(expected);
    }
}

// Few threads on Intel: the rows, columns and steps between which prefetching tiles are the default.
static void fetched_beside_streamed(void **state) {
    (void)state;
    assert_string_equal(choice(large, TSR_F32, false, 24, 1000, 1000), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 23, 1000, 1000), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 24, 1024, 1000), "streamed"); // same sets
    assert_string_equal(choice(large, TSR_F32, false, 32, 2560, 3276), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 32, 2560, 3277), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 32, 2561, 3000), "streamed");
    assert_string_equal(choice(large, TSR_F32, false, 48, 1000, 4194), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 48, 1000, 4195), "local");
    assert_string_equal(choice(large, TSR_F32, false, 48, 1001, 1000), "local"); // no whole vectors
    assert_string_equal(choice(large, TSR_F32, false, 48, 1544, 1000), "local");
    assert_string_equal(choice(large, TSR_F32, false, 48, 1536, 1000), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 96, 1000, 1310), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 96, 1000, 1311), "local");
    assert_string_equal(choice(large, TSR_F32, false, 97, 1000, 1000), "local");
    assert_string_equal(choice(large_2, TSR_F32, false, 20, 3000, 2000), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 19, 3000, 2000), "streamed");
    assert_string_equal(choice(large_2, TSR_F32, false, 48, 2552, 1600), "direct");
    assert_string_equal(choice(large_2, TSR_F32, false, 49, 2552, 1600), "blocked");
}

// Gradients of a shared b are summed over the batches. The first product may be cut, but the accumulating ones are not
// and need another workspace. A's columns are contiguous, so batches do not merge into one product.
static void summed_gradients_have_their_workspace(void **state) {
    (void)state;
    enum { B = 2, M = 4096, K = 17, N = 1000, GUARD = 4 << 20 };
    size_t bytes = 0;
    uint64_t seed = 3;
    float *x = malloc((size_t)(B * K * M + K * N + B * M * N) * sizeof *x), *db[2];
    assert_non_null(x);
    for (int i = 0; i < B * K * M + K * N + B * M * N; i++) x[i] = test_float(&seed);
    for (int i = 0; i < 2; i++) {
        tsr_context *ctx = test_context(i == 0 ? 1 : 16);
        db[i] = malloc((size_t)K * N * sizeof **db);
        assert_non_null(db[i]);
        tsr_matmul_backward_args args =
            TSR_MATMUL_BACKWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, B, K, M),
                                     .b = TSR_TENSOR(x + B * K * M, TSR_F32, K, N),
                                     .dc = TSR_TENSOR(x + B * K * M + K * N, TSR_F32, B, M, N),
                                     .db = TSR_TENSOR(db[i], TSR_F32, K, N), .transpose_a = true);
        assert_ok(tsr_matmul_backward_prepare(ctx, &args, &bytes));
        unsigned char *space = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
        assert_non_null(space);
        memset(space, 0xff, bytes + GUARD);
        args.workspace = space, args.workspace_bytes = bytes;
        assert_ok(tsr_matmul_backward(ctx, &args));
        for (int j = 0; j < GUARD; j++) assert_int_equal(space[bytes + (size_t)j], 0xff);
        free(space);
        tsr_context_destroy(ctx);
    }
    assert_memory_equal(db[0], db[1], (size_t)K * N * sizeof **db);
    free(db[0]), free(db[1]), free(x);
}

// The stride of a dimension of size 1 may be any number.
static void idle_strides(void **state) {
    (void)state;
    enum { M = 20, N = 70 };
    float a[M], b[N], c[M * N];
    for (int i = 0; i < M; i++) a[i] = (float)i;
    for (int j = 0; j < N; j++) b[j] = (float)(j + 1);
    tsr_context *ctx = test_context(1);
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, M, 1),
                                .b = TSR_TENSOR(b, TSR_F32, 1, N),
                                .c = TSR_TENSOR(c, TSR_F32, M, N), .variant = "direct");
    args.b.stride[0] = INT64_MAX / 4;
    assert_ok(tsr_matmul_forward(ctx, &args));
    for (int i = 0; i < M * N; i++) assert_true(c[i] == a[i / N] * b[i % N]);
    tsr_context_destroy(ctx);
}

// One row of whole vectors is computed with two panels at a time.
static void lone_rows_by_panels(void **state) {
    (void)state;
    assert_string_equal(choice(large, TSR_F32, false, 1, 128, 512), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 1, 120, 512), "skinny");
    assert_string_equal(choice(many, TSR_F32, false, 1, 80, 1030), "direct");
    assert_string_equal(choice(large, TSR_F32, false, 1, 128, 4096), "skinny"); // past the caches
    assert_string_equal(choice(large, TSR_F32, false, 1, 128, 4095), "direct");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_depth_is_cut),
        cmocka_unit_test(what_is_not_cut),
        cmocka_unit_test(tasks_of_parts),
        cmocka_unit_test(bits_are_those_of_one_thread),
        cmocka_unit_test(fetched_is_the_same_as_packed),
        cmocka_unit_test(fetched_beside_streamed),
        cmocka_unit_test(lone_rows_by_panels),
        cmocka_unit_test(summed_gradients_have_their_workspace),
        cmocka_unit_test(idle_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
