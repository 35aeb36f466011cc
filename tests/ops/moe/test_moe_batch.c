// SPDX-License-Identifier: Apache-2.0
// Under TSR_BATCH_INVARIANT a token's y has the same bits alone and among others, whichever experts these have.
#include "test_support.h"

enum { MOST = 40, HIDDEN = 72, EXPERTS = 8, INNER = 52, SHARED = 24, TOP_K = 3 };

static float x[MOST][HIDDEN], router[EXPERTS][HIDDEN], w_gate[EXPERTS][INNER][HIDDEN];
static float w_up[EXPERTS][INNER][HIDDEN], w_down[EXPERTS][HIDDEN][INNER];
static float shared_gate[SHARED][HIDDEN], shared_up[SHARED][HIDDEN], shared_down[HIDDEN][SHARED];
static float gate[HIDDEN];
static uint16_t half_x[MOST][HIDDEN], half_router[EXPERTS][HIDDEN],
    half_gate[EXPERTS][INNER][HIDDEN];
static uint16_t half_up[EXPERTS][INNER][HIDDEN], half_down[EXPERTS][HIDDEN][INNER];
static uint16_t half_shared_gate[SHARED][HIDDEN], half_shared_up[SHARED][HIDDEN];
static uint16_t half_shared_down[HIDDEN][SHARED], half_of_gate[HIDDEN];
static char y[MOST * HIDDEN * 4], alone[HIDDEN * 4];

#define DRAW(of, half, scale)                                                                      \
    for (size_t i = 0; i < sizeof(of) / sizeof(float); i++) {                                      \
        ((float *)of)[i] = (scale)*test_float(&seed);                                              \
        ((uint16_t *)half)[i] = test_bf16(((float *)of)[i]);                                       \
    }
static void draw(uint64_t seed) {
    DRAW(x, half_x, 0.5f)
    DRAW(router, half_router, 0.2f)
    DRAW(w_gate, half_gate, 0.1f)
    DRAW(w_up, half_up, 0.1f)
    DRAW(w_down, half_down, 0.1f)
    DRAW(shared_gate, half_shared_gate, 0.1f)
    DRAW(shared_up, half_shared_up, 0.1f)
    DRAW(shared_down, half_shared_down, 0.1f)
    DRAW(gate, half_of_gate, 0.1f)
}

#define OF(name, half, ...)                                                                        \
    TSR_TENSOR(is_half ? (void *)half : (void *)name, is_half ? TSR_BF16 : TSR_F32, __VA_ARGS__)

static void call(tsr_context *ctx, bool is_half, int first, int64_t tokens, void *out) {
    const int64_t element = is_half ? 2 : 4;
    tsr_moe_forward_args args =
        TSR_MOE_FORWARD_ARGS(.flags = TSR_BATCH_INVARIANT,
                             .x = OF(x[first], half_x[first], tokens, HIDDEN),
                             .router = OF(router, half_router, EXPERTS, HIDDEN),
                             .w_gate = OF(w_gate, half_gate, EXPERTS, INNER, HIDDEN),
                             .w_up = OF(w_up, half_up, EXPERTS, INNER, HIDDEN),
                             .w_down = OF(w_down, half_down, EXPERTS, HIDDEN, INNER),
                             .shared_w_gate = OF(shared_gate, half_shared_gate, SHARED, HIDDEN),
                             .shared_w_up = OF(shared_up, half_shared_up, SHARED, HIDDEN),
                             .shared_w_down = OF(shared_down, half_shared_down, HIDDEN, SHARED),
                             .shared_gate = OF(gate, half_of_gate, HIDDEN),
                             .y = OF(out, out, tokens, HIDDEN), .top_k = TOP_K);
    memset(out, 0xa5, (size_t)(tokens * HIDDEN * element));
    assert_ok(tsr_moe_forward(ctx, &args));
}

static void tokens_do_not_depend_on_others(void **state) {
    (void)state;
    tsr_context *ctx = test_context(2);
    uint64_t seed = test_number("TESSERA_TEST_SEED", 1);
    const int cases = (int)test_number("TESSERA_TEST_CASES", 6);
    for (int i = 0; i < cases; i++) {
        const bool is_half = i % 2 == 1;
        const size_t bytes = HIDDEN * (is_half ? 2 : 4);
        const int64_t tokens = 1 + (int64_t)(test_bits(&seed) % MOST);
        print_message("case %d, %d tokens, seed %llu\n", i, (int)tokens, (unsigned long long)seed);
        draw(seed);
        call(ctx, is_half, 0, tokens, y);
        for (int t = 0; t < tokens; t++) {
            call(ctx, is_half, t, 1, alone);
            assert_memory_equal(alone, y + (size_t)t * bytes, bytes);
        }
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_do_not_depend_on_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
