// SPDX-License-Identifier: Apache-2.0
// Products on the emulated device with sm_90's tensor cores: every kernel file runs, and its results are within the
// bound of the oracle's.
#include "emulator_case.h"

#define LOG "test_tool_emulator_products.log"

static const struct emulator_case cases[] = {
    {"matmul_quant", NULL, TSR_BF16, "rows=40 n=264 k=544 quant=q4_0 activation=silu +b_up"},
    {"matmul_quant", NULL, TSR_F16, "rows=3 n=70 k=512 quant=q6_k +bias"},
    {"matmul_quant", NULL, TSR_F32, "rows=9 n=33 k=301 quant=int4 group=64 +b_scale +b_zero"},
    {"matmul_forward", "cuda-fma", TSR_BF16, "m=33 n=70 k=65 activation=gelu +bias"},
    {"matmul_forward", "cuda-mma", TSR_BF16, "m=70 n=136 k=72 +bias"},
    {"matmul_forward", "cuda-mma", TSR_BF16, "m=16 n=64 k=2048"},
    {"matmul_forward", "cuda-gemv", TSR_BF16, "m=1 n=300 k=512 transpose_b=1"},
    {"matmul_forward", NULL, TSR_BF16, "m=140 n=264 k=136 activation=silu +bias",
     .tile = "cuda-wgmma 128x256x1"},
    {"matmul_forward", NULL, TSR_BF16, // any number of rows: an even and an odd number of eights
     "m=260 n=600 k=200 transpose_b=1 activation=gelu +bias", .tile = "cuda-wgmma 112x256x2"},
    {"matmul_forward", NULL, TSR_BF16, "m=190 n=520 k=136 transpose_b=1",
     .tile = "cuda-wgmma 88x256x2"},
    {"matmul_forward", NULL, TSR_BF16, // b along n; staged in chunks
     "m=410 n=264 k=136 activation=relu", .tile = "cuda-wgmma 200x128x1"},
    {"matmul_forward", "cuda-wgmma", TSR_BF16, "m=140 n=264 k=135"},
    {"matmul_forward", "cuda-wgmma", TSR_BF16, "m=140 n=264 k=136 activation=relu2 +bias"},
    {"matmul_forward", "cuda-wgmma", TSR_BF16,
     "m=140 n=264 k=136 activation=swiglu_clamped +b_up +bias +bias_up"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=40 n=136 k=72 activation=relu2 +bias"},
    {"matmul_forward", "cuda-split", TSR_BF16,
     "m=40 n=136 k=72 transpose_b=1 activation=swiglu_clamped +b_up"},
    {"matmul_forward", "cuda-mma", TSR_BF16,
     "m=70 n=72 k=64 activation=swiglu_clamped +b_up +bias_up"},
    {"matmul_forward", "cuda-split", TSR_BF16, // bias and activation from registers
     "m=40 n=136 k=72 transpose_b=1 activation=gelu +bias"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=16 n=128 k=1024 transpose_b=1"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=5 n=300 k=70400 transpose_b=1"}, // even tiles
    {"matmul_forward", NULL, TSR_BF16, // blocks that share b
     "m=180 n=128 k=704 transpose_b=1 +bias", .tile = "cuda-split 96x128x120"},
    {"matmul_forward", NULL, TSR_BF16, // blocks that share a
     "m=90 n=248 k=704 transpose_b=1 activation=gelu", .tile = "cuda-split 48x128x210"},
    {"matmul_forward", NULL, TSR_BF16, // blocks that share a; b along n
     "m=110 n=120 k=400 +residual", .tile = "cuda-split 64x64x210"},
    {"matmul_forward", NULL, TSR_BF16, "m=130 n=136 k=272 fp8=e4m3 +a_scale +b_scale",
     .tile = "cuda-fp8 128x256x1"},
    {"matmul_forward", NULL, TSR_BF16, "m=130 n=300 k=400 fp8=e4m3 +a_scale +b_scale",
     .tile = "cuda-fp8 104x128x2"},
    {"matmul_forward", NULL, TSR_BF16,
     "m=130 n=304 k=400 fp8=e4m3 fast_accumulate=1 +a_scale +b_scale +bias",
     .tile = "cuda-fp8 64x128x1"},
    {"matmul_forward", "cuda-tf32", TSR_F32, "m=140 n=264 k=132 math=tf32 transpose_a=1 +bias"},
    {"matmul_forward", "cuda-bf16x6", TSR_F32, "m=70 n=136 k=72 math=split +bias"},
    {"matmul_backward", NULL, TSR_BF16,
     "m=40 n=72 k=64 transpose_b=1 activation=gelu +da +db +dbias"},
    {"matmul_grouped_forward", "cuda-wgmma", TSR_BF16,
     "rows=200 n=136 k=72 groups=3 ragged=1 +offsets"},
    {"matmul_grouped_forward", "cuda-wgmma", TSR_BF16,
     "rows=200 n=136 k=72 groups=3 ragged=1 activation=swiglu_clamped +offsets +b_up +bias "
     "+bias_up"},
    {"matmul_grouped_forward", "cuda-wgmma", TSR_BF16,
     "rows=200 n=136 k=72 groups=3 ragged=1 activation=relu2 +offsets +bias"},
    {"matmul_grouped_forward", "cuda-skinny", TSR_BF16,
     "rows=40 rows_of_a=20 n=44 k=520 groups=5 ragged=1 transpose_b=1 activation=silu +offsets "
     "+a_rows +b_up +bias"},
    {"matmul_grouped_forward", "cuda-skinny", TSR_F16,
     "rows=30 n=40 k=17000 groups=3 transpose_b=1 +counts +bias"},
    {"matmul_grouped_forward", "cuda-mma", TSR_BF16,
     "rows=99 n=72 k=64 groups=3 ragged=1 +offsets"},
    {"matmul_grouped_forward", "cuda-mma", TSR_F16,
     "rows=99 rows_of_a=40 n=72 k=64 groups=3 ragged=1 +offsets +a_rows"},
    {"matmul_grouped_forward", "cuda-fma", TSR_F32,
     "rows=99 rows_of_a=40 n=37 k=19 groups=3 ragged=1 +offsets +a_rows"},
    {"moe_forward", NULL, TSR_BF16,
     "tokens=40 hidden=64 intermediate=32 experts=4 top_k=2 +router +w_gate +b_up +b_down +preact "
     "+topk_ids +topk_weights +load_balance_loss"},
    {"moe_backward", NULL, TSR_BF16,
     "tokens=40 hidden=64 intermediate=32 experts=4 top_k=2 +router +w_gate +b_down "
     "+dload_balance_loss +dx +drouter +dw_gate +dw_up +dw_down +db_up +db_down"},
    {"matmul_grouped_backward", "cuda-mma", TSR_BF16,
     "rows=99 rows_of_a=40 rows_of_dc=30 n=72 k=64 groups=3 ragged=1 +offsets +a_rows +dc_rows"},
    {"matmul_grouped_backward", "cuda-fma", TSR_F32,
     "rows=99 rows_of_dc=30 n=37 k=19 groups=3 ragged=1 transpose_b=1 +offsets +dc_rows"},
};

static void products(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}
static void every_file_ran(void **state) {
    (void)state;
    emulator_has_run_all(LOG, "ops/matmul/", NULL);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(every_file_ran),
    };
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
