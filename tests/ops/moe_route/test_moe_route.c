// SPDX-License-Identifier: Apache-2.0
// Routing on the CPU against formulas written here: random sizes and rules, values by hand, equal logits, masked experts, NaN,
// the same bits on every instruction set, and what a call refuses.
#include "moe_route_case.h"

static struct moe_inputs in;
static struct moe_outputs out, first;

static void run(const struct moe_call *c, tsr_isa isa, int threads) {
    tsr_context *ctx;
    const tsr_moe_route_forward_args args = moe_args(c, &in, &out);
    memset(&out, MOE_POISON, sizeof out);
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = threads), &ctx));
    assert_ok(tsr_moe_route_forward(ctx, &args));
    tsr_context_destroy(ctx);
#define UNTOUCHED(name, used)                                                                      \
    assert_true(test_all_bytes_are(out.name##_before, MOE_POISON, sizeof out.name##_before));      \
    assert_true(test_all_bytes_are(out.name + (used), MOE_POISON,                                  \
                                   sizeof out.name - (size_t)(used) * sizeof out.name[0]));        \
    assert_true(test_all_bytes_are(out.name##_after, MOE_POISON, sizeof out.name##_after))
    UNTOUCHED(ids, c->tokens * c->top_k);
    UNTOUCHED(weights, c->tokens * c->top_k);
    UNTOUCHED(counts, c->experts);
    UNTOUCHED(probs, c->experts);
    UNTOUCHED(balance, 1);
    UNTOUCHED(z, 1);
    UNTOUCHED(variance, 1);
    UNTOUCHED(lse, c->tokens);
    UNTOUCHED(num_nan, 1);
}

// Logits of one token, f32.
static void set_logits(const float *x, int count) {
    memcpy(in.logits, x, (size_t)count * sizeof *x);
}

static void assert_near(double got, double expected, double within) {
    if (!(fabs(got - expected) <= within)) fail_msg("got %.9g, expected %.9g", got, expected);
}

// ---- By hand ----------------------------------------------------------------------------------

static void rules_by_hand(void **state) {
    (void)state;
    struct moe_call c = {.tokens = 1, .experts = 4, .top_k = 2, .dtype = TSR_F32};
    set_logits((const float[]){logf(1), logf(4), logf(2), logf(3)}, 4); // softmax: .1 .4 .2 .3
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 1);
    assert_int_equal(out.ids[1], 3);
    assert_near((double)out.weights[0], 4.0 / 7, 1e-6);
    assert_near((double)out.weights[1], 3.0 / 7, 1e-6);
    assert_near((double)out.lse[0], log(10), 1e-6);
    assert_near((double)out.z[0], log(10) * log(10), 1e-5);
    assert_near((double)out.balance[0], 4 * (0.5 * 0.4 + 0.5 * 0.3), 1e-6);
    assert_near((double)out.variance[0], 0.0625, 1e-9); // f is 0, 1/2, 0, 1/2
    c.is_raw = true;
    c.scaling = 10;
    run(&c, TSR_ISA_AUTO, 1);
    assert_near((double)out.weights[0], 4, 1e-5);
    assert_near((double)out.weights[1], 3, 1e-5);
    // Sigmoids 1/4, 3/4, 1/2, 2/3; a bias chooses expert 0, whose weight stays its sigmoid's.
    c = (struct moe_call){1, 4, 2, TSR_F32, .is_sigmoid = true, .has_bias = true};
    set_logits((const float[]){-logf(3), logf(3), 0, logf(2)}, 4);
    memcpy(in.bias, (const float[]){1, 0, 0, 0}, 16);
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 0);
    assert_int_equal(out.ids[1], 1);
    assert_near((double)out.weights[0], 0.25, 1e-6);
    assert_near((double)out.weights[1], 0.75, 1e-6);
    // Groups (1/2 1/2) and (3/4 1/5): two best 1 > 0.95, best 3/4 > 1/2.
    c = (struct moe_call){1, 4, 1, TSR_F32, .is_sigmoid = true, .num_groups = 2, .topk_groups = 1};
    set_logits((const float[]){0, 0, logf(3), -logf(4)}, 4);
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 0);
    c.group_score = TSR_MOE_GROUP_MAX;
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 2);
}

// ---- Random calls -----------------------------------------------------------------------------

