// SPDX-License-Identifier: Apache-2.0
// The standard set of CUDA kernels, without a GPU or a compiler: its size, that ordinary calls need no other kernels,
// and what a rare call requests. Nobody reads the tensors' addresses, because the driver is the test's own.
#include "kernel_calls_case.h"
#include "library/op_list.h"

static int setup_standard(void **state) {
    static const int hopper = 90;
    return (void)state, setup_pack_for(&hopper, 1, false);
}

// ---- The list -----------------------------------------------------------------------------------

static void its_size(void **state) {
    static const int archs[] = {80, 86, 89, 90, 100, 120};
    (void)state;
    for (int a = 0; a < COUNT(archs); a++) {
        enum { MOST = 800 };
        static char names[MOST][TSRI_CUDA_PROGRAM_TEXT];
        struct tsri_cuda_program program;
        int count = 0, num_standard = 0;
        for (int op = 0; op < tsri_num_ops; op++)
            for (int i = 0;
                 tsri_ops[op]->kernel != NULL && tsri_ops[op]->kernel(i, archs[a], &program); i++) {
                assert_true(count < MOST);
                tsri_cuda_program_text(&program, names[count]);
                for (int other = 0; other < count; other++)
                    assert_string_not_equal(names[other], names[count]);
                num_standard += !program.is_rare;
                count++;
            }
        for (int i = 0; tsri_probe_kernel(i, archs[a], &program); i++) num_standard++;
        assert_in_range(num_standard, 150, 480); // 5 minutes of two processors
        assert_true(count > num_standard);
    }
}

// ---- Ordinary calls -----------------------------------------------------------------------------

static tsr_status matmul(tsr_context *ctx, tsr_dtype a, tsr_dtype b, tsr_dtype c, int layout,
                         int64_t m, int64_t n, int64_t k, bool is_fast) {
    const bool is_a = layout == 2, is_b = layout == 1; // NN, NT, TN
    const tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = ON_CUDA(a, is_a ? k : m, is_a ? m : k),
                                .b = ON_CUDA(b, is_b ? n : k, is_b ? k : n), .c = ON_CUDA(c, m, n),
                                .transpose_a = is_a, .transpose_b = is_b,
                                .fast_accumulate = is_fast);
    return tsr_matmul_forward(ctx, &args);
}

static void matmuls(tsr_context *ctx) {
    static const int64_t sizes[][3] = {{1, 4096, 4096},    {16, 4096, 4096},   {128, 4096, 4096},
                                       {512, 512, 512},    {1024, 1024, 1024}, {8192, 8192, 8192},
                                       {4096, 768, 8192},  {64, 11008, 4096},  {300, 1003, 997},
                                       {2048, 50257, 768}, {8192, 4096, 11008}};
    for (int s = 0; s < COUNT(sizes); s++)
        for (int layout = 0; layout < 3; layout++) {
            const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            for (int d = 0; d < COUNT(dtypes); d++)
                assert_ok(matmul(ctx, dtypes[d], dtypes[d], dtypes[d], layout, m, n, k, false));
            for (int i = 0; i < 6; i++) // fp8: a layer and its gradients
                assert_ok(matmul(ctx, i / 2 == 1 ? TSR_E5M2 : TSR_E4M3,
                                 i / 2 == 2 ? TSR_E5M2 : TSR_E4M3, TSR_BF16, layout, m, n, k,
                                 i % 2 == 1));
        }
}

enum { BATCH = 2, HEADS = 16 };

static tsr_attention_forward_args attention(tsr_dtype dtype, int64_t seqlen, int64_t heads_kv,
                                            int64_t dim, int64_t dim_v) {
    return TSR_ATTENTION_FORWARD_ARGS(.q = ON_CUDA(dtype, BATCH, seqlen, HEADS, dim),
                                      .k = ON_CUDA(dtype, BATCH, seqlen, heads_kv, dim),
                                      .v = ON_CUDA(dtype, BATCH, seqlen, heads_kv, dim_v),
                                      .out = ON_CUDA(dtype, BATCH, seqlen, HEADS, dim_v),
                                      .lse = ON_CUDA(TSR_F32, BATCH, HEADS, seqlen),
                                      .mask = TSR_MASK_CAUSAL);
}

