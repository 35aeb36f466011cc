// SPDX-License-Identifier: Apache-2.0
// Fault tests on CUDA for calls outside operations: contexts, memory, streams, events, graphs, and compilation of
// kernels in advance.
#include "fault_cuda_case.h"

// ---- Contexts, memory, streams, events, graphs ------------------------------------------------

static tsr_status create_run(void *arg) {
    tsr_context *made = (tsr_context *)&fake;
    (void)arg;
    tsr_status status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = cuda_0), &made);
    assert_true((status == TSR_OK) == (made != NULL));
    int armed = faults.fail_at; // destroy must enter the context, or objects leak
    faults.fail_at = 0;
    tsr_context_destroy(made);
    faults.fail_at = armed;
    return status;
}

static bool balanced_is_right(void *arg, tsr_status status) {
    (void)arg, (void)status;
    return is_balanced();
}

static char *block;

static tsr_status memory_steps(void) {
    TSRI_TRY(tsr_memory_fill(ctx, block, 'a', 2));
    TSRI_TRY(tsr_memory_copy(ctx, block + 2, block, 2));
    TSRI_TRY(tsr_context_synchronize(ctx));
    if (tsr_memory_available(ctx) < 0) return tsr_fail(TSR_DEVICE, "memory_available is -1");
    return TSR_OK;
}

static tsr_status memory_run(void *arg) {
    (void)arg;
    tsr_status status = tsr_memory_alloc(ctx, 1000, (void **)&block);
    assert_true((status == TSR_OK) == (block != NULL));
    if (status == TSR_OK) status = memory_steps();
    if (status == TSR_OK) assert_memory_equal(block, "aaaa", 4);
    int held = fake.num_memory; // a free that fails before the driver is called can be repeated
    tsr_status freed = tsr_memory_free(ctx, block);
    if (fake.num_memory == held && held > 0) {
        faults.fail_at = 0;
        assert_ok(tsr_memory_free(ctx, block));
    }
    return status != TSR_OK ? status : freed;
}

static bool memory_is_right(void *arg, tsr_status status) {
    (void)arg, (void)status;
    return fake.num_memory == 0 && fake.depth == 0;
}

static tsr_status stream_run(void *arg) {
    void *made;
    (void)arg;
    TSRI_TRY(tsr_stream_create(ctx, &made));
    tsr_status status = tsr_context_set_stream(ctx, made);
    int held = fake.num_objects;
    tsr_status gone = tsr_stream_destroy(ctx, made);
    if (fake.num_objects == held) {
        faults.fail_at = 0;
        assert_ok(tsr_stream_destroy(ctx, made));
    }
    assert_ok(tsr_context_set_stream(ctx, stream));
    return status != TSR_OK ? status : gone;
}

static tsr_event *events[2];

static tsr_status event_run(void *arg) {
    double ms = 0;
    (void)arg;
    for (int i = 0; i < 2; i++) TSRI_TRY(tsr_event_create(ctx, &events[i]));
    for (int i = 0; i < 2; i++) TSRI_TRY(tsr_event_record(ctx, events[i]));
    TSRI_TRY(tsr_event_elapsed(ctx, events[0], events[1], &ms));
    assert_true(ms == 1.5);
    return TSR_OK;
}

static tsr_graph *graph;

static tsr_status graph_run(void *arg) {
    static char bytes[8];
    (void)arg;
    TSRI_TRY(tsr_graph_begin(ctx));
    TSRI_TRY(tsr_memory_fill(ctx, bytes, 1, sizeof bytes));
    TSRI_TRY(tsr_graph_end(ctx, &graph));
    TSRI_TRY(tsr_graph_launch(ctx, graph));
    return TSR_OK;
}

// Releases what the successful steps created. Then only the context's stream and its event are left.
static bool handles_are_right(void *arg, tsr_status status) {
    (void)arg, (void)status;
    if (fake.is_capturing) assert_ok(tsr_graph_end(ctx, &graph));
    tsr_graph_destroy(ctx, graph);
    for (int i = 0; i < 2; i++) tsr_event_destroy(ctx, events[i]);
    events[0] = events[1] = NULL;
    graph = NULL;
    return fake.num_objects == 2 && fake.depth == 0;
}

static tsr_status device_run(void *arg) {
    tsr_device_info info = TSR_DEVICE_INFO;
    tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
    (void)arg;
    tsr_status status = tsr_device_info_get(cuda_0, &info);
    assert_true((status == TSR_OK) == (info.num_sms == 4));
    return status != TSR_OK ? status : tsr_device_sensors_get(cuda_0, &sensors);
}

static tsr_status probe_run(void *arg) {
    double work;
    (void)arg;
    return tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 1), &work);
}

