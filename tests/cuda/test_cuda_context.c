// SPDX-License-Identifier: Apache-2.0
// Contexts on CUDA with the driver of cuda_context_case.h: which requests it gets, in which order, and how its refusals
// are handled. No GPU or compiler is needed.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_context_case.h"

static int setup_all(void **state) {
    setenv("TSR_LIBCUDA", "/nowhere/libcuda.so", 1);
    int result = setup_pack(state);
    tsri_cuda_driver_replace(NULL); // for the first test
    return result;
}

// Without a driver one sentence says what is missing, and the CPU still works. This runs before the test's driver is
// installed.
static void no_driver(void **state) {
    (void)state;
    tsr_context *ctx = (tsr_context *)&fake;
    tsr_device_info info = TSR_DEVICE_INFO;
    assert_status(tsr_context_create(&ON_CUDA, &ctx), TSR_UNSUPPORTED, "cuda:0", "CUDA driver",
                  "/nowhere/libcuda.so");
    assert_null(ctx);
    assert_int_equal(tsr_device_count(TSR_CUDA), 0);
    assert_int_equal(tsr_device_count(TSR_CPU), 1);
    assert_status(tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info), TSR_UNSUPPORTED, "cuda:0");
    ctx = test_context(1);
    const tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, ROWS, COLS),
                                 .y = TSR_TENSOR(y, TSR_F32, ROWS, COLS));
    assert_ok(tsr_softmax_forward(ctx, &args));
    tsr_context_destroy(ctx);
}

static void devices(void **state) {
    (void)state;
    tsr_context *ctx;
    tsr_device_info info = TSR_DEVICE_INFO;
    assert_int_equal(tsr_device_count(TSR_CUDA), 1);
    assert_ok(tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info));
    assert_string_equal(info.arch, "sm_90a");
    assert_string_equal(info.name, "Fake GPU");
    assert_int_equal(info.num_sms, 4);
    assert_int_equal(info.driver_version, 13000);
    assert_int_equal(info.nvrtc_version, 0);
    tsr_context_options options = ON_CUDA;
    options.device.index = 1;
    assert_status(tsr_context_create(&options, &ctx), TSR_UNSUPPORTED, "cuda:1", "0 to 0");
    options.device.index = -1;
    assert_status(tsr_context_create(&options, &ctx), TSR_INVALID_ARGUMENT, "{1, -1}");
    assert_status(tsr_context_create(&TSR_CONTEXT_OPTIONS(.stream = &some_stream), &ctx),
                  TSR_INVALID_ARGUMENT, "stream");
}

static void current_context_is_taken_and_kept(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    assert_int_equal(fake.num_retained, 1);
    assert_int_equal(fake.depth, 0);
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.depth, 0);
    tsr_context_destroy(ctx);
    assert_int_equal(fake.num_retained, 0);
    fake_push(AS(cu_context, own_context)); // the caller's
    ctx = cuda_context();
    assert_int_equal(fake.num_retained, 0);
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.depth, 1);
    fake_push(AS(cu_context, primary_context)); // another context in between
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.depth, 2);
    assert_ptr_equal(fake.stack[1], &primary_context);
    tsr_context_destroy(ctx);
    assert_int_equal(fake.depth, 2);
}

static void launches(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.num_launches, 1);
    assert_string_equal(tsr_context_last_variant(ctx), "cuda-rows");
    assert_int_equal(fake.launched.grid_x, ROWS); // one block per row
    assert_int_equal(fake.launched.block_x, 128);
    const void *first;
    memcpy(&first, fake.params, sizeof first);
    assert_ptr_equal(first, x);
    assert_int_equal(fake.num_loads, 1);
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.num_loads, 1); // once per process
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_launches, 4); // rows, then the reduction
    assert_int_equal(fake.num_memory, 1);   // the arena
    tsr_context_destroy(ctx);
}