static struct moe_call draw(uint64_t *random) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    const int each = 2 + test_below(random, 12);
    struct moe_call c = {.tokens = 1 + test_below(random, MOE_TOKENS),
                         .dtype = dtypes[test_below(random, 3)]};
    c.experts = each * (1 + test_below(random, test_below(random, 5) == 0 ? 70 : 10));
    if (test_below(random, 5) == 0) c.experts = 1 + test_below(random, 40);
    const int most = c.experts < MOE_TOP_K ? c.experts : MOE_TOP_K;
    c.top_k = 1 + test_below(random, test_below(random, 2) == 0 ? most : (most + 3) / 4);
    c.is_sigmoid = test_below(random, 2) == 0;
    c.has_bias = test_below(random, 2) == 0;
    c.is_raw = test_below(random, 2) == 0;
    if (test_below(random, 2) == 0) c.scaling = test_float(random);
    if (test_below(random, 3) == 0)
        c.round_weights = test_below(random, 2) == 0 ? TSR_BF16 : TSR_F16;
    if (c.experts % each == 0 && test_below(random, 2) == 0) {
        const int least = (c.top_k + each - 1) / each;
        c.num_groups = c.experts / each;
        c.topk_groups = least + test_below(random, c.num_groups - least + 1);
        c.group_score = test_below(random, 2) == 0 ? TSR_MOE_GROUP_TOP2 : TSR_MOE_GROUP_MAX;
    }
    for (int i = 0; i < c.tokens * c.experts; i++)
        tsr_store(c.dtype, in.logits, i, (double)test_float(random));
    for (int e = 0; e < c.experts; e++) in.bias[e] = 0.1f * test_float(random);
    return c;
}

// Returns whether rounding cannot have decided the choice of any token; then everything is compared.
static bool check(const struct moe_call *c) {
    static double probs[MOE_EXPERTS];
    int counts[MOE_EXPERTS] = {0};
    double z = 0, balance = 0, variance = 0;
    bool is_sure = true;
    memset(probs, 0, sizeof probs);
    for (int t = 0; t < c->tokens; t++) {
        struct moe_expected want;
        const double u = c->round_weights == TSR_BF16  ? 0x1p-7
                         : c->round_weights == TSR_F16 ? 0x1p-10
                                                       : 0;
        moe_expect(c, &in, t, &want);
        assert_near((double)out.lse[t], want.lse, 1e-5);
        z += want.lse * want.lse / c->tokens;
        for (int e = 0; e < c->experts; e++) probs[e] += want.probs[e] / c->tokens;
        for (int k = 0; k < c->top_k; k++) {
            const int id = out.ids[t * c->top_k + k];
            assert_in_range(id, 0, c->experts - 1);
            for (int other = 0; other < k; other++)
                assert_int_not_equal(out.ids[t * c->top_k + other], id);
            counts[id]++;
        }
        is_sure &= want.margin > 1e-5;
        for (int k = 0; k < c->top_k && want.margin > 1e-5; k++) {
            const double got = (double)out.weights[t * c->top_k + k], w = want.weights[k];
            assert_int_equal(out.ids[t * c->top_k + k], want.ids[k]);
            assert_near(got, w, (1e-5 + u) * fabs(w) + (u > 0 ? 0x1p-24 : 1e-30));
        }
    }
    for (int e = 0; e < c->experts; e++) {
        const double f = (double)counts[e] / (c->tokens * c->top_k);
        assert_int_equal(out.counts[e], counts[e]);
        assert_near((double)out.probs[e], probs[e], 1e-5 * probs[e]);
        balance += c->experts * f * probs[e];
        variance += (f - 1.0 / c->experts) * (f - 1.0 / c->experts) / c->experts;
    }
    assert_near((double)out.balance[0], balance, 1e-5 * balance);
    assert_near((double)out.variance[0], variance, 1e-6 * variance + 1e-30);
    assert_near((double)out.z[0], z, 1e-5 * (z + 1));
    assert_int_equal(out.num_nan[0], 0);
    return is_sure;
}

static void random_calls(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 60 : 600);
    uint64_t random = test_seed(20261130);
    int num_sure = 0;
    for (int i = 0; i < cases; i++) {
        const struct moe_call c = draw(&random);
        bool has_first = false;
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            if (!test_has_isa(isa)) continue;
            run(&c, (tsr_isa)isa, 1 + isa);
            num_sure += check(&c) && !has_first;
            if (has_first) assert_memory_equal(&out, &first, sizeof out);
            first = out;
            has_first = true;
        }
    }
    assert_true(num_sure > cases / 2);
}

// ---- Special logits ---------------------------------------------------------------------------

