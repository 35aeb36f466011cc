// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 by cuda-split on the emulated device: tiles of all numbers of rows, both kinds of sums, parts of k, blocks that
// share copies, and every end.
#include "emulator_case.h"

#define LOG "test_tool_emulator_fp8.log"
#define SCALED " transpose_b=1 fp8=e4m3 +a_scale +b_scale"
#define FAST SCALED " fast_accumulate=1"

static const struct emulator_case cases[] = {
    {"matmul_forward", NULL, TSR_BF16, "m=16 n=136 k=2048" FAST " +bias activation=gelu",
     .tile = "cuda-split 16x128x4"},
    {"matmul_forward", NULL, TSR_BF16, "m=9 n=72 k=1040" SCALED, .tile = "cuda-split 16x64x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=30 n=128 k=4112" SCALED " +bias",
     .tile = "cuda-split 32x128x8"},
    {"matmul_forward", NULL, TSR_BF16, "m=32 n=64 k=784" FAST, .tile = "cuda-split 32x64x3"},
    {"matmul_forward", NULL, TSR_BF16, "m=48 n=130 k=528" FAST " activation=relu",
     .tile = "cuda-split 48x64x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=64 n=192 k=1024" SCALED " activation=silu +bias",
     .tile = "cuda-split 64x128x2"},
    {"matmul_forward", NULL, TSR_F32, "m=64 n=136 k=1008" FAST " +bias",
     .tile = "cuda-split 64x64x2"},
    {"matmul_forward", NULL, TSR_BF16,
     "m=60 n=72 k=656" SCALED " +b_up +b_up_scale activation=silu",
     .tile = "cuda-split 64x128x1"}, // a gate
    {"matmul_forward", NULL, TSR_BF16, "m=144 n=64 k=400" SCALED, .tile = "cuda-split 72x64x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=80 n=200 k=2064" FAST " +residual",
     .tile = "cuda-split 80x128x8"},
    {"matmul_forward", NULL, TSR_F32, "m=100 n=136 k=1040" SCALED " +residual accumulate=1",
     .tile = "cuda-split 112x128x2"},
    {"matmul_forward", NULL, TSR_BF16, "m=96 n=88 k=16 batch=3 shared_b=1" SCALED,
     .tile = "cuda-split 96x64x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=128 n=250 k=2048" SCALED, .tile = "cuda-split 128x128x4"},
    {"matmul_forward", NULL, TSR_BF16, "m=144 n=128 k=768" FAST " +bias activation=gelu_tanh",
     .tile = "cuda-split 144x128x2"},
    {"matmul_forward", NULL, TSR_BF16, "m=144 n=64 k=272" SCALED, .tile = "cuda-split 144x64x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=180 n=128 k=1408" SCALED " +bias", // share b
     .tile = "cuda-split 96x128x120"},
    {"matmul_forward", NULL, TSR_BF16, "m=90 n=248 k=1408" FAST " activation=gelu", // share a
     .tile = "cuda-split 48x128x210"},
    {"matmul_forward", NULL, TSR_BF16, "m=250 n=256 k=528" FAST, .tile = "cuda-split 128x128x220"},
    {"matmul_forward", NULL, TSR_F16, "m=80 n=96 k=512" FAST " +bias",
     .tile = "cuda-split 80x128x2"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=5 n=300 k=4112" SCALED,
     .flags = TSR_BATCH_INVARIANT},
};

static void products(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
    assert_true(emulator_has_line(LOG, "ops/matmul/cuda/split/matmul_split_sm90.cu"));
    assert_false(emulator_has_line(LOG, "ops/matmul/cuda/fp8/matmul_fp8_sm90.cu"));
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
