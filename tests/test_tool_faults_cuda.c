// SPDX-License-Identifier: Apache-2.0
// Faults on CUDA, without a GPU or a compiler: what the operating system, the driver, NVRTC and CUPTI may refuse, over
// every variant of every operation and all other public calls. Kernels do nothing, and device memory is the host's.
#include <sys/wait.h>

#include "cuda/cuda_kernel.h"
#include "cuda/cuda_source.h"
#include "fake_libraries.h"
#include "fault_case.h"
#include "tool_case.h"

static char folder[] = "/tmp/tsr_faults_XXXXXX";
static const tsr_device on_cuda = {TSR_CUDA, 0};
static tsr_context *ctx;
static void *stream;

static bool is_balanced(void) {
    bool is = fake.num_memory == 0 && fake.num_retained == 0 && fake.num_objects == 0 &&
              fake.num_programs == 0 && fake.depth == 0;
    if (!is)
        print_error("held: %d blocks, %d contexts, %d objects, %d programs, %d current\n",
                    fake.num_memory, fake.num_retained, fake.num_objects, fake.num_programs,
                    fake.depth);
    return is;
}

static void clear_cache(void) {
    int32_t num_removed;
    assert_ok(tsr_kernels_clear(&num_removed));
}

static void make_context(void *arg) {
    (void)arg;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = on_cuda), &ctx));
    assert_ok(tsr_stream_create(ctx, &stream));
    assert_ok(tsr_context_set_stream(ctx, stream));
}

static void make_cold_context(void *arg) {
    clear_cache();
    make_context(arg);
}

static void drop_context(void *arg) {
    (void)arg;
    assert_ok(tsr_stream_destroy(ctx, stream));
    tsr_context_destroy(ctx);
    ctx = NULL;
}

static void drop_cold_context(void *arg) {
    drop_context(arg);
    tsri_cuda_kernel_forget();
    assert_true(is_balanced());
}

// What a test that failed left is not held against the next one.
static int let_go(void **state) {
    (void)state;
    (void)fault_disarm();
    if (ctx != NULL) drop_context(NULL);
    tsri_cuda_kernel_forget();
    memset(&fake, 0, sizeof fake);
    return 0;
}

// ---- Operations -------------------------------------------------------------------------------

struct op_job {
    struct tool_case tc;
    struct op_case c; // on the device
    const char *variant;
    size_t workspace_bytes;
};

static tsr_status op_run(void *arg) {
    struct op_job *job = arg;
    return tool_call(ctx, &job->c, job->variant);
}

static tsr_status prepare_run(void *arg) {
    struct op_job *job = arg;
    return job->c.spec->call(ctx, &job->c, job->variant, NULL, 0, &job->workspace_bytes);
}

// Outputs may hold anything, for a call can end between two of its kernels.
static bool op_is_right(void *arg, tsr_status status) {
    struct op_job *job = arg;
    const struct tensors *t = &job->tc.tensors;
    bool is_right = fake.depth == 0;
    (void)status;
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        if (job->tc.before[s] != NULL && tool_is_output(&t->c, s))
            is_right &= buffer_is_clean(&t->buffer[s], &t->c.tensor[s]);
        else if (job->tc.before[s] != NULL)
            is_right &= memcmp(t->buffer[s].base, job->tc.before[s], t->buffer[s].bytes) == 0;
    tool_case_reset(&job->tc);
    return is_right;
}

static void job_create(struct op_job *job, const struct op_spec *spec, tsr_dtype dtype,
                       bool is_wide, uint64_t seed) {
    char error[256];
    struct rng rng = {seed};
    struct op_case c = tool_draw(spec, dtype, &rng);
    if (is_wide) (void)case_set(&c, "cols=20000 rows=2", error, sizeof error);
    if (is_wide) (void)case_set(&c, "m=40 n=64 k=64", error, sizeof error);
    *job = (struct op_job){0};
    tool_case_create(&job->tc, &c, LAYOUT_CONTIGUOUS, &rng);
    job->c = job->tc.tensors.c;
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) job->c.tensor[s].device = on_cuda;
}

