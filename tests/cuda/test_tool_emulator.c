// SPDX-License-Identifier: Apache-2.0
// Row and element-wise kernels on the emulated device: every file runs, and its results are within the bound of the
// oracle's. test_tool_emulator_products.c, _attention.c and _gradients.c test tensor cores.
#include "emulator_case.h"

#define LOG "test_tool_emulator.log"

static const struct emulator_case cases[] = {
    {"softmax_forward", "cuda-rows", TSR_BF16, "rows=9 cols=200"},
    {"softmax_forward", "cuda-rows", TSR_F32, "rows=3 cols=1000"},
    {"softmax_forward", "cuda-staged", TSR_BF16, "rows=3 cols=5000"},
    {"softmax_forward", "cuda-staged", TSR_BF16, "rows=5 cols=3"},
    {"softmax_forward", "cuda-staged", TSR_F16, "rows=5 cols=301"},
    {"softmax_forward", "cuda-staged", TSR_BF16,
     "rows=2 cols=24400"}, // 48 KiB with the kernel's own
    {"softmax_forward", "cuda-staged", TSR_F32, "rows=2 cols=90001"}, // in chunks
    {"softmax_forward", "cuda-unfused", TSR_BF16, "rows=3 cols=700"},
    {"softmax_backward", "cuda-rows", TSR_F16, "rows=9 cols=200"},
    {"softmax_backward", "cuda-staged", TSR_F32, "rows=3 cols=5001"},
    {"softmax_backward", "cuda-staged", TSR_BF16, "rows=5 cols=301"},
    {"softmax_backward", "cuda-staged", TSR_F16, "rows=2 cols=90001"},
    {"layernorm_forward", "cuda-rows", TSR_BF16, "rows=9 cols=256 +weight +bias +mean +rstd"},
    {"layernorm_forward", "cuda-rows", TSR_F32,
     "rows=3 cols=1024 +weight +bias +residual +residual_out"}, // a full row
    {"rmsnorm_forward", "cuda-staged", TSR_BF16,
     "rows=3 cols=5001 +weight +residual +residual_out"},
    {"layernorm_forward", "cuda-staged", TSR_F32, "rows=2 cols=90001 +weight +bias"}, // in chunks
    {"layernorm_forward", "cuda-staged", TSR_F16, "rows=5 cols=301", FILL_SPECIAL},
    {"rmsnorm_forward", "cuda-clusters", TSR_F32, "rows=2 cols=40000 +weight"},
    {"layernorm_forward", "cuda-rows", TSR_F16,
     "rows=9 cols=301 +weight +bias +residual +residual_out"}, // in words
    {"layernorm_backward", "cuda-rows", TSR_BF16, "rows=40 cols=256 +dweight +dbias"},
    {"layernorm_backward", "cuda-staged", TSR_F16, "rows=90 cols=301 +weight +dweight +dbias"},
    {"rmsnorm_backward", "cuda-staged", TSR_BF16, "rows=300 cols=63 +weight +dweight"},
    {"layernorm_backward", "cuda-staged", TSR_BF16,
     "rows=5 cols=12301 +weight +dresidual_out +dweight +dbias", FILL_SHIFTED}, // a cluster
    {"layernorm_backward", "cuda-rows", TSR_F32, "rows=40 cols=60 +dweight +dbias", FILL_SHIFTED},
    {"layernorm_backward", "cuda-mixed", TSR_F32, "rows=3 cols=9000 +dweight", FILL_SHIFTED},
    {"rmsnorm_backward", "cuda-mixed", TSR_BF16,
     "rows=5 heads=3 cols=128 dy_dtype=f32 +weight +dweight"},
    {"rmsnorm_forward", "cuda-mixed", TSR_BF16,
     "rows=5 heads=3 cols=128 zero_centered_weight=1 +weight +rstd"},
    {"layernorm_forward", "cuda-mixed", TSR_BF16,
     "rows=3 cols=9000 residual_dtype=f32 residual_out_dtype=f32 +weight +bias +residual "
     "+residual_out +mean"},
    {"activation_forward", NULL, TSR_BF16, "rows=7 cols=300 kind=gelu"},
    {"activation_backward", NULL, TSR_BF16, "rows=7 cols=300 kind=silu +up +dup"},
    {"activation_forward", NULL, TSR_BF16, "rows=7 cols=300 kind=swiglu_clamped +up"},
    {"activation_backward", NULL, TSR_F32, "rows=7 cols=300 kind=swiglu_clamped +up +dup"},
    {"activation_backward", NULL, TSR_BF16, "rows=7 cols=300 kind=relu2"},
    {"activation_backward", NULL, TSR_BF16, // a warp to two rows, to one, then a block to a row
     "rows=17 cols=256 kind=silu +up +dup +row_weights +weighted_y +drow_weights"},
    {"activation_backward", NULL, TSR_BF16,
     "rows=9 cols=300 kind=silu +up +dup +row_weights +weighted_y +drow_weights"},
    {"activation_backward", NULL, TSR_F32,
     "rows=3 cols=2500 kind=gelu +row_weights +weighted_y +drow_weights"},
    {"adamw_step", NULL, TSR_BF16, "rows=7 cols=300 +master"},
    {"cast", NULL, TSR_BF16, "rows=7 cols=300 to=e4m3"},
    {"cast", NULL, TSR_BF16, "rows=7 cols=300 to=bf16"},
    {"sample", NULL, TSR_BF16, "rows=5 vocab=3001 temperature=1 top_k=50 top_p=0.9 +logprobs"},
    {"sample", NULL, TSR_F32,
     "rows=5 vocab=3001 history_len=90 temperature=1 repetition_penalty=1.2 top_p=0.8 min_p=0.01 "
     "+history +logprobs +kept"},
    {"sample", NULL, TSR_F16, "rows=20 vocab=301 temperature=1 top_k=9 +num_nan_rows",
     FILL_SPECIAL},
    {"quantize", NULL, TSR_BF16, "rows=7 cols=704 kind=silu +up", FILL_SPECIAL},
    {"quantize", NULL, TSR_F16, "rows=20 cols=300 to=e5m2 num_x_rows=7 +x_rows"},
    {"quantize", NULL, TSR_F32, "rows=9 cols=388 kind=gelu", FILL_NAN},
    {"dequantize", NULL, TSR_BF16, "rows=9 cols=512 quant=q4_k", FILL_SPECIAL},
    {"dequantize", NULL, TSR_F16, "rows=20 cols=768 quant=q6_k num_x_rows=7 +x_rows"},
    {"dequantize", NULL, TSR_F32, "rows=9 cols=301 quant=int4 group=64 +scale +zero +minimum"},
    {"rope_table", NULL, TSR_F32, "num_positions=50 rotary_dim=64"},
    {"rope_forward", NULL, TSR_BF16, "batch=2 seqlen=9 num_heads=3 head_dim=64"},
    {"embedding_forward", NULL, TSR_BF16, "tokens=50 vocab=30 hidden=72"},
    {"embedding_backward", NULL, TSR_BF16, "tokens=300 vocab=30 hidden=72"},
    {"cross_entropy_forward", NULL, TSR_BF16, "rows=5 vocab=700"},
    {"cross_entropy_backward", NULL, TSR_BF16, "rows=5 vocab=700"},
    {"cross_entropy_backward", NULL, TSR_F32, "rows=9 vocab=700", FILL_SPECIAL},
    {"cross_entropy_backward", NULL, TSR_BF16, "rows=2 vocab=8201"}, // shared by blocks
    {"moe_route_forward", NULL, TSR_BF16, "tokens=9 num_experts=40 top_k=4"},
    {"moe_route_forward", NULL, TSR_F32,
     "tokens=40 num_experts=200 top_k=8 scoring=sigmoid num_groups=8 topk_groups=3 "
     "+correction_bias "
     "+tokens_per_expert +mean_probs +load_balance_loss +z_loss +usage_variance +lse",
     FILL_SPECIAL},
    {"moe_route_forward", NULL, TSR_F16,
     "tokens=5 num_experts=1000 top_k=32 no_renormalize=1 +tokens_per_expert +z_loss"},
    {"moe_route_forward", NULL, TSR_F32, "tokens=30 num_experts=60 top_k=4 +num_nan_rows",
     FILL_NAN},
    {"moe_route_backward", NULL, TSR_BF16, "tokens=9 num_experts=300 top_k=4"},
    {"moe_route_backward", NULL, TSR_F32,
     "tokens=9 num_experts=70 top_k=6 scoring=sigmoid +tokens_per_expert +dload_balance_loss "
     "+dz_loss"},
    {"moe_permute", NULL, TSR_F32,
     "tokens=90 num_experts=40 top_k=4 num_rows=400 +topk_weights +row_tokens +row_weights "
     "+token_rows +tokens_per_expert +num_dropped"},
    {"moe_permute", NULL, TSR_F32,
     "tokens=2000 num_experts=700 top_k=3 num_rows=6000 capacity=9 +topk_weights +row_tokens "
     "+row_weights +token_rows +tokens_per_expert +num_dropped"},
    {"moe_permute", NULL, TSR_F32, "tokens=1700 num_experts=1100 top_k=3 num_rows=6000 +row_tokens",
     FILL_SPECIAL},
    {"moe_combine_forward", NULL, TSR_BF16,
     "tokens=9 top_k=8 hidden=520 num_rows=70 +weights +shared +shared_gate +residual"},
    {"moe_combine_forward", NULL, TSR_F32, "tokens=5 top_k=40 hidden=77 num_rows=190 +weights"},
    {"moe_combine_backward", NULL, TSR_BF16,
     "tokens=9 top_k=9 hidden=520 num_rows=70 +token_rows +rows +weights +shared +shared_gate "
     "+drows +dweights +dshared +dshared_gate"},
    {"moe_combine_backward", NULL, TSR_F32,
     "tokens=5 top_k=3 hidden=2900 num_rows=15 +token_rows +weights +drows"},
    {"moe_bias_backward", NULL, TSR_BF16,
     "num_rows=1300 cols=264 num_experts=3 num_source_rows=50 +row_tokens +row_weights",
     FILL_SPECIAL},
    {"moe_bias_backward", NULL, TSR_F16, "num_rows=90 cols=77 num_experts=5 sizes=ragged"},
    {"moe_bias_backward", NULL, TSR_F32, "num_rows=700 cols=132 num_experts=40 sizes=skewed"},
};

static void test_rows_and_elements(void **state) {
    (void)state;
    emulator_prove(cases, COUNT(cases));
}

static void test_every_file_ran(void **state) {
    (void)state;
    static const char *const folders[] = {"activation",  "adamw",     "cast",     "cross_entropy",
                                          "dequantize",  "embedding", "moe_bias", "moe_combine",
                                          "moe_permute", "moe_route", "norm",     "quantize",
                                          "rope",        "sample",    "softmax"};
    for (int i = 0; i < COUNT(folders); i++) {
        char start[64];
        snprintf(start, sizeof start, "ops/%s/", folders[i]);
        emulator_has_run_all(LOG, start, NULL);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_elements),
        cmocka_unit_test(test_every_file_ran),
    };
    int skip = emulator_start(LOG);
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
