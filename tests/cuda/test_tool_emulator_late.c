// SPDX-License-Identifier: Apache-2.0
// The emulated device with one multiprocessor, whose copies end as late as they may: a block makes many tiles, and shared memory
// that a store still reads must not be written.
#include "emulator_case.h"

#define GROUPED "groups=3 ragged=1 transpose_b=1 +offsets "
#define FP8 GROUPED "fp8=e4m3 +a_scale +b_scale "

static const struct emulator_case cases[] = {
    {"matmul_grouped_forward", NULL, TSR_BF16, "rows=600 n=264 k=272 " FP8 "scales=groups"},
    {"matmul_grouped_forward", NULL, TSR_BF16, "rows=700 n=256 k=400 " FP8 "scales=blocks"},
    {"matmul_grouped_forward", NULL, TSR_F16,
     "rows=400 n=136 k=144 " FP8 "scales=rows activation=silu +b_up +b_up_scale"},
    {"matmul_grouped_forward", NULL, TSR_BF16, "rows=500 n=264 k=72 " GROUPED},
    {"matmul_grouped_forward", NULL, TSR_BF16, "rows=500 n=264 k=72 +b_up " GROUPED},
    {"matmul_grouped_backward", NULL, TSR_BF16, "rows=500 n=136 k=264 " GROUPED},
    {"matmul_forward", NULL, TSR_BF16, "m=600 n=520 k=72 transpose_b=1"},
    {"matmul_forward", NULL, TSR_BF16,
     "m=600 n=520 k=144 transpose_b=1 fp8=e4m3 +a_scale +b_scale"},
    {"moe_forward", NULL, TSR_BF16,
     "tokens=200 hidden=144 intermediate=272 experts=4 top_k=2 fp8=blocks +w_gate_scale "
     "+w_up_scale +w_down_scale +router +w_gate"},
};

static void late_copies(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(late_copies)};
    setenv("EMULATOR_SMS", "1", 1);
    setenv("EMULATOR_COPIES", "late", 1);
    int skip = emulator_start("test_tool_emulator_late.log");
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
