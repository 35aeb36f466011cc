// SPDX-License-Identifier: Apache-2.0
// tessera profile: shows where the time of calls goes.
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/bench_cases.h"
#include "commands/command.h"
#include "measure/profile_steps.h"
#include "system/device_option.h"
#include "system/environment.h"
#include "system/files.h"
#include "system/heap.h"
#include "system/progress.h"

enum { PASS_BOTH = 2, FORMAT_TABLES = 0, MOST_STEPS = 256 };
static const char *const passes[] = {"forward", "backward", "both", NULL};
static const char *const formats[] = {"md", "json", NULL};

struct request {
    const char *device, *dtype, *variant, *output;
    int pass, format;
    int64_t rep, threads, seed, top;
    bool is_unmeasured;
    struct text_list operands;
};

static const struct command_help help = {
    .name = "profile",
    .synopsis = "OP|WORKLOAD... [options]",
    .summary = "Records calls and shows where their time goes: kernels by time, achieved bandwidth "
               "and compute, launches, copies.\n--output writes a timeline for chrome://tracing "
               "and Perfetto.",
    .examples = "tessera profile softmax --rows 512 --cols 512 --output trace.json\n"
                "tessera profile layer --rep 2 --top 5",
};

// ---- The command line -------------------------------------------------------------------------

static bool is_an_operation(const char *name) {
    struct bench_selection selection = {.num_specs = 0};
    return bench_select(&selection, name);
}

static const char *notes(char *text, size_t bytes) {
    char names[512];
    size_t used = (size_t)snprintf(text, bytes,
                                   "Without sizes an operation's largest standard shape is run. "
                                   "Workloads take no options of operations.\n"
                                   "CUPTI records CUDA ($TSR_LIBCUPTI can name its file).\n"
                                   "Operations: %s.\nWorkloads:",
                                   spec_commands_text(" ", names, sizeof names));
    for (const struct profile_workload *w = profile_workloads; w->name != NULL && used < bytes; w++)
        used += (size_t)snprintf(text + used, bytes - used, "\n  %-12s %s", w->name, w->summary);
    return text;
}

static int fail_unknown(const char *name) {
    char names[768];
    size_t used = strlen(spec_commands_text(", ", names, sizeof names));
    for (const struct profile_workload *w = profile_workloads;
         w->name != NULL && used < sizeof names; w++)
        used += (size_t)snprintf(names + used, sizeof names - used, ", %s", w->name);
    return usage_error("profile", "there is no operation and no workload '%s', expected one of %s",
                       name, names);
}

static int check(const struct request *request, struct bench_selection *selection) {
    tsr_dtype dtype = tsr_dtype_from_name(request->dtype);
    bool is_exact = false; // softmax_backward names its pass
    if (request->operands.count == 0)
        return usage_error("profile", "no operation and no workload given");
    for (int i = 0; i < request->operands.count; i++) {
        const char *name = request->operands.items[i];
        if (!is_an_operation(name) && profile_workload_find(name) == NULL)
            return fail_unknown(name);
        is_exact |= spec_find(name) != NULL;
    }
    if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
        return usage_error("profile", "--dtype is '%s', expected f32, bf16 or f16", request->dtype);
    if (selection->num_specs > 0 && !is_exact && request->pass != PASS_BOTH &&
        !bench_keep_pass(selection, passes[request->pass]))
        return usage_error("profile", "%s has no %s pass", request->operands.items[0],
                           passes[request->pass]);
    if (request->output != NULL && !file_can_write(request->output))
        return usage_error("profile", "--output is '%s', which cannot be written: %s",
                           request->output, strerror(errno));
    return -1;
}

