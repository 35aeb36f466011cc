// SPDX-License-Identifier: Apache-2.0
// tessera compare OP: times the library's choice and every other variant of the CPU that serves the case, in turns. Small
// cases take microseconds, so the overhead of a call counts too. A pair is a few calls of one variant right after a few
// of the other. The median of the pairs' ratios decides: pairs are added until its confidence interval lies on one side
// of the limit.
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/bench_walk.h"
#include "commands/command.h"
#include "files/compare_runs.h"
#include "measure/measure_session.h"
#include "system/device_option.h"
#include "system/files.h"
#include "system/heap.h"
#include "system/signals.h"

static const char *const formats[] = {"md", NULL};
static const char *const fallback[] = {"softmax", "layernorm", "rmsnorm",          "activation",
                                       "matmul",  "attention", "attention-decode", NULL};

enum { MIN_PAIRS = 9, MAX_PAIRS = 1001, WARM_CALLS = 3, CLEAR_PAIRS = 5, AGAIN = 4 };
static const double sample_seconds = 20e-6; // shorter calls are timed several at once
static const double clear_ratio = 1.3;      // if all first pairs exceed it, no more are needed
static const double stable = 0.03;          // a median below the limit needs a shorter interval
static const double deviations = 1.3;       // half the 99 % interval is this times sqrt(pairs)

struct compare {
    struct bench_options options;
    double limit, budget_s, slower;
    bool has_all;

    struct bench_walk walk;
    tsr_context *ctx;
    FILE *out;
    int64_t num_pairs, num_below;
    double lowest;
    int code;
};

static const struct command_help help = {
    .name = "compare",
    .synopsis = "A B [options] | [OP...] [options]",
    .summary =
        "compare A B shows what became slower, faster or wrong between two runs (the JSON of "
        "bench, a report's folder or its\nresults.json); changes within the scatter of the samples "
        "do not count. It takes --slower, --all and --out.\n"
        "compare OP times the library's choice and every other variant of the CPU in turns, until "
        "the median of the ratios of\ntheir times is stable, and shows where the choice is "
        "slower.\n"
        "The exit code is 1 if something is slower or wrong.",
    .notes =
        "A case of B is slower if its median is more than --slower times that of A and its fast "
        "samples (p20) are slower than\nA's slow ones (p80). Any other change is noise. Runs of "
        "different machines are not compared: exit code 3.\n"
        "Without an operation: softmax, layernorm, rmsnorm, activation, matmul, attention, "
        "attention-decode. Numbers take lists\n(1,3,16) and sweeps (1:4096:x2). The ratio is the "
        "variant's time divided by the choice's.\n"
        "'tessera compare OP --help' lists the options of OP. Ctrl-C ends it after the current "
        "case, and it writes the results\nso far; a second Ctrl-C ends it at once.",
    .examples = "tessera bench softmax --rows 512 --cols 512 --format json --out before.json\n"
                "tessera bench softmax --rows 512 --cols 512 --format json --out now.json\n"
                "tessera compare before.json now.json --slower 2 --all\n"
                "tessera compare matmul --m 64 --n 64 --k 64 --all --limit 0.5",
};

// ---- The command line -------------------------------------------------------------------------

static int parse(struct compare *compare, int argc, char **argv) {
    const struct option_spec own[] = {
        {"limit", 0, "R", "OP: the choice counts as slower below this ratio (0.97)", OPTION_REAL,
         &compare->limit, NULL, 0.1, 2},
        {"budget", 0, "S", "OP: seconds for each pair of variants (0.5)", OPTION_REAL,
         &compare->budget_s, NULL, 0.001, 3600},
        {"all", 0, NULL, "show every case, not only those that differ", OPTION_FLAG,
         &compare->has_all, NULL, 0, 0},
        {"slower", 0, "R", "A B: a case counts as slower above this ratio of the medians (1.05)",
         OPTION_REAL, &compare->slower, NULL, 1, 100},
        {0},
    };
    compare->options.pass = PASS_BOTH;
    int code = bench_options_parse(&compare->options, own, argc, argv);
    if (code < 0 && compare->slower > 0)
        code = usage_error("compare", "--slower is for two runs: compare A B");
    return code;
}

