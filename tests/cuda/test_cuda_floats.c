// SPDX-License-Identifier: Apache-2.0
// The caller's floating-point environment around calls to a driver, a compiler or a device: it is unchanged afterwards
// including flags, whatever code runs on the host, and changes no result. test_tool_floats tests the CPU.
#define _GNU_SOURCE
#include "hostile_floats.h"
#include "test_support.h"

enum { ROWS = 4, COLS = 16, BYTES = ROWS * COLS * sizeof(float) };

#define IN_FLOATS(...)                                                                             \
    do {                                                                                           \
        hostile_enter(floats);                                                                     \
        __VA_ARGS__;                                                                               \
        struct hostile_floats after = hostile_now();                                               \
        hostile_leave();                                                                           \
        if (!hostile_is(&after, floats)) fail_msg("%s, %s", #__VA_ARGS__, floats->name);           \
    } while (0)

static tsr_tensor on_device(void *data) {
    tsr_tensor t = TSR_TENSOR(data, TSR_F32, ROWS, COLS);
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

static void the_environment_stays(void **state) {
    (void)state;
    static float x[ROWS * COLS], y[ROWS * COLS], first[ROWS * COLS];
    const tsr_context_options options = TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0});
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)i * 0.1f;
    for (int i = 0; i < NUM_HOSTILE_FLOATS; i++) {
        const struct hostile_floats *floats = &hostile_floats[i];
        tsr_status status = TSR_INTERNAL;
        tsr_context *ctx;
        void *in = NULL, *out = NULL;
        tsr_device_info info = TSR_DEVICE_INFO;
        IN_FLOATS(status = tsr_context_create(&options, &ctx));
        assert_ok(status);
        IN_FLOATS(status = tsr_memory_alloc(ctx, BYTES, &in));
        assert_ok(status);
        assert_ok(tsr_memory_alloc(ctx, BYTES, &out));
        IN_FLOATS(status = tsr_memory_copy(ctx, in, x, BYTES));
        assert_ok(status);
        const tsr_softmax_forward_args args =
            TSR_SOFTMAX_FORWARD_ARGS(.x = on_device(in), .y = on_device(out));
        size_t bytes;
        IN_FLOATS(status = tsr_softmax_forward_prepare(ctx, &args, &bytes));
        assert_ok(status);
        IN_FLOATS(status = tsr_softmax_forward(ctx, &args));
        assert_ok(status);
        IN_FLOATS(status = tsr_context_synchronize(ctx));
        assert_ok(status);
        assert_ok(tsr_memory_copy(ctx, y, out, BYTES));
        if (i == 0) memcpy(first, y, BYTES);
        assert_memory_equal(y, first, BYTES);
        IN_FLOATS(status = tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info));
        assert_ok(status);
        IN_FLOATS(status = tsr_memory_free(ctx, in));
        assert_ok(status);
        assert_ok(tsr_memory_free(ctx, out));
        IN_FLOATS(tsr_context_destroy(ctx));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_environment_stays)};
    if (tsr_device_count(TSR_CUDA) == 0) return 77;
    return cmocka_run_group_tests_name("cuda floats", tests, NULL, NULL);
}
