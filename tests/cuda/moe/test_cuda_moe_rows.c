// SPDX-License-Identifier: Apache-2.0
// The rows of each expert and their sums on a real GPU, or on the emulated one: the permutation has the CPU's bits, an id that is no
// expert gets no row, and its token a sum of NaN; a row out of range reaches nothing but its token.
#include <math.h>

#include "cuda_case.h"

enum { MOST = 60000, MOST_EXPERTS = 3000, HIDDEN = 40, TOKENS = 21, TOP_K = 3, ROWS = 50 };

struct sorted {
    int32_t offsets[MOST_EXPERTS + 1], row_tokens[MOST], token_rows[MOST], counts[MOST_EXPERTS];
    int32_t num_dropped[1];
    float row_weights[MOST];
};

struct buffers {
    int32_t ids[MOST];
    float weights[MOST];
    struct sorted out;
};

struct sums {
    int32_t token_rows[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], dweights[TOKENS * TOP_K];
    float rows[ROWS * HIDDEN], drows[ROWS * HIDDEN], y[TOKENS * HIDDEN];
};

static struct buffers host, other, *device;
static struct sums sums, *device_sums;
static tsr_context *ctx, *cpu;

struct call {
    int tokens, experts, top_k, capacity;
};

static tsr_moe_permute_args args_of(struct buffers *b, const struct call *c, bool is_on_cuda) {
    tsr_moe_permute_args args =
        TSR_MOE_PERMUTE_ARGS(.topk_ids = TSR_TENSOR(b->ids, TSR_I32, c->tokens, c->top_k),
                             .topk_weights = TSR_TENSOR(b->weights, TSR_F32, c->tokens, c->top_k),
                             .offsets = TSR_TENSOR(b->out.offsets, TSR_I32, c->experts + 1),
                             .row_tokens = TSR_TENSOR(b->out.row_tokens, TSR_I32, MOST),
                             .row_weights = TSR_TENSOR(b->out.row_weights, TSR_F32, MOST),
                             .token_rows =
                                 TSR_TENSOR(b->out.token_rows, TSR_I32, c->tokens, c->top_k),
                             .tokens_per_expert = TSR_TENSOR(b->out.counts, TSR_I32, c->experts),
                             .num_dropped = TSR_TENSOR(b->out.num_dropped, TSR_I32, 1),
                             .capacity = c->capacity, .has_capacity = c->capacity != 0);
    tsr_tensor *const all[] = {&args.topk_ids,    &args.topk_weights,     &args.offsets,
                               &args.row_tokens,  &args.row_weights,      &args.token_rows,
                               &args.num_dropped, &args.tokens_per_expert};
    for (int i = 0; is_on_cuda && i < COUNT(all); i++) *all[i] = on_cuda(*all[i]);
    return args;
}

static void bits_of_the_cpu(void **state) {
    static const struct call calls[] = {{0, 9, 2, 0},      {1, 128, 8, 0},    {64, 128, 8, 3},
                                        {512, 8, 8, 0},    {2000, 128, 8, 0}, {6000, 64, 2, 50},
                                        {1500, 512, 8, 0}, {1500, 700, 8, 4}, {700, 1024, 10, 0},
                                        {90, 3000, 8, 0},  {5000, 1025, 4, 1}};
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261201);
    (void)state;
    for (int i = 0; i < COUNT(calls); i++) {
        const struct call *c = &calls[i];
        const int few = i % 3 == 0 ? 3 : c->experts;
        memset(&host, 0x55, sizeof host);
        for (int n = 0; n < c->tokens * c->top_k; n++) {
            host.ids[n] = (int32_t)(test_bits(&random) % (uint64_t)few) - (n % 7 == 0);
            host.weights[n] = test_float(&random);
        }
        other = host;
        tsr_moe_permute_args args = args_of(&other, c, false);
        assert_ok(tsr_moe_permute(cpu, &args));
        assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
        args = args_of(device, c, true);
        assert_ok(tsr_moe_permute(ctx, &args));
        assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
        assert_ok(tsr_context_synchronize(ctx));
        assert_memory_equal(&host, &other, sizeof host);
    }
}