// A case that the variant serves; false where there is none. Some have rows that a block does not hold, or lines of
// matrices at multiples of 16 bytes.
static bool find_case(struct op_job *job, const struct op_spec *spec, const char *variant) {
    enum { NUM_DRAWS = 40, FIRST_WIDE = 32 };
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    for (int draw = 0; draw < NUM_DRAWS; draw++) {
        job_create(job, spec, dtypes[draw % COUNT(dtypes)], draw >= FIRST_WIDE,
                   2000 + (uint64_t)draw);
        job->variant = variant;
        int launches = fake.num_launches;
        tsr_status status = op_run(job);
        if (status == TSR_OK && fake.num_launches > launches) {
            assert_ok(prepare_run(job));
            return true;
        }
        assert_true(status == TSR_OK || status == TSR_UNSUPPORTED);
        tool_case_release(&job->tc);
    }
    return false;
}

// The library's choice from a context and a cache that know nothing; the others with kernels that are loaded.
static void walk_variant(const struct op_spec *spec, const char *variant) {
    bool is_cold = variant == NULL;
    const struct fault_call call = {spec->op, is_cold ? make_cold_context : make_context, op_run,
                                    op_is_right, is_cold ? drop_cold_context : drop_context},
                            prepare = {spec->op, call.before, prepare_run, op_is_right, call.after};
    struct op_job job;
    make_context(NULL);
    bool is_served = find_case(&job, spec, variant);
    drop_context(NULL);
    if (!is_served)
        print_error("%s has no case for variant %s\n", spec->op,
                    variant != NULL ? variant : "(default)");
    assert_true(is_served);
    if (is_cold) tsri_cuda_kernel_forget();
    assert_true(fault_walk(&call, &job) >= (is_cold ? 60 : 6));
    assert_true(fault_walk(&prepare, &job) >= (is_cold ? 50 : 6));
    tool_case_release(&job.tc);
}

static void operations(void **state) {
    (void)state;
    for (int op = 0; op < tsr_op_count(); op++) {
        const struct op_spec *spec = spec_find(tsr_op_name(op));
        bool is_first = true;
        for (int v = 0; v < tsr_variant_count(tsr_op_name(op)); v++) {
            tsr_variant_info info;
            assert_ok(tsr_variant_info_get(tsr_op_name(op), v, &info));
            if ((info.flags & TSR_VARIANT_CUDA) == 0) continue;
            assert_non_null(spec);
            if (is_first) walk_variant(spec, NULL);
            is_first = false;
            walk_variant(spec, info.name);
        }
        tsri_cuda_kernel_forget();
    }
    assert_true(is_balanced());
}

// ---- Contexts, memory, streams, events, graphs ------------------------------------------------

static tsr_status create_run(void *arg) {
    tsr_context *made = (tsr_context *)&fake;
    (void)arg;
    tsr_status status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = on_cuda), &made);
    assert_true((status == TSR_OK) == (made != NULL));
    int armed =
        faults.fail_at; // what the driver keeps of a context that it does not let in is lost
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
    int held = fake.num_memory; // a free that fails before the driver is asked may be asked again
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

// Lets go of what the steps that succeeded made: what is held then is the context's stream and its event.
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
    tsr_status status = tsr_device_info_get(on_cuda, &info);
    assert_true((status == TSR_OK) == (info.num_sms == 4));
    return status != TSR_OK ? status : tsr_device_sensors_get(on_cuda, &sensors);
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

// ---- Recordings -------------------------------------------------------------------------------

static struct {
    int num_kernels;
    int64_t num_lost;
} recorded;

static void count_record(void *user, const tsr_profile_record *record) {
    (void)user;
    recorded.num_kernels += record->kind == TSR_PROFILE_KERNEL;
}

static tsr_status record_run(void *arg) {
    TSRI_TRY(tsr_profile_start(ctx));
    tsr_status status = op_run(arg);
    tsr_status stopped = tsr_profile_stop(ctx, count_record, NULL, &recorded.num_lost);
    return status != TSR_OK ? status : stopped;
}

static bool record_is_right(void *arg, tsr_status status) {
    int num_enabled = 0;
    for (int i = 0; i < COUNT(cupti.is_enabled); i++) num_enabled += cupti.is_enabled[i];
    bool is_right = num_enabled == 0 && recorded.num_kernels + recorded.num_lost <=
                                            CUPTI_NUM_KERNELS + 2; // and spans of the host
    if (status == TSR_OK && faults.num_refused == 0)
        is_right &= recorded.num_kernels == CUPTI_NUM_KERNELS && recorded.num_lost == 0;
    memset(&recorded, 0, sizeof recorded);
    return is_right && op_is_right(arg, status);
}

