// SPDX-License-Identifier: Apache-2.0
// What the layer refuses: one sentence with the call, the field, what it got and what it expected, and nothing written.
#include "test_support.h"

enum { TOKENS = 6, HIDDEN = 8, EXPERTS = 4, INNER = 5, TOP_K = 2, ROWS = TOKENS * TOP_K };

static tsr_context *ctx;
static float x[TOKENS * HIDDEN], router[EXPERTS * HIDDEN], w_gate[EXPERTS * INNER * HIDDEN];
static float w_up[EXPERTS * INNER * HIDDEN], w_down[EXPERTS * HIDDEN * INNER],
    logits[TOKENS * EXPERTS];
static struct {
    float y[TOKENS * HIDDEN], preact[ROWS * 2 * INNER], weights[ROWS], loss[1], dx[TOKENS * HIDDEN];
    int32_t ids[ROWS], counts[EXPERTS];
} out;
static int32_t ids[ROWS];
static float weights[ROWS], preact[ROWS * 2 * INNER], dy[TOKENS * HIDDEN];

#define F32(data, ...) TSR_TENSOR(data, TSR_F32, __VA_ARGS__)
#define FORWARD(...)                                                                               \
    TSR_MOE_FORWARD_ARGS(.x = F32(x, TOKENS, HIDDEN),                                              \
                         .w_gate = F32(w_gate, EXPERTS, INNER, HIDDEN),                            \
                         .w_up = F32(w_up, EXPERTS, INNER, HIDDEN),                                \
                         .w_down = F32(w_down, EXPERTS, HIDDEN, INNER),                            \
                         .y = F32(out.y, TOKENS, HIDDEN), .top_k = TOP_K, __VA_ARGS__)
#define ROUTED .router = F32(router, EXPERTS, HIDDEN)

static void refuses(const tsr_moe_forward_args *args, tsr_status status, const char *field,
                    const char *sentence) {
    size_t bytes;
    memset(&out, 0xa5, sizeof out);
    assert_status(tsr_moe_forward(ctx, args), status, "moe_forward: ", field, sentence);
    assert_status(tsr_moe_forward_prepare(ctx, args, &bytes), status, "moe_forward: ", field);
    assert_true(test_all_bytes_are(&out, 0xa5, sizeof out));
}
// The usual call after these assignments to a.
#define REFUSES(field, sentence, ...)                                                              \
    do {                                                                                           \
        tsr_moe_forward_args a = FORWARD(ROUTED);                                                  \
        __VA_ARGS__;                                                                               \
        refuses(&a, TSR_INVALID_ARGUMENT, field, sentence);                                        \
    } while (0)

static void options_are_refused(void **state) {
    (void)state;
    REFUSES("top_k", "is 5, expected 1 to 4", a.top_k = 5);
    REFUSES("top_k", "is -1, expected 1 to 4", a.top_k = -1);
    REFUSES("top_k", "is 0, expected 1 to 4", a.top_k = 0);
    REFUSES("capacity", "is 0, expected 1 or more", a.capacity = 0, a.has_capacity = 1);
    REFUSES("capacity", "is -3, expected 1 or more", a.capacity = -3, a.has_capacity = 1);
    REFUSES("capacity", "has_capacity", a.capacity = 3);
    REFUSES("num_groups", "is 3", a.num_groups = 3);
    REFUSES("topk_groups", "is 1", a.num_groups = 4, a.topk_groups = 1);
    REFUSES("scoring", "is 7", a.scoring = (tsr_moe_scoring)7);
    REFUSES("is 99", "expected a tsr_activation", a.activation = (tsr_activation)99);
}

