// SPDX-License-Identifier: Apache-2.0
// The gradient of the routing on the CPU: the oracle's in double against finite differences of forward, the fused variant
// against the oracle's, padding, NaN, in place, and what a call refuses.
#include <math.h>

#include "test_support.h"

enum { TOKENS = 5, EXPERTS = 70, TOP_K = 6, GUARD = 8, POISON = 0x7b };

struct routing {
    int tokens, experts, top_k;
    bool is_sigmoid, is_raw, has_losses;
    float scaling;
};

static double x[TOKENS * EXPERTS], g[TOKENS * TOP_K], dbalance[1], dz[1], dx[TOKENS * EXPERTS];
static int32_t ids[TOKENS * TOP_K], counts[EXPERTS];

static double uniform(uint64_t *random) { return (double)test_float(random); }

static tsr_moe_scoring scoring_of(const struct routing *r) {
    return r->is_sigmoid ? TSR_MOE_SIGMOID : TSR_MOE_SOFTMAX;
}

// The sum whose gradient backward gives. Stores ids, counts.
static double value_of(tsr_context *ctx, const struct routing *r, int32_t *ids_out,
                       int32_t *counts_out) {
    double weights[TOKENS * TOP_K], balance[1] = {0}, z[1] = {0}, sum = 0;
    assert_ok(tsr_moe_route_forward(
        ctx, &TSR_MOE_ROUTE_FORWARD_ARGS(
                     .logits = TSR_TENSOR(x, TSR_F64, r->tokens, r->experts),
                     .topk_ids = TSR_TENSOR(ids_out, TSR_I32, r->tokens, r->top_k),
                     .topk_weights = TSR_TENSOR(weights, TSR_F64, r->tokens, r->top_k),
                     .tokens_per_expert = TSR_TENSOR(counts_out, TSR_I32, r->experts),
                     .load_balance_loss = TSR_TENSOR(balance, TSR_F64, 1),
                     .z_loss = TSR_TENSOR(z, TSR_F64, 1), .scoring = scoring_of(r),
                     .no_renormalize = r->is_raw, .routed_scaling = r->scaling,
                     .has_routed_scaling = r->scaling != 0)));
    for (int i = 0; i < r->tokens * r->top_k; i++) sum += g[i] * weights[i];
    return r->has_losses ? sum + dbalance[0] * balance[0] + dz[0] * z[0] : sum;
}

// dtype of logits and dlogits; real: of the others.
static tsr_moe_route_backward_args args_of(const struct routing *r, const void *logits,
                                           const void *dlogits, tsr_dtype dtype, const void *dw,
                                           const void *db, const void *dzs, tsr_dtype real) {
    tsr_moe_route_backward_args args =
        TSR_MOE_ROUTE_BACKWARD_ARGS(.logits = TSR_TENSOR(logits, dtype, r->tokens, r->experts),
                                    .topk_ids = TSR_TENSOR(ids, TSR_I32, r->tokens, r->top_k),
                                    .dtopk_weights = TSR_TENSOR(dw, real, r->tokens, r->top_k),
                                    .dlogits = TSR_TENSOR(dlogits, dtype, r->tokens, r->experts),
                                    .scoring = scoring_of(r), .no_renormalize = r->is_raw,
                                    .routed_scaling = r->scaling,
                                    .has_routed_scaling = r->scaling != 0);
    if (!r->has_losses) return args;
    args.tokens_per_expert = TSR_TENSOR(counts, TSR_I32, r->experts);
    args.dload_balance_loss = TSR_TENSOR(db, real, 1);
    args.dz_loss = TSR_TENSOR(dzs, real, 1);
    return args;
}

static struct routing draw(uint64_t *random, int n) {
    struct routing r = {.tokens = 1 + (int)(test_bits(random) % TOKENS),
                        .experts = 1 + (int)(test_bits(random) % EXPERTS)};
    const int most = r.experts < TOP_K ? r.experts : TOP_K;
    r.top_k = 1 + (int)(test_bits(random) % (uint64_t)most);
    r.is_sigmoid = n & 1;
    r.is_raw = n & 2;
    r.has_losses = n & 4;
    if (n & 8) r.scaling = test_float(random);
    for (int i = 0; i < r.tokens * r.experts; i++) x[i] = (double)(float)uniform(random);
    for (int i = 0; i < r.tokens * r.top_k; i++) g[i] = (double)(float)uniform(random);
    dbalance[0] = (double)(float)uniform(random);
    dz[0] = (double)(float)uniform(random);
    return r;
}

