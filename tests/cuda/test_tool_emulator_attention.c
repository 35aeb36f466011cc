// SPDX-License-Identifier: Apache-2.0
// Attention on the emulated device with sm_90's tensor cores: every kernel file runs, and its results are within the
// bound of the oracle's.
#include "emulator_case.h"

#define LOG "test_tool_emulator_attention.log"

#define HEADS "batch_size=1 num_heads=2 num_kv_heads=1 "
static const struct emulator_case cases[] = {
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=150 seqlen_k=200 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16, // later maxima are far above earlier ones
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
    {"attention_forward", "cuda-few", TSR_BF16, // all runs but one have no key
     "batch_size=1 num_heads=3 num_kv_heads=1 seqlen_q=5 seqlen_k=1400 head_dim=64 "
     "mask=causal-top-left +lse"},
    {"attention_forward", "cuda-few", TSR_BF16, // one run
     "batch_size=3 num_heads=14 num_kv_heads=2 seqlen_q=20 seqlen_k=200 head_dim=128 ragged=1 "
     "mask=causal +cu_seqlens_q +cu_seqlens_k +lse +sinks"},
    {"attention_forward", "cuda-few",
     TSR_BF16, // NaN after the keys, in both column spans of each thread
     "batch_size=3 num_heads=4 num_kv_heads=1 seqlen_q=9 seqlen_k=300 head_dim=256 ragged=1 "
     "+seqused_k +lse",
     FILL_NAN},
    {"attention_forward", "cuda-small", TSR_BF16, // many heads with few keys, four per block
     "batch_size=3 num_heads=5 seqlen_q=15 seqlen_k=40 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-small", TSR_BF16,
     "batch_size=3 num_heads=5 seqlen_q=50 seqlen_k=20 head_dim=128 +lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16, // tiles on both sides of the diagonal
     HEADS "seqlen_q=100 seqlen_k=400 head_dim=64 +alibi_slopes +lse"},
    {"attention_forward", "cuda-flash3",
     TSR_BF16, // slopes of 1/2 to 1/256, and maxima beyond them
     "batch_size=1 num_heads=8 seqlen_q=70 seqlen_k=400 head_dim=128 mask=causal +alibi_slopes "
     "+lse"},
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=400 head_dim=128 mask=causal +alibi_slopes +lse", FILL_LARGE},
    {"attention_forward", "cuda-flash3", TSR_BF16, // dropout in blocks with several tasks
     "batch_size=3 num_heads=3 num_kv_heads=1 seqlen_q=20 seqlen_k=200 head_dim=64 mask=causal "
     "dropout_p=0.4 seed=9 +lse"},
    {"attention_forward", "cuda-flash2", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=133 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash2", TSR_F32,
     HEADS "seqlen_q=40 seqlen_k=75 head_dim=64 mask=causal +lse"},
    {"attention_forward", "cuda-flash1", TSR_BF16, HEADS "seqlen_q=33 seqlen_k=40 head_dim=32"},
    {"attention_forward", "cuda-naive", TSR_BF16, HEADS "seqlen_q=9 seqlen_k=20 head_dim=32"},
    {"attention_decode", "cuda-split", TSR_BF16,
     "batch_size=2 num_heads=8 num_kv_heads=2 seqlen_q=1 seqlen_k=300 head_dim=64"},
    {"attention_decode", "cuda-split", TSR_BF16, // a separate kernel merges the chunks
     "batch_size=1 num_heads=3 num_kv_heads=1 seqlen_q=1 seqlen_k=1100 head_dim=64 +lse +sinks",
     .flags = TSR_BATCH_INVARIANT},
    {"attention_decode", "cuda-split", TSR_BF16, // the last block merges them
     "batch_size=2 num_heads=6 num_kv_heads=2 seqlen_q=2 seqlen_k=700 head_dim=136 ragged=1 +k_new "
     "+v_new +lse +sinks"},
    {"attention_decode", "cuda-split", TSR_F32,
     "batch_size=2 num_heads=4 num_kv_heads=2 seqlen_q=1 seqlen_k=100 head_dim=64 +k_new +v_new"},
    {"attention_decode", "cuda-split", TSR_BF16, // e4m3 in f16, a query of two parts
     "batch_size=2 num_heads=8 num_kv_heads=2 seqlen_q=1 seqlen_k=200 head_dim=72 e4m3=1 "
     "scale_dims=2 +k_scale +v_scale +k_new +v_new +q_norm +k_norm +leftpad_k"},
    {"attention_decode", "cuda-split", TSR_F32,
     "batch_size=2 num_heads=4 num_kv_heads=2 seqlen_q=1 seqlen_k=100 head_dim=80 e4m3=1 +k_scale "
     "+v_scale +k_new +v_new"},
    {"attention_decode", "cuda-split", TSR_F16,
     "batch_size=2 num_heads=4 num_kv_heads=2 seqlen_q=7 seqlen_k=90 head_dim=64 +tree_mask "
     "+cache_batch_idx +k_new +v_new"},
    {"attention_decode", "cuda-naive", TSR_BF16,
     "batch_size=2 num_heads=2 num_kv_heads=2 seqlen_q=1 seqlen_k=30 head_dim=32 +k_new +v_new"},
    {"attention_merge", NULL, TSR_BF16,
     "num_parts=3 batch_size=2 seqlen_q=5 num_heads=2 head_dim_v=64"},
    {"attention_forward", "cuda-flash3", TSR_BF16,
     HEADS "seqlen_q=70 seqlen_k=72 head_dim=64 +bias"},
};

static void attention(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}
static void every_file_ran(void **state) {
    (void)state;
    static const char *const others[] = {
        "ops/attention/cuda/backward/",                     // test_tool_emulator_gradients
        "ops/attention/cuda/decode/attention_decode_check", // test_tool_emulator_decode
        NULL};
    emulator_has_run_all(LOG, "ops/attention/", others);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(every_file_ran),
    };
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
