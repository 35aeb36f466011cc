// SPDX-License-Identifier: Apache-2.0
// Tests verification on casts: wrong values beyond the largest one, wrong infinities and wrong signs of NaN are found.
#include "test_support.h"

#include <math.h>

#include "verify/verify.h"

extern const struct op_spec cast_spec;

enum cast_defect {
    CAST_SOUND,
    SATURATED_SIGN,       // one saturated element with the other sign
    LARGEST_FOR_INFINITY, // the largest finite value instead of infinity
    INFINITY_FOR_LARGEST, // infinity instead of the largest finite value
    NAN_SIGN              // one NaN with the other sign
};
static enum cast_defect cast_defect;

static bool spoil_element(const tsr_tensor *y, int64_t i) {
    double value = tsr_load(y->dtype, y->data, i);
    double largest = y->dtype == TSR_E4M3 ? 448 : y->dtype == TSR_E5M2 ? 57344 : 65504;
    if (cast_defect == SATURATED_SIGN && fabs(value) == largest)
        value = -value;
    else if (cast_defect == LARGEST_FOR_INFINITY && isinf(value))
        value = copysign(largest, value);
    else if (cast_defect == INFINITY_FOR_LARGEST && fabs(value) == largest)
        value = copysign(INFINITY, value);
    else if (cast_defect == NAN_SIGN && isnan(value))
        value = copysign((double)NAN, signbit(value) ? 1 : -1);
    else
        return false;
    tsr_store(y->dtype, y->data, i, value);
    if (y->dtype == TSR_E5M2 && isinf(value)) // stores saturate
        ((unsigned char *)y->data)[i] = signbit(value) ? 0xfc : 0x7c;
    return true;
}

static tsr_status spoiled_cast_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                    void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_status status = cast_spec.call(ctx, c, variant, workspace, given_bytes, workspace_bytes);
    if (c->dtype == TSR_F64 || workspace_bytes != NULL || cast_defect == CAST_SOUND) return status;
    for (int64_t i = 0; i < tsr_tensor_numel(&c->tensor[1]); i++)
        if (spoil_element(&c->tensor[1], i)) break;
    return status;
}

static void saturation_and_nan_are_compared(void **state) {
    (void)state;
    static const struct {
        const char *params;
        enum edge_fill fill;
        enum cast_defect defect;
        int num_failed;
        double most; // largest allowed max_abs_err
    } cases[] = {
        {"rows=40 cols=301 to=e4m3", FILL_LARGE, CAST_SOUND, 0, 16},
        {"rows=40 cols=301 to=e4m3", FILL_HUGE, CAST_SOUND, 0, 16},
        {"rows=40 cols=301 to=e5m2", FILL_HUGE, CAST_SOUND, 0, 4096},
        {"rows=40 cols=301 to=e4m3", FILL_INFINITE, CAST_SOUND, 0, 16},
        {"rows=40 cols=301 to=f16", FILL_HUGE, CAST_SOUND, 0, 16},
        {"rows=40 cols=301 to=e4m3", FILL_NAN, CAST_SOUND, 0, 16},
        {"rows=40 cols=301 to=e4m3", FILL_LARGE, SATURATED_SIGN, 1, 1e6},
        {"rows=40 cols=301 to=e5m2", FILL_HUGE, SATURATED_SIGN, 1, 1e39},
        {"rows=40 cols=301 to=e4m3", FILL_INFINITE, SATURATED_SIGN, 1, 16},
        {"rows=40 cols=301 to=e5m2", FILL_HUGE, INFINITY_FOR_LARGEST, 1, 4096},
        {"rows=40 cols=301 to=f16", FILL_HUGE, LARGEST_FOR_INFINITY, 1, 1e39},
        {"rows=40 cols=301 to=f16", FILL_INFINITE, LARGEST_FOR_INFINITY, 1, 16},
        {"rows=40 cols=301 to=e4m3", FILL_NAN, NAN_SIGN, 1, 16},
        {"rows=40 cols=301 to=f16", FILL_NAN, NAN_SIGN, 1, 16},
    };
    struct op_spec spec = cast_spec;
    spec.call = spoiled_cast_call;
    tsr_context *ctx = test_context(2);
    for (int i = 0; i < COUNT(cases); i++) {
        struct op_case c = case_default(&spec);
        struct verdict verdict = {0};
        char error[256];
        assert_true(case_set(&c, cases[i].params, error, sizeof error));
        cast_defect = cases[i].defect;
        assert_ok(verify_case(ctx, &c, NULL, 7, cases[i].fill, LAYOUT_CONTIGUOUS, &verdict));
        if (verdict.num_failed != cases[i].num_failed)
            fail_msg("case %d: %d failures: %s", i, (int)verdict.num_failed, verdict.failure);
        if (!(verdict.max_abs_err <= cases[i].most))
            fail_msg("case %d: max abs err %g, more than %g", i, verdict.max_abs_err,
                     cases[i].most);
    }
    cast_defect = CAST_SOUND;
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(saturation_and_nan_are_compared)};
    return cmocka_run_group_tests_name("verify_casts", tests, NULL, NULL);
}
