// SPDX-License-Identifier: Apache-2.0
// Fields with a has_ one beside them: a value above 0 counts with and without it, 0 and less count with it alone.
#include "test_support.h"

enum { ROWS = 4, COLS = 6, BYTES = ROWS * COLS * 4 };

static float x[ROWS][COLS], absent[ROWS][COLS], plain[ROWS][COLS], flagged[ROWS][COLS];

static int setup(void **state) {
    *state = test_context(1);
    for (int i = 0; i < ROWS * COLS; i++) x[i / COLS][i % COLS] = (float)((i * 7) % 11) / 4 - 1;
    return 0;
}

static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

#define X TSR_TENSOR(x, TSR_F32, ROWS, COLS)
#define OF(y) TSR_TENSOR(y, TSR_F32, ROWS, COLS)

// call(ctx, y, fields...) three times: value counts without the flag, and what is negative or 0 does not.
#define CHECK(call, field, above, below)                                                           \
    do {                                                                                           \
        memset(absent, 0xff, BYTES), memset(plain, 0xff, BYTES), memset(flagged, 0xff, BYTES);     \
        call(*state, absent, .field = 0);                                                          \
        call(*state, plain, .field = (above));                                                     \
        call(*state, flagged, .field = (above), .has_##field = 1);                                 \
        assert_memory_equal(plain, flagged, BYTES);                                                \
        assert_memory_not_equal(plain, absent, BYTES);                                             \
        call(*state, plain, .field = (below));                                                     \
        assert_memory_equal(plain, absent, BYTES);                                                 \
    } while (0)

#define LAYERNORM(ctx, out, ...)                                                                   \
    assert_ok(tsr_layernorm_forward(                                                               \
        ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = X, .y = OF(out), __VA_ARGS__)))
#define RMSNORM(ctx, out, ...)                                                                     \
    assert_ok(                                                                                     \
        tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = X, .y = OF(out), __VA_ARGS__)))
#define MATMUL(ctx, out, ...)                                                                      \
    assert_ok(                                                                                     \
        tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, ROWS, ROWS),  \
                                                         .b = X, .c = OF(out), __VA_ARGS__)))
#define CAST(ctx, out, ...)                                                                        \
    assert_ok(tsr_cast(ctx, &TSR_CAST_ARGS(.x = X, .y = OF(out), __VA_ARGS__)))
#define ROPE_TABLE(ctx, out, ...)                                                                  \
    do {                                                                                           \
        float sines[ROWS][COLS];                                                                   \
        assert_ok(tsr_rope_table(                                                                  \
            ctx, &TSR_ROPE_TABLE_ARGS(.cos = OF(out), .sin = OF(sines), __VA_ARGS__)));            \
    } while (0)

static void scalars(void **state) {
    CHECK(LAYERNORM, eps, 0.5f, -0.5f);
    CHECK(RMSNORM, eps, 0.5f, -0.5f);
    CHECK(MATMUL, alpha, 3, -3);
    CHECK(CAST, scale, 3, -3);
    CHECK(ROPE_TABLE, base, 500, -500);
}

static void step(tsr_context *ctx, float (*param)[COLS], double grad_scale, int has_grad_scale) {
    float m[ROWS][COLS] = {{0}}, v[ROWS][COLS] = {{0}};
    memset(param, 0, BYTES);
    assert_ok(tsr_adamw_step(
        ctx, &TSR_ADAMW_STEP_ARGS(.param = OF(param), .grad = X, .m = OF(m), .v = OF(v), .lr = 1,
                                  .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .step = 1,
                                  .grad_scale = grad_scale, .has_grad_scale = has_grad_scale)));
}

static void scale_of_gradients(void **state) {
    step(*state, absent, 0, 0);
    step(*state, plain, 4, 0);
    step(*state, flagged, 4, 1);
    assert_memory_equal(plain, flagged, BYTES);
    assert_memory_not_equal(plain, absent, BYTES);
    step(*state, plain, -4, 0);
    assert_memory_equal(plain, absent, BYTES);
}

// One head of COLS elements; -1 is what others write for a window without end.
#define ATTENTION(ctx, into, ...)                                                                  \
    do {                                                                                           \
        tsr_tensor q = TSR_TENSOR(x, TSR_F32, 1, ROWS, 1, COLS);                                   \
        assert_ok(tsr_attention_forward(                                                           \
            ctx, &TSR_ATTENTION_FORWARD_ARGS(.q = q, .k = q, .v = q,                               \
                                             .out = TSR_TENSOR(into, TSR_F32, 1, ROWS, 1, COLS),   \
                                             __VA_ARGS__)));                                       \
    } while (0)

static void windows(void **state) {
    CHECK(ATTENTION, window_left, 1, -1);
    CHECK(ATTENTION, window_right, 1, -1);
}

static void classes_and_rows(void **state) {
    int32_t targets[ROWS] = {1, 2, 1, 0}, padded[COLS] = {0, 1, 2, 3, 1, 1};
    float loss[ROWS], dtable[ROWS][ROWS];
    assert_ok(tsr_cross_entropy_forward(
        *state,
        &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = X, .targets = TSR_TENSOR(targets, TSR_I32, ROWS),
                                        .loss = TSR_TENSOR(loss, TSR_F32, ROWS),
                                        .ignore_index = 1)));
    for (int i = 0; i < ROWS; i++) assert_true((loss[i] == 0) == (targets[i] == 1));
    assert_ok(tsr_embedding_backward(
        *state, &TSR_EMBEDDING_BACKWARD_ARGS(.dy = TSR_TENSOR(x, TSR_F32, COLS, ROWS),
                                             .ids = TSR_TENSOR(padded, TSR_I32, COLS),
                                             .dweight = TSR_TENSOR(dtable, TSR_F32, ROWS, ROWS),
                                             .padding_id = 1)));
    for (int i = 0; i < ROWS; i++) assert_true((dtable[i][0] == 0) == (i == 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(scale_of_gradients),
        cmocka_unit_test(windows),
        cmocka_unit_test(classes_and_rows),
    };
    return cmocka_run_group_tests_name("given fields", tests, setup, teardown);
}
