// SPDX-License-Identifier: Apache-2.0
// Routing on a real GPU, or on the emulated one: ids and weights have the CPU's bits, and an id in device memory that is no
// expert makes its token's gradient NaN and reaches nothing else; ids may repeat.
#include <math.h>

#include "cuda_case.h"

enum { TOKENS = 21, MOST_EXPERTS = 1024, MOST_TOP_K = 32 };

struct buffers {
    float logits[TOKENS * MOST_EXPERTS], bias[MOST_EXPERTS], weights[TOKENS * MOST_TOP_K];
    float dlogits[TOKENS * MOST_EXPERTS];
    int32_t ids[TOKENS * MOST_TOP_K];
};

static struct buffers host, other, *device;
static tsr_context *ctx, *cpu;

static tsr_moe_route_forward_args forward_args(struct buffers *b, int rule, int experts,
                                               int top_k) {
    tsr_moe_route_forward_args args =
        TSR_MOE_ROUTE_FORWARD_ARGS(.logits = TSR_TENSOR(b->logits, TSR_F32, TOKENS, experts),
                                   .topk_ids = TSR_TENSOR(b->ids, TSR_I32, TOKENS, top_k),
                                   .topk_weights = TSR_TENSOR(b->weights, TSR_F32, TOKENS, top_k),
                                   .scoring = rule & 1 ? TSR_MOE_SIGMOID : TSR_MOE_SOFTMAX,
                                   .no_renormalize = rule & 2, .routed_scaling = 2.5f,
                                   .has_routed_scaling = 1);
    if (rule & 4) args.correction_bias = TSR_TENSOR(b->bias, TSR_F32, experts);
    if (rule & 8) {
        args.num_groups = 4;
        args.topk_groups = 2;
    }
    return args;
}

// Numbers from 1 in steps of an ulp, which agree in all but the lowest bits, many or three; whole ones, of which many are equal,
// also 0 and -0; any.
static float draw_logit(int kind, int experts, uint64_t *random) {
    const unsigned steps = kind == 0 ? (unsigned)experts : 3;
    if (kind < 2) return 1 + (float)(test_bits(random) % steps) * 0x1p-23f;
    const float x = test_float(random);
    return kind == 2 ? copysignf(floorf(fabsf(x)), x) : x;
}

static void bits_of_the_cpu(void **state) {
    static const int experts[] = {4, 36, 128, 256, 260, 1024}; // 128: groups of 32
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261130);
    (void)state;
    for (int i = 0; i < 16 * 4 * COUNT(experts); i++) {
        const int num = experts[i / 64], top_k = num / 2 < 9 ? num / 2 : 9;
        for (int e = 0; e < TOKENS * num; e++)
            host.logits[e] = draw_logit(i / 16 % 4, num, &random);
        for (int e = 0; e < num; e++) host.bias[e] = 0.1f * test_float(&random);
        host.logits[num + 1] = NAN;
        memset(host.ids, 0x55, sizeof host.ids);
        memset(host.weights, 0x55, sizeof host.weights);
        other = host;
        tsr_moe_route_forward_args args = forward_args(&other, i % 16, num, top_k);
        assert_ok(tsr_moe_route_forward(cpu, &args));
        assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
        args = forward_args(device, i % 16, num, top_k);
        args.logits = on_cuda(args.logits);
        args.topk_ids = on_cuda(args.topk_ids);
        args.topk_weights = on_cuda(args.topk_weights);
        if (args.correction_bias.data != NULL) args.correction_bias = on_cuda(args.correction_bias);
        assert_ok(tsr_moe_route_forward(ctx, &args));
        assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
        assert_ok(tsr_context_synchronize(ctx));
        assert_memory_equal(host.ids, other.ids, sizeof host.ids);
        assert_memory_equal(host.weights, other.weights, sizeof host.weights);
    }
}