// As if the id were -1, but for its -2 in token_rows.
static void an_id_that_is_no_expert(void **state) {
    static const int32_t wrong[] = {12, -2, INT32_MAX, INT32_MIN};
    static const struct call calls[] = {{70, 12, 3, 0}, {3000, 12, 3, 100}};
    (void)state;
    for (int i = 0; i < 2 * COUNT(wrong); i++) {
        const struct call *c = &calls[i % 2];
        const int bad = c->tokens * 2 + 1;
        memset(&host, 0x55, sizeof host);
        for (int n = 0; n < c->tokens * c->top_k; n++) {
            host.ids[n] = n * 5 % c->experts;
            host.weights[n] = (float)n;
        }
        host.ids[bad] = -1;
        other = host;
        tsr_moe_permute_args args = args_of(&other, c, false);
        assert_ok(tsr_moe_permute(cpu, &args));
        host.ids[bad] = other.ids[bad] = wrong[i / 2];
        assert_int_equal(other.out.token_rows[bad], -1);
        other.out.token_rows[bad] = -2;
        assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
        args = args_of(device, c, true);
        assert_ok(tsr_moe_permute(ctx, &args));
        assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
        assert_ok(tsr_context_synchronize(ctx));
        assert_memory_equal(&host, &other, sizeof host);
    }
}

static void a_row_out_of_range(void **state) {
    static const int32_t wrong[] = {ROWS, -2, INT32_MAX, INT32_MIN};
    enum { BAD = 5 * TOP_K + 1 };
    (void)state;
    for (int i = 0; i < COUNT(wrong); i++) {
        memset(&sums, 0x55, sizeof sums);
        for (int n = 0; n < ROWS * HIDDEN; n++) sums.rows[n] = (float)(n % 13);
        for (int n = 0; n < TOKENS * TOP_K; n++) {
            sums.token_rows[n] = n < ROWS ? n : -1;
            sums.weights[n] = 2;
        }
        sums.token_rows[BAD] = wrong[i];
        assert_ok(tsr_memory_copy(ctx, device_sums, &sums, sizeof sums));
        const tsr_moe_combine_forward_args forward = TSR_MOE_COMBINE_FORWARD_ARGS(
                .rows = on_cuda(TSR_TENSOR(device_sums->rows, TSR_F32, ROWS, HIDDEN)),
                .token_rows = on_cuda(TSR_TENSOR(device_sums->token_rows, TSR_I32, TOKENS, TOP_K)),
                .weights = on_cuda(TSR_TENSOR(device_sums->weights, TSR_F32, TOKENS, TOP_K)),
                .y = on_cuda(TSR_TENSOR(device_sums->y, TSR_F32, TOKENS, HIDDEN)));
        assert_ok(tsr_moe_combine_forward(ctx, &forward));
        assert_ok(tsr_moe_combine_backward(
            ctx, &TSR_MOE_COMBINE_BACKWARD_ARGS(
                         .dy = forward.y, .rows = forward.rows, .token_rows = forward.token_rows,
                         .drows = on_cuda(TSR_TENSOR(device_sums->drows, TSR_F32, ROWS, HIDDEN)),
                         .dweights =
                             on_cuda(TSR_TENSOR(device_sums->dweights, TSR_F32, TOKENS, TOP_K)))));
        assert_ok(tsr_memory_copy(ctx, &sums, device_sums, sizeof sums));
        assert_ok(tsr_context_synchronize(ctx));
        for (int t = 0; t < TOKENS; t++)
            for (int col = 0; col < HIDDEN; col++) {
                double expected = 0;
                for (int k = 0; k < TOP_K; k++) {
                    const int row = sums.token_rows[t * TOP_K + k];
                    if (row >= 0 && row < ROWS)
                        expected += 2 * (double)sums.rows[row * HIDDEN + col];
                }
                if (t == BAD / TOP_K)
                    assert_true(isnan(sums.y[t * HIDDEN + col]));
                else
                    assert_same_number((double)sums.y[t * HIDDEN + col], expected);
            }
        for (int n = 0; n < TOKENS * TOP_K; n++) // dy of the bad token is NaN
            assert_int_equal(isnan(sums.dweights[n]) != 0, n / TOP_K == BAD / TOP_K);
        for (int row = 0; row < ROWS; row++) {
            if (row == BAD) // no token has it
                assert_true(test_all_bytes_are(sums.drows + row * HIDDEN, 0x55, HIDDEN * 4));
            else if (row / TOP_K != BAD / TOP_K)
                assert_memory_equal(sums.drows + row * HIDDEN, sums.y + row / TOP_K * HIDDEN,
                                    HIDDEN * 4);
        }
    }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host + sizeof sums, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    device_sums = (void *)(device + 1);
    cpu = test_context(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_cpu),
        cmocka_unit_test(an_id_that_is_no_expert),
        cmocka_unit_test(a_row_out_of_range),
    };
    int failed = cmocka_run_group_tests_name("cuda moe rows", tests, NULL, NULL);
    tsr_context_destroy(cpu);
    cuda_case_close(ctx, memory);
    return failed;
}
