// SPDX-License-Identifier: Apache-2.0
// Fault tests on the CPU: memory of the system and of a caller's allocator, threads, files; for every variant of every
// operation and all other public calls. The first test fails if the tool does not describe an operation.
#include <sys/wait.h>
#include <tessera/dlpack.h>

#include "core/core_dlpack.h"
#include "fault_case.h"
#include "tool_case.h"

enum { NUM_THREADS = 3 };

// ---- Operations -------------------------------------------------------------------------------

struct op_job {
    struct tool_case tc;
    void *expected[SPEC_MAX_SLOTS];
    const char *variant;
    tsr_context *ctx;
    bool has_allocator;
    size_t workspace_bytes; // as returned by prepare
    size_t prepared;
};

static void *hook_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    return fault_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void hook_free(void *user, void *block, size_t bytes) {
    (void)user, (void)bytes;
    fault_free(block);
}

static void op_before(void *arg) {
    struct op_job *job = arg;
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = NUM_THREADS);
    if (job->has_allocator) options.allocator = (tsr_allocator){hook_alloc, hook_free, NULL};
    assert_ok(tsr_context_create(&options, &job->ctx));
    tool_case_reset(&job->tc);
}

static tsr_status op_run(void *arg) {
    struct op_job *job = arg;
    return tool_call(job->ctx, &job->tc.tensors.c, job->variant);
}

static bool op_is_right(void *arg, tsr_status status) {
    struct op_job *job = arg;
    bool is_right = true;
    if (status != TSR_OK) return tool_case_is_unchanged(&job->tc);
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        if (job->expected[s] != NULL && memcmp(job->tc.tensors.buffer[s].base, job->expected[s],
                                               job->tc.tensors.buffer[s].bytes) != 0)
            is_right = false;
    tool_case_reset(&job->tc);
    return is_right;
}

static void op_after(void *arg) {
    tsr_context_destroy(((struct op_job *)arg)->ctx);
    tsri_team_stop(); // so that the next call requests threads too
}

static tsr_status prepare_run(void *arg) {
    struct op_job *job = arg;
    job->prepared = SIZE_MAX;
    const struct op_case *c = &job->tc.tensors.c;
    return c->spec->call(job->ctx, c, job->variant, NULL, 0, &job->prepared);
}

static bool prepare_is_right(void *arg, tsr_status status) {
    struct op_job *job = arg;
    return tool_case_is_unchanged(&job->tc) &&
           job->prepared == (status == TSR_OK ? job->workspace_bytes : SIZE_MAX);
}

// Runs the case without refusals. Stores its outputs and returns its number of requests, or -1 if it is unsupported.
static int op_expect(struct op_job *job) {
    op_before(job);
    fault_arm(0, false);
    tsr_status status = op_run(job);
    int requests = atomic_load(&faults.num_requests);
    if (status == TSR_OK) {
        for (int s = 0; s < SPEC_MAX_SLOTS; s++) {
            const struct buffer *buffer = &job->tc.tensors.buffer[s];
            free(job->expected[s]);
            job->expected[s] = NULL;
            if (job->tc.before[s] == NULL) continue;
            job->expected[s] = malloc(buffer->bytes);
            memcpy(job->expected[s], buffer->base, buffer->bytes);
        }
        assert_ok(job->tc.tensors.c.spec->call(job->ctx, &job->tc.tensors.c, job->variant, NULL, 0,
                                               &job->workspace_bytes));
    } else {
        assert_int_equal(status, TSR_UNSUPPORTED);
    }
    op_after(job);
    return status == TSR_OK ? requests : -1;
}

static void job_create(struct op_job *job, const struct op_spec *spec, tsr_dtype dtype,
                       uint64_t seed) {
    struct rng rng = {seed};
    struct op_case c = tool_draw(spec, dtype, &rng);
    *job = (struct op_job){0};
    tool_case_create(&job->tc, &c, LAYOUT_RANDOM, &rng);
}

static void job_release(struct op_job *job) {
    tool_case_release(&job->tc);
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) free(job->expected[s]);
}

// Finds the first random case whose call makes `enough` requests, or else the one with the most requests. Returns -1 if
// no case is supported.
static int find_case(struct op_job *job, const struct op_spec *spec, const char *variant,
                     int enough) {
    enum { NUM_DRAWS = 40 };
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    int most = -1;
    for (int draw = 0; draw < NUM_DRAWS && most < enough; draw++) {
        struct op_job other;
        job_create(&other, spec, dtypes[draw % COUNT(dtypes)], 1000 + (uint64_t)draw);
        other.variant = variant;
        int requests = op_expect(&other);
        if (requests <= most) {
            job_release(&other);
            continue;
        }
        if (most >= 0) job_release(job);
        most = requests;
        *job = other;
    }
    return most;
}

