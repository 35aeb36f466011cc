// SPDX-License-Identifier: Apache-2.0
// Every architecture with its GPUs' limits, without a GPU or a compiler: every call of every shape has a kernel, the
// kernel belongs to the architecture, and a block requests no more shared memory than allowed. Nobody reads the
// tensors' addresses, because the driver is the test's own.
#include "kernel_calls_case.h"
#include "library/op_list.h"

// Shared memory that a block may have, from the CUDA programming guide, technical specifications by compute capability.
static const struct card {
    int arch, shared_kib;
} cards[] = {{80, 163},  {86, 99},   {87, 163},  {89, 99},  {90, 227},
             {100, 227}, {103, 227}, {110, 227}, {120, 99}, {121, 99}};

static int setup_all(void **state) {
    int archs[COUNT(cards)];
    (void)state;
    for (int i = 0; i < COUNT(cards); i++) archs[i] = cards[i].arch;
    return setup_pack_for(archs, COUNT(archs), true);
}

static tsr_context *context_on(const struct card *card) {
    fake.arch = card->arch;
    fake.shared_bytes = card->shared_kib << 10;
    return cuda_context();
}

static void older_cards_are_refused(void **state) {
    tsr_context *ctx;
    (void)state;
    fake.arch = 75;
    fake.shared_bytes = 64 << 10;
    assert_status(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx),
                  TSR_UNSUPPORTED, "compute capability 7.5, expected 8.0 or newer");
}

// ---- The lists ----------------------------------------------------------------------------------

static void what_it_knows_of_an_architecture(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(cards); i++)
        assert_int_equal(tsri_cuda_arch_shared_bytes(cards[i].arch), cards[i].shared_kib << 10);
    assert_int_equal(tsri_cuda_arch_shared_bytes(999), 99 << 10);
}

// Only sm_90 lists kernels with wgmma, its copies and its registers.
static void hoppers_kernels_are_its_own(void **state) {
    struct tsri_cuda_program program;
    (void)state;
    for (int a = 0; a < COUNT(cards); a++) {
        int num_hopper = 0;
        for (int op = 0; op < tsri_num_ops; op++)
            for (int i = 0;
                 tsri_ops[op]->kernel != NULL && tsri_ops[op]->kernel(i, cards[a].arch, &program);
                 i++)
                num_hopper += strstr(program.source, "_sm90.cu") != NULL;
        assert_true(cards[a].arch == 90 ? num_hopper > 50 : num_hopper == 0);
    }
}

// ---- Calls --------------------------------------------------------------------------------------

// Returns whether a variant serves the call. It may not serve it, but its kernel must be in the pack.
static bool is_listed(tsr_status status) {
    if (status != TSR_OK) {
        if (status != TSR_UNSUPPORTED || strstr(tsr_last_error(), "TSR_LIBNVRTC") != NULL)
            fail_msg("sm_%d: %s", fake.arch, tsr_last_error());
    }
    return status == TSR_OK;
}

enum { BATCH = 2, HEADS = 4, SEQLEN = 300 };
enum terms { PLAIN, SOFTCAP, BIAS, ALIBI, DROPOUT, NUM_TERMS };

static void attention(tsr_context *ctx, tsr_dtype dtype, int64_t dim, int64_t dim_v,
                      enum terms terms, const char *variant) {
    tsr_attention_forward_args f =
        TSR_ATTENTION_FORWARD_ARGS(.q = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim),
                                   .k = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim),
                                   .v = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim_v),
                                   .out = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim_v),
                                   .lse = ON_CUDA(TSR_F32, BATCH, HEADS, SEQLEN),
                                   .mask = TSR_MASK_CAUSAL, .variant = variant);
    tsr_attention_backward_args b =
        TSR_ATTENTION_BACKWARD_ARGS(.q = f.q, .k = f.k, .v = f.v, .out = f.out, .lse = f.lse,
                                    .dout = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim_v),
                                    .dq = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim),
                                    .dk = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim),
                                    .dv = ON_CUDA(dtype, BATCH, SEQLEN, HEADS, dim_v),
                                    .mask = TSR_MASK_CAUSAL, .variant = variant);
    if (terms == SOFTCAP) f.softcap = b.softcap = 30;
    if (terms == DROPOUT) f.dropout_p = b.dropout_p = 0.1;
    if (terms == ALIBI) f.alibi_slopes = b.alibi_slopes = ON_CUDA(TSR_F32, HEADS);
    if (terms == BIAS) {
        f.bias = b.bias = ON_CUDA(dtype, 1, HEADS, SEQLEN, SEQLEN);
        b.dbias = ON_CUDA(dtype, 1, HEADS, SEQLEN, SEQLEN);
    }
    const bool is_served = is_listed(tsr_attention_forward(ctx, &f));
    if (variant == NULL && !is_served) fail_msg("sm_%d: %s", fake.arch, tsr_last_error());
    if (variant != NULL && strcmp(variant, "cuda-few") == 0) return; // only forward
    const bool is_served_too = is_listed(tsr_attention_backward(ctx, &b));
    if (variant == NULL && !is_served_too) fail_msg("sm_%d: %s", fake.arch, tsr_last_error());
}

