// SPDX-License-Identifier: Apache-2.0
// Contexts on CUDA, on a driver of the test's own whose memory is the host's and whose kernels do nothing: what is asked
// of the driver, in which order, and what becomes of its refusals. No GPU and no compiler are needed.
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_pack_case.h"
#include "test_support.h"

static int setup_all(void **state) {
    setenv("TSR_LIBCUDA", "/nowhere/libcuda.so", 1);
    int result = setup_pack(state);
    tsri_cuda_driver_replace(NULL); // for the first test
    return result;
}

static int setup(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    tsri_cuda_kernel_forget();
    tsri_cuda_driver_replace(&driver);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tsri_cuda_driver_replace(NULL);
    return fake.num_memory == 0 && fake.num_retained == 0 ? 0 : -1;
}

// ---- Calls ------------------------------------------------------------------------------------

#define ON_CUDA TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0})

enum { ROWS = 100, COLS = 1024 };
static float x[ROWS * COLS], y[ROWS * COLS], dx[ROWS * COLS], statistics[ROWS], dweight[COLS];

static tsr_softmax_forward_args softmax_args(void) {
    return TSR_SOFTMAX_FORWARD_ARGS(.x = on_cuda(TSR_TENSOR(x, TSR_F32, ROWS, COLS)),
                                    .y = on_cuda(TSR_TENSOR(y, TSR_F32, ROWS, COLS)));
}

static tsr_layernorm_backward_args norm_args(void) {
    return TSR_LAYERNORM_BACKWARD_ARGS(.x = on_cuda(TSR_TENSOR(x, TSR_F32, ROWS, COLS)),
                                       .dy = on_cuda(TSR_TENSOR(y, TSR_F32, ROWS, COLS)),
                                       .dx = on_cuda(TSR_TENSOR(dx, TSR_F32, ROWS, COLS)),
                                       .mean = on_cuda(TSR_TENSOR(statistics, TSR_F32, ROWS)),
                                       .rstd = on_cuda(TSR_TENSOR(statistics, TSR_F32, ROWS)),
                                       .dweight = on_cuda(TSR_TENSOR(dweight, TSR_F32, COLS)));
}

static tsr_status run_softmax(tsr_context *ctx) {
    const tsr_softmax_forward_args args = softmax_args();
    return tsr_softmax_forward(ctx, &args);
}

static tsr_status run_norm(tsr_context *ctx) {
    const tsr_layernorm_backward_args args = norm_args();
    return tsr_layernorm_backward(ctx, &args);
}

// Without a driver one sentence says what is missing, and the CPU works on. Before the test's driver is there.
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
    fake_push(AS(cu_context, primary_context)); // another one meanwhile
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
    assert_int_equal(fake.launched.grid_x, ROWS); // a block for each row
    assert_int_equal(fake.launched.block_x, 128);
    const void *first;
    memcpy(&first, fake.params, sizeof first);
    assert_ptr_equal(first, x);
    assert_int_equal(fake.num_loads, 1);
    assert_ok(run_softmax(ctx));
    assert_int_equal(fake.num_loads, 1); // once in a process
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
    // Indices on the device are not looked at.
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
    fake.launch_result = CU_ILLEGAL_ADDRESS; // of a kernel that is found out later
    assert_status(tsr_context_synchronize(ctx), TSR_DEVICE_LOST, "an illegal address", "lost");
    int calls = fake.num_calls;
    size_t bytes;
    const tsr_softmax_forward_args args = softmax_args();
    assert_status(run_softmax(ctx), TSR_DEVICE_LOST, "softmax_forward", "new context");
    assert_status(tsr_softmax_forward_prepare(ctx, &args, &bytes), TSR_DEVICE_LOST, "earlier");
    assert_status(tsr_context_synchronize(ctx), TSR_DEVICE_LOST, "context_synchronize");
    assert_int_equal(fake.num_calls, calls); // the driver is left alone
    assert_int_equal(tsr_memory_available(ctx), -1);
    tsr_context_destroy(ctx);
}

// A warm call launches, and asks the driver for nothing else but the current context; so it is with a kernel in another context.
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
    tsri_cuda_kernel_forget(); // what was remembered is gone with what was loaded
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
    // Then the compiler is asked, which is not there.
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

// ---- Streams, capture, arena ------------------------------------------------------------------

static void streams_share_the_arena_in_order(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 0);
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ptr_equal(tsr_context_stream(ctx), &some_stream);
    assert_ok(run_softmax(ctx)); // no workspace: nothing to wait for
    assert_int_equal(fake.num_waits, 0);
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_records, 1);
    assert_int_equal(fake.num_waits, 1);
    assert_ptr_equal(fake.launched.stream, &some_stream);
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 1);
    assert_ok(tsr_context_set_stream(ctx, &other_stream));
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 2);
    tsr_context_destroy(ctx);
}