static tsr_status attention_backward(tsr_context *ctx, const tsr_attention_forward_args *f) {
    tsr_attention_backward_args args =
        TSR_ATTENTION_BACKWARD_ARGS(.q = f->q, .k = f->k, .v = f->v, .out = f->out, .lse = f->lse,
                                    .bias = f->bias, .alibi_slopes = f->alibi_slopes,
                                    .mask = f->mask, .softcap = f->softcap,
                                    .dropout_p = f->dropout_p, .dout = f->out, .dq = f->q,
                                    .dk = f->k, .dv = f->v);
    tsr_tensor *const others[] = {&args.dout, &args.dq, &args.dk, &args.dv};
    for (int i = 0; i < COUNT(others); i++) others[i]->data = take_address();
    return tsr_attention_backward(ctx, &args);
}

static void both_ways(tsr_context *ctx, const tsr_attention_forward_args *args) {
    assert_ok(tsr_attention_forward(ctx, args));
    assert_ok(attention_backward(ctx, args));
}

static void attentions(tsr_context *ctx) {
    static const int64_t seqlens[] = {16, 77, 197, 512, 2048, 16384};
    static const int64_t dims[] = {32, 64, 80, 96, 128};
    for (int s = 0; s < COUNT(seqlens); s++) {
        for (int i = 0; i < COUNT(dims); i++)
            for (int d = 0; d < COUNT(dtypes); d++) {
                tsr_attention_forward_args args =
                    attention(dtypes[d], seqlens[s], 4, dims[i], dims[i]);
                both_ways(ctx, &args);
                if (dtypes[d] != TSR_BF16) continue; // the other terms
                args.softcap = 30;
                both_ways(ctx, &args);
                args.softcap = 0, args.dropout_p = 0.1;
                both_ways(ctx, &args);
                args.alibi_slopes = ON_CUDA(TSR_F32, HEADS);
                both_ways(ctx, &args);
            }
        const tsr_attention_forward_args deep = attention(TSR_BF16, seqlens[s], HEADS, 256, 256),
                                         latent = attention(TSR_BF16, seqlens[s], HEADS, 192, 128);
        both_ways(ctx, &deep);
        both_ways(ctx, &latent);
    }
}

static void decodes(tsr_context *ctx) {
    static const int64_t dims[] = {64, 128, 256};
    for (int i = 0; i < COUNT(dims); i++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int64_t heads_kv = 1; heads_kv <= HEADS; heads_kv *= 2) {
                if (dims[i] == 256 && dtypes[d] != TSR_BF16) continue;
                if (heads_kv == 1 && dtypes[d] == TSR_F16) continue; // more than 8 rows per head
                decode(ctx, dtypes[d], HEADS, heads_kv, dims[i]);
            }
}

static bool has_ordinary_gradients(tsr_dtype dtype, int64_t cols) {
    return dtype != TSR_F16 && cols <= 8192;
}

static tsr_status softmax(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t cols) {
    const tsr_softmax_forward_args forward =
        TSR_SOFTMAX_FORWARD_ARGS(.x = ON_CUDA(dtype, rows, cols), .y = ON_CUDA(dtype, rows, cols));
    const tsr_softmax_backward_args backward =
        TSR_SOFTMAX_BACKWARD_ARGS(.y = forward.y, .dy = ON_CUDA(dtype, rows, cols),
                                  .dx = ON_CUDA(dtype, rows, cols));
    tsr_status status = tsr_softmax_forward(ctx, &forward);
    if (status != TSR_OK || !has_ordinary_gradients(dtype, cols)) return status;
    return tsr_softmax_backward(ctx, &backward);
}

static tsr_status norm(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t cols) {
    const tsr_layernorm_forward_args forward =
        TSR_LAYERNORM_FORWARD_ARGS(.x = ON_CUDA(dtype, rows, cols), .weight = ON_CUDA(dtype, cols),
                                   .bias = ON_CUDA(dtype, cols), .y = ON_CUDA(dtype, rows, cols),
                                   .mean = ON_CUDA(TSR_F32, rows), .rstd = ON_CUDA(TSR_F32, rows));
    const tsr_rmsnorm_backward_args backward =
        TSR_RMSNORM_BACKWARD_ARGS(.x = forward.x, .weight = forward.weight, .rstd = forward.rstd,
                                  .dy = ON_CUDA(dtype, rows, cols),
                                  .dx = ON_CUDA(dtype, rows, cols),
                                  .dweight = ON_CUDA(dtype, cols));
    tsr_status status = tsr_layernorm_forward(ctx, &forward);
    if (status != TSR_OK || !has_ordinary_gradients(dtype, cols)) return status;
    return tsr_rmsnorm_backward(ctx, &backward);
}