static void attentions(tsr_context *ctx) {
    static const int64_t dims[][2] = {{32, 32},   {64, 64},   {80, 80},   {128, 128},
                                      {192, 128}, {200, 200}, {256, 256}, {7, 250}};
    static const char *const variants[] = {NULL,          "cuda-flash3", "cuda-small", "cuda-few",
                                           "cuda-flash2", "cuda-flash1", "cuda-naive"};
    for (int i = 0; i < COUNT(dims); i++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int terms = 0; terms < NUM_TERMS; terms++)
                for (int v = 0; v < COUNT(variants); v++)
                    attention(ctx, dtypes[d], dims[i][0], dims[i][1], (enum terms)terms,
                              variants[v]);
}

static void decodes(tsr_context *ctx) {
    static const int64_t dims[] = {40, 64, 128, 256};
    for (int i = 0; i < COUNT(dims); i++)
        for (int d = 0; d < COUNT(dtypes); d++)
            for (int64_t heads_kv = 1; heads_kv <= HEADS; heads_kv *= 2)
                decode(ctx, dtypes[d], HEADS, heads_kv, dims[i]);
}

static void product(tsr_context *ctx, tsr_dtype dtype, tsr_dtype c, int layout, int64_t m,
                    int64_t n, int64_t k, const char *variant) {
    const bool is_a = layout >= 2, is_b = layout % 2 == 1; // NN, NT, TN, TT
    const tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = ON_CUDA(dtype, is_a ? k : m, is_a ? m : k),
                                .b = ON_CUDA(dtype, is_b ? n : k, is_b ? k : n),
                                .c = ON_CUDA(c, m, n), .transpose_a = is_a, .transpose_b = is_b,
                                .variant = variant);
    const bool is_served = is_listed(tsr_matmul_forward(ctx, &args));
    if (variant == NULL && !is_served) fail_msg("sm_%d: %s", fake.arch, tsr_last_error());
}

static void products(tsr_context *ctx) {
    static const int64_t sizes[][3] = {{1, 4096, 4096},   {16, 4096, 4096},  {77, 100, 99},
                                       {512, 512, 512},   {128, 4096, 4096}, {4096, 4096, 4096},
                                       {300, 1003, 30000}};
    static const char *const variants[] = {NULL,        "cuda-fma",   "cuda-mma",
                                           "cuda-gemv", "cuda-wgmma", "cuda-split",
                                           "cuda-fp8",  "cuda-tf32",  "cuda-bf16x6"};
    static const tsr_dtype fp8[] = {TSR_E4M3, TSR_E5M2};
    for (int s = 0; s < COUNT(sizes); s++)
        for (int layout = 0; layout < 4; layout++)
            for (int v = 0; v < COUNT(variants); v++) {
                const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
                for (int d = 0; d < COUNT(dtypes); d++) {
                    product(ctx, dtypes[d], dtypes[d], layout, m, n, k, variants[v]);
                    product(ctx, dtypes[d], TSR_F32, layout, m, n, k, variants[v]);
                }
                for (int d = 0; d < COUNT(fp8); d++)
                    product(ctx, fp8[d], TSR_BF16, layout, m, n, k, variants[v]);
            }
}

static void rows_of_numbers(tsr_context *ctx) {
    static const int64_t widths[] = {64, 1000, 4096, 8192, 16384, 20000, 40000, 140000};
    for (int i = 0; i < COUNT(widths); i++)
        for (int d = 0; d < COUNT(dtypes); d++) {
            const int64_t rows = 500, cols = widths[i];
            const tsr_tensor x = ON_CUDA(dtypes[d], rows, cols),
                             dy = ON_CUDA(dtypes[d], rows, cols),
                             y = ON_CUDA(dtypes[d], rows, cols), weight = ON_CUDA(dtypes[d], cols),
                             dx = ON_CUDA(dtypes[d], rows, cols), mean = ON_CUDA(TSR_F32, rows),
                             rstd = ON_CUDA(TSR_F32, rows), more = ON_CUDA(dtypes[d], rows, cols);
            assert_ok(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = x, .y = y)));
            assert_ok(
                tsr_softmax_backward(ctx, &TSR_SOFTMAX_BACKWARD_ARGS(.y = y, .dy = dy, .dx = dx)));
            assert_ok(tsr_layernorm_forward(
                ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = x, .weight = weight, .residual = more,
                                                 .residual_out = dx, .y = y, .mean = mean,
                                                 .rstd = rstd)));
            if (cols <= 16384 && dtypes[d] != TSR_F32) // without a queue
                assert_ok(tsr_layernorm_forward(
                    ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = x, .y = y, .variant = "cuda-rows")));
            assert_ok(tsr_layernorm_backward(
                ctx, &TSR_LAYERNORM_BACKWARD_ARGS(.x = x, .weight = weight, .mean = mean,
                                                  .rstd = rstd, .dy = dy, .dresidual_out = more,
                                                  .dx = dx, .dweight = ON_CUDA(dtypes[d], cols))));
        }
}

static void every_call_is_served(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(cards); i++)
        for (off_line = 0; off_line <= 4; off_line += 4) {
            tsr_context *ctx = context_on(&cards[i]);
            next_address = 0;
            attentions(ctx);
            decodes(ctx);
            products(ctx);
            rows_of_numbers(ctx);
            tsr_context_destroy(ctx);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_knows_of_an_architecture),
        cmocka_unit_test(hoppers_kernels_are_its_own),
        cmocka_unit_test(every_call_is_served),
        cmocka_unit_test(older_cards_are_refused),
    };
    return cmocka_run_group_tests_name("kernels of architectures", tests, setup_all, teardown_pack);
}
