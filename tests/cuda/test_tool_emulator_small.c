// SPDX-License-Identifier: Apache-2.0
// The emulated device as a GPU of compute capability 8.6, whose blocks have 99 KiB of shared memory: attention's
// smaller tiles. test_kernel_archs.c tests which calls have a kernel at all.
#include "emulator_case.h"

#define HEADS "batch_size=1 num_heads=2 num_kv_heads=1 "

static const struct emulator_case cases[] = {
    {"attention_forward", "cuda-flash2", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=90 head_dim=256 mask=causal +lse"}, // 16 keys
    {"attention_forward", "cuda-flash2", TSR_F16,
     HEADS "seqlen_q=30 seqlen_k=50 head_dim=200 +bias"},
    {"attention_forward", "cuda-flash1", TSR_BF16, HEADS "seqlen_q=33 seqlen_k=40 head_dim=256"},
    {"attention_forward", NULL, TSR_F32, HEADS "seqlen_q=70 seqlen_k=50 head_dim=256 mask=causal"},
    {"attention_forward", "cuda-naive", TSR_BF16, HEADS "seqlen_q=9 seqlen_k=40 head_dim=32"},
    {"attention_backward", "cuda-flash1", TSR_BF16, // 16 rows
     HEADS "seqlen_q=40 seqlen_k=50 head_dim=256 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash1", TSR_F32, // 32 rows
     HEADS "seqlen_q=40 seqlen_k=50 head_dim=128 +dq +dk +dv"},
    {"attention_backward", "cuda-flash2", TSR_BF16, // narrow, like the next two
     HEADS "seqlen_q=70 seqlen_k=90 head_dim=256 mask=causal +dq +dk +dv"},
    {"attention_backward", "cuda-flash2", TSR_F16,
     HEADS "seqlen_q=70 seqlen_k=90 head_dim=128 dropout_p=0.2 +alibi_slopes +dq +dk +dv"},
    {"attention_backward", "cuda-flash2", TSR_F32,
     HEADS "seqlen_q=70 seqlen_k=90 head_dim=128 mask=causal +dq +dk +dv"},
    {"attention_backward", NULL, TSR_BF16, // dbias by 16 rows
     HEADS "seqlen_q=40 seqlen_k=56 head_dim=256 +bias +dq +dk +dv +dbias"},
    {"matmul_forward", NULL, TSR_BF16, "m=40 n=136 k=2200"},
    {"layernorm_forward", NULL, TSR_F32, "rows=2 cols=16384 +weight"},
};

static void test_small_tiles(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_tiles)};
    setenv("EMULATOR_ARCH", "86", 1);
    int skip = emulator_start("test_tool_emulator_small.log");
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