static void equal_logits_go_to_the_lower_expert(void **state) {
    (void)state;
    struct moe_call c = {.tokens = 1, .experts = 40, .top_k = 5, .dtype = TSR_F32};
    float x[40] = {0};
    x[7] = x[30] = 2;
    x[3] = x[39] = -0.0f;
    set_logits(x, 40);
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        static const int expected[] = {7, 30, 0, 1, 2};
        if (!test_has_isa(isa)) continue;
        for (int i = 0; i < 4; i++) {
            c.is_sigmoid = i & 1;
            c.num_groups = i & 2 ? 8 : 0; // all groups are equal but those of 7 and 30
            c.topk_groups = i & 2 ? 3 : 0;
            run(&c, (tsr_isa)isa, 1);
            for (int k = 0; k < 5; k++) assert_int_equal(out.ids[k], expected[k]);
        }
    }
    // Scores that round to 1 in fp32: the logits still choose.
    c = (struct moe_call){1, 3, 2, TSR_F32, .is_sigmoid = true};
    set_logits((const float[]){40, 41, 42}, 3);
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 2);
    assert_int_equal(out.ids[1], 1);
    assert_same_number((double)out.weights[0], 0.5);
}

static void masked_experts(void **state) {
    (void)state;
    const float low = -INFINITY;
    struct moe_call c = {.tokens = 2, .experts = 4, .top_k = 3, .dtype = TSR_F32};
    set_logits((const float[]){low, 1, low, 1, low, low, low, low}, 8);
    memcpy(in.bias, (const float[]){9, 0, 9, 0}, 16);
    for (int i = 0; i < 8; i++) {
        c.is_sigmoid = i & 1;
        c.is_raw = i & 2;
        c.has_bias = i & 4;
        run(&c, TSR_ISA_AUTO, 1);
        static const int expected[] = {1, 3, 0, 0, 1, 2};
        for (int k = 0; k < 6; k++) assert_int_equal(out.ids[k], expected[k]);
        const double s = c.is_raw && c.is_sigmoid ? 1 / (1 + exp(-1)) : 0.5;
        assert_near((double)out.weights[0], s, 1e-7);
        assert_near((double)out.weights[1], s, 1e-7);
        for (int k = 2; k < 6; k++) assert_same_number((double)out.weights[k], 0);
        assert_near((double)out.lse[0], 1 + log(2), 1e-6);
        assert_same_number((double)out.lse[1], (double)low);
        assert_near((double)out.z[0], (1 + log(2)) * (1 + log(2)) / 2, 1e-6);
        assert_near((double)out.probs[1], 0.25, 1e-7);
        assert_same_number((double)out.probs[0], 0);
        assert_int_equal(out.num_nan[0], 0);
    }
    // A group with one expert left counts it alone; a group with none is the last.
    c = (struct moe_call){1, 6, 1, TSR_F32, .is_sigmoid = true, .num_groups = 3, .topk_groups = 1};
    set_logits((const float[]){low, low, 9, low, -1, -1}, 6);
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 2);
}

static void tokens_with_nan(void **state) {
    (void)state;
    struct moe_call c = {.tokens = 3, .experts = 5, .top_k = 3, .dtype = TSR_F32};
    for (int i = 0; i < 12; i++) {
        const float special = i < 6 ? NAN : INFINITY;
        c.is_sigmoid = i & 1;
        c.is_raw = i & 2;
        c.has_bias = i % 3 == 0;
        const bool is_nan = i < 6 || !c.is_sigmoid;
        memcpy(in.bias, (const float[]){0, 0, 0, 0, 0}, 20);
        set_logits((const float[]){4, 3, 5, 1, 2, 0, 1, 2, 3, 4, 0, 0, 0, special, 0}, 15);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            static const int expected[] = {2, 0, 1, 4, 3, 2};
            if (!test_has_isa(isa)) continue;
            run(&c, (tsr_isa)isa, 2);
            for (int k = 0; k < 6; k++) assert_int_equal(out.ids[k], expected[k]);
            for (int k = 0; k < 3; k++) {
                static const int after_infinity[] = {3, 0, 1};
                assert_int_equal(out.ids[6 + k], is_nan ? k : after_infinity[k]);
                assert_int_equal(isnan(out.weights[6 + k]) != 0, is_nan);
            }
            assert_true(isnan(out.lse[2]) && isnan(out.z[0]) && !isnan(out.lse[1]));
            assert_int_equal(isnan(out.balance[0]) != 0, is_nan);
            for (int e = 0; e < 5; e++) assert_int_equal(isnan(out.probs[e]) != 0, is_nan);
            assert_int_equal(out.num_nan[0], is_nan);
            int assigned = 0;
            for (int e = 0; e < 5; e++) assigned += out.counts[e];
            assert_int_equal(assigned, 9);
        }
    }
}

