// SPDX-License-Identifier: Apache-2.0
// Grouped matmul: a group's bits do not depend on the other groups, on where the group begins, or on the number of
// threads.
#include "matmul_grouped_case.h"

// A group's rows have the same bits wherever the group begins and for any number of threads. The workspace has the size
// that prepare returned for other offsets.
static void bits_are_a_groups_own(void **state) {
    (void)state;
    static const int32_t places[][GROUPS + 1] = {
        {0, 0, 37, 37, 90, 90}, {53, 53, 90, 90, 90, 90}, {0, 5, 42, 42, 42, 60}};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    static _Alignas(64) unsigned char workspace[8 << 20];
    uint64_t random = 5;
    for (int d = 0; d < COUNT(dtypes); d++) {
        static unsigned char first[37 * N * 4], rows[37 * K * 4];
        size_t row_bytes = K * tsr_dtype_bytes(dtypes[d]);
        for (int64_t i = 0; i < 37 * K; i++) tsr_store(dtypes[d], rows, i, test_float(&random));
        for (int64_t i = 0; i < GROUPS * K * N; i++)
            tsr_store(dtypes[d], b, i, test_float(&random));
        for (int run = 0; run < 2 * COUNT(places); run++) {
            const int32_t *place = places[run / 2];
            tsr_context *ctx = test_context(1 + run % 2);
            static float y[ROWS * N];
            memset(a, 0, sizeof a);
            memcpy(a + (size_t)place[1] * row_bytes, rows, 37 * row_bytes);
            tsr_matmul_grouped_forward_args args =
                TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(a, dtypes[d], ROWS, K),
                                                .b = TSR_TENSOR(b, dtypes[d], GROUPS, K, N),
                                                .c = TSR_TENSOR(y, TSR_F32, ROWS, N),
                                                .offsets =
                                                    TSR_TENSOR(offsets, TSR_I32, GROUPS + 1));
            assert_ok(tsr_matmul_grouped_forward_prepare(ctx, &args, &args.workspace_bytes));
            assert_true(args.workspace_bytes <= sizeof workspace);
            args.workspace = workspace;
            args.offsets = TSR_TENSOR(place, TSR_I32, GROUPS + 1);
            assert_ok(tsr_matmul_grouped_forward(ctx, &args));
            if (run == 0)
                memcpy(first, y + place[1] * N, sizeof first);
            else
                assert_memory_equal(first, y + place[1] * N, sizeof first);
            tsr_context_destroy(ctx);
        }
    }
}

// Groups with few rows read b in place. They have the same bits for any number of threads and any groups after them, in
// a workspace of exactly the requested size. Under TSR_BATCH_INVARIANT a row has the same bits as in a large group.
static void few_rows_of_a_group(void **state) {
    (void)state;
    enum { MANY = 40 };
    static const int few[] = {1, 2, 5, 6, 7, 16, 17, MANY};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static float y[ROWS * N], first[MANY * N], of_many[N];
    uint64_t random = 6;
    for (int form = 0; form < 12 * COUNT(few); form++) {
        int num_rows = few[COUNT(few) - 1 - form % COUNT(few)], kind = form / COUNT(few);
        tsr_dtype dtype = dtypes[kind % 3];
        int is_turned = kind / 3 % 2;
        uint32_t flags = kind / 6 ? TSR_BATCH_INVARIANT : 0;
        random = 6;
        for (int64_t i = 0; i < MANY * K; i++) tsr_store(dtype, a, i, test_float(&random));
        for (int64_t i = 0; i < GROUPS * K * N; i++) tsr_store(dtype, b, i, test_float(&random));
        for (int run = 0; run < 6; run++) {
            // The rows form group 1, which begins at row 0. Groups of other sizes follow.
            int32_t others = (int32_t)(num_rows + (run % 2 ? 20 : 0));
            int32_t place[GROUPS + 1] = {0, 0, num_rows, num_rows, others, others};
            static const int threads[] = {1, 2, 16};
            tsr_context *ctx = test_context(threads[run / 2]);
            tsr_tensor of_b =
                is_turned ? TSR_TENSOR(b, dtype, GROUPS, N, K) : TSR_TENSOR(b, dtype, GROUPS, K, N);
            tsr_matmul_grouped_forward_args args =
                TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(a, dtype, ROWS, K), .b = of_b,
                                                .c = TSR_TENSOR(y, TSR_F32, ROWS, N),
                                                .transpose_b = is_turned, .flags = flags,
                                                .offsets = TSR_TENSOR(place, TSR_I32, GROUPS + 1));
            assert_ok(tsr_matmul_grouped_forward_prepare(ctx, &args, &args.workspace_bytes));
            unsigned char *workspace =
                aligned_alloc(64, (args.workspace_bytes + GUARD + 63) / 64 * 64);
            memset(workspace, 0xa5, args.workspace_bytes + GUARD);
            memset(y, 0xff, sizeof y);
            args.workspace = workspace;
            assert_ok(tsr_matmul_grouped_forward(ctx, &args));
            assert_true(test_all_bytes_are(workspace + args.workspace_bytes, 0xa5, GUARD));
            free(workspace);
            if (run == 0) memcpy(first, y, (size_t)num_rows * N * sizeof *y);
            assert_memory_equal(first, y, (size_t)num_rows * N * sizeof *y);
            if (num_rows == MANY) memcpy(of_many, y, sizeof of_many);
            if (flags != 0) assert_memory_equal(of_many, y, sizeof of_many);
            tsr_context_destroy(ctx);
        }
    }
}