static void walk_operation(const struct op_spec *spec) {
    enum { ALL_WORKERS = 2 * (NUM_THREADS - 1), MEMORY_OR_THREAD = 2 };
    const struct fault_call call = {spec->op, op_before, op_run, op_is_right, op_after};
    const struct fault_call prepare = {spec->op, op_before, prepare_run, prepare_is_right,
                                       op_after};
    struct op_job job, other;
    assert_true(find_case(&job, spec, NULL, ALL_WORKERS + 1) >= MEMORY_OR_THREAD);
    fault_walk(&call, &job);
    fault_walk(&prepare, &job);
    job.has_allocator = true;
    fault_walk(&call, &job);
    job.has_allocator = false;
    for (int v = 0; v < tsr_variant_count(spec->op); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get(spec->op, v, &info));
        job.variant = info.name;
        if ((info.flags & TSR_VARIANT_CUDA) != 0) continue;
        if (op_expect(&job) >= 0) {
            fault_walk(&call, &job);
        } else if (find_case(&other, spec, info.name, 0) >= 0) {
            fault_walk(&call, &other);
            job_release(&other);
        }
    }
    job_release(&job);
}

static void operations(void **state) {
    (void)state;
    for (int op = 0; op < tsr_op_count(); op++) {
        const struct op_spec *spec = spec_find(tsr_op_name(op));
        if (spec == NULL) print_error("no description of %s\n", tsr_op_name(op));
        assert_non_null(spec);
        walk_operation(spec);
    }
}

// ---- Contexts, memory, probes -----------------------------------------------------------------

static tsr_context *ctx;

static void make_context(void *arg) {
    (void)arg;
    ctx = test_context(NUM_THREADS);
}

static void drop_context(void *arg) {
    (void)arg;
    tsr_context_destroy(ctx);
    tsri_team_stop();
}

static tsr_status create_run(void *arg) {
    tsr_context *made = (tsr_context *)&faults;
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 0); // all that it may use
    if (arg != NULL) options.allocator = (tsr_allocator){hook_alloc, hook_free, NULL};
    tsr_status status = tsr_context_create(&options, &made);
    assert_true((status == TSR_OK) == (made != NULL));
    if (made != NULL) assert_true(tsr_context_num_threads(made) >= 1);
    tsr_context_destroy(made);
    return status;
}

static tsr_status memory_run(void *arg) {
    char text[3] = "", **block = arg;
    tsr_status status = tsr_memory_alloc(ctx, 1000, (void **)block);
    assert_true((status == TSR_OK) == (*block != NULL));
    if (status != TSR_OK) return status;
    assert_ok(tsr_memory_fill(ctx, *block, 'a', 2));
    assert_ok(tsr_memory_copy(ctx, text, *block, 2));
    assert_string_equal(text, "aa");
    assert_ok(tsr_context_synchronize(ctx));
    return tsr_memory_free(ctx, *block);
}

static tsr_status available_run(void *arg) {
    int64_t bytes = tsr_memory_available(arg);
    assert_true(bytes == -1 || bytes > 0); // -1 if no file can be read
    return TSR_OK;
}

static tsr_status probe_run(void *arg) {
    return tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 1), arg);
}

static bool probe_is_right(void *arg, tsr_status status) {
    double *work = arg, got = *work;
    *work = -1;
    return status == TSR_OK ? got >= 2.0 * 4096 * NUM_THREADS : got == -1;
}

static tsr_status estimate_run(void *arg) {
    return tsr_self_attention_estimate(
        ctx,
        &TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_F32, .batch = 2, .seqlen = 64,
                                          .embed_dim = 64, .num_heads = 2),
        arg);
}

static tsr_status moe_estimate_run(void *arg) {
    return tsr_moe_estimate(
        ctx,
        &TSR_MOE_ESTIMATE_ARGS(.dtype = TSR_F32, .is_gated = 1, .num_tokens = 20, .hidden = 16,
                               .intermediate = 24, .num_experts = 4, .top_k = 2),
        arg);
}

static tsr_status import_run(void *arg) {
    static float x[6];
    static int64_t shape[] = {2, 3};
    struct DLManagedTensorVersioned managed = {.major = 1};
    (void)arg;
    managed.tensor = (struct dlpack_tensor){.data = x,
                                            .device_type = DLPACK_CPU,
                                            .ndim = 2,
                                            .code = DLPACK_FLOAT,
                                            .bits = 32,
                                            .lanes = 1,
                                            .shape = shape};
    tsr_tensor tensor;
    tsr_status status = tsr_tensor_from_dlpack(&managed, TSR_DLPACK_INPUT, TSR_F32, &tensor);
    assert_true(status != TSR_OK || (tensor.data == x && tensor.stride[0] == 3));
    return status;
}

