// SPDX-License-Identifier: Apache-2.0
// tessera verify: runs the walk of verify.c and prints a table or JSON.
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <time.h>

#include "commands/command.h"
#include "files/result.h"
#include "files/run.h"
#include "system/device_option.h"
#include "system/options.h"
#include "system/progress.h"
#include "system/signals.h"
#include "verify/verify.h"

enum { CONFIGS_QUICK = 900, CONFIGS_NORMAL = 5000, CONFIGS_LONG = 20000 };

static void show_step(void *user, const struct verify_report *report, const char *op) {
    char text[160];
    snprintf(text, sizeof text, "%s, %lld runs, %lld failed", op, (long long)report->num_runs,
             (long long)report->num_failed);
    progress_step(user, report->num_configs, text);
}

static const char *arch_of(const struct verify_report *report, const struct verify_row *row) {
    return report->arch[0] != '\0' ? report->arch : tsr_isa_name(row->isa);
}

static void print_failures(const struct verify_report *report) {
    for (int i = 0; i < report->num_rows; i++)
        if (report->rows[i].verdict.num_failed > 0)
            printf("FAIL (%lld): %s\n", (long long)report->rows[i].verdict.num_failed,
                   report->rows[i].verdict.failure);
    for (int i = 0; i < report->num_rows; i++)
        if (report->rows[i].verdict.num_not_run > 0)
            printf("NOT RUN (%lld): %s\n", (long long)report->rows[i].verdict.num_not_run,
                   report->rows[i].verdict.obstacle);
}

// ---- Markdown ---------------------------------------------------------------------------------

void verify_print_markdown(const struct verify_report *report, uint64_t seed) {
    printf(
        "| operation | variant | dtype | isa | configs | max abs err | mean abs err | max rel err "
        "| err/bound | |\n|---|---|---|---|--:|--:|--:|--:|--:|---|\n");
    for (int i = 0; i < report->num_rows; i++) {
        const struct verify_row *row = &report->rows[i];
        const struct verdict *v = &row->verdict;
        printf("| %s | %s | %s | %s | %lld | %.2e | %.2e | %.2e | %.3f | %s |\n", row->op,
               row->variant, tsr_dtype_name(row->dtype), arch_of(report, row),
               (long long)v->num_configs, v->max_abs_err, v->mean_abs_err, v->max_rel_err,
               v->err_over_bound,
               v->num_failed > 0        ? "FAIL"
               : v->num_not_run > 0     ? "could not run"
               : v->num_configs > 0     ? "PASS"
               : report->is_interrupted ? "was not run"
                                        : "supports none of the cases");
    }
    char not_run[64] = "";
    if (report->num_not_run > 0)
        snprintf(not_run, sizeof not_run, ", %lld not run", (long long)report->num_not_run);
    printf("\n");
    print_failures(report);
    printf("%lld edge cases and %lld random configurations (seed %llu), %lld runs in %.1f s: worst "
           "err/bound %.3f, %lld failed%s\n%s\n",
           (long long)report->num_edges, (long long)report->num_configs, (unsigned long long)seed,
           (long long)report->num_runs, report->seconds, report->worst_err_over_bound,
           (long long)report->num_failed, not_run,
           report->num_failed > 0    ? "FAIL"
           : report->num_not_run > 0 ? "COULD NOT RUN: memory was short"
           : report->is_interrupted  ? "INTERRUPTED: the rest was not run"
                                     : "PASS");
}

// ---- Bits: hashes that two builds must share -----------------------------------------------------

void verify_print_bits(const struct verify_report *report, uint64_t seed) {
    uint64_t all = 0;
    for (int i = 0; i < report->num_rows; i++) {
        const struct verify_row *row = &report->rows[i];
        if (row->verdict.num_configs == 0) continue;
        all = all * 31 + row->verdict.bits;
        printf("%s %s %s %s %lld %016llx\n", row->op, row->variant, tsr_dtype_name(row->dtype),
               arch_of(report, row), (long long)row->verdict.num_configs,
               (unsigned long long)row->verdict.bits);
    }
    print_failures(report);
    printf("all of seed %llu: %lld runs, %lld failed, bits %016llx\n", (unsigned long long)seed,
           (long long)report->num_runs, (long long)report->num_failed, (unsigned long long)all);
}