static void devices_must_agree(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context(), *cpu = test_context(1);
    tsr_softmax_forward_args args = softmax_args();
    assert_status(tsr_softmax_forward(cpu, &args), TSR_INVALID_ARGUMENT, "x is on device cuda:0",
                  "expected cpu");
    args.y.device = (tsr_device){TSR_CPU, 0};
    assert_status(tsr_softmax_forward(ctx, &args), TSR_INVALID_ARGUMENT, "y is on device cpu",
                  "expected cuda:0");
    args.y.device = (tsr_device){TSR_CUDA, 1};
    assert_status(tsr_softmax_forward(ctx, &args), TSR_INVALID_ARGUMENT, "y is on device cuda:1");
    args = softmax_args();
    args.variant = "fused";
    assert_status(tsr_softmax_forward(ctx, &args), TSR_UNSUPPORTED, "'fused'", "on the CPU",
                  "cuda:0");
    args.variant = "reference";
    assert_status(tsr_softmax_forward(ctx, &args), TSR_UNSUPPORTED, "'reference'");
    args.variant = "cuda-rows";
    assert_ok(tsr_softmax_forward(ctx, &args));
    args.x.device = args.y.device = (tsr_device){TSR_CPU, 0};
    assert_status(tsr_softmax_forward(cpu, &args), TSR_UNSUPPORTED, "'cuda-rows'", "on CUDA");
    args = softmax_args();
    static double wide[2][ROWS * COLS];
    args.x = on_cuda(TSR_TENSOR(wide[0], TSR_F64, ROWS, COLS));
    args.y = on_cuda(TSR_TENSOR(wide[1], TSR_F64, ROWS, COLS));
    args.variant = NULL;
    assert_status(tsr_softmax_forward(ctx, &args), TSR_UNSUPPORTED, "no variant", "cuda:0");
    // The host does not read indices on the device.
    static int32_t *const nowhere = (int32_t *)4096;
    const tsr_embedding_forward_args embedding =
        TSR_EMBEDDING_FORWARD_ARGS(.weight = on_cuda(TSR_TENSOR(x, TSR_F32, ROWS, COLS)),
                                   .ids = on_cuda(TSR_TENSOR(nowhere, TSR_I32, 7)),
                                   .y = on_cuda(TSR_TENSOR(y, TSR_F32, 7, COLS)));
    assert_ok(tsr_embedding_forward(ctx, &embedding));
    tsr_context_destroy(ctx);
    tsr_context_destroy(cpu);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void memory_that_is_refused(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    fake.fail_at = 1;
    assert_status(run_norm(ctx), TSR_OUT_OF_MEMORY, "layernorm_backward", "cuda:0");
    assert_int_equal(fake.num_launches, 0);
    assert_ok(run_norm(ctx));
    void *memory = &fake;
    fake.fail_at = fake.num_requests + 1;
    assert_status(tsr_memory_alloc(ctx, 1000, &memory), TSR_OUT_OF_MEMORY, "memory_alloc");
    assert_null(memory);
    assert_ok(tsr_memory_alloc(ctx, 1000, &memory));
    assert_ok(tsr_memory_free(ctx, memory));
    tsr_context_destroy(ctx);
}

static void a_launch_that_is_refused(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    fake.launch_result = OTHER_ERROR;
    assert_status(run_softmax(ctx), TSR_DEVICE, "softmax_forward", "launch_kernel_ex", "a refusal");
    assert_int_equal(fake.depth, 0);
    fake.launch_result = CU_OK;
    assert_ok(run_softmax(ctx));
    tsr_context_destroy(ctx);
}

static void a_device_that_is_lost(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    assert_ok(run_softmax(ctx));
    fake.launch_result = CU_ILLEGAL_ADDRESS; // reports a kernel's late failure
    assert_status(tsr_context_synchronize(ctx), TSR_DEVICE_LOST, "an illegal address", "lost");
    int calls = fake.num_calls;
    size_t bytes;
    const tsr_softmax_forward_args args = softmax_args();
    assert_status(run_softmax(ctx), TSR_DEVICE_LOST, "softmax_forward", "new context");
    assert_status(tsr_softmax_forward_prepare(ctx, &args, &bytes), TSR_DEVICE_LOST, "earlier");
    assert_status(tsr_context_synchronize(ctx), TSR_DEVICE_LOST, "context_synchronize");
    assert_int_equal(fake.num_calls, calls); // the driver is not called
    assert_int_equal(tsr_memory_available(ctx), -1);
    tsr_context_destroy(ctx);
}

// A warm call only launches and requests the current context, also for a kernel in another context.
static void warm_calls_ask_for_little(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context(), *other = cuda_context();
    void *stream;
    assert_ok(tsr_stream_create(ctx, &stream));
    assert_ok(tsr_context_set_stream(ctx, stream));
    assert_ok(run_softmax(ctx));
    assert_ok(run_softmax(other));
    const int asked = fake.num_requests_of_kernels, loads = fake.num_loads;
    for (int i = 0; i < 3; i++) {
        const int calls = fake.num_calls, launches = fake.num_launches;
        assert_ok(run_softmax(ctx));
        assert_ok(run_softmax(other));
        assert_int_equal(fake.num_calls, calls + 2);
        assert_int_equal(fake.num_launches, launches + 2);
    }
    assert_int_equal(fake.num_requests_of_kernels, asked);
    tsri_cuda_kernel_forget(); // unloading also clears the cached functions
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.num_loads, loads + 1);
    assert_true(fake.num_requests_of_kernels > asked);
    assert_ok(tsr_stream_destroy(ctx, stream));
    tsr_context_destroy(other);
    tsr_context_destroy(ctx);
}

static void an_image_that_is_refused(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    fake.load_result = OTHER_ERROR;
    // The library then tries the compiler, which is absent.
    assert_status(run_softmax(ctx), TSR_UNSUPPORTED, "softmax_forward.cu", "TSR_LIBNVRTC");
    fake.load_result = CU_OK;
    assert_ok(run_softmax(ctx));
    tsr_context_destroy(ctx);
}

static void forked_processes(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    pid_t child = fork();
    if (child == 0) {
        bool is_refused = run_softmax(ctx) == TSR_DEVICE_LOST &&
                          strstr(tsr_last_error(), "forked") != NULL && fake.num_launches == 0;
        tsr_context_destroy(ctx);
        _exit(is_refused ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_ok(run_softmax(ctx));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_driver),
        TEST(devices),
        TEST(current_context_is_taken_and_kept),
        TEST(launches),
        TEST(devices_must_agree),
        TEST(memory_that_is_refused),
        TEST(a_launch_that_is_refused),
        TEST(a_device_that_is_lost),
        TEST(an_image_that_is_refused),
        TEST(warm_calls_ask_for_little),
        TEST(forked_processes),
    };
    return cmocka_run_group_tests_name("cuda context", tests, setup_all, teardown_pack);
}