static int parse(struct request *request, struct bench_selection *selection, int argc,
                 char **argv) {
    char text[2048];
    const char *operands[OPERANDS_MAX + 1] = {NULL};
    int num_operands = 0;
    for (const char *const *name = spec_commands(); *name != NULL; name++)
        if (num_operands < OPERANDS_MAX) operands[num_operands++] = *name;
    for (const struct profile_workload *w = profile_workloads; w->name != NULL; w++)
        if (num_operands < OPERANDS_MAX) operands[num_operands++] = w->name;
    for (int i = 1; i < argc; i++)
        if (is_an_operation(argv[i]) && (i == 1 || strcmp(argv[i - 1], "--output") != 0))
            bench_select(selection, argv[i]);
    struct option_spec rows[12 + BENCH_MAX_OPTIONS + 1] = {
        {"output", 'o', "FILE", "file for the timeline, JSON (no timeline)", OPTION_TEXT,
         &request->output, NULL, 0, 0},
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &request->device, NULL, 0, 0},
        {"pass", 0, "P", "the operation's passes", OPTION_CHOICE, &request->pass, passes, 0, 0},
        {"dtype", 0, "T", "dtype of the tensors: f32, bf16, f16 (f32)", OPTION_TEXT,
         &request->dtype, NULL, 0, 0},
        {"variant", 0, "V", "name of a variant (the library's choice)", OPTION_TEXT,
         &request->variant, NULL, 0, 0},
        {"rep", 0, "N", "calls of each operation one at a time, and as many in a row (20)",
         OPTION_INT, &request->rep, NULL, 1, 10000},
        {"top", 0, "N", "number of kernels shown (10)", OPTION_INT, &request->top, NULL, 1, 1000},
        {"threads", 0, "N", "threads (all CPUs)", OPTION_INT, &request->threads, NULL, 1, 4096},
        {"seed", 0, "N", "seed of the random inputs (1)", OPTION_INT, &request->seed, NULL, 0,
         9e15},
        {"no-measure", 0, NULL, "do not measure ceilings, and show no shares of them", OPTION_FLAG,
         &request->is_unmeasured, NULL, 0, 0},
        {"format", 0, "F", "output", OPTION_CHOICE, &request->format, formats, 0, 0},
        {0},
    };
    int count = 0;
    while (rows[count].name != NULL) count++;
    count += bench_option_rows(selection, rows + count, BENCH_MAX_OPTIONS);
    rows[count] = (struct option_spec){0};
    struct command_help with = help;
    with.notes = notes(text, sizeof text);
    with.operands = operands;
    int code = options_parse(&with, rows, argc, argv, &request->operands);
    return code >= 0 ? code : check(request, selection);
}

// ---- Steps ------------------------------------------------------------------------------------

static void add_step(struct profile *profile, const struct op_case *c, tsr_dtype dtype) {
    char text[160];
    if (profile->num_steps == MOST_STEPS) return;
    struct profile_step *step = &profile->steps[profile->num_steps];
    *step = (struct profile_step){.inputs.c = *c};
    step->inputs.c.dtype = step->inputs.c.small_dtype = dtype;
    int length = snprintf(step->label, sizeof step->label, "%s %s %s", c->spec->op,
                          case_text(c, text, sizeof text), tsr_dtype_name(dtype));
    int num_same = 1; // a layer makes some calls twice
    for (int s = 0; s < profile->num_steps; s++)
        num_same += strncmp(profile->steps[s].label, step->label, (size_t)length) == 0;
    if (num_same > 1 && length > 0 && length < (int)sizeof step->label)
        snprintf(step->label + length, sizeof step->label - (size_t)length, " (%d)", num_same);
    profile->num_steps++;
}

// Given sizes make all their cases; without sizes only the last standard shape is run, the largest.
static int add_operations(struct profile *profile, const struct bench_selection *selection,
                          tsr_dtype dtype) {
    char error[512];
    bool has_size = false;
    for (int i = 0; i < selection->num_options; i++) has_size |= selection->options[i].text != NULL;
    for (int i = 0; i < selection->num_specs; i++) {
        struct op_case *cases;
        int count = bench_cases(selection, selection->specs[i],
                                spec_standard(selection->specs[i], profile->device), &cases, error,
                                sizeof error);
        if (count < 0) return usage_error("profile", "%s", error);
        for (int k = has_size ? 0 : count - 1; k < count; k++) add_step(profile, &cases[k], dtype);
        free(cases);
    }
    return -1;
}

static int add_workload(struct profile *profile, const struct profile_workload *workload,
                        tsr_dtype dtype) {
    char error[256], op[64];
    for (const char *const *at = workload->steps; *at != NULL; at++) {
        size_t length = strcspn(*at, " ");
        snprintf(op, sizeof op, "%.*s", (int)length, *at);
        struct op_case c = case_default(spec_find(op));
        if (!case_set(&c, *at + length, error, sizeof error)) {
            fprintf(stderr, "tessera profile: %s: %s\n", workload->name, error);
            return EXIT_COULD_NOT_RUN;
        }
        if (c.spec->complete != NULL) c.spec->complete(&c);
        add_step(profile, &c, dtype);
    }
    return -1;
}

// Leaves out steps for which the device has no variant, with a note.
static int drop_absent(struct profile *profile) {
    int kept = 0;
    for (int s = 0; s < profile->num_steps; s++) {
        if (device_has_op(profile->device, profile->steps[s].inputs.c.spec->op))
            profile->steps[kept++] = profile->steps[s];
        else
            fprintf(stderr, "tessera profile: %s left out: it has no variant for %s\n",
                    profile->steps[s].label, tsr_device_name(profile->device));
    }
    profile->num_steps = kept;
    return kept > 0 ? -1 : EXIT_SKIPPED;
}

static int make_steps(struct profile *profile, const struct request *request,
                      const struct bench_selection *selection) {
    tsr_dtype dtype = tsr_dtype_from_name(request->dtype);
    profile->steps = heap_get(MOST_STEPS, sizeof *profile->steps);
    int code = add_operations(profile, selection, dtype);
    for (int i = 0; i < request->operands.count && code < 0; i++) {
        const struct profile_workload *w = profile_workload_find(request->operands.items[i]);
        if (w != NULL) code = add_workload(profile, w, dtype);
    }
    return code < 0 ? drop_absent(profile) : code;
}