static void sources_are_refused(void **state) {
    (void)state;
    const tsr_tensor none = {0}, scores = F32(logits, TOKENS, EXPERTS);
    const tsr_tensor given_ids = TSR_TENSOR(ids, TSR_I32, TOKENS, TOP_K);
    REFUSES("router, logits and topk_ids are absent", "expected one of them", a.router = none);
    REFUSES("router and logits are both present", "expected one of them", a.logits = scores);
    REFUSES("topk_weights", "absent", a.router = none, a.topk_ids = given_ids);
    REFUSES("z_loss", "is present, expected it absent", a.router = none, a.topk_ids = given_ids,
            a.topk_weights = F32(weights, TOKENS, TOP_K), a.z_loss = F32(out.loss, 1));
    REFUSES("logits_bias", "is present, expected it absent", a.router = none, a.logits = scores,
            a.logits_bias = F32(logits, EXPERTS));
}

static void tensors_are_refused(void **state) {
    (void)state;
    REFUSES("router", "has shape (3, 8), expected (4, 8)", a.router.shape[0] = 3);
    REFUSES("w_down", "has shape (4, 5, 8), expected (4, 8, 5)",
            a.w_down = F32(w_down, EXPERTS, INNER, HIDDEN));
    REFUSES("w_up", "expected (num_experts, intermediate, hidden)",
            a.w_up = F32(w_up, EXPERTS * INNER, HIDDEN));
    REFUSES("w_gate", "dtype is i32", a.w_gate.dtype = TSR_I32);
    REFUSES("preact", "has shape (12, 5), expected (12, 10)",
            a.preact = F32(out.preact, ROWS, INNER));
    REFUSES("topk_ids", "has shape (6, 3), expected (6, 2)",
            a.topk_ids = TSR_TENSOR(out.ids, TSR_I32, TOKENS, 3));
    REFUSES("y", "has shape (3, 8), expected (6, 8)", a.y.shape[0] = 3);
    REFUSES("y", "overlap", a.y.data = x);
    REFUSES("shared_w_down", "is present, expected it absent",
            a.shared_w_down = F32(w_down, HIDDEN, INNER));
    REFUSES("shared_w_gate", "absent", a.shared_w_up = F32(w_up, INNER, HIDDEN),
            a.shared_w_down = F32(w_down, HIDDEN, INNER));
    REFUSES("w_gate", "expected 1", a.w_gate.stride[1] = 2 * HIDDEN, a.w_gate.stride[2] = 2,
            a.w_gate.stride[0] = 0);
}

// On the CPU, where values can be read.
static void ids_are_refused(void **state) {
    (void)state;
    const int32_t bad[] = {EXPERTS, -2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(bad); i++) {
        memset(&out, 0xa5, sizeof out);
        for (int r = 0; r < ROWS; r++) ids[r] = r % EXPERTS;
        ids[7] = bad[i];
        tsr_moe_forward_args args = FORWARD(.topk_ids = TSR_TENSOR(ids, TSR_I32, TOKENS, TOP_K));
        args.topk_weights = F32(weights, TOKENS, TOP_K);
        args.tokens_per_expert = TSR_TENSOR(out.counts, TSR_I32, EXPERTS);
        assert_status(tsr_moe_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                      "moe_forward: ", "topk_ids");
        assert_true(test_all_bytes_are(&out, 0xa5, sizeof out));
        tsr_moe_backward_args backward =
            TSR_MOE_BACKWARD_ARGS(.x = args.x, .w_gate = args.w_gate, .w_up = args.w_up,
                                  .w_down = args.w_down, .topk_ids = args.topk_ids,
                                  .topk_weights = args.topk_weights,
                                  .preact = F32(preact, ROWS, 2 * INNER),
                                  .dy = F32(dy, TOKENS, HIDDEN), .dx = F32(out.dx, TOKENS, HIDDEN));
        assert_status(tsr_moe_backward(ctx, &backward), TSR_INVALID_ARGUMENT,
                      "moe_backward: ", "topk_ids");
        assert_true(test_all_bytes_are(&out, 0xa5, sizeof out));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_refused),
        cmocka_unit_test(sources_are_refused),
        cmocka_unit_test(tensors_are_refused),
        cmocka_unit_test(ids_are_refused),
    };
    ctx = test_context(1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
