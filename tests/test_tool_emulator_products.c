// SPDX-License-Identifier: Apache-2.0
// Products and attention on the emulated device, on the tensor cores of sm_90: each kernel file runs, and what it gives out is
// the oracle's within the bound.
#include "emulator_case.h"

#define LOG "test_tool_emulator_products.log"

static const struct emulator_case products[] = {
    {"matmul_forward", "cuda-fma", TSR_BF16, "m=33 n=70 k=65 activation=gelu +bias"},
    {"matmul_forward", "cuda-mma", TSR_BF16, "m=70 n=136 k=72 +bias"},
    {"matmul_forward", "cuda-mma", TSR_BF16, "m=16 n=64 k=2048"},
    {"matmul_forward", "cuda-gemv", TSR_BF16, "m=1 n=300 k=512 transpose_b=1"},
    {"matmul_forward", "cuda-wgmma", TSR_BF16, "m=140 n=264 k=136 activation=silu +bias"},
    {"matmul_forward", "cuda-wgmma", TSR_BF16, "m=140 n=264 k=135"},
    {"matmul_forward", "cuda-split", TSR_BF16, // bias and activation out of registers
     "m=40 n=136 k=72 transpose_b=1 activation=gelu +bias"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=16 n=128 k=1024 transpose_b=1"},
    {"matmul_forward", "cuda-split", TSR_BF16, "m=5 n=300 k=70400 transpose_b=1"}, // even tiles
    {"matmul_forward", NULL, TSR_BF16, // blocks that share b
     "m=180 n=128 k=704 transpose_b=1 +bias", .tile = "cuda-split 96x128x120"},
    {"matmul_forward", NULL, TSR_BF16, // blocks that share a
     "m=90 n=248 k=704 transpose_b=1 activation=gelu", .tile = "cuda-split 48x128x210"},
    {"matmul_forward", NULL, TSR_BF16, // and b along n
     "m=110 n=120 k=400 +residual", .tile = "cuda-split 64x64x210"},
    {"matmul_forward", "cuda-fp8", TSR_BF16, "m=130 n=136 k=272 fp8=e4m3 +a_scale +b_scale"},
    {"matmul_forward", "cuda-tf32", TSR_F32, "m=140 n=264 k=132 math=tf32 transpose_a=1 +bias"},
    {"matmul_forward", "cuda-bf16x6", TSR_F32, "m=70 n=136 k=72 math=split +bias"},
    {"matmul_backward", NULL, TSR_BF16,
     "m=40 n=72 k=64 transpose_b=1 activation=gelu +da +db +dbias"},
    {"matmul_grouped_forward", "cuda-wgmma", TSR_BF16,
     "rows=200 n=136 k=72 groups=3 ragged=1 +offsets"},
    {"matmul_grouped_forward", "cuda-mma", TSR_BF16,
     "rows=99 n=72 k=64 groups=3 ragged=1 +offsets"},
};

#define HEADS "batch_size=1 num_heads=2 num_kv_heads=1 "
static const struct emulator_case attention[] = {
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=150 seqlen_k=200 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16, // later maxima far above earlier ones
     HEADS "seqlen_q=100 seqlen_k=500 head_dim=128 +lse", FILL_LARGE},
    {"attention_forward", "cuda-small", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=133 head_dim=40 mask=causal +lse"},
    {"attention_forward", "cuda-small", TSR_BF16,
     "batch_size=1 num_heads=1 seqlen_q=70 seqlen_k=133 head_dim=40 mask=causal +lse"},
    {"attention_forward", "cuda-small", TSR_BF16,
     "batch_size=2 num_heads=20 seqlen_q=70 seqlen_k=133 head_dim=40 mask=causal +lse"},
    {"attention_forward", "cuda-few", TSR_BF16, // runs of keys
     "batch_size=1 num_heads=3 num_kv_heads=1 seqlen_q=5 seqlen_k=1400 head_dim=64 mask=causal "
     "+lse +sinks"},
    {"attention_forward", "cuda-few", TSR_BF16, // runs of which all but one have no key
     "batch_size=1 num_heads=3 num_kv_heads=1 seqlen_q=5 seqlen_k=1400 head_dim=64 "
     "mask=causal-top-left +lse"},
    {"attention_forward", "cuda-few", TSR_BF16, // one run
     "batch_size=3 num_heads=14 num_kv_heads=2 seqlen_q=20 seqlen_k=200 head_dim=128 ragged=1 "
     "mask=causal +cu_seqlens_q +cu_seqlens_k +lse +sinks"},
    {"attention_forward", "cuda-few",
     TSR_BF16, // NaN behind the keys, in each thread's two spans of columns
     "batch_size=3 num_heads=4 num_kv_heads=1 seqlen_q=9 seqlen_k=300 head_dim=256 ragged=1 "
     "+seqused_k +lse",
     FILL_NAN},
    {"attention_forward", "cuda-small", TSR_BF16, // many heads of few keys, four a block
     "batch_size=3 num_heads=5 seqlen_q=15 seqlen_k=40 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-small", TSR_BF16,
     "batch_size=3 num_heads=5 seqlen_q=50 seqlen_k=20 head_dim=128 +lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16, // tiles on both sides of the diagonal
     HEADS "seqlen_q=100 seqlen_k=400 head_dim=64 +alibi_slopes +lse"},
    {"attention_forward", "cuda-flash3",
     TSR_BF16, // slopes of 1/2 to 1/256, maxima that are beyond them
     "batch_size=1 num_heads=8 seqlen_q=70 seqlen_k=400 head_dim=128 mask=causal +alibi_slopes "
     "+lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=400 head_dim=128 mask=causal +alibi_slopes +lse", FILL_LARGE},
    {"attention_forward", "cuda-flash3", TSR_BF16, // dropout of blocks that have several tasks
     "batch_size=3 num_heads=3 num_kv_heads=1 seqlen_q=20 seqlen_k=200 head_dim=64 mask=causal "
     "dropout_p=0.4 seed=9 +lse"},
    {"attention_forward", "cuda-flash2", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=133 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash2", TSR_F32,
     HEADS "seqlen_q=40 seqlen_k=75 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash1", TSR_BF16, HEADS "seqlen_q=33 seqlen_k=40 head_dim=32"},
    {"attention_forward", "cuda-naive", TSR_BF16, HEADS "seqlen_q=9 seqlen_k=20 head_dim=32"},
    {"attention_backward", "cuda-flash1", TSR_BF16,
     HEADS "seqlen_q=40 seqlen_k=40 total_q=70 total_k=70 head_dim=32 ragged=1 +cu_seqlens_q "
           "+cu_seqlens_k "
           "+dq +dk +dv"},
    {"attention_decode", "cuda-split", TSR_BF16,
     "batch_size=2 num_heads=8 num_kv_heads=2 seqlen_q=1 seqlen_k=300 head_dim=64"},
    {"attention_decode", "cuda-split", TSR_BF16, // chunks merged by a kernel of its own
     "batch_size=1 num_heads=3 num_kv_heads=1 seqlen_q=1 seqlen_k=1100 head_dim=64 +lse +sinks",
     .flags = TSR_BATCH_INVARIANT},
    {"attention_decode", "cuda-split", TSR_BF16, // and by their last block
     "batch_size=2 num_heads=6 num_kv_heads=2 seqlen_q=2 seqlen_k=700 head_dim=136 ragged=1 +k_new "
     "+v_new +lse +sinks"},
    {"attention_decode", "cuda-split", TSR_F32,
     "batch_size=2 num_heads=4 num_kv_heads=2 seqlen_q=1 seqlen_k=100 head_dim=64 +k_new +v_new"},
    {"attention_decode", "cuda-naive", TSR_BF16,
     "batch_size=2 num_heads=2 num_kv_heads=2 seqlen_q=1 seqlen_k=30 head_dim=32 +k_new +v_new"},
    {"attention_merge", NULL, TSR_BF16,
     "num_parts=3 batch_size=2 seqlen_q=5 num_heads=2 head_dim_v=64"},
    {"attention_backward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=150 seqlen_k=150 head_dim=64 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // dq is complete with the last of three tiles
     HEADS "seqlen_q=90 seqlen_k=300 head_dim=72 +dq +dk +dv"},
    {"attention_backward", "cuda-flash3",
     TSR_BF16, // some queries see nothing: dq is another kernel's
     HEADS "seqlen_q=200 seqlen_k=140 head_dim=64 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // NaN between sequences
     "batch_size=3 num_heads=2 seqlen_q=90 seqlen_k=99 total_q=200 total_k=240 head_dim=128 "
     "ragged=1 "
     "mask=causal +cu_seqlens_q +cu_seqlens_k +dq +dk +dv",
     FILL_NAN},
    {"attention_backward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=100 seqlen_k=100 head_dim=256 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16,
     "batch_size=2 num_heads=2 seqlen_q=150 seqlen_k=150 head_dim=192 head_dim_v=128 mask=causal "
     "+dq +dk "
     "+dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // dbias of all queries together
     HEADS
     "seqlen_q=130 seqlen_k=136 head_dim=64 mask=causal bias_broadcast=6 +bias +dq +dk +dv +dbias"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // zeros for tiles that nobody sees
     HEADS "seqlen_q=130 seqlen_k=136 head_dim=64 mask=causal +bias +dq +dk +dv +dbias"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // dbias of all heads together
     HEADS "seqlen_q=40 seqlen_k=72 head_dim=64 bias_broadcast=4 +bias +dq +dk +dv +dbias"},
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=72 head_dim=64 +bias"},
    {"attention_backward", "cuda-small", TSR_BF16,
     "batch_size=1 num_heads=1 seqlen_q=70 seqlen_k=133 head_dim=40 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-small", TSR_BF16,
     "batch_size=2 num_heads=20 seqlen_q=70 seqlen_k=133 head_dim=40 +dq +dk +dv"},
    {"attention_backward", "cuda-small", TSR_BF16,
     "batch_size=1 num_heads=1 seqlen_q=70 seqlen_k=100 head_dim=104 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash2", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=70 head_dim=64 +dq +dk +dv"},
    {"attention_backward", "cuda-flash2", TSR_F32,
     HEADS "seqlen_q=40 seqlen_k=40 head_dim=64 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash1", TSR_BF16,
     HEADS "seqlen_q=33 seqlen_k=40 head_dim=32 +dq +dk +dv"},
    {"attention_backward", "cuda-naive", TSR_BF16,
     HEADS "seqlen_q=9 seqlen_k=20 head_dim=32 +bias +sinks +dq +dk +dv +dbias +dsinks"},
};

static void test_products(void **state) {
    (void)state;
    emulator_prove(products, COUNT(products));
}
static void test_attention(void **state) {
    (void)state;
    emulator_prove(attention, COUNT(attention));
}
static void test_every_file_ran(void **state) {
    (void)state;
    emulator_has_run_all(LOG, "ops/matmul/");
    emulator_has_run_all(LOG, "ops/attention/");
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_every_file_ran),
    };
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
