// SPDX-License-Identifier: Apache-2.0
// Attention's gradients on the emulated device with sm_90's tensor cores: every kernel file runs, and its results are
// within the bound of the oracle's.
#include "emulator_case.h"

#define LOG "test_tool_emulator_gradients.log"

#define HEADS "batch_size=1 num_heads=2 num_kv_heads=1 "
static const struct emulator_case cases[] = {
    {"attention_backward", "cuda-flash1", TSR_BF16,
     HEADS "seqlen_q=40 seqlen_k=40 total_q=70 total_k=70 head_dim=32 ragged=1 +cu_seqlens_q "
           "+cu_seqlens_k "
           "+dq +dk +dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=150 seqlen_k=150 head_dim=64 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // the last of three tiles completes dq
     HEADS "seqlen_q=90 seqlen_k=300 head_dim=72 +dq +dk +dv"},
    {"attention_backward", "cuda-flash3",
     TSR_BF16, // some queries see nothing: another kernel writes dq
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
    {"attention_backward", "cuda-flash3", TSR_BF16, // dbias summed over all queries
     HEADS
     "seqlen_q=130 seqlen_k=136 head_dim=64 mask=causal bias_broadcast=6 +bias +dq +dk +dv +dbias"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // zeros for masked tiles
     HEADS "seqlen_q=130 seqlen_k=136 head_dim=64 mask=causal +bias +dq +dk +dv +dbias"},
    {"attention_backward", "cuda-flash3", TSR_BF16, // dbias summed over all heads
     HEADS "seqlen_q=40 seqlen_k=72 head_dim=64 bias_broadcast=4 +bias +dq +dk +dv +dbias"},
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
    {"attention_backward", "cuda-flash2", TSR_F32,
     HEADS "seqlen_q=20 seqlen_k=24 head_dim=40 +bias +dq +dk +dv"},
    {"attention_backward", "cuda-flash1", TSR_BF16,
     HEADS "seqlen_q=33 seqlen_k=40 head_dim=32 +dq +dk +dv"},
    {"attention_backward", "cuda-naive", TSR_BF16,
     HEADS "seqlen_q=9 seqlen_k=20 head_dim=32 +bias +sinks +dq +dk +dv +dbias +dsinks"},
};

static void gradients(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}
static void every_file_ran(void **state) {
    (void)state;
    emulator_has_run_all(LOG, "ops/attention/cuda/backward/", NULL);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(every_file_ran),
    };
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