static tsr_status cross_entropy(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t cols) {
    const tsr_cross_entropy_forward_args forward =
        TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = ON_CUDA(dtype, rows, cols),
                                       .targets = ON_CUDA(TSR_I32, rows),
                                       .loss = ON_CUDA(TSR_F32, rows),
                                       .lse = ON_CUDA(TSR_F32, rows));
    const tsr_cross_entropy_backward_args backward =
        TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = ON_CUDA(dtype, rows, cols),
                                        .targets = ON_CUDA(TSR_I32, rows),
                                        .lse = ON_CUDA(TSR_F32, rows),
                                        .dloss = ON_CUDA(TSR_F32, rows),
                                        .dlogits = ON_CUDA(dtype, rows, cols));
    tsr_status status = tsr_cross_entropy_forward(ctx, &forward);
    return status != TSR_OK ? status : tsr_cross_entropy_backward(ctx, &backward);
}

static tsr_status moe_route(tsr_context *ctx, tsr_dtype dtype, int64_t tokens, int64_t experts) {
    const tsr_moe_route_forward_args forward =
        TSR_MOE_ROUTE_FORWARD_ARGS(.logits = ON_CUDA(dtype, tokens, experts),
                                   .topk_ids = ON_CUDA(TSR_I32, tokens, 8),
                                   .topk_weights = ON_CUDA(TSR_F32, tokens, 8),
                                   .load_balance_loss = ON_CUDA(TSR_F32, 1));
    const tsr_moe_route_backward_args backward =
        TSR_MOE_ROUTE_BACKWARD_ARGS(.logits = forward.logits, .topk_ids = forward.topk_ids,
                                    .dtopk_weights = ON_CUDA(TSR_F32, tokens, 8),
                                    .dlogits = ON_CUDA(dtype, tokens, experts));
    tsr_status status = tsr_moe_route_forward(ctx, &forward);
    return status != TSR_OK ? status : tsr_moe_route_backward(ctx, &backward);
}

static tsr_status quantize(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t cols) {
    const tsr_quantize_args args =
        TSR_QUANTIZE_ARGS(.x = ON_CUDA(dtype, rows, cols), .up = ON_CUDA(dtype, rows, cols),
                          .x_rows = ON_CUDA(TSR_I32, rows * 8),
                          .y = ON_CUDA(TSR_E4M3, rows * 8, cols),
                          .y_scale = ON_CUDA(TSR_F32, rows * 8, (cols + 127) / 128),
                          .kind = TSR_ACTIVATION_SILU);
    return tsr_quantize(ctx, &args);
}

static tsr_status dequantize(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t cols) {
    return tsr_dequantize(ctx, &TSR_DEQUANTIZE_ARGS(.x = ON_CUDA(TSR_U8, rows, cols / 32 * 34),
                                                    .y = ON_CUDA(dtype, rows, cols),
                                                    .quant = TSR_QUANT_Q8_0));
}

static tsr_status sample(tsr_context *ctx, tsr_dtype dtype, int64_t rows, int64_t vocab) {
    const int64_t few = rows < 64 ? rows : 64; // penalties have counts of all tokens in workspace
    tsr_sample_args args =
        TSR_SAMPLE_ARGS(.logits = ON_CUDA(dtype, few, vocab), .history = ON_CUDA(TSR_I32, few, 100),
                        .ids = ON_CUDA(TSR_I32, few), .temperature = 1, .top_p = 0.9f,
                        .has_top_p = 1);
    tsr_status status = tsr_sample(ctx, &args);
    if (status != TSR_OK) return status;
    return tsr_sample(ctx, &TSR_SAMPLE_ARGS(.logits = ON_CUDA(dtype, rows, vocab),
                                            .ids = ON_CUDA(TSR_I32, rows),
                                            .logprobs = ON_CUDA(TSR_F32, rows), .temperature = 1,
                                            .top_k = 50, .top_p = 0.9f, .has_top_p = 1));
}