static void other_calls(void **state) {
    (void)state;
    char *block;
    double work = -1;
    tsr_self_attention_memory bytes;
    tsr_moe_memory of_layer;
    const struct fault_call create = {"context_create", NULL, create_run, NULL, NULL},
                            memory = {"memory_alloc", make_context, memory_run, NULL, drop_context},
                            available = {"memory_available", NULL, available_run, NULL, NULL},
                            probe = {"probe_run", make_context, probe_run, probe_is_right,
                                     drop_context},
                            estimate = {"self_attention_estimate", make_context, estimate_run, NULL,
                                        drop_context},
                            moe_estimate = {"moe_estimate", make_context, moe_estimate_run, NULL,
                                            drop_context},
                            import = {"from_dlpack", NULL, import_run, NULL, NULL};
    assert_true(fault_walk(&create, NULL) >= 4); // the CPU mask, the quota's files, the context
    assert_true(fault_walk(&create, &work) >= 4);
    assert_int_equal(fault_walk(&memory, &block), 2);
    assert_true(fault_walk(&available, NULL) >= 4); // the list of groups, the kernel's report
    assert_int_equal(fault_walk(&probe, &work), 2 * 2 * (NUM_THREADS - 1));
    assert_int_equal(fault_walk(&estimate, &bytes), 0);
    assert_int_equal(fault_walk(&moe_estimate, &of_layer), 0);
    assert_int_equal(fault_walk(&import, NULL), 0);
}

// ---- Recordings -------------------------------------------------------------------------------

enum { NUM_RANGES = 1500 }; // more than the list's initial capacity

static struct {
    int num_given;
    int64_t num_lost;
} recorded;

static void count_record(void *user, const tsr_profile_record *record) {
    (void)user;
    recorded.num_given += record->kind == TSR_PROFILE_RANGE;
}

static tsr_status record_run(void *arg) {
    (void)arg;
    tsr_status status = tsr_profile_start(ctx);
    if (status != TSR_OK) return status;
    for (int i = 0; i < NUM_RANGES; i++) {
        tsr_profile_begin("range");
        tsr_profile_end();
    }
    return tsr_profile_stop(ctx, count_record, NULL, &recorded.num_lost);
}

static bool record_is_right(void *arg, tsr_status status) {
    (void)arg;
    bool is_right = status == TSR_OK && recorded.num_given + recorded.num_lost == NUM_RANGES;
    memset(&recorded, 0, sizeof recorded);
    return is_right;
}

static void recordings(void **state) {
    (void)state;
    const struct fault_call record = {"profile", make_context, record_run, record_is_right,
                                      drop_context};
    assert_true(fault_walk(&record, NULL) >= 4);
}

// ---- A process that has not asked the system for anything yet ---------------------------------

// Requests that a process makes only once: cache sizes, the fork handler. Each refusal uses its own child, which starts
// with this process's state. This test is first, because that state must be empty.
static int run_cold(int n, bool goes_on, int *num_refused) {
    int pipes[2], status = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct op_job job;
        fault_arm(n, goes_on);
        job_create(&job, spec_find("softmax_forward"), TSR_F32, 1);
        tsr_context *cold = NULL;
        tsr_status made = tsr_context_create(NULL, &cold);
        if (made == TSR_OK) made = tool_call(cold, &job.tc.tensors.c, NULL);
        int refused = fault_disarm();
        tsr_status again = TSR_OK;
        if (cold == NULL) again = tsr_context_create(NULL, &cold);
        if (again == TSR_OK) again = tool_call(cold, &job.tc.tensors.c, NULL);
        bool is_named = made == TSR_OK || (made == TSR_OUT_OF_MEMORY && *tsr_last_error() != 0);
        ssize_t told = write(pipes[1], &refused, sizeof refused);
        _exit(again == TSR_OK && is_named && told == sizeof refused ? 0 : 1);
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
        for (int n = 1, refused = 1; refused > 0; n++) {
            assert_int_equal(run_cold(n, mode == 1, &refused), 0);
            faults.num_points += refused > 0;
        }
    assert_true(faults.num_points >= 20);
}

static int setup(void **state) {
    (void)state;
    fault_install();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_processes),
        cmocka_unit_test(operations),
        cmocka_unit_test(other_calls),
        cmocka_unit_test(recordings),
    };
    return cmocka_run_group_tests_name("faults", tests, setup, fault_summary);
}
