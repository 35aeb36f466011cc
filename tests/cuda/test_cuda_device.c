// SPDX-License-Identifier: Apache-2.0
// On a real GPU: a graph gives the bits of the calls in it, streams use an arena in order, unprepared calls are refused
// during capture, and a faulting kernel invalidates only its own context.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_case.h"

enum { ROWS = 300, COLS = 1536, BYTES = ROWS * COLS * (int)sizeof(float) };

static float x[ROWS * COLS], first[ROWS * COLS], second[ROWS * COLS];

struct job {
    tsr_context *ctx;
    void *x, *y, *rstd, *dweight; // on the device
};

#define GPU(data, ...) on_cuda(TSR_TENSOR(data, TSR_F32, __VA_ARGS__))

static int setup(void **state) {
    static struct job job;
    uint64_t random = 7;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = test_float(&random);
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &job.ctx));
    assert_ok(tsr_memory_alloc(job.ctx, BYTES, &job.x));
    assert_ok(tsr_memory_alloc(job.ctx, BYTES, &job.y));
    assert_ok(tsr_memory_alloc(job.ctx, ROWS * sizeof(float), &job.rstd));
    assert_ok(tsr_memory_alloc(job.ctx, COLS * sizeof(float), &job.dweight));
    assert_ok(tsr_memory_copy(job.ctx, job.x, x, BYTES));
    *state = &job;
    return 0;
}

static int teardown(void **state) {
    struct job *job = *state;
    void *const memory[] = {job->x, job->y, job->rstd, job->dweight};
    for (int i = 0; i < COUNT(memory); i++) assert_ok(tsr_memory_free(job->ctx, memory[i]));
    tsr_context_destroy(job->ctx);
    return 0;
}

static tsr_rmsnorm_forward_args forward_args(const struct job *job) {
    return TSR_RMSNORM_FORWARD_ARGS(.x = GPU(job->x, ROWS, COLS), .y = GPU(job->y, ROWS, COLS),
                                    .rstd = GPU(job->rstd, ROWS));
}

// dx replaces y. The partial sums of dweight are in the arena.
static tsr_rmsnorm_backward_args backward_args(const struct job *job) {
    return TSR_RMSNORM_BACKWARD_ARGS(.x = GPU(job->x, ROWS, COLS), .dy = GPU(job->y, ROWS, COLS),
                                     .dx = GPU(job->y, ROWS, COLS), .rstd = GPU(job->rstd, ROWS),
                                     .dweight = GPU(job->dweight, COLS));
}

static void run(const struct job *job) {
    const tsr_rmsnorm_forward_args forward = forward_args(job);
    const tsr_rmsnorm_backward_args backward = backward_args(job);
    assert_ok(tsr_rmsnorm_forward(job->ctx, &forward));
    assert_ok(tsr_rmsnorm_backward(job->ctx, &backward));
}

// Copies dx, then dweight over its first row.
static void fetch(const struct job *job, float *to) {
    assert_ok(tsr_memory_copy(job->ctx, to, job->y, BYTES));
    assert_ok(tsr_memory_copy(job->ctx, to, job->dweight, COLS * sizeof(float)));
    assert_ok(tsr_memory_fill(job->ctx, job->y, 0xff, BYTES));
    assert_ok(tsr_context_synchronize(job->ctx));
}

static void graphs_give_the_same_bits(void **state) {
    struct job *job = *state;
    const tsr_rmsnorm_forward_args forward = forward_args(job);
    const tsr_rmsnorm_backward_args backward = backward_args(job);
    tsr_graph *graph;
    void *stream;
    size_t bytes;
    assert_ok(tsr_stream_create(job->ctx, &stream));
    assert_ok(tsr_context_set_stream(job->ctx, stream));
    assert_ok(tsr_graph_begin(job->ctx));
    assert_status(tsr_rmsnorm_backward(job->ctx, &backward), TSR_INVALID_ARGUMENT, "capturing");
    assert_ok(tsr_graph_end(job->ctx, &graph)); // an empty graph: the capture is still valid
    tsr_graph_destroy(job->ctx, graph);
    assert_ok(tsr_rmsnorm_forward_prepare(job->ctx, &forward, &bytes));
    assert_ok(tsr_rmsnorm_backward_prepare(job->ctx, &backward, &bytes));
    assert_ok(tsr_graph_begin(job->ctx));
    run(job);
    assert_ok(tsr_graph_end(job->ctx, &graph));
    run(job);
    fetch(job, first);
    for (int i = 0; i < 20; i++) {
        assert_ok(tsr_graph_launch(job->ctx, graph));
        fetch(job, second);
        assert_memory_equal(first, second, BYTES);
    }
    tsr_graph_destroy(job->ctx, graph);
    assert_ok(tsr_stream_destroy(job->ctx, stream));
}

static void streams_take_turns_with_the_arena(void **state) {
    struct job *job = *state;
    void *streams[2];
    run(job);
    fetch(job, first);
    for (int i = 0; i < 2; i++) assert_ok(tsr_stream_create(job->ctx, &streams[i]));
    for (int i = 0; i < 20; i++) {
        assert_ok(tsr_context_set_stream(job->ctx, streams[i % 2]));
        run(job);
        fetch(job, second);
        assert_memory_equal(first, second, BYTES);
    }
    for (int i = 0; i < 2; i++) assert_ok(tsr_stream_destroy(job->ctx, streams[i]));
}

// Runs in a separate process: a context whose device failed reports it and can be destroyed.
static int fault(void) {
    tsr_context *ctx;
    tsr_tensor nowhere = GPU((void *)(uintptr_t)0x1000, ROWS, COLS);
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx) != TSR_OK) return 2;
    tsr_status status =
        tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = nowhere, .y = nowhere));
    if (status == TSR_OK) status = tsr_context_synchronize(ctx);
    if (status != TSR_DEVICE_LOST) return 3;
    if (tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = nowhere, .y = nowhere)) !=
            TSR_DEVICE_LOST ||
        strstr(tsr_last_error(), "new context") == NULL)
        return 4;
    tsr_context_destroy(ctx);
    return 0;
}

static const char *self;

static void a_fault_loses_the_device(void **state) {
    (void)state;
    char command[1100];
    snprintf(command, sizeof command, "'%s' fault", self); // CUDA does not work after a fork
    int status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
    self = argv[0];
    int skip = cuda_case_skip(0);
    if (skip != 0) return skip;
    if (argc > 1) return fault();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(graphs_give_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(streams_take_turns_with_the_arena, setup, teardown),
        cmocka_unit_test(a_fault_loses_the_device),
    };
    return cmocka_run_group_tests_name("cuda device", tests, NULL, NULL);
}