// ---- JSON: bench's, with fields for verification -----------------------------------------------

// A row stands for many configurations, so it has no parameters, times or cache. An error that is no number, such as a
// NaN in place of a value, is null; the failure then says what was seen.
static json_t *row_json(const struct verify_report *report, const struct verify_row *row,
                        int num_threads) {
    const struct verdict *v = &row->verdict;
    struct op_case c = case_default(spec_find(row->op));
    c.dtype = row->dtype;
    struct result result = result_empty(&c);
    snprintf(result.variant, sizeof result.variant, "%s", row->variant);
    run_clean(result.variant); // conformance may pass a name that was cut
    snprintf(result.isa, sizeof result.isa, "%s", arch_of(report, row));
    snprintf(result.device, sizeof result.device, "%s", report->device);
    result.num_threads = num_threads;
    result.max_abs_err = v->max_abs_err;
    result.mean_abs_err = v->mean_abs_err;
    result.max_rel_err = v->max_rel_err;
    result.err_over_bound = v->err_over_bound;
    json_t *object = result_json(&result);
    json_object_set_new(object, "params", json_object());
    static const char *const of_timing[] = {"samples", "samples_set_aside", "cache", "throttled"};
    for (int i = 0; i < 4; i++) json_object_set_new(object, of_timing[i], json_null());
    json_object_set_new(object, "configs", json_integer(v->num_configs));
    json_object_set_new(object, "failed", json_integer(v->num_failed));
    json_object_set_new(object, "not_run", json_integer(v->num_not_run));
    json_object_set_new(object, "failure",
                        v->num_failed > 0 ? json_string(v->failure) : json_null());
    return object;
}

// Leaves out variants that support none of the cases.
void verify_print_json(const struct verify_report *report, int64_t seed, int num_threads) {
    json_t *document = json_object(), *results = json_array(), *summary = json_object();
    for (int i = 0; i < report->num_rows; i++)
        if (report->rows[i].verdict.num_configs + report->rows[i].verdict.num_not_run > 0)
            json_array_append_new(results, row_json(report, &report->rows[i], num_threads));
    json_object_set_new(summary, "seed", json_integer(seed));
    json_object_set_new(summary, "edges", json_integer(report->num_edges));
    json_object_set_new(summary, "configs", json_integer(report->num_configs));
    json_object_set_new(summary, "runs", json_integer(report->num_runs));
    json_object_set_new(summary, "failed", json_integer(report->num_failed));
    json_object_set_new(summary, "not_run", json_integer(report->num_not_run));
    json_object_set_new(summary, "seconds", json_real(report->seconds));
    json_object_set_new(summary, "interrupted", json_boolean(report->is_interrupted));
    json_object_set_new(document, "schema", json_integer(1));
    json_object_set_new(document, "env", result_env_json());
    json_object_set_new(document, "verify", summary);
    json_object_set_new(document, "results", results);
    json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    fputc('\n', stdout);
    json_decref(document);
}

// ---- The command ------------------------------------------------------------------------------

// The number of threads without --threads.
static int default_threads(void) {
    tsr_context *ctx;
    if (tsr_context_create(NULL, &ctx) != TSR_OK) return 0;
    int num_threads = tsr_context_num_threads(ctx);
    tsr_context_destroy(ctx);
    return num_threads;
}