// ---- A pair of variants -----------------------------------------------------------------------

struct contest {
    double ratios[MAX_PAIRS]; // ascending after median()
    double first_s[MAX_PAIRS];
    int count;
    double median, low, high; // of the ratios
};

static bool run(struct compare *compare, const struct op_case *c, const char *variant, int calls) {
    for (int i = 0; i < calls; i++)
        if (c->spec->call(compare->ctx, c, variant, NULL, 0, NULL) != TSR_OK) return false;
    return true;
}

static double time_calls(struct compare *compare, const struct op_case *c, const char *variant,
                         int calls) {
    run(compare, c, variant, 1); // reloads the caches after the other variant
    double start = seconds_now();
    run(compare, c, variant, calls);
    return (seconds_now() - start) / calls;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

static void find_interval(struct contest *contest) {
    int middle = contest->count / 2, reach = (int)ceil(deviations * sqrt(contest->count));
    int low = middle > reach ? middle - reach : 0;
    int high = middle + reach < contest->count ? middle + reach : contest->count - 1;
    contest->median = median_of(contest->ratios, contest->count);
    contest->low = contest->ratios[low];
    contest->high = contest->ratios[high];
}

static bool is_decided(const struct compare *compare, const struct contest *contest) {
    if (contest->count == CLEAR_PAIRS && contest->ratios[0] > clear_ratio) return true;
    if (contest->count < MIN_PAIRS) return false;
    if (contest->low >= compare->limit) return true;
    return contest->high < compare->limit && contest->high - contest->low < stable;
}

static int calls_of(double seconds) {
    return seconds < sample_seconds ? (int)ceil(sample_seconds / fmax(seconds, 1e-8)) : 1;
}

static void run_contest(struct compare *compare, const struct op_case *c, const char *variant,
                        double budget_s, struct contest *contest) {
    contest->count = 0;
    run(compare, c, NULL, WARM_CALLS);
    double choice = time_calls(compare, c, NULL, 1), start = seconds_now();
    double other = time_calls(compare, c, variant, 1);
    int calls = calls_of(choice), other_calls = calls_of(other);
    while (contest->count < MAX_PAIRS) {
        bool is_first = contest->count % 2 == 0; // the two variants take turns in being first
        if (is_first) choice = time_calls(compare, c, NULL, calls);
        other = time_calls(compare, c, variant, other_calls);
        if (!is_first) choice = time_calls(compare, c, NULL, calls);
        contest->first_s[contest->count] = choice;
        contest->ratios[contest->count++] = other / choice;
        find_interval(contest);
        if (is_decided(compare, contest)) return;
        bool is_over = seconds_now() - start > budget_s;
        if (is_over && contest->count >= CLEAR_PAIRS) return;
    }
}

// ---- A case -----------------------------------------------------------------------------------

static void write_row(struct compare *compare, const struct op_case *c, const char *choice,
                      const char *variant, struct contest *contest) {
    char text[256];
    double microseconds = 1e6 * median_of(contest->first_s, contest->count);
    fprintf(compare->out, "| %s | %s | %s | %s | %.3g | %s | %.3f | %.3f | %.3f | %d |\n",
            c->spec->op, case_text(c, text, sizeof text), tsr_dtype_name(c->dtype), choice,
            microseconds, variant, contest->median, contest->low, contest->high, contest->count);
    fflush(compare->out);
}

static void run_variants(struct compare *compare, const struct op_case *c) {
    static struct contest contest;
    char choice[64];
    tsr_variant_info info;
    if (!run(compare, c, NULL, 1)) {
        progress_note(&compare->walk.progress, "%s", tsr_last_error());
        compare->code = EXIT_COULD_NOT_RUN;
        return;
    }
    snprintf(choice, sizeof choice, "%s", tsr_context_last_variant(compare->ctx));
    for (int i = 0; tsr_variant_info_get(c->spec->op, i, &info) == TSR_OK; i++) {
        if ((info.flags & TSR_VARIANT_REFERENCE) || strcmp(info.name, choice) == 0) continue;
        if (!device_has_variant(compare->options.measure.device, &info)) continue;
        if (!run(compare, c, info.name, 1)) continue; // it does not serve this case
        run_contest(compare, c, info.name, compare->budget_s, &contest);
        if (contest.median <
            compare->limit) // again and for longer, in case a neighbour disturbed the first time
            run_contest(compare, c, info.name, AGAIN * compare->budget_s, &contest);
        bool is_below = contest.median < compare->limit;
        compare->num_pairs++;
        compare->num_below += is_below;
        compare->lowest = fmin(compare->lowest, contest.median);
        if (is_below || compare->has_all) write_row(compare, c, choice, info.name, &contest);
    }
}

static void run_case(void *command, const struct op_case *c) {
    struct compare *compare = command;
    struct inputs inputs;
    if (allocation_fits(inputs_bytes(c), allocation_available()) &&
        inputs_create(&inputs, c, compare->options.measure.seed)) {
        run_variants(compare, &inputs.c);
        inputs_release(&inputs);
        return;
    }
    progress_note(&compare->walk.progress, "%s: no memory for the tensors", c->spec->op);
    compare->code = EXIT_COULD_NOT_RUN;
}

// ---- All of it --------------------------------------------------------------------------------

static void write_sum(struct compare *compare) {
    bool is_whole = compare->walk.num_done == compare->walk.num_cases;
    fputc('\n', compare->out);
    if (!is_whole)
        fprintf(compare->out, "interrupted after %lld of ", (long long)compare->walk.num_done);
    fprintf(compare->out,
            "%lld cases, %lld pairs, %lld below %.3g; the lowest ratio is %.3f. %s, %d threads.\n",
            (long long)compare->walk.num_cases, (long long)compare->num_pairs,
            (long long)compare->num_below, compare->limit,
            compare->num_pairs > 0 ? compare->lowest : 1.0,
            tsr_isa_name(tsr_context_isa(compare->ctx)), tsr_context_num_threads(compare->ctx));
}

// Rows are printed one by one; an output file is replaced at the end.
static int compare_all(struct compare *compare) {
    const char *path = compare->options.out;
    char *text = NULL;
    size_t bytes;
    compare->out = path != NULL ? heap_stream(&text, &bytes) : stdout;
    fputs("| operation | case | dtype | choice | us | variant | ratio | low | high | pairs "
          "|\n|---|---|---|---|--:|---|--:|--:|--:|--:|\n",
          compare->out);
    progress_start(&compare->walk.progress, "compare", compare->walk.num_cases);
    bench_walk_run(&compare->walk, run_case, compare);
    progress_end(&compare->walk.progress);
    write_sum(compare);
    if (path != NULL) heap_stream_end(compare->out);
    bool is_written = path == NULL || file_write_text(path, text);
    free(text);
    if (!is_written) return EXIT_COULD_NOT_RUN;
    signals_end();
    return compare->code == EXIT_FINE && compare->num_below > 0 ? EXIT_WRONG : compare->code;
}

static int compare_in_context(struct compare *compare) {
    const struct measure_options *measure = &compare->options.measure;
    tsr_status status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = measure->isa,
                                                                .num_threads = measure->num_threads,
                                                                .tuning_file = "/dev/null"),
                                           &compare->ctx);
    if (status != TSR_OK) {
        fprintf(stderr, "tessera compare: %s\n", tsr_last_error());
        return EXIT_COULD_NOT_RUN;
    }
    int code = compare_all(compare);
    tsr_context_destroy(compare->ctx);
    return code;
}

int command_compare(int argc, char **argv) {
    struct compare compare = {
        .options = BENCH_OPTIONS(.help = &help, .formats = formats, .fallback = fallback,
                                 .has_no_timing = true, .is_on_cpu_only = true),
        .limit = 0.97,
        .budget_s = 0.5,
        .lowest = INFINITY,
    };
    if (compare_runs_asked(argc, argv)) return compare_runs(argc, argv, &help);
    int code = parse(&compare, argc, argv);
    if (code < 0) code = bench_walk_build(&compare.walk, &compare.options);
    if (code < 0) code = compare_in_context(&compare);
    bench_walk_free(&compare.walk);
    return code;
}
