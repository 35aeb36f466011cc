// SPDX-License-Identifier: Apache-2.0
// Fault tests on CUDA for calls of operations: refusals by the operating system, the driver, NVRTC and CUPTI, for every
// variant of every operation, in recordings, and in a process that has not opened any library.
#include <sys/wait.h>

#include "tool_case.h"

#include "fault_cuda_case.h"

// ---- Operations -------------------------------------------------------------------------------

struct op_job {
    struct tool_case tc;
    struct op_case c; // with device tensors
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

// Outputs may have any values, because a call can fail between two of its kernels.
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
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) job->c.tensor[s].device = cuda_0;
}

// Finds a case that the variant serves, or returns false. Some cases have rows that are too long for one block, or
// matrix rows at multiples of 16 bytes.
static bool find_case(struct op_job *job, const struct op_spec *spec, const char *variant) {
    enum { NUM_DRAWS = 1000, FIRST_WIDE = 32 };
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

// The default variant starts with an empty context and cache, the others with loaded kernels.
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

// ---- A process that has not opened a library yet ----------------------------------------------

// Requests that a process makes only once. Each refusal uses its own child: CUDA fails in words or works, and the CPU
// works.
static int run_cold(int n, bool goes_on, int *num_refused) {
    int pipes[2], status = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        tsr_context *cold = NULL;
        tsr_device_info info = TSR_DEVICE_INFO;
        tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
        fault_arm(n, goes_on);
        tsr_status made = tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = cuda_0), &cold);
        bool is_right = (made == TSR_OK) == (cold != NULL) &&
                        (made == TSR_OK || strstr(tsr_last_error(), "context_create") != NULL);
        if (made == TSR_OK) {
            (void)tsr_device_info_get(cuda_0, &info);
            (void)tsr_device_sensors_get(cuda_0, &sensors);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_processes),
        cmocka_unit_test_teardown(operations, let_go),
        cmocka_unit_test_teardown(recordings, let_go),
    };
    return cmocka_run_group_tests_name("faults on CUDA", tests, setup_all, teardown_all);
}
