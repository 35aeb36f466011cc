// SPDX-License-Identifier: Apache-2.0
// Probes: the work that they report, the bytes that they write, and what they refuse.
#include "test_support.h"

enum { BYTES = 3 * 4096 };

static void each_context(void (*body)(tsr_context *ctx, int num_threads)) {
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 5; threads += 2) { // 5: more threads than blocks
            tsr_context *ctx;
            if (!tsr_isa_is_supported((tsr_isa)isa)) continue;
            assert_int_equal(
                tsr_context_create(
                    &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = threads), &ctx),
                TSR_OK);
            body(ctx, threads);
            tsr_context_destroy(ctx);
        }
}

static void check_fma(tsr_context *ctx, int num_threads) {
    double once, thrice, none;
    assert_int_equal(tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 1), &once),
                     TSR_OK);
    assert_int_equal(
        tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 3), &thrice), TSR_OK);
    assert_int_equal(tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA), &none), TSR_OK);
    assert_true(once >= 2.0 * 4096 * num_threads);
    assert_true(thrice == 3 * once);
    assert_true(none == 0);
}

static void check_unit(tsr_context *ctx, tsr_probe_kind kind, int num_threads) {
    double once, thrice;
    tsr_status status = tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = kind, .repeat = 1), &once);
    if (status == TSR_UNSUPPORTED) { // with a sentence
        assert_non_null(strstr(tsr_last_error(), "kind"));
        return;
    }
    assert_int_equal(status, TSR_OK);
    assert_int_equal(tsr_context_isa(ctx), TSR_ISA_AVX512);
    assert_int_equal(tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = kind, .repeat = 3), &thrice),
                     TSR_OK);
    assert_true(once >= 4.0 * 4096 * num_threads);
    assert_true(thrice == 3 * once);
}

static void check_units(tsr_context *ctx, int num_threads) {
    check_unit(ctx, TSR_PROBE_BF16_DOT, num_threads);
    check_unit(ctx, TSR_PROBE_BF16_TILES, num_threads);
    check_unit(ctx, TSR_PROBE_BYTE_DOT, num_threads);
}

static void check_memory(tsr_context *ctx, int num_threads) {
    (void)num_threads;
    float *source = aligned_alloc(64, BYTES), *destination = aligned_alloc(64, BYTES + 64);
    for (int kind = TSR_PROBE_READ; kind <= TSR_PROBE_UPDATE; kind++) {
        double work, expected = 2.0 * BYTES * (kind >= TSR_PROBE_COPY ? 2 : 1);
        for (int i = 0; i < BYTES / 4; i++) source[i] = (float)i;
        memset(destination, 0x3f, BYTES + 64);
        assert_int_equal(tsr_probe_run(ctx,
                                       &TSR_PROBE_ARGS(.kind = (tsr_probe_kind)kind, .repeat = 2,
                                                       .source = source, .destination = destination,
                                                       .bytes = BYTES),
                                       &work),
                         TSR_OK);
        assert_true(work == expected);
        assert_true(test_all_bytes_are((char *)destination + BYTES, 0x3f, 64));
        if (kind == TSR_PROBE_READ) assert_true(test_all_bytes_are(destination, 0x3f, BYTES));
        if (kind == TSR_PROBE_COPY || kind == TSR_PROBE_COPY_STREAM)
            assert_memory_equal(destination, source, BYTES);
        if (kind == TSR_PROBE_WRITE || kind == TSR_PROBE_WRITE_STREAM)
            for (int i = 1; i < BYTES / 4; i++) assert_true(destination[i] == destination[0]);
        if (kind == TSR_PROBE_UPDATE) { // two steps halfway from the float 0x3f3f3f3f to 1
            float was;
            memset(&was, 0x3f, sizeof was);
            for (int i = 0; i < BYTES / 4; i++)
                assert_true(destination[i] == 0.5f * (0.5f * was + 0.5f) + 0.5f);
        }
    }
    free(source);
    free(destination);
}

static void test_work(void **state) {
    (void)state;
    each_context(check_fma);
    each_context(check_units);
    each_context(check_memory);
}

static void test_refused(void **state) {
    (void)state;
    tsr_context *ctx;
    double work;
    assert_int_equal(tsr_context_create(NULL, &ctx), TSR_OK);
    char *memory = aligned_alloc(64, 2 * 8192);
    const struct {
        tsr_probe_args args;
        const char *word;
    } cases[] = {
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_COUNT), "kind"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = -1), "repeat"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_READ, .repeat = 1, .bytes = 4096), "source"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_WRITE, .repeat = 1, .bytes = 4096), "destination"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_READ, .source = memory + 4, .bytes = 4096), "source"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_READ, .source = memory, .bytes = 4000), "bytes"},
        {TSR_PROBE_ARGS(.kind = TSR_PROBE_COPY, .source = memory, .destination = memory + 4096,
                        .bytes = 8192),
         "overlaps"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(tsr_probe_run(ctx, &cases[i].args, &work), TSR_INVALID_ARGUMENT);
        assert_non_null(strstr(tsr_last_error(), cases[i].word));
    }
    assert_int_equal(tsr_probe_run(NULL, &cases[0].args, &work), TSR_INVALID_ARGUMENT);
    assert_int_equal(tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA), NULL),
                     TSR_INVALID_ARGUMENT);
    assert_int_equal(tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_COPY), &work), TSR_OK);
    free(memory);
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
