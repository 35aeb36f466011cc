// SPDX-License-Identifier: Apache-2.0
// How `tessera profile` evaluates a GPU's records, with records made by hand: medians, shares, gaps and latencies. Also
// tensors that are copied to a device, on a CPU context, where a copy works the same.
#include <math.h>
#include <tessera/tessera.h>

#include "measure/profile_steps.h"
#include "system/device_option.h"
#include "test_support.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-9 * fabs((double)(b)))

static struct profile_event events[64];
static int num_events;
static int64_t last_call;

static struct profile_event *add(tsr_profile_kind kind, const char *name, enum profile_phase phase,
                                 int step, double start_us, double end_us) {
    struct profile_event *event = &events[num_events++];
    *event = (struct profile_event){.record = {.kind = kind,
                                               .name = name,
                                               .op = "softmax_forward",
                                               .variant = "",
                                               .start_ns = (int64_t)(1e3 * start_us),
                                               .end_ns = (int64_t)(1e3 * end_us)},
                                    .phase = phase,
                                    .step = step,
                                    .call = last_call};
    return event;
}

// A call of 10 us on the host at `at`. Its launch begins after 2 us, and its kernel of 20 us after 8 us.
static void add_alone(int step, double at, const char *kernel) {
    static int64_t launch = 100;
    last_call++;
    launch++;
    add(TSR_PROFILE_RANGE, "step", PHASE_ALONE, step, at, at + 10);
    add(TSR_PROFILE_DRIVER, "cuLaunchKernelEx", PHASE_ALONE, step, at + 2, at + 6)->record.launch =
        launch;
    struct profile_event *event =
        add(TSR_PROFILE_KERNEL, kernel, PHASE_ALONE, step, at + 8, at + 28);
    event->record.launch = launch;
    event->record.num_blocks = 4;
    event->record.block_threads = 128;
}

static void add_kernel(int step, double at, double us, const char *kernel) {
    struct profile_event *event = add(TSR_PROFILE_KERNEL, kernel, PHASE_ROW, step, at, at + us);
    event->record.num_blocks = 4;
    event->record.block_threads = 128;
}

static void figures_of_a_gpu(void **state) {
    (void)state;
    static const char one[] = "one", two[] = "two", to_device[] = "copy host to device";
    struct op_case c = case_default(spec_find("softmax_forward"));
    char error[128];
    assert_true(case_set(&c, "rows=1000 cols=1000", error, sizeof error));
    struct profile_step steps[2] = {{.c = &c, .bandwidth = 1e12, .compute = 1e13},
                                    {.c = &c, .bandwidth = 0, .compute = 0}};
    struct profile profile = {.device = {TSR_CUDA, 0}, .steps = steps, .num_steps = 2, .rep = 2};
    struct profile_summary *summary = calloc(1, sizeof *summary);
    assert_non_null(summary);
    add(TSR_PROFILE_COPY, to_device, PHASE_IN, 0, 0, 50)->record.bytes = 100000;
    add_alone(0, 100, one);
    add_alone(1, 200, two);
    // Two rounds of two steps, of which the second has two kernels. The host finishes before the first kernel begins.
    for (int round = 0; round < 2; round++)
        for (int s = 0; s < 2; s++)
            add(TSR_PROFILE_RANGE, "step", PHASE_ROW, s, 300 + 5 * (2 * round + s),
                300 + 5 * (2 * round + s) + 4);
    for (int round = 0; round < 2; round++) {
        double at = 1000 + 40 * round;
        last_call++;
        add_kernel(0, at, 16, one); // then 4 us idle
        last_call++;
        add_kernel(1, at + 20, 10, two);
        add_kernel(1, at + 32, 6, two); // then 2 us until the next round
    }
    profile.events = events;
    profile.num_events = num_events;
    profile_summarise(&profile, summary);

    const struct profile_figures *first = &summary->steps[0], *second = &summary->steps[1];
    NEAR(first->num_kernels, 1);
    NEAR(first->device_us, 16);
    NEAR(first->host_us, 4);
    NEAR(first->start_us, 8);
    NEAR(first->launch_us, 6);
    NEAR(first->gap_us, 2); // after the other step; the first has none
    NEAR(first->gb_s, 8e6 / 16e-6 * 1e-9);
    NEAR(first->bandwidth_share, 8e6 / 16e-6 / 1e12);
    NEAR(second->num_kernels, 2);
    NEAR(second->device_us, 16);
    NEAR(second->gap_us, 3); // the mean of 4 and 2
    assert_true(isnan(second->bandwidth_share) && isnan(second->compute_share));
    NEAR(summary->busy_share, 64.0 / 78);

    assert_int_equal(summary->num_kernels, 2);
    assert_ptr_equal(summary->kernels[0].name,
                     one); // both have 20 + 32 of 104 us: the first stays first
    assert_int_equal(summary->kernels[0].count + summary->kernels[1].count, 2 + 2 + 4);
    NEAR(summary->kernels[0].share + summary->kernels[1].share, 1);
    NEAR(summary->kernels[0].max_us, 20);
    assert_int_equal(summary->num_copies, 1);
    NEAR(summary->copies[0].gb_s, 2);
    NEAR(summary->copy_share, 50.0 / (50 + 16 + 16));
    profile_summary_free(summary);
    free(summary);
}