// ---- The oracle -------------------------------------------------------------------------------

static void slopes_of_forward(void **state) {
    uint64_t random = test_seed(20261130);
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 16 : 160);
    for (int n = 0; n < cases; n++) {
        const struct routing r = draw(&random, n);
        (void)value_of(*state, &r, ids, counts);
        const tsr_moe_route_backward_args args =
            args_of(&r, x, dx, TSR_F64, g, dbalance, dz, TSR_F64);
        assert_ok(tsr_moe_route_backward(*state, &args));
        for (int i = 0; i < r.tokens * r.experts; i++) {
            enum { SIDES = 2 };
            static int32_t near[TOKENS * TOP_K], near_counts[EXPERTS];
            const double here = x[i], step = 1e-5;
            double value[SIDES];
            bool is_same = true;
            for (int side = 0; side < SIDES; side++) {
                x[i] = here + (side == 0 ? -step : step);
                value[side] = value_of(*state, &r, near, near_counts);
                for (int k = 0; k < r.tokens * r.top_k; k++) is_same &= near[k] == ids[k];
            }
            x[i] = here;
            const double slope = (value[1] - value[0]) / (2 * step);
            if (is_same && fabs(slope - dx[i]) > 1e-7 * (1 + fabs(slope)))
                fail_msg("case %d: dlogits[%d] is %.9g, the slope %.9g", n, i, dx[i], slope);
        }
    }
}

// ---- The fused variant ------------------------------------------------------------------------

struct guarded {
    float before[GUARD], values[TOKENS * EXPERTS], after[GUARD];
};

static void the_oracles_gradient(void **state) {
    static float x32[TOKENS * EXPERTS], g32[TOKENS * TOP_K], db32[1], dz32[1];
    static struct guarded out, first;
    uint64_t random = test_number("TESSERA_TEST_SEED", 7);
    for (int n = 0; n < (TEST_IS_SLOW ? 32 : 320); n++) {
        const struct routing r = draw(&random, n);
        const int count = r.tokens * r.experts;
        (void)value_of(*state, &r, ids, counts);
        for (int i = 0; i < r.tokens * r.top_k; i++) {
            if (test_bits(&random) % 4 == 0) ids[i] = -1, g[i] = NAN; // not read
            g32[i] = (float)g[i];
        }
        for (int i = 0; i < count; i++) x32[i] = (float)x[i];
        db32[0] = (float)dbalance[0];
        dz32[0] = (float)dz[0];
        tsr_moe_route_backward_args args = args_of(&r, x, dx, TSR_F64, g, dbalance, dz, TSR_F64);
        assert_ok(tsr_moe_route_backward(*state, &args));
        bool has_first = false;
        for (int i = 0; i < 2 * TSR_ISA_COUNT; i++) {
            const tsr_isa isa = (tsr_isa)(i / 2);
            tsr_context *ctx;
            if (isa == TSR_ISA_AUTO || !test_has_isa((int)isa)) continue;
            assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 2), &ctx));
            memset(&out, POISON, sizeof out);
            const bool is_in_place = i % 2 == 1;
            if (is_in_place) memcpy(out.values, x32, (size_t)count * sizeof *x32);
            args = args_of(&r, is_in_place ? out.values : x32, out.values, TSR_F32, g32, db32, dz32,
                           TSR_F32);
            assert_ok(tsr_moe_route_backward(ctx, &args));
            tsr_context_destroy(ctx);
            for (int k = 0; k < count; k++)
                if (!(fabs((double)out.values[k] - dx[k]) <= 2e-5))
                    fail_msg("case %d: dlogits[%d] is %.9g, expected %.9g", n, k,
                             (double)out.values[k], dx[k]);
            assert_true(test_all_bytes_are(out.before, POISON, sizeof out.before));
            assert_true(
                test_all_bytes_are(out.values + count, POISON,
                                   sizeof out - sizeof out.before - (size_t)count * sizeof *x32));
            if (has_first) assert_memory_equal(&out, &first, sizeof out);
            first = out;
            has_first = true;
        }
    }
}

