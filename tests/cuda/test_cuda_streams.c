// SPDX-License-Identifier: Apache-2.0
// Streams, graphs, workspace and memory of contexts on CUDA, with the driver of cuda_context_case.h.
#include "cuda_context_case.h"

static void streams_share_the_arena_in_order(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 0);
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ptr_equal(tsr_context_stream(ctx), &some_stream);
    assert_ok(run_softmax(ctx)); // without workspace there is nothing to wait for
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
    // A larger call gets a new arena. The arena that the graph uses stays.
    void *workspace;
    assert_ok(tsri_context_workspace(ctx, "test", NULL, 0, 10 * bytes, &workspace));
    assert_int_equal(fake.num_memory, 2);
    assert_ok(tsri_context_workspace(ctx, "test", NULL, 0, 20 * bytes, &workspace));
    assert_int_equal(fake.num_memory, 2); // no graph used the second one
    tsr_graph_destroy(ctx, graph);
    tsr_context_destroy(ctx);
}

// Graphs use the arena too: on another stream they wait for calls and for each other, and calls wait for them.
static void graphs_share_the_arena_in_order(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    tsr_graph *graphs[2];
    size_t bytes;
    const tsr_layernorm_backward_args args = norm_args();
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    for (int i = 0; i < 2; i++) { // the first graph uses no arena
        if (i == 1) assert_ok(tsr_layernorm_backward_prepare(ctx, &args, &bytes));
        const tsr_softmax_forward_args softmax = softmax_args();
        assert_ok(tsr_softmax_forward_prepare(ctx, &softmax, &bytes));
        assert_ok(tsr_graph_begin(ctx));
        assert_ok(i == 0 ? run_softmax(ctx) : run_norm(ctx));
        assert_ok(tsr_graph_end(ctx, &graphs[i]));
        if (i == 1) continue;
        assert_ok(tsr_context_set_stream(ctx, &other_stream));
        assert_ok(tsr_graph_launch(ctx, graphs[0]));
        assert_int_equal(fake.num_waits, 0);
        assert_ok(tsr_context_set_stream(ctx, &some_stream));
    }
    assert_ok(tsr_graph_launch(ctx, graphs[1]));
    assert_int_equal(fake.num_waits, 0); // same stream as in its preparation
    assert_ok(tsr_context_set_stream(ctx, &other_stream));
    assert_ok(tsr_graph_launch(ctx, graphs[1]));
    assert_int_equal(fake.num_waits, 1);
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 1);
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ok(run_norm(ctx));
    assert_int_equal(fake.num_waits, 2);
    assert_int_equal(fake.num_records, 2);
    // A new, larger arena, which the graph does not use, changes none of this.
    void *workspace;
    assert_ok(tsr_context_set_stream(ctx, &other_stream));
    assert_ok(tsr_graph_launch(ctx, graphs[1]));
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ok(tsri_context_workspace(ctx, "test", NULL, 0, 10 * bytes + (1 << 20), &workspace));
    assert_int_equal(fake.num_memory, 2);
    assert_int_equal(fake.num_waits, 4);
    assert_ok(tsr_context_set_stream(ctx, &other_stream));
    assert_ok(tsr_graph_launch(ctx, graphs[1]));
    assert_int_equal(fake.num_waits, 5);
    for (int i = 0; i < 2; i++) tsr_graph_destroy(ctx, graphs[i]);
    tsr_context_destroy(ctx);
}

// During a capture a launch waits for nothing outside it, and the arena stays with its previous stream.
static void a_launch_in_a_capture_hands_nothing_over(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    tsr_graph *graph, *outer;
    size_t bytes;
    const tsr_layernorm_backward_args args = norm_args();
    assert_ok(tsr_context_set_stream(ctx, &some_stream));
    assert_ok(tsr_layernorm_backward_prepare(ctx, &args, &bytes));
    assert_ok(tsr_graph_begin(ctx));
    assert_ok(run_norm(ctx));
    assert_ok(tsr_graph_end(ctx, &graph));
    assert_ok(tsr_context_set_stream(ctx, &other_stream));
    assert_ok(tsr_graph_begin(ctx));
    assert_ok(tsr_graph_launch(ctx, graph));
    assert_int_equal(fake.num_records, 0);
    assert_int_equal(fake.num_waits, 0);
    assert_ok(tsr_graph_end(ctx, &outer));
    assert_ok(tsr_graph_launch(ctx, graph));
    assert_int_equal(fake.num_waits, 1);
    tsr_graph_destroy(ctx, outer);
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
    assert_int_equal(live, 0); // it serves only device memory
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
    const struct CMUnitTest tests[] = {
        TEST(streams_share_the_arena_in_order),
        TEST(graphs_share_the_arena_in_order),
        TEST(a_launch_in_a_capture_hands_nothing_over),
        TEST(capture_neither_compiles_nor_allocates),
        TEST(an_allocator_of_the_callers),
        TEST(memory_streams_and_events),
    };
    return cmocka_run_group_tests_name("cuda streams", tests, setup_pack, teardown_pack);
}
