// SPDX-License-Identifier: Apache-2.0
// Embedding copies bits in every variant and dtype: signalling NaN, payloads and signs. Backward gives the same sums
// for any tasks.
#include "test_support.h"

enum { VOCAB = 5, HIDDEN = 37, TOKENS = 9 };

static void every_variant_keeps_the_bits(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    // NaN with payloads, most of them signalling: three patterns for bf16 and f16, two for f32, two for f64.
    static const uint64_t patterns[] = {
        0x7f81, 0xff81, 0x7c01, 0x7fa00001, 0xffc01234, 0x7ff0000000000001, 0xfff8000000000123};
    static const int32_t ids[TOKENS] = {3, 0, 4, 4, 1, 2, 0, 3, 1};
    tsr_context *ctx = test_context(2);
    uint64_t random = 20260405;
    int num_runs = 0;
    for (int d = 0; d < COUNT(dtypes); d++) {
        static _Alignas(8) unsigned char table[VOCAB * HIDDEN * 8], y[TOKENS * HIDDEN * 8];
        size_t bytes = tsr_dtype_bytes(dtypes[d]);
        for (size_t i = 0; i < sizeof table; i++) table[i] = (unsigned char)test_bits(&random);
        for (int i = 0; i < COUNT(patterns); i++)
            memcpy(table + (size_t)(i * 7) * bytes, &patterns[i], bytes);
        for (int v = -1; v < tsr_variant_count("embedding_forward"); v++) {
            tsr_variant_info info = {.name = NULL};
            if (v >= 0) assert_ok(tsr_variant_info_get("embedding_forward", v, &info));
            if (info.flags & TSR_VARIANT_CUDA) continue;
            memset(y, 0, sizeof y);
            tsr_status status = tsr_embedding_forward(
                ctx,
                &TSR_EMBEDDING_FORWARD_ARGS(.variant = info.name,
                                            .ids = TSR_TENSOR(ids, TSR_I32, TOKENS),
                                            .weight = TSR_TENSOR(table, dtypes[d], VOCAB, HIDDEN),
                                            .y = TSR_TENSOR(y, dtypes[d], TOKENS, HIDDEN)));
            if (status == TSR_UNSUPPORTED && v >= 0) continue;
            assert_ok(status);
            for (int t = 0; t < TOKENS; t++)
                if (memcmp(y + (size_t)(t * HIDDEN) * bytes,
                           table + (size_t)(ids[t] * HIDDEN) * bytes, HIDDEN * bytes) != 0)
                    fail_msg("%s, variant %s: other bits in row %d", tsr_dtype_name(dtypes[d]),
                             info.name != NULL ? info.name : "(default)", t);
            num_runs++;
        }
    }
    assert_true(num_runs >= 3 * 3 + 1); // default, another and the oracle; f64 only the oracle
    tsr_context_destroy(ctx);
}

// The number of threads sets the width of the last block of columns. Zeros must keep their sign with any width.
static void threads_keep_the_sign_of_zero(void **state) {
    (void)state;
    enum { COLS = 600 };
    static const int32_t ids[] = {1, 1};
    static float dy[2 * COLS], dweight[VOCAB * COLS];
    for (int i = 0; i < COUNT(dy); i++) dy[i] = -0.0f;
    for (int num_threads = 1; num_threads <= 7; num_threads++) {
        tsr_context *ctx = test_context(num_threads);
        memset(dweight, 0xff, sizeof dweight);
        assert_ok(tsr_embedding_backward(
            ctx,
            &TSR_EMBEDDING_BACKWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, 2),
                                         .dy = TSR_TENSOR(dy, TSR_F32, 2, COLS),
                                         .dweight = TSR_TENSOR(dweight, TSR_F32, VOCAB, COLS))));
        assert_memory_equal(dweight + COLS, dy, COLS * sizeof *dy);
        tsr_context_destroy(ctx);
    }
}

// Tasks are whole rows if ids are spread over many rows, and blocks of columns if one id has most tokens. The sums are
// the same.
static void sums_of_spread_and_of_one_id(void **state) {
    (void)state;
    enum { ROWS = 4096, COLS = 600, MANY = 3000 };
    static int32_t ids[MANY];
    static float dy[MANY * COLS], dweight[ROWS * COLS], expected[ROWS * COLS];
    for (int i = 0; i < COUNT(dy); i++) dy[i] = (float)(i % 61 - 30);
    for (int skewed = 0; skewed < 2; skewed++) {
        memset(expected, 0, sizeof expected);
        for (int t = 0; t < MANY; t++) {
            ids[t] = skewed && t % 3 != 0 ? 17 : t * 1237 % ROWS;
            for (int c = 0; c < COLS; c++) expected[ids[t] * COLS + c] += dy[t * COLS + c];
        }
        for (int num_threads = 1; num_threads <= 4; num_threads += 3) {
            tsr_context *ctx = test_context(num_threads);
            memset(dweight, 0xff, sizeof dweight);
            assert_ok(tsr_embedding_backward(
                ctx,
                &TSR_EMBEDDING_BACKWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, MANY),
                                             .dy = TSR_TENSOR(dy, TSR_F32, MANY, COLS),
                                             .dweight = TSR_TENSOR(dweight, TSR_F32, ROWS, COLS))));
            for (int i = 0; i < COUNT(dweight); i++)
                if (dweight[i] != expected[i])
                    fail_msg("%d threads, skewed %d: row %d, column %d is %g, expected %g",
                             num_threads, skewed, i / COLS, i % COLS, (double)dweight[i],
                             (double)expected[i]);
            tsr_context_destroy(ctx);
        }
    }
}

// The workspace is never larger than the header says, for any variant.
static void workspace_as_documented(void **state) {
    (void)state;
    static const int sizes[][3] = {{1000, 32, 500}, {1000, 32, 2}, {40, 8, 100}, {300, 33, 200}};
    static int32_t ids[500];
    static float dy[500 * 33], dweight[1000 * 33];
    tsr_context *ctx = test_context(2);
    for (int i = 0; i < COUNT(sizes); i++) {
        const int vocab = sizes[i][0], hidden = sizes[i][1], tokens = sizes[i][2];
        size_t bytes;
        assert_ok(tsr_embedding_backward_prepare(
            ctx,
            &TSR_EMBEDDING_BACKWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, tokens),
                                         .dy = TSR_TENSOR(dy, TSR_F32, tokens, hidden),
                                         .dweight = TSR_TENSOR(dweight, TSR_F32, vocab, hidden)),
            &bytes));
        size_t sorted = 8 * (size_t)(vocab + 1 + tokens), table = 4 * (size_t)(vocab * hidden);
        assert_true(bytes <= (hidden <= 32 && table > sorted ? table : sorted) + 64);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_keeps_the_bits),
        cmocka_unit_test(threads_keep_the_sign_of_zero),
        cmocka_unit_test(sums_of_spread_and_of_one_id),
        cmocka_unit_test(workspace_as_documented),
    };
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