static void other_calls(void **state) {
    (void)state;
    const struct fault_call create = {"context_create", NULL, create_run, balanced_is_right, NULL},
                            memory = {"", make_context, memory_run, memory_is_right, drop_context},
                            streams = {"stream_", make_context, stream_run, handles_are_right,
                                       drop_context},
                            timing = {"event_", make_context, event_run, handles_are_right,
                                      drop_context},
                            capture = {"", make_context, graph_run, handles_are_right,
                                       drop_context},
                            device = {"device_", NULL, device_run, NULL, NULL},
                            probe = {"probe_run", make_cold_context, probe_run, NULL,
                                     drop_cold_context};
    assert_true(fault_walk(&create, NULL) >= 2 * 20);
    assert_true(fault_walk(&memory, NULL) >= 2 * 10);
    assert_true(fault_walk(&streams, NULL) >= 2 * 6);
    assert_true(fault_walk(&timing, NULL) >= 2 * 12);
    assert_true(fault_walk(&capture, NULL) >= 2 * 10);
    assert_true(fault_walk(&device, NULL) >= 2 * 20);
    assert_true(fault_walk(&probe, NULL) >= 2 * 25);
}

// ---- Kernels ahead of time --------------------------------------------------------------------

static struct {
    char pack[64];
    int num_seen, num_failed;
} kernels;

static void see_kernel(void *user, const tsr_kernel_report *kernel) {
    (void)user;
    kernels.num_seen++;
    kernels.num_failed += kernel->status != TSR_OK;
}

static void without_cache(void *arg) {
    (void)arg;
    setenv("TSR_CACHE_DIR", "/proc/nowhere", 1);
}

static void with_cache(void *arg) {
    (void)arg;
    setenv("TSR_CACHE_DIR", folder, 1);
}

static tsr_status build_run(void *arg) {
    kernels.num_seen = kernels.num_failed = 0;
    return tsr_kernels_build("sm_90a", kernels.pack, *(int *)arg, see_kernel, NULL);
}

// The pack must be complete or absent.
static bool build_is_right(void *arg, tsr_status status) {
    (void)arg;
    bool is_there = access(kernels.pack, F_OK) == 0;
    (void)unlink(kernels.pack);
    return status == TSR_OK ? is_there && kernels.num_seen > 100 && kernels.num_failed == 0
                            : !is_there;
}

static void one_kernel(void *arg) {
    make_cold_context(arg);
    assert_ok(probe_run(NULL));
    drop_cold_context(arg);
}

static tsr_status list_run(void *arg) {
    char path[256];
    int32_t num_damaged = 0;
    (void)arg;
    kernels.num_seen = 0;
    TSRI_TRY(tsr_kernels_list(see_kernel, NULL, path, sizeof path, &num_damaged));
    kernels.num_seen += num_damaged;
    return TSR_OK;
}

static bool list_is_right(void *arg, tsr_status status) {
    (void)arg;
    return status != TSR_OK || kernels.num_seen == 1;
}

static tsr_status clear_run(void *arg) {
    int32_t num_removed = 0;
    TSRI_TRY(tsr_kernels_clear(&num_removed));
    *(int *)arg += num_removed;
    return TSR_OK;
}

// Removed once, by the tested call or by the next one.
static bool clear_is_right(void *arg, tsr_status status) {
    return status == TSR_OK ? *(int *)arg == 1 : *(int *)arg == 0;
}

static void clear_after(void *arg) { *(int *)arg = 0; }

static void kernels_ahead(void **state) {
    (void)state;
    int num_threads = 1, two = 2, num_removed = 0;
    const struct fault_call build = {"kernel",       without_cache, build_run,
                                     build_is_right, with_cache,    .step = 1301},
                            list = {"kernels_list", one_kernel, list_run, list_is_right, NULL},
                            clear = {"kernels_clear", one_kernel, clear_run, clear_is_right,
                                     clear_after};
    snprintf(kernels.pack, sizeof kernels.pack, "%s/pack", folder);
    assert_true(fault_walk(&build, &num_threads) >= 2 * 15);
    assert_true(fault_walk(&build, &two) >= 2 * 15);
    const int num_standard = kernels.num_seen;
    kernels.num_seen = 0;
    assert_ok(tsr_kernels_build_all("sm_90a", kernels.pack, 2, see_kernel, NULL));
    assert_true(kernels.num_seen > num_standard && kernels.num_failed == 0);
    assert_int_equal(unlink(kernels.pack), 0);
    assert_true(fault_walk(&list, NULL) >= 2 * 8);
    assert_true(fault_walk(&clear, &num_removed) >= 2 * 3);
    assert_true(is_balanced());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(other_calls, let_go),
        cmocka_unit_test_teardown(kernels_ahead, let_go),
    };
    return cmocka_run_group_tests_name("faults on the device", tests, setup_all, teardown_all);
}