// ---- Special tokens ---------------------------------------------------------------------------

// Rows: an ordinary one, NaN with ids, NaN without, masked, one expert masked.
static void special_tokens(void **state) {
    const float low = -INFINITY, none = NAN;
    float logits[5][3] = {
        {1, 2, 3}, {1, none, 3}, {none, none, none}, {low, low, low}, {1, low, 3}};
    float dlogits[5][3], dw[5][2] = {{1, 2}, {1, 2}, {1, 2}, {1, 2}, {1, 2}};
    float db[1] = {1}, dzs[1] = {1};
    const int32_t special[5][2] = {{2, 1}, {0, 1}, {-1, -1}, {0, 1}, {2, 1}};
    memcpy(ids, special, sizeof special);
    for (int e = 0; e < 3; e++) counts[e] = e;
    for (int n = 0; n < 8; n++) {
        const struct routing r = {5, 3, 2, n & 1, n & 2, n & 4, 0};
        const tsr_moe_route_backward_args args =
            args_of(&r, logits, dlogits, TSR_F32, dw, db, dzs, TSR_F32);
        memset(dlogits, POISON, sizeof dlogits);
        assert_ok(tsr_moe_route_backward(*state, &args));
        for (int e = 0; e < 3; e++) {
            assert_true(!isnan(dlogits[0][e]));
            assert_true(isnan(dlogits[1][e]));
            if (r.has_losses)
                assert_true(isnan(dlogits[2][e]));
            else
                assert_same_number((double)dlogits[2][e], 0);
            assert_same_number((double)dlogits[3][e], 0);
            assert_true(!isnan(dlogits[4][e]));
        }
        assert_same_number((double)dlogits[4][1], 0);
    }
}

static void refusals(void **state) {
    static float logits[2][4], dlogits[2][4], dw[2][2], db[1], dzs[1];
    const struct routing r = {2, 4, 2, false, false, true, 0};
    const tsr_moe_route_backward_args good =
        args_of(&r, logits, dlogits, TSR_F32, dw, db, dzs, TSR_F32);
    tsr_moe_route_backward_args args;
    memset(dlogits, POISON, sizeof dlogits);
    memcpy(ids, (const int32_t[]){0, 1, 2, 3}, 16);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_route_backward(*state, &args), TSR_INVALID_ARGUMENT,                     \
                  "moe_route_backward: ", __VA_ARGS__);                                            \
    assert_true(test_all_bytes_are(dlogits, POISON, sizeof dlogits))
    REFUSES(args.tokens_per_expert.dtype = TSR_DTYPE_NONE, "tokens_per_expert is absent",
            "dload_balance_loss");
    REFUSES(args.dlogits.dtype = TSR_BF16, "dlogits.dtype is bf16", "f32");
    REFUSES(args.dtopk_weights = TSR_TENSOR(dw, TSR_F32, 2, 1), "dtopk_weights has shape");
    REFUSES(args.dz_loss = TSR_TENSOR(dzs, TSR_BF16, 1), "dz_loss.dtype is bf16");
    REFUSES(args.dlogits.data = (char *)logits + 4, "dlogits overlaps logits");
    REFUSES(args.dlogits.data = (char *)dw, "dlogits overlaps dtopk_weights");
    ids[3] = 4;
    REFUSES((void)0, "element 3 of topk_ids is 4", "0 to 3 or -1");
    ids[3] = -2;
    REFUSES((void)0, "element 3 of topk_ids is -2");
    ids[3] = -1;
    assert_ok(tsr_moe_route_backward(*state, &good));
}

static int setup(void **state) {
    *state = test_context(2);
    return 0;
}
static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slopes_of_forward),
        cmocka_unit_test(the_oracles_gradient),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_route backward", tests, setup, teardown);
}