static void an_id_that_is_no_expert(void **state) {
    static const int32_t wrong[] = {8, -2, INT32_MAX, INT32_MIN};
    uint64_t random = 1;
    (void)state;
    for (int i = 0; i < COUNT(wrong); i++) {
        enum { EXPERTS = 8, TOP_K = 2, BAD = 5 };
        memset(&host, 0x55, sizeof host);
        for (int e = 0; e < TOKENS * EXPERTS; e++) host.logits[e] = test_float(&random);
        for (int k = 0; k < TOKENS * TOP_K; k++) {
            host.ids[k] = k % EXPERTS;
            host.weights[k] = 1 + (float)k;
        }
        host.ids[BAD * TOP_K] = wrong[i];
        assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
        assert_ok(tsr_moe_route_backward(
            ctx,
            &TSR_MOE_ROUTE_BACKWARD_ARGS(
                    .logits = on_cuda(TSR_TENSOR(device->logits, TSR_F32, TOKENS, EXPERTS)),
                    .topk_ids = on_cuda(TSR_TENSOR(device->ids, TSR_I32, TOKENS, TOP_K)),
                    .dtopk_weights = on_cuda(TSR_TENSOR(device->weights, TSR_F32, TOKENS, TOP_K)),
                    .dlogits = on_cuda(TSR_TENSOR(device->dlogits, TSR_F32, TOKENS, EXPERTS)))));
        assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
        assert_ok(tsr_context_synchronize(ctx));
        for (int e = 0; e < TOKENS * EXPERTS; e++)
            assert_int_equal(isnan(host.dlogits[e]) != 0, e / EXPERTS == BAD);
        assert_true(test_all_bytes_are(host.dlogits + TOKENS * EXPERTS, 0x55,
                                       sizeof host.dlogits - TOKENS * EXPERTS * sizeof(float)));
    }
}

// Each id counts each time, whether all of a token's are different or not: the CPU's gradient within rounding.
static void an_id_that_repeats(void **state) {
    enum { EXPERTS = 8, TOP_K = 4 };
    static float dlogits[2][TOKENS * EXPERTS];
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261201);
    (void)state;
    for (int e = 0; e < TOKENS * EXPERTS; e++) host.logits[e] = test_float(&random);
    for (int k = 0; k < TOKENS * TOP_K; k++) {
        host.ids[k] = (int32_t)(test_bits(&random) % (EXPERTS + 1)) - 1;
        host.weights[k] = test_float(&random);
    }
    for (int rule = 0; rule < 4; rule++) {
        for (int d = 0; d < 2; d++) {
            struct buffers *b = d == 0 ? &host : device;
            tsr_tensor logits = TSR_TENSOR(b->logits, TSR_F32, TOKENS, EXPERTS),
                       ids = TSR_TENSOR(b->ids, TSR_I32, TOKENS, TOP_K),
                       weights = TSR_TENSOR(b->weights, TSR_F32, TOKENS, TOP_K),
                       out = TSR_TENSOR(b->dlogits, TSR_F32, TOKENS, EXPERTS);
            if (d == 1) {
                logits = on_cuda(logits), ids = on_cuda(ids);
                weights = on_cuda(weights), out = on_cuda(out);
                assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
            }
            memset(host.dlogits, 0x55, sizeof host.dlogits);
            assert_ok(tsr_moe_route_backward(
                d == 0 ? cpu : ctx,
                &TSR_MOE_ROUTE_BACKWARD_ARGS(.logits = logits, .topk_ids = ids,
                                             .dtopk_weights = weights, .dlogits = out,
                                             .scoring =
                                                 rule & 1 ? TSR_MOE_SIGMOID : TSR_MOE_SOFTMAX,
                                             .no_renormalize = rule & 2)));
            if (d == 1) assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
            assert_ok(tsr_context_synchronize(ctx));
            memcpy(dlogits[d], host.dlogits, sizeof dlogits[d]);
        }
        for (int e = 0; e < TOKENS * EXPERTS; e++)
            if (!(fabsf(dlogits[0][e] - dlogits[1][e]) <= 2e-5f))
                fail_msg("rule %d, element %d: %.9g, on the CPU %.9g", rule, e,
                         (double)dlogits[1][e], (double)dlogits[0][e]);
    }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    cpu = test_context(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_cpu),
        cmocka_unit_test(an_id_that_is_no_expert),
        cmocka_unit_test(an_id_that_repeats),
    };
    int failed = cmocka_run_group_tests_name("cuda moe_route", tests, NULL, NULL);
    tsr_context_destroy(cpu);
    cuda_case_close(ctx, memory);
    return failed;
}