// A bias of NaN never chooses its expert while others are left.
static void bias_of_nan(void **state) {
    (void)state;
    const struct moe_call c = {1, 3, 2, TSR_F32, .has_bias = true};
    set_logits((const float[]){9, 1, 2}, 3);
    memcpy(in.bias, (const float[]){NAN, 0, 0}, 12);
    run(&c, TSR_ISA_AUTO, 1);
    assert_int_equal(out.ids[0], 2);
    assert_int_equal(out.ids[1], 1);
}

static void no_tokens(void **state) {
    (void)state;
    const struct moe_call c = {.tokens = 0, .experts = 6, .top_k = 2, .dtype = TSR_BF16};
    run(&c, TSR_ISA_AUTO, 2);
    for (int e = 0; e < 6; e++) assert_int_equal(out.counts[e], 0);
    assert_same_number((double)out.probs[5], 0);
    assert_same_number((double)out.balance[0] + (double)out.z[0] + (double)out.variance[0], 0);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    (void)state;
    const struct moe_call c = {.tokens = 2, .experts = 6, .top_k = 2, .dtype = TSR_F32};
    const tsr_moe_route_forward_args good = moe_args(&c, &in, &out);
    tsr_moe_route_forward_args args;
    tsr_context *ctx = test_context(1);
    memset(in.logits, 0, sizeof in.logits);
    memset(&out, MOE_POISON, sizeof out);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_route_forward(ctx, &args), TSR_INVALID_ARGUMENT,                         \
                  "moe_route_forward: ", __VA_ARGS__);                                             \
    assert_true(test_all_bytes_are(&out, MOE_POISON, sizeof out))
    REFUSES(args.topk_ids = TSR_TENSOR(out.ids, TSR_I32, 2, 7), "topk_ids chooses 7", "1 to 6");
    REFUSES(args.topk_ids = TSR_TENSOR(out.ids, TSR_I32, 2, 0), "topk_ids chooses 0");
    REFUSES(args.topk_ids = TSR_TENSOR(out.ids, TSR_F32, 2, 2), "topk_ids.dtype is f32", "i32");
    REFUSES(args.topk_weights = TSR_TENSOR(out.weights, TSR_F32, 2, 3), "topk_weights has shape");
    REFUSES(args.topk_weights = TSR_TENSOR(out.weights, TSR_BF16, 2, 2), "topk_weights.dtype");
    REFUSES(args.topk_ids = TSR_TENSOR(out.ids, TSR_I32, 3, 2), "topk_ids has shape");
    REFUSES(args.logits = TSR_TENSOR(in.logits, TSR_F32, 1, 1025), "logits have 1025", "1 to 1024");
    REFUSES(args.logits = TSR_TENSOR(in.logits, TSR_F32, 2, 0), "logits have 0");
    REFUSES(args.logits = TSR_TENSOR(in.logits, TSR_E4M3, 2, 6), "logits.dtype is e4m3");
    REFUSES(args.correction_bias = TSR_TENSOR(in.bias, TSR_F32, 5), "correction_bias has shape");
    REFUSES(args.correction_bias = TSR_TENSOR(in.bias, TSR_BF16, 6), "correction_bias.dtype");
    REFUSES(args.lse = TSR_TENSOR(out.lse, TSR_F32, 3), "lse has shape");
    REFUSES(args.z_loss = TSR_TENSOR(out.z, TSR_F32, 2), "z_loss has shape");
    REFUSES(args.scoring = (tsr_moe_scoring)2, "scoring is 2");
    REFUSES(args.num_groups = 4, "num_groups is 4", "divisor of num_experts 6");
    REFUSES(args.num_groups = -1, "num_groups is -1");
    REFUSES(args.num_groups = 2; args.topk_groups = 3, "topk_groups is 3", "0 to num_groups 2");
    REFUSES(args.num_groups = 6; args.topk_groups = 1, "topk_groups is 1", "leaves 1", "top_k 2");
    REFUSES(args.group_score = (tsr_moe_group_score)2, "group_score is 2");
    REFUSES(args.round_weights = TSR_E4M3, "round_weights is e4m3");
    REFUSES(args.routed_scaling = 2, "routed_scaling is 2 without has_routed_scaling");
    REFUSES(args.mean_probs.data = in.logits, "mean_probs overlaps logits");
    REFUSES(args.lse.data = out.weights, "lse overlaps topk_weights");
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_by_hand),
        cmocka_unit_test(random_calls),
        cmocka_unit_test(equal_logits_go_to_the_lower_expert),
        cmocka_unit_test(masked_experts),
        cmocka_unit_test(tokens_with_nan),
        cmocka_unit_test(bias_of_nan),
        cmocka_unit_test(no_tokens),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_route", tests, NULL, NULL);
}