// From routing's ids to a token's sum, and back.
static tsr_status moe_rows(tsr_context *ctx, tsr_dtype dtype, int64_t tokens, int64_t hidden) {
    const tsr_moe_permute_args permute =
        TSR_MOE_PERMUTE_ARGS(.topk_ids = ON_CUDA(TSR_I32, tokens, 8),
                             .offsets = ON_CUDA(TSR_I32, 129),
                             .row_tokens = ON_CUDA(TSR_I32, tokens * 8),
                             .token_rows = ON_CUDA(TSR_I32, tokens, 8));
    const tsr_moe_combine_forward_args forward =
        TSR_MOE_COMBINE_FORWARD_ARGS(.rows = ON_CUDA(dtype, tokens * 8, hidden),
                                     .token_rows = permute.token_rows,
                                     .weights = ON_CUDA(TSR_F32, tokens, 8),
                                     .y = ON_CUDA(dtype, tokens, hidden));
    const tsr_moe_combine_backward_args backward =
        TSR_MOE_COMBINE_BACKWARD_ARGS(.dy = ON_CUDA(dtype, tokens, hidden), .rows = forward.rows,
                                      .token_rows = permute.token_rows, .weights = forward.weights,
                                      .drows = ON_CUDA(dtype, tokens * 8, hidden),
                                      .dweights = ON_CUDA(TSR_F32, tokens, 8));
    const tsr_moe_bias_backward_args bias =
        TSR_MOE_BIAS_BACKWARD_ARGS(.rows = backward.dy, .row_tokens = permute.row_tokens,
                                   .offsets = permute.offsets,
                                   .dbias = ON_CUDA(dtype, 128, hidden));
    tsr_status status = tsr_moe_permute(ctx, &permute);
    if (status == TSR_OK) status = tsr_moe_bias_backward(ctx, &bias);
    if (status == TSR_OK) status = tsr_moe_combine_forward(ctx, &forward);
    return status != TSR_OK ? status : tsr_moe_combine_backward(ctx, &backward);
}

static void rows_of_numbers(tsr_context *ctx) {
    static const int64_t rows[] = {1, 4096},
                         widths[] = {64,   77,   128,  256,  500,  768,   1024, 1280,
                                     2048, 3072, 4096, 5120, 8192, 12288, 16384},
                         vocabularies[] = {32000, 50257, 128256, 151936};
    for (int r = 0; r < COUNT(rows); r++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            const bool is_f16 = dtypes[d] == TSR_F16;
            for (int i = 0; i < COUNT(widths); i++) {
                assert_ok(softmax(ctx, dtypes[d], rows[r], widths[i]));
                if (!is_f16 || widths[i] <= 8192)
                    assert_ok(norm(ctx, dtypes[d], rows[r], widths[i]));
                if (!is_f16) assert_ok(cross_entropy(ctx, dtypes[d], rows[r], widths[i]));
            }
            assert_ok(moe_route(ctx, dtypes[d], rows[r], 128));
            assert_ok(moe_route(ctx, dtypes[d], rows[r], 512));
            assert_ok(moe_rows(ctx, dtypes[d], rows[r], 2048));
            assert_ok(quantize(ctx, dtypes[d], rows[r], 2048));
            assert_ok(dequantize(ctx, dtypes[d], rows[r], 2048));
            for (int i = 0; i < COUNT(vocabularies); i++) {
                if (!is_f16) assert_ok(softmax(ctx, dtypes[d], rows[r], vocabularies[i]));
                assert_ok(cross_entropy(ctx, dtypes[d], rows[r], vocabularies[i]));
                assert_ok(sample(ctx, dtypes[d], rows[r], vocabularies[i]));
            }
        }
}

static void ordinary_calls(void **state) {
    (void)state;
    next_address = 0;
    tsr_context *ctx = cuda_context();
    matmuls(ctx);
    attentions(ctx);
    decodes(ctx);
    rows_of_numbers(ctx);
    assert_true(fake.num_launches > 1000);
    tsr_context_destroy(ctx);
}

// ---- Rare ones ----------------------------------------------------------------------------------

#define COMPILES(call) assert_status(call, TSR_UNSUPPORTED, "TSR_LIBNVRTC")

static void rare_calls(void **state) {
    (void)state;
    next_address = 0;
    tsr_context *ctx = cuda_context();
    COMPILES(matmul(ctx, TSR_E4M3, TSR_E4M3, TSR_F16, 1, 512, 512, 512, false));
    COMPILES(matmul(ctx, TSR_E5M2, TSR_E5M2, TSR_BF16, 1, 512, 512, 512, false));
    COMPILES(norm(ctx, TSR_F32, 100, 20000));
    COMPILES(cross_entropy(ctx, TSR_F16, 100, 100));
    tsr_attention_forward_args args = attention(TSR_F16, 512, HEADS, 64, 64);
    args.softcap = 30;
    COMPILES(tsr_attention_forward(ctx, &args));
    COMPILES(attention_backward(ctx, &args));
    args.variant = "cuda-naive";
    COMPILES(tsr_attention_forward(ctx, &args));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_size),
        cmocka_unit_test(ordinary_calls),
        cmocka_unit_test(rare_calls),
    };
    return cmocka_run_group_tests_name("kernel set", tests, setup_standard, teardown_pack);
}