static void recordings(void **state) {
    (void)state;
    struct op_job job;
    const struct fault_call record = {"", make_context, record_run, record_is_right, drop_context};
    make_context(NULL);
    assert_true(find_case(&job, spec_find("softmax_forward"), NULL));
    drop_context(NULL);
    assert_true(fault_walk(&record, &job) >= 2 * 20);
    tool_case_release(&job.tc);
    tsri_cuda_kernel_forget();
    assert_true(is_balanced());
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
    setenv("TSR_CACHE_DIR", "/nowhere", 1);
}

static void with_cache(void *arg) {
    (void)arg;
    setenv("TSR_CACHE_DIR", folder, 1);
}

static tsr_status build_run(void *arg) {
    kernels.num_seen = kernels.num_failed = 0;
    return tsr_kernels_build("sm_90a", kernels.pack, *(int *)arg, see_kernel, NULL);
}

// The pack is there whole or not at all.
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

// Removed once, by the call under test or by the one after it.
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
    assert_true(fault_walk(&list, NULL) >= 2 * 8);
    assert_true(fault_walk(&clear, &num_removed) >= 2 * 3);
    assert_true(is_balanced());
}

// ---- A process that has not opened a library yet ----------------------------------------------

// What is asked once and kept for good. A child for each refusal: it fails in words or works, and works on the CPU.
static int run_cold(int n, bool goes_on, int *num_refused) {
    int pipes[2], status = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        tsr_context *cold = NULL;
        tsr_device_info info = TSR_DEVICE_INFO;
        tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
        fault_arm(n, goes_on);
        tsr_status made = tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = on_cuda), &cold);
        bool is_right = (made == TSR_OK) == (cold != NULL) &&
                        (made == TSR_OK || strstr(tsr_last_error(), "context_create") != NULL);
        if (made == TSR_OK) {
            (void)tsr_device_info_get(on_cuda, &info);
            (void)tsr_device_sensors_get(on_cuda, &sensors);
            tsr_status started = tsr_profile_start(cold);
            is_right &= started == TSR_OK || strstr(tsr_last_error(), "profile_start") != NULL;
            (void)tsr_profile_stop(cold, NULL, NULL, NULL);
            double work;
            tsr_status ran =
                tsr_probe_run(cold, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 1), &work);
            is_right &= ran == TSR_OK || strstr(tsr_last_error(), "probe") != NULL;
        }
        int refused = fault_disarm();
        tsr_context_destroy(cold);
        is_right &= tsr_context_create(NULL, &cold) == TSR_OK;
        ssize_t told = write(pipes[1], &refused, sizeof refused);
        _exit(is_right && told == sizeof refused ? 0 : 1);
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], num_refused, sizeof *num_refused), sizeof *num_refused);
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void cold_processes(void **state) {
    (void)state;
    faults.num_calls++;
    for (int mode = 0; mode < 2; mode++)
        for (int n = 1, refused = 1; refused > 0; n += n < 20 ? 1 : 11) { // most are symbols
            int status = run_cold(n, mode == 1, &refused);
            if (status != 0) print_error("request %d, mode %d\n", n, mode);
            assert_int_equal(status, 0);
            faults.num_points += refused > 0;
        }
    assert_true(faults.num_points >= 2 * 25);
}

// ---- The program ------------------------------------------------------------------------------

// Sources that are short to hash: each is a line with its name.
static void write_sources(void) {
    for (const struct tsri_cuda_file *file = tsri_cuda_files; file->name != NULL; file++) {
        char path[256];
        snprintf(path, sizeof path, "%s/src/%s", folder, file->name);
        for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
            *slash = '\0';
            (void)mkdir(path, 0700);
            *slash = '/';
        }
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fprintf(out, "// %s\n", file->name);
        assert_int_equal(fclose(out), 0);
    }
}

static int setup_all(void **state) {
    (void)state;
    char path[64];
    if (mkdtemp(folder) == NULL) return -1;
    write_sources();
    snprintf(path, sizeof path, "%s/src", folder);
    setenv("TSR_KERNEL_DIR", path, 1);
    setenv("TSR_CACHE_DIR", folder, 1);
    setenv("TSR_KERNEL_PACK", "/nowhere/pack", 1);
    fake_libraries_install();
    fault_install();
    fake_refuses = fault_is_refused;
    return 0;
}

static int teardown_all(void **state) {
    char command[64];
    (void)fault_summary(state);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_processes),
        cmocka_unit_test_teardown(operations, let_go),
        cmocka_unit_test_teardown(other_calls, let_go),
        cmocka_unit_test_teardown(recordings, let_go),
        cmocka_unit_test_teardown(kernels_ahead, let_go),
    };
    return cmocka_run_group_tests_name("faults on CUDA", tests, setup_all, teardown_all);
}