// A group's gradient db has the same bits for any rows of the other groups, or none.
static void gradients_are_a_groups_own(void **state) {
    (void)state;
    enum { DEPTH = 12, COLS = 30, WIDTH = 20, LARGE = 600 };
    static uint16_t x[LARGE * WIDTH], dy[LARGE * COLS];
    static float dw[3 * WIDTH * COLS], first[WIDTH * COLS];
    static const int32_t others[] = {0, 5, 100, LARGE - DEPTH};
    uint64_t random = 12;
    for (int i = 0; i < LARGE * WIDTH; i++) tsr_store(TSR_BF16, x, i, test_float(&random));
    for (int i = 0; i < LARGE * COLS; i++) tsr_store(TSR_BF16, dy, i, test_float(&random));
    tsr_context *ctx = test_context(2);
    for (int run = 0; run < COUNT(others); run++) {
        int32_t rows = DEPTH + others[run], place[] = {0, DEPTH, DEPTH, rows};
        memset(dw, 0xff, sizeof dw);
        assert_ok(tsr_matmul_grouped_backward(
            ctx, &TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = TSR_TENSOR(x, TSR_BF16, rows, WIDTH),
                                                   .dc = TSR_TENSOR(dy, TSR_BF16, rows, COLS),
                                                   .db = TSR_TENSOR(dw, TSR_F32, 3, WIDTH, COLS),
                                                   .offsets = TSR_TENSOR(place, TSR_I32, 4))));
        if (run == 0) memcpy(first, dw, sizeof first);
        assert_memory_equal(first, dw, sizeof first);
    }
    tsr_context_destroy(ctx);
}

// Few blocks for many threads: each thread packs its group's matrix itself, even if a product without groups would
// share it.
static void more_threads_than_blocks(void **state) {
    (void)state;
    enum { M = 256, DEPTH = 512, COLS = 512 };
    static uint16_t x[M * DEPTH], w[DEPTH * COLS], dy[M * COLS], dw[2][DEPTH * COLS];
    static float y[2][M * COLS];
    static const int32_t one_group[] = {0, M}, threads[] = {1, 2, 16};
    static const int64_t widths[] = {128, COLS};
    uint64_t random = 11;
    for (int i = 0; i < M * DEPTH; i++) tsr_store(TSR_BF16, x, i, test_float(&random));
    for (int i = 0; i < DEPTH * COLS; i++) tsr_store(TSR_BF16, w, i, test_float(&random));
    for (int i = 0; i < M * COLS; i++) tsr_store(TSR_BF16, dy, i, test_float(&random));
    for (int i = 0; i < COUNT(widths) * COUNT(threads); i++) {
        const int64_t n = widths[i / COUNT(threads)];
        const int at = i % COUNT(threads) > 0;
        tsr_context *ctx = test_context(threads[i % COUNT(threads)]);
        memset(y[at], 0xff, sizeof y[at]);
        memset(dw[at], 0xff, sizeof dw[at]);
        assert_ok(tsr_matmul_grouped_forward(
            ctx, &TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_BF16, M, DEPTH),
                                                  .b = TSR_TENSOR(w, TSR_BF16, 1, DEPTH, n),
                                                  .c = TSR_TENSOR(y[at], TSR_F32, M, n),
                                                  .offsets = TSR_TENSOR(one_group, TSR_I32, 2))));
        assert_ok(tsr_matmul_grouped_backward(
            ctx, &TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = TSR_TENSOR(x, TSR_BF16, M, DEPTH),
                                                   .dc = TSR_TENSOR(dy, TSR_BF16, M, n),
                                                   .db = TSR_TENSOR(dw[at], TSR_BF16, 1, DEPTH, n),
                                                   .offsets = TSR_TENSOR(one_group, TSR_I32, 2))));
        assert_memory_equal(y[at], y[0], sizeof y[0]);
        assert_memory_equal(dw[at], dw[0], sizeof dw[0]);
        tsr_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_a_groups_own),
        cmocka_unit_test(few_rows_of_a_group),
        cmocka_unit_test(gradients_are_a_groups_own),
        cmocka_unit_test(more_threads_than_blocks),
    };
    return cmocka_run_group_tests_name("matmul grouped bits", tests, NULL, NULL);
}
