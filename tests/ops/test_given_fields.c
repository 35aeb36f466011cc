// SPDX-License-Identifier: Apache-2.0
// Fields with a has_ field. Without it a value is refused by name before anything is written: a real number unless it
// is 0, an integer above 0. A negative integer, such as -1 for no window, is ignored. With it the value is used.
#include "test_support.h"

#include <math.h>

enum { ROWS = 4, COLS = 6, BYTES = ROWS * COLS * 4 };

static float x[ROWS][COLS], absent[ROWS][COLS], other[ROWS][COLS], sums[ROWS];
static int32_t ids[COLS] = {0, 1, 2, 3, 1, 1};

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

// Tests call(ctx, y, fields...) with a real field that is absent, lacks its flag, or has it.
#define CHECK_REAL(call, field, value, words)                                                      \
    do {                                                                                           \
        const float bad[] = {value, -(value), -0x1p-149f, NAN, INFINITY};                          \
        memset(absent, 0xff, BYTES), memset(other, 0xff, BYTES);                                   \
        assert_ok(call(*state, absent, .field = 0));                                               \
        for (int i = 0; i < COUNT(bad); i++)                                                       \
            assert_status(call(*state, other, .field = bad[i]), TSR_INVALID_ARGUMENT, words,       \
                          "without has_" #field);                                                  \
        for (int i = 0; i < BYTES; i++) assert_int_equal(((unsigned char *)other)[i], 0xff);       \
        assert_ok(call(*state, other, .field = -0.0f));                                            \
        assert_memory_equal(other, absent, BYTES);                                                 \
        assert_ok(call(*state, other, .field = (value), .has_##field = 1));                        \
        assert_memory_not_equal(other, absent, BYTES);                                             \
    } while (0)

// The same for an integer, and also for a negative one without the flag.
#define CHECK(call, field, above, below, words)                                                    \
    do {                                                                                           \
        memset(absent, 0xff, BYTES), memset(other, 0xff, BYTES);                                   \
        assert_ok(call(*state, absent, .field = 0));                                               \
        assert_status(call(*state, other, .field = (above)), TSR_INVALID_ARGUMENT, words,          \
                      "without has_" #field);                                                      \
        for (int i = 0; i < BYTES; i++) assert_int_equal(((unsigned char *)other)[i], 0xff);       \
        assert_ok(call(*state, other, .field = (below)));                                          \
        assert_memory_equal(other, absent, BYTES);                                                 \
        assert_ok(call(*state, other, .field = (above), .has_##field = 1));                        \
        assert_memory_not_equal(other, absent, BYTES);                                             \
    } while (0)

#define LAYERNORM(ctx, y_, ...)                                                                    \
    tsr_layernorm_forward(ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = X, .y = OF(y_), __VA_ARGS__))
#define RMSNORM(ctx, y_, ...)                                                                      \
    tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = X, .y = OF(y_), __VA_ARGS__))
#define MATMUL(ctx, y_, ...)                                                                       \
    tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, ROWS, ROWS),      \
                                                     .b = X, .c = OF(y_), __VA_ARGS__))
#define CAST(ctx, y_, ...) tsr_cast(ctx, &TSR_CAST_ARGS(.x = X, .y = OF(y_), __VA_ARGS__))
#define ROPE_TABLE(ctx, y_, ...)                                                                   \
    tsr_rope_table(ctx, &TSR_ROPE_TABLE_ARGS(.cos = OF(y_), .sin = OF(sines), __VA_ARGS__))

static void scalars(void **state) {
    static float sines[ROWS][COLS];
    CHECK_REAL(LAYERNORM, eps, 0.5f, "layernorm_forward: eps is ");
    CHECK_REAL(RMSNORM, eps, 0.5f, "rmsnorm_forward: eps is ");
    CHECK_REAL(MATMUL, alpha, 3, "matmul_forward: alpha is ");
    CHECK_REAL(CAST, scale, 3, "cast: scale is ");
    CHECK_REAL(ROPE_TABLE, base, 500, "rope_table: base is ");
}

// One step from zero state and parameters. Returns the parameters in `param`.
static tsr_status adamw(tsr_context *ctx, float (*param)[COLS], tsr_adamw_step_args args) {
    static float zero[ROWS][COLS], m[ROWS][COLS], v[ROWS][COLS], first[ROWS][COLS];
    memset(m, 0, BYTES), memset(v, 0, BYTES), memcpy(first, zero, BYTES);
    args.param = OF(first), args.grad = X, args.m = OF(m), args.v = OF(v);
    args.lr = 1, args.beta1 = args.beta2 = 0.5, args.eps = 1, args.step = 1;
    tsr_status status = tsr_adamw_step(ctx, &args);
    if (status == TSR_OK) memcpy(param, first, BYTES);
    return status;
}
#define ADAMW(ctx, y_, ...) adamw(ctx, y_, TSR_ADAMW_STEP_ARGS(__VA_ARGS__))

#define HEAD(y_) TSR_TENSOR(y_, TSR_F32, 1, ROWS, 1, COLS)
#define ATTENTION(ctx, y_, ...)                                                                    \
    tsr_attention_forward(ctx,                                                                     \
                          &TSR_ATTENTION_FORWARD_ARGS(.q = HEAD(x), .k = HEAD(x), .v = HEAD(x),    \
                                                      .out = HEAD(y_), __VA_ARGS__))

static void windows_and_scale_of_gradients(void **state) {
    CHECK_REAL(ADAMW, grad_scale, 4, "adamw_step: grad_scale is ");
    CHECK(ATTENTION, window_left, 1, -1, "attention_forward: window_left is 1");
    CHECK(ATTENTION, window_right, 1, -1, "attention_forward: window_right is 1");
}

#define CROSS_ENTROPY(ctx, y_, ...)                                                                \
    tsr_cross_entropy_forward(                                                                     \
        ctx,                                                                                       \
        &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = X, .targets = TSR_TENSOR(ids, TSR_I32, ROWS),    \
                                        .loss = TSR_TENSOR(sums, TSR_F32, ROWS),                   \
                                        .lse = TSR_TENSOR(y_, TSR_F32, ROWS), __VA_ARGS__))
#define EMBEDDING(ctx, y_, ...)                                                                    \
    tsr_embedding_backward(                                                                        \
        ctx,                                                                                       \
        &TSR_EMBEDDING_BACKWARD_ARGS(.dy = TSR_TENSOR(x, TSR_F32, COLS, ROWS),                     \
                                     .ids = TSR_TENSOR(ids, TSR_I32, COLS),                        \
                                     .dweight = TSR_TENSOR(y_, TSR_F32, ROWS, ROWS), __VA_ARGS__))

static void classes_and_rows(void **state) {
    assert_status(CROSS_ENTROPY(*state, other, .ignore_index = 1), TSR_INVALID_ARGUMENT,
                  "cross_entropy_forward: ignore_index is 1 without has_ignore_index");
    assert_ok(CROSS_ENTROPY(*state, other, .ignore_index = 1, .has_ignore_index = 1));
    for (int i = 0; i < ROWS; i++) assert_true((sums[i] == 0) == (ids[i] == 1));
    CHECK(EMBEDDING, padding_id, 1, -1, "embedding_backward: padding_id is 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(windows_and_scale_of_gradients),
        cmocka_unit_test(classes_and_rows),
    };
    return cmocka_run_group_tests_name("given fields", tests, setup, teardown);
}
