// SPDX-License-Identifier: Apache-2.0
// RoPE's tables with frequencies of any kind: values that are not finite stay in their column.
#include "test_support.h"

#include <math.h>

enum { POSITIONS = 70, HALF = 5 }; // more than one anchor

static void check(const char *variant, const float *inv_freq, const tsr_rope_table_args *with) {
    tsr_context *ctx = test_context(2);
    float cosines[POSITIONS * HALF], sines[POSITIONS * HALF];
    tsr_rope_table_args args = *with;
    args.variant = variant;
    args.inv_freq = TSR_TENSOR(inv_freq, TSR_F32, HALF);
    args.cos = TSR_TENSOR(cosines, TSR_F32, POSITIONS, HALF);
    args.sin = TSR_TENSOR(sines, TSR_F32, POSITIONS, HALF);
    assert_ok(tsr_rope_table(ctx, &args));
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < HALF; i++) {
            float c = cosines[p * HALF + i], s = sines[p * HALF + i];
            double angle = p * (double)inv_freq[i];
            if (!isfinite(inv_freq[i])) {
                assert_true(isnan(c) && isnan(s));
                continue;
            }
            assert_true(fabs((double)c - cos(angle)) < 1e-6);
            assert_true(fabs((double)s - sin(angle)) < 1e-6);
        }
    tsr_context_destroy(ctx);
}

static void any_inverse_frequency(void **state) {
    (void)state;
    const float inv_freq[HALF] = {0, INFINITY, -0.3f, NAN, 1};
    check("anchored", inv_freq, &TSR_ROPE_TABLE_ARGS(.has_base = 0));
    check("reference", inv_freq, &TSR_ROPE_TABLE_ARGS(.has_base = 0));
}

static void bases_that_are_refused(void **state) {
    (void)state;
    static const double bases[] = {0, -1, (double)INFINITY, (double)NAN};
    float table[2];
    tsr_context *ctx = test_context(1);
    for (int i = 0; i < COUNT(bases); i++)
        assert_status(
            tsr_rope_table(ctx, &TSR_ROPE_TABLE_ARGS(.cos = TSR_TENSOR(table, TSR_F32, 1, 1),
                                                     .sin = TSR_TENSOR(table + 1, TSR_F32, 1, 1),
                                                     .base = bases[i], .has_base = 1)),
            TSR_INVALID_ARGUMENT, "rope_table", "base");
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_inverse_frequency),
        cmocka_unit_test(bases_that_are_refused),
    };
    return cmocka_run_group_tests_name("rope tables", tests, NULL, NULL);
}
