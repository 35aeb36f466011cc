// SPDX-License-Identifier: Apache-2.0
// AdamW's scalars are doubles, but the step is in fp32. What fp32 cannot hold is refused.
#include "test_support.h"

#include <float.h>
#include <math.h>

static tsr_context *ctx;

static int setup(void **state) {
    (void)state;
    ctx = test_context(1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

enum { NUM_PARAMS = 3 };
struct tensors {
    float param[NUM_PARAMS], grad[NUM_PARAMS], m[NUM_PARAMS], v[NUM_PARAMS];
};
static const struct tensors fresh = {.param = {1, 2, -3}, .grad = {0, 0.5f, -1}};

#define VECTOR(data) TSR_TENSOR(data, TSR_F32, NUM_PARAMS)

static tsr_adamw_step_args args_of(struct tensors *t) {
    return TSR_ADAMW_STEP_ARGS(.param = VECTOR(t->param), .grad = VECTOR(t->grad),
                               .m = VECTOR(t->m), .v = VECTOR(t->v), .lr = 0.1, .beta1 = 0.9,
                               .beta2 = 0.999, .eps = 1e-8, .step = 1);
}

// The first step moves each parameter by lr against the sign of its gradient. A parameter without a gradient stays.
static void first_step(void **state) {
    (void)state;
    struct tensors t = fresh;
    tsr_adamw_step_args args = args_of(&t);
    assert_ok(tsr_adamw_step(ctx, &args));
    static const float expected[] = {1, 1.9f, -2.9f};
    for (int i = 0; i < NUM_PARAMS; i++) assert_true(fabsf(t.param[i] - expected[i]) < 1e-6f);
}

static void scalars_beyond_fp32_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *field;
        size_t offset;
        double value;
    } cases[] = {
#define CASE(field, value) {#field, offsetof(tsr_adamw_step_args, field), value}
        CASE(eps, 1e-50),          CASE(eps, 1e39),
        CASE(eps, DBL_TRUE_MIN),   CASE(eps, 0x1p-127),
        CASE(grad_scale, 1e39),    CASE(grad_scale, -1e39),
        CASE(grad_scale, 1e-50),   CASE(lr, 1e39),
        CASE(lr, -1e-46),          CASE(weight_decay, 1e300),
        CASE(weight_decay, 1e-60), CASE(beta1, 1e-40),
        CASE(beta2, 1e-200),       CASE(lr, 1e38), // 1e39 with the bias correction
#undef CASE
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct tensors t = fresh;
        tsr_adamw_step_args args = args_of(&t);
        size_t bytes = 12345;
        args.grad_scale = 1;
        args.has_grad_scale = 1;
        memcpy((char *)&args + cases[i].offset, &cases[i].value, sizeof(double));
        assert_status(tsr_adamw_step(ctx, &args), TSR_INVALID_ARGUMENT, "adamw_step",
                      cases[i].field, "f32");
        assert_status(tsr_adamw_step_prepare(ctx, &args, &bytes), TSR_INVALID_ARGUMENT,
                      cases[i].field);
        assert_int_equal(bytes, 12345);
        assert_memory_equal(&t, &fresh, sizeof t);
    }
    struct tensors t = fresh; // fp32 holds each, but not their product
    tsr_adamw_step_args args = args_of(&t);
    args.lr = 1e20;
    args.weight_decay = 1e20;
    assert_status(tsr_adamw_step(ctx, &args), TSR_INVALID_ARGUMENT, "weight_decay", "f32");
    assert_memory_equal(&t, &fresh, sizeof t);
}

// The ends of the range give no NaN, and a parameter without a gradient stays.
static void the_least_and_the_largest_are_taken(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tensors t = fresh;
        tsr_adamw_step_args args = args_of(&t);
        if (i == 0) args.eps = (double)FLT_MIN;
        if (i == 1) args.lr = 0;
        if (i == 2) args.beta1 = args.beta2 = 0;
        if (i == 3) args.grad_scale = (double)FLT_MIN, args.has_grad_scale = 1;
        assert_ok(tsr_adamw_step(ctx, &args));
        assert_true(t.param[0] == 1);
        for (int k = 0; k < NUM_PARAMS; k++) assert_true(isfinite(t.param[k]));
        if (i != 3) assert_true(fabsf(t.param[1] - (i == 1 ? 2 : 1.9f)) < 1e-6f);
    }
}

// In f64 nothing is rounded to fp32.
static void f64_takes_any_finite_number(void **state) {
    (void)state;
    double param = 1, grad = 0, m = 0, v = 0;
    assert_ok(tsr_adamw_step(
        ctx, &TSR_ADAMW_STEP_ARGS(.param = TSR_TENSOR(&param, TSR_F64, 1),
                                  .grad = TSR_TENSOR(&grad, TSR_F64, 1),
                                  .m = TSR_TENSOR(&m, TSR_F64, 1), .v = TSR_TENSOR(&v, TSR_F64, 1),
                                  .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-50,
                                  .grad_scale = 1e39, .has_grad_scale = 1, .step = 1)));
    assert_true(param == 1 && m == 0 && v == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_step),
        cmocka_unit_test(scalars_beyond_fp32_are_refused),
        cmocka_unit_test(the_least_and_the_largest_are_taken),
        cmocka_unit_test(f64_takes_any_finite_number),
    };
    return cmocka_run_group_tests_name("adamw", tests, setup, teardown);
}