static void capture_neither_compiles_nor_allocates(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    tsr_graph *graph;
    size_t bytes;
    const tsr_layernorm_backward_args args = norm_args();
    assert_status(tsr_graph_begin(ctx), TSR_INVALID_ARGUMENT, "default stream");
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ok(tsr_graph_begin(ctx));
    assert_status(run_softmax(ctx), TSR_INVALID_ARGUMENT, "capturing", "softmax_forward_prepare");
    assert_status(run_norm(ctx), TSR_INVALID_ARGUMENT, "capturing", "layernorm_backward_prepare");
    assert_int_equal(fake.num_loads, 0);
    assert_int_equal(fake.num_requests, 0);
    assert_ok(tsr_graph_end(ctx, &graph));
    tsr_graph_destroy(ctx, graph);
    assert_ok(tsr_layernorm_backward_prepare(ctx, &args, &bytes));
    int loads = fake.num_loads, requests = fake.num_requests;
    assert_true(bytes > 0 && loads > 0 && requests == 1);
    assert_ok(tsr_graph_begin(ctx));
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_loads, loads);
    assert_int_equal(fake.num_requests, requests);
    assert_ok(tsr_graph_end(ctx, &graph));
    assert_ok(tsr_graph_launch(ctx, graph));
    // A larger call gets another arena; the one that the graph knows stays.
    void *workspace;
    assert_ok(tsri_context_workspace(ctx, "test", NULL, 0, 10 * bytes, &workspace));
    assert_int_equal(fake.num_memory, 2);
    assert_ok(tsri_context_workspace(ctx, "test", NULL, 0, 20 * bytes, &workspace));
    assert_int_equal(fake.num_memory, 2); // nobody knew the second
    tsr_graph_destroy(ctx, graph);
    tsr_context_destroy(ctx);
}

static void *hook_alloc(void *user, size_t bytes, size_t alignment) {
    (void)alignment;
    ++*(int *)user;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}
static void hook_free(void *user, void *pointer, size_t bytes) {
    (void)bytes;
    --*(int *)user;
    free(pointer);
}

static void an_allocator_of_the_callers(void **state) {
    (void)state;
    tsr_context *ctx;
    int live = 0;
    tsr_context_options options = ON_CUDA;
    options.allocator = (tsr_allocator){hook_alloc, hook_free, &live};
    assert_ok(tsr_context_create(&options, &ctx));
    assert_int_equal(live, 0); // it is for the device alone
    assert_ok(run_norm(ctx));
    assert_int_equal(live, 1);
    assert_int_equal(fake.num_memory, 0);
    assert_true(tsr_context_arena_bytes(ctx) > 0);
    tsr_context_destroy(ctx);
    assert_int_equal(live, 0);
}

static void memory_streams_and_events(void **state) {
    (void)state;
    tsr_context *contexts[] = {cuda_context(), test_context(1)};
    for (int i = 0; i < COUNT(contexts); i++) {
        void *memory;
        unsigned char bytes[100];
        assert_ok(tsr_memory_alloc(contexts[i], sizeof bytes, &memory));
        assert_ok(tsr_memory_fill(contexts[i], memory, 0x5a, sizeof bytes));
        assert_ok(tsr_memory_copy(contexts[i], bytes, memory, sizeof bytes));
        assert_ok(tsr_context_synchronize(contexts[i]));
        assert_true(test_all_bytes_are(bytes, 0x5a, sizeof bytes));
        assert_ok(tsr_memory_copy(contexts[i], NULL, NULL, 0));
        assert_status(tsr_memory_copy(contexts[i], NULL, memory, 1), TSR_INVALID_ARGUMENT, "to");
        assert_ok(tsr_memory_free(contexts[i], memory));
        assert_ok(tsr_memory_free(contexts[i], NULL));
    }
    tsr_event *start, *end;
    double ms;
    void *stream;
    assert_ok(tsr_event_create(contexts[0], &start));
    assert_ok(tsr_event_create(contexts[0], &end));
    assert_ok(tsr_event_record(contexts[0], start));
    assert_ok(tsr_event_record(contexts[0], end));
    assert_ok(tsr_event_elapsed(contexts[0], start, end, &ms));
    assert_true(ms > 1.4 && ms < 1.6);
    tsr_event_destroy(contexts[0], start);
    tsr_event_destroy(contexts[0], end);
    assert_ok(tsr_stream_create(contexts[0], &stream));
    assert_ok(tsr_context_set_stream(contexts[0], stream));
    assert_ok(tsr_stream_destroy(contexts[0], stream));
    assert_null(tsr_context_stream(contexts[0]));
    assert_status(tsr_event_create(contexts[1], &start), TSR_UNSUPPORTED, "event_create", "cpu");
    assert_status(tsr_graph_begin(contexts[1]), TSR_UNSUPPORTED, "graph_begin", "cpu");
    assert_status(tsr_context_set_stream(contexts[1], NULL), TSR_UNSUPPORTED, "cpu");
    assert_status(tsr_context_synchronize(NULL), TSR_INVALID_ARGUMENT, "ctx is NULL");
    for (int i = 0; i < COUNT(contexts); i++) tsr_context_destroy(contexts[i]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
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
        TEST(streams_share_the_arena_in_order),
        TEST(capture_neither_compiles_nor_allocates),
        TEST(an_allocator_of_the_callers),
        TEST(memory_streams_and_events),
    };
    return cmocka_run_group_tests_name("cuda context", tests, setup_all, teardown_pack);
}
