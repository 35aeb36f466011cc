// SPDX-License-Identifier: Apache-2.0
// Sinks that are not finite: -inf means no sink; +inf and NaN give rows of NaN. Every CPU variant, with and without a
// softcap, which uses another softmax path.
#include <math.h>

#include "test_support.h"

enum { SEQLEN = 64, DIM = 8 };

static float q[SEQLEN][DIM], k[SEQLEN][DIM], v[SEQLEN][DIM], out[SEQLEN][DIM], lse[SEQLEN];

static void attend(tsr_context *ctx, const char *variant, float softcap, float *sink) {
    memset(out, 0xff, sizeof out);
    memset(lse, 0xff, sizeof lse);
    assert_ok(tsr_attention_forward(
        ctx, &TSR_ATTENTION_FORWARD_ARGS(.variant = variant, .softcap = softcap,
                                         .q = TSR_TENSOR(q, TSR_F32, 1, SEQLEN, 1, DIM),
                                         .k = TSR_TENSOR(k, TSR_F32, 1, SEQLEN, 1, DIM),
                                         .v = TSR_TENSOR(v, TSR_F32, 1, SEQLEN, 1, DIM),
                                         .out = TSR_TENSOR(out, TSR_F32, 1, SEQLEN, 1, DIM),
                                         .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, SEQLEN),
                                         .sinks = TSR_TENSOR(sink, TSR_F32, 1))));
}

static const char *const variants[] = {NULL, "reference", "naive", "flash1", "flash2", "tuned"};

static void sinks_that_are_not_finite(void **state) {
    (void)state;
    float sinks[] = {-INFINITY, INFINITY, NAN};
    tsr_context *ctx = test_context(2);
    for (int i = 0; i < SEQLEN * DIM; i++) {
        int row = i / DIM, col = i % DIM;
        q[row][col] = (float)(i * 7 % 11) / 8;
        k[row][col] = (float)(i * 5 % 13 - 6) / 8;
        v[row][col] = (float)(i * 3 % 17 - 8) / 8;
    }
    for (int n = 0; n < COUNT(variants); n++)
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < COUNT(sinks); s++) {
                attend(ctx, variants[n], (float)(30 * c), &sinks[s]);
                for (int i = 0; i < SEQLEN; i++)
                    if (!isnan(out[i][i % DIM]) != (s == 0))
                        fail_msg("%s, softcap %d, sink %g: out[%d] is %g",
                                 variants[n] != NULL ? variants[n] : "default", 30 * c,
                                 (double)sinks[s], i, (double)out[i][i % DIM]);
            }
    tsr_context_destroy(ctx);
}

// Two sequences of KEYS keys; the second uses none of them. Its rows are 0 with any sink, and lse is the sink. There
// are enough keys that many threads cut them into runs.
static void rows_that_see_nothing(void **state) {
    (void)state;
    enum { KEYS = 700, ROWS = 2, WIDE = 32 };
    static float of_q[2][ROWS][2][WIDE], of_k[2][KEYS][WIDE], of_v[2][KEYS][WIDE];
    static float of_out[2][ROWS][2][WIDE], of_lse[2][2][ROWS];
    int32_t seqused[2] = {KEYS, 0};
    float sinks[2] = {NAN, INFINITY};
    for (int i = 0; i < 2 * KEYS * WIDE; i++) {
        (&of_k[0][0][0])[i] = (float)(i * 5 % 13 - 6) / 8;
        (&of_v[0][0][0])[i] = (float)(i * 3 % 17 - 8) / 8;
    }
    for (int i = 0; i < 2 * ROWS * 2 * WIDE; i++) (&of_q[0][0][0][0])[i] = (float)(i * 7 % 11) / 8;
    for (int threads = 1; threads <= 5; threads += 4)
        for (int n = 0; n < COUNT(variants); n++) {
            tsr_context *ctx = test_context(threads);
            memset(of_out, 0xff, sizeof of_out);
            memset(of_lse, 0, sizeof of_lse);
            assert_ok(tsr_attention_forward(
                ctx,
                &TSR_ATTENTION_FORWARD_ARGS(.variant = variants[n],
                                            .q = TSR_TENSOR(of_q, TSR_F32, 2, ROWS, 2, WIDE),
                                            .k = TSR_TENSOR(of_k, TSR_F32, 2, KEYS, 1, WIDE),
                                            .v = TSR_TENSOR(of_v, TSR_F32, 2, KEYS, 1, WIDE),
                                            .out = TSR_TENSOR(of_out, TSR_F32, 2, ROWS, 2, WIDE),
                                            .lse = TSR_TENSOR(of_lse, TSR_F32, 2, 2, ROWS),
                                            .seqused_k = TSR_TENSOR(seqused, TSR_I32, 2),
                                            .sinks = TSR_TENSOR(sinks, TSR_F32, 2))));
            for (int i = 0; i < ROWS * 2 * WIDE; i++) {
                assert_true(isnan((&of_out[0][0][0][0])[i]));
                if ((&of_out[1][0][0][0])[i] != 0)
                    fail_msg("%s, %d threads: out is %g, expected 0",
                             variants[n] != NULL ? variants[n] : "default", threads,
                             (double)(&of_out[1][0][0][0])[i]);
            }
            for (int i = 0; i < 2 * 2 * ROWS; i++) assert_true(isnan((&of_lse[0][0][0])[i]));
            tsr_context_destroy(ctx);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sinks_that_are_not_finite),
                                       cmocka_unit_test(rows_that_see_nothing)};
    return cmocka_run_group_tests_name("attention sinks", tests, NULL, NULL);
}
