// SPDX-License-Identifier: Apache-2.0
// A sink that is not finite: -inf is none, +inf and NaN leave rows of NaN, in every variant of the CPU, with and without a softcap,
// which takes another way through the softmax.
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

static void sinks_that_are_not_finite(void **state) {
    (void)state;
    static const char *const variants[] = {NULL, "reference", "naive", "flash1", "flash2", "tuned"};
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sinks_that_are_not_finite)};
    return cmocka_run_group_tests_name("attention sinks", tests, NULL, NULL);
}