static void nothing_recorded(void **state) {
    (void)state;
    struct op_case c = case_default(spec_find("softmax_forward"));
    struct profile_step step = {.c = &c};
    struct profile profile = {.device = {TSR_CUDA, 0}, .steps = &step, .num_steps = 1};
    struct profile_summary *summary = calloc(1, sizeof *summary);
    assert_non_null(summary);
    profile_summarise(&profile, summary);
    assert_true(isnan(summary->steps[0].device_us) && isnan(summary->busy_share));
    assert_int_equal(summary->num_kernels, 0);
    profile_summary_free(summary);
    free(summary);
}

// Every step of every workload must be a case that its operation accepts.
static void workloads_are_cases(void **state) {
    (void)state;
    char op[64], error[256];
    for (const struct profile_workload *w = profile_workloads; w->name != NULL; w++) {
        assert_ptr_equal(profile_workload_find(w->name), w);
        assert_null(spec_find(w->name));
        for (const char *const *step = w->steps; *step != NULL; step++) {
            snprintf(op, sizeof op, "%.*s", (int)strcspn(*step, " "), *step);
            assert_non_null(spec_find(op));
            struct op_case c = case_default(spec_find(op));
            if (!case_set(&c, *step + strlen(op), error, sizeof error))
                fail_msg("%s: %s", *step, error);
        }
    }
    assert_null(profile_workload_find("nothing"));
}

// ---- Tensors on a device ------------------------------------------------------------------------

static void tensors_travel(void **state) {
    (void)state;
    struct op_case c = case_default(spec_find("softmax_forward"));
    char error[128];
    struct inputs inputs;
    struct device_case device;
    tsr_context *ctx = test_context(1);
    assert_true(case_set(&c, "rows=3 cols=40", error, sizeof error));
    assert_true(inputs_create(&inputs, &c, 1));
    assert_ok(device_case_create(&device, ctx, &inputs.c));
    assert_ptr_not_equal(device.c.tensor[0].data, inputs.c.tensor[0].data);
    assert_ok(c.spec->call(ctx, &device.c, NULL, NULL, 0, NULL));
    assert_ok(device_case_copy_out(&device));
    int y = spec_slot(c.spec, "y");
    float *there = malloc(120 * sizeof *there);
    assert_non_null(there);
    memcpy(there, inputs.c.tensor[y].data, 120 * sizeof *there);
    assert_ok(c.spec->call(ctx, &inputs.c, NULL, NULL, 0, NULL));
    assert_memory_equal(there, inputs.c.tensor[y].data, 120 * sizeof *there);
    free(there);
    device_case_release(&device);
    device_case_release(&device); // of no tensors
    inputs_release(&inputs);
    tsr_context_destroy(ctx);
}

static void baselines(void **state) {
    (void)state;
    const struct op_spec *softmax = spec_find("softmax_forward"), *cast = spec_find("cast");
    const tsr_device cpu = {TSR_CPU, 0}, gpu = {TSR_CUDA, 0};
    assert_string_equal(device_baseline(cpu, softmax), "unfused");
    assert_string_equal(device_baseline(gpu, softmax), "cuda-unfused");
    assert_true(spec_is_baseline(softmax, "unfused") && spec_is_baseline(softmax, "cuda-unfused"));
    assert_false(spec_is_baseline(softmax, "cuda-rows"));
    assert_false(spec_is_baseline(softmax, NULL));
    assert_false(spec_is_baseline(softmax, "cuda-"));
    assert_null(device_baseline(gpu, cast));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_of_a_gpu),    cmocka_unit_test(nothing_recorded),
        cmocka_unit_test(workloads_are_cases), cmocka_unit_test(tensors_travel),
        cmocka_unit_test(baselines),
    };
    return cmocka_run_group_tests_name("tool profile", tests, NULL, NULL);
}