// ---- Running ----------------------------------------------------------------------------------

// The ceilings of the steps. Called after the recording, because only then the variants are known.
static int measure_ceilings(struct profile *profile, const struct request *request) {
    char error[512];
    const struct measure_options options = {.device = profile->device,
                                            .num_threads = (int)request->threads};
    struct measure_session *session = measure_open(&options, error, sizeof error);
    if (session == NULL) {
        fprintf(stderr, "tessera profile: %s\n", error);
        return EXIT_COULD_NOT_RUN;
    }
    for (int s = 0; s < profile->num_steps; s++) {
        struct profile_step *step = &profile->steps[s];
        const struct op_case *c = step->c;
        tsr_probe_kind unit = measure_unit_of(session, c, step->variant);
        step->compute = unit == TSR_PROBE_FMA ? measure_fma_ceiling(session)
                                              : measure_unit_ceiling(session, unit);
        step->bandwidth = case_bytes(c) / measure_floor_s(session, c, INFINITY, false);
    }
    measure_close(session);
    return -1;
}

static int open_context(struct profile *profile, int64_t num_threads, void **stream) {
    const tsr_context_options options =
        TSR_CONTEXT_OPTIONS(.device = profile->device, .num_threads = (int32_t)num_threads);
    tsr_status status = tsr_context_create(&options, &profile->ctx);
    if (status == TSR_OK && profile->device.type == TSR_CUDA)
        status = tsr_stream_create(profile->ctx, stream);
    if (status == TSR_OK && *stream != NULL) status = tsr_context_set_stream(profile->ctx, *stream);
    if (status == TSR_OK) {
        tsr_device_info gpu = TSR_DEVICE_INFO;
        bool is_gpu = tsr_device_info_get(profile->device, &gpu) == TSR_OK;
        profile->num_threads = tsr_context_num_threads(profile->ctx);
        snprintf(profile->machine, sizeof profile->machine, "%s, %s",
                 is_gpu ? gpu.name : environment_get()->cpu, device_arch(profile->ctx));
        return -1;
    }
    fprintf(stderr, "tessera profile: %s\n", tsr_last_error());
    return EXIT_COULD_NOT_RUN;
}

// Without CUPTI there is nothing to record; this reports it before tensors are made.
static int try_recording(struct profile *profile) {
    tsr_status status = tsr_profile_start(profile->ctx);
    if (status == TSR_OK) status = tsr_profile_stop(profile->ctx, NULL, NULL, NULL);
    if (status == TSR_OK) return -1;
    fprintf(stderr, "tessera profile: %s\n", tsr_last_error());
    return status == TSR_UNSUPPORTED ? EXIT_SKIPPED : EXIT_COULD_NOT_RUN;
}

static int show(const struct profile *profile, const struct request *request) {
    struct profile_summary *summary = heap_get(1, sizeof *summary);
    profile_summarise(profile, summary);
    // The file comes first, because standard output may be a pipe that its reader closes.
    bool is_written = request->output == NULL || profile_write_trace(request->output, profile);
    if (request->format == FORMAT_TABLES)
        profile_write_md(stdout, profile, summary, (int)request->top);
    else
        is_written &= profile_write_json(stdout, profile, summary);
    profile_summary_free(summary);
    free(summary);
    return is_written ? EXIT_FINE : EXIT_COULD_NOT_RUN;
}

static int run(struct profile *profile, const struct request *request) {
    void *stream = NULL;
    int code = open_context(profile, request->threads, &stream);
    if (code < 0) code = try_recording(profile);
    if (code < 0) {
        tsr_status status = profile_run(profile, (uint64_t)request->seed);
        if (status != TSR_OK) {
            fprintf(stderr, "tessera profile: %s\n", tsr_last_error());
            code = status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED ? EXIT_USAGE
                                                                               : EXIT_COULD_NOT_RUN;
        }
    }
    if (code < 0 && !request->is_unmeasured) code = measure_ceilings(profile, request);
    if (code < 0) code = show(profile, request);
    profile_free(profile);
    if (stream != NULL) (void)tsr_stream_destroy(profile->ctx, stream);
    tsr_context_destroy(profile->ctx);
    return code;
}

int command_profile(int argc, char **argv) {
    struct request request = {.dtype = "f32", .rep = 20, .seed = 1, .top = 10};
    struct bench_selection selection = {.num_specs = 0};
    struct profile profile = {.num_steps = 0};
    int code = parse(&request, &selection, argc, argv);
    if (code < 0) code = device_parse("profile", request.device, &profile.device);
    if (code >= 0) return code;
    profile.rep = (int)request.rep;
    profile.variant = request.variant;
    snprintf(profile.device_name, sizeof profile.device_name, "%s",
             tsr_device_name(profile.device));
    code = make_steps(&profile, &request, &selection);
    if (code < 0) return run(&profile, &request);
    profile_free(&profile);
    return code;
}