int command_verify(int argc, char **argv) {
    static const struct command_help help = {
        .name = "verify",
        .synopsis = "[options]",
        .summary = "Compares every operation, variant, dtype and instruction set with the "
                   "double-precision\noracle, element by element, against the derived error bound.",
        .notes =
            "err/bound is the largest ratio of an element's error to its bound; above 1 the result "
            "is wrong and the\nexit code 1. A case that does not fit into memory is not run, and "
            "the exit code is 4. Failed configurations\nare shown with the seed that repeats "
            "them.\nCtrl-C ends it with the results so far; a second Ctrl-C ends it at once.",
        .examples =
            "tessera verify --quick\ntessera verify --op softmax --configs 100 --edges near\n"
            "tessera verify --op matmul_forward --dtype bf16 --configs 0 --edges none --cases "
            "\"m=5 n=7 k=3 +bias\"",
    };
    struct verify_options with = {.progress = show_step};
    const char *device = NULL;
    int64_t configs = -1, seed = (int64_t)time(NULL), threads = 0;
    bool is_quick = false, is_long = false;
    enum { MARKDOWN, JSON, BITS };
    static const char *const formats[] = {"md", "json", "bits", NULL};
    static const char *const edges[] = {"all", "near", "none", NULL};
    int format = MARKDOWN, which_edges = VERIFY_EDGES_ALL;
    const struct option_spec options[] = {
        {"op", 0, "NAME",
         "only this operation (softmax) or pass (softmax_forward) (all operations)", OPTION_TEXT,
         &with.op, NULL, 0, 0},
        {"variant", 0, "V", "only this variant; '(default)' is the library's choice (all variants)",
         OPTION_TEXT, &with.variant, NULL, 0, 0},
        {"dtype", 0, "T", "only tensors of this dtype: f32, bf16, f16 (all three)", OPTION_TEXT,
         &with.dtype, NULL, 0, 0},
        {"isa", 0, "I",
         "only this instruction set: scalar, avx2, avx512 (all that the processor has)",
         OPTION_TEXT, &with.isa, NULL, 0, 0},
        {"device", 0, "D", "cpu, or cuda:N for the variants of that GPU (cpu)", OPTION_TEXT,
         &device, NULL, 0, 0},
        {"configs", 0, "N", "random configurations, in addition to the edge cases (5000)",
         OPTION_INT, &configs, NULL, 0, 1e9},
        {"edges", 0, "E",
         "edge cases; near leaves out tensors beyond 2^31 elements, about 10 GB each",
         OPTION_CHOICE, &which_edges, edges, 0, 0},
        {"cases", 0, "C;...",
         "further cases of --op, contiguous, in every dtype: \"m=5 n=7 +bias; m=0\"", OPTION_TEXT,
         &with.cases, NULL, 0, 0},
        {"quick", 0, NULL, "the same as --configs 900", OPTION_FLAG, &is_quick, NULL, 0, 0},
        {"long", 0, NULL, "the same as --configs 20000", OPTION_FLAG, &is_long, NULL, 0, 0},
        {"seed", 0, "N", "seed of the random configurations; it is printed (from the clock)",
         OPTION_INT, &seed, NULL, 0, 9e15},
        {"repeats", 0, "N",
         "runs of each case, half with other threads or streams; values must repeat (2, some "
         "cases)",
         OPTION_INT, &with.repeats, NULL, 1, 1e9},
        {"threads", 0, "N", "threads of each call (all CPUs)", OPTION_INT, &threads, NULL, 1, 4096},
        {"format", 0, "F", "output; bits prints hashes, which no compiler or flag may change",
         OPTION_CHOICE, &format, formats, 0, 0},
        {0},
    };
    int parsed = options_parse(&help, options, argc, argv, NULL);
    if (parsed >= 0) return parsed;
    parsed = device_parse("verify", device, &with.device);
    if (parsed >= 0) return parsed;
    if (with.cases != NULL && with.op == NULL)
        return usage_error("verify", "--cases needs --op, whose cases they are");
    if (configs < 0) configs = is_long ? CONFIGS_LONG : is_quick ? CONFIGS_QUICK : CONFIGS_NORMAL;
    struct progress progress;
    with.progress_user = &progress;
    with.edges = (enum verify_edges)which_edges;
    with.num_configs = configs;
    with.seed = (uint64_t)seed;
    with.is_hashed = format == BITS;
    with.num_threads = (int)threads;
    struct verify_report report;
    char error[768];
    progress_start(&progress, "verify", configs);
    signals_hold(true);
    bool is_run = verify_run(&with, &report, error, sizeof error);
    progress_end(&progress);
    if (!is_run) {
        int refused = report.lacks_memory ? EXIT_COULD_NOT_RUN : EXIT_USAGE;
        fprintf(stderr, "tessera verify: %s\n", error);
        verify_report_free(&report);
        return refused;
    }
    if (report.num_runs == 0) signals_end();
    if (format == JSON)
        verify_print_json(&report, seed, threads > 0 ? (int)threads : default_threads());
    else if (format == BITS)
        verify_print_bits(&report, (uint64_t)seed);
    else
        verify_print_markdown(&report, (uint64_t)seed);
    signals_end();
    int code = verify_exit_code(&report, "verify");
    verify_report_free(&report);
    return code;
}
