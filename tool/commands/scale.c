// SPDX-License-Identifier: Apache-2.0
// tessera scale: shows how the time of an operation grows with its batch, its problem and the threads.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "commands/bench_options.h"
#include "commands/command.h"
#include "measure/scaling.h"
#include "system/progress.h"
#include "system/signals.h"

static const char *const formats[] = {"md", "csv", "json", "jsonl", NULL};
static const char *const fallback[] = {"attention", "matmul", NULL};

enum { MAX_BATCH = 16, MAX_PROBLEM = 8 }; // default sweeps: up to this many times the first size

struct scale {
    struct bench_options options;
    const char *variant, *over;
    bool has_apart;
    struct numbers times;
    bool is_wanted[SCALING_NUM_STUDIES];

    struct op_case *cases[BENCH_MAX_SPECS]; // where sweeps start
    int counts[BENCH_MAX_SPECS];

    struct measure_session *session; // of all threads
    struct measure_session *threads[MEASURE_MAX_THREADS];
    int num_threads; // number of sessions in threads: for 1, 2, 4, ... all threads
    struct result_list results;
    struct progress progress;
    int64_t num_cases, num_done;
    int code;
};

static const struct command_help help = {
    .name = "scale",
    .synopsis = "[OP...] [options]",
    .summary =
        "Measures how an operation (attention and matmul by default) scales with its batch (1 to "
        "16 times), with the problem\n(1 to 8 times) and with threads (1 to all). Efficiency is "
        "the work per second divided by that of the sweep's first\nrow; over threads, divided "
        "also by the number of threads.",
    .notes =
        "The batch is batch_size, batch, rows or tokens. The problem is the sequence length, for "
        "matmul m, for rows their length.\nGiven sizes are those of a sweep's first row, and may "
        "be lists and sweeps themselves. The work of attention grows with\nthe square of the "
        "sequence length: efficiency is by work, not by tokens.\n"
        "The numbers of threads are measured in turns. With --apart, the column of that name has "
        "the efficiency of as many\ncontexts of one thread each with tensors of their own: the "
        "limit that clocks, caches and memory set for any library.\n"
        "'tessera scale OP --help' lists the options of OP.\n"
        "Ctrl-C ends it after the current case, and it writes the results so far; a second Ctrl-C "
        "ends it at once.",
    .examples = "tessera scale softmax --rows 64 --cols 512 --over batch --times 1:4:x2\n"
                "tessera scale matmul --m 128 --n 256 --k 256 --over threads",
};

// ---- The command line -------------------------------------------------------------------------

static int parse_over(struct scale *scale) {
    bool is_on_cpu = scale->options.measure.device.type == TSR_CPU;
    char copy[64];
    struct text_list names;
    for (int s = 0; scale->over == NULL && s < SCALING_NUM_STUDIES; s++)
        scale->is_wanted[s] = s != SCALING_THREADS || is_on_cpu;
    if (scale->over == NULL) return -1;
    bool is_list =
        strlen(scale->over) < sizeof copy && text_list_split(strcpy(copy, scale->over), &names);
    for (int i = 0; is_list && i < names.count; i++) {
        int s = 0;
        while (s < SCALING_NUM_STUDIES && strcmp(scaling_names[s], names.items[i]) != 0) s++;
        is_list = s < SCALING_NUM_STUDIES;
        if (is_list) scale->is_wanted[s] = true;
    }
    if (!is_list)
        return usage_error("scale", "--over is '%s', expected batch, problem or threads",
                           scale->over);
    if (scale->is_wanted[SCALING_THREADS] && !is_on_cpu)
        return usage_error("scale",
                           "--over is '%s': only the CPU has threads, expected batch or "
                           "problem for %s",
                           scale->over, scale->options.device);
    return -1;
}

static int parse(struct scale *scale, int argc, char **argv) {
    const struct option_spec own[] = {
        {"over", 0, "S,...", "batch, problem, threads (all that the device has)", OPTION_TEXT,
         &scale->over, NULL, 0, 0},
        {"times", 0, "N,...", "multiples of batch and problem (1:16:x2, 1:8:x2)", OPTION_NUMBERS,
         &scale->times, NULL, 0, 0},
        {"apart", 0, NULL, "over threads: also measure as many single-threaded calls at once",
         OPTION_FLAG, &scale->has_apart, NULL, 0, 0},
        {"variant", 0, "V", "name of a variant (the library's choice for each case)", OPTION_TEXT,
         &scale->variant, NULL, 0, 0},
        {0},
    };
    scale->options.pass = PASS_BOTH;
    int code = bench_options_parse(&scale->options, own, argc, argv);
    if (code < 0) code = parse_over(scale);
    for (int i = 0; code < 0 && i < scale->times.count; i++) {
        double times = scale->times.values[i];
        if (!(times >= 1 && times <= 1 << 20 && times == (int)times))
            code = usage_error("scale", "--times has %.10g, expected whole numbers from 1", times);
    }
    return code;
}

static int build_cases(struct scale *scale) {
    const struct bench_selection *selection = &scale->options.selection;
    char error[512];
    for (int i = 0; i < selection->num_specs; i++) {
        const char *const base[] = {scaling_base(selection->specs[i]), NULL};
        scale->counts[i] = bench_cases(selection, selection->specs[i], base, &scale->cases[i],
                                       error, sizeof error);
        if (scale->counts[i] < 0) return usage_error("scale", "%s", error);
    }
    return -1;
}

// ---- Measuring --------------------------------------------------------------------------------

static void add(struct scale *scale, struct result *result, enum measure_outcome outcome,
                enum scaling_study study, const char *step, const char *sentence) {
    result->study = scaling_names[study];
    if (outcome == MEASURE_OK) {
        result_add(&scale->results, result);
        return;
    }
    progress_note(&scale->progress, "%s: %s", step, sentence);
    if (scale->code == EXIT_WRONG) return; // it outweighs the other codes
    scale->code = outcome == MEASURE_WRONG     ? EXIT_WRONG
                  : outcome == MEASURE_INVALID ? EXIT_USAGE
                                               : EXIT_COULD_NOT_RUN;
}

// Measures one size of a sweep over sizes, or a whole sweep over threads, in turns.
static void measure(struct scale *scale, const struct op_case *c, enum scaling_study study) {
    char text[256], step[320];
    struct result results[MEASURE_MAX_THREADS];
    enum measure_outcome outcomes[MEASURE_MAX_THREADS];
    bool is_over_threads = study == SCALING_THREADS;
    snprintf(step, sizeof step, "%s %s %s", c->spec->op, tsr_dtype_name(c->dtype),
             case_text(c, text, sizeof text));
    progress_step(&scale->progress, scale->num_done++, step);
    if (is_over_threads)
        measure_threads(scale->threads, scale->num_threads, c, scale->variant, scale->has_apart,
                        results, outcomes);
    else
        measure_variants(scale->session, c, &(const char *){scale->variant}, 1, results, outcomes);
    const struct measure_session *told = is_over_threads ? scale->threads[0] : scale->session;
    for (int i = 0; i < (is_over_threads ? scale->num_threads : 1); i++)
        add(scale, &results[i], outcomes[i], study, step, measure_error_of(told, i));
    for (int i = 1; is_over_threads && scale->has_apart && i < scale->num_threads; i++) {
        const char *sentence = measure_error_of(told, scale->num_threads + i - 1);
        if (*sentence == '\0') continue;
        progress_note(&scale->progress, "%s: %s", step, sentence);
        if (scale->code == EXIT_FINE) scale->code = EXIT_COULD_NOT_RUN;
    }
}

// If session is NULL, this only counts the cases.
static void run_sizes(struct scale *scale, const struct op_case *first, enum scaling_study study) {
    int most = study == SCALING_BATCH ? MAX_BATCH : study == SCALING_PROBLEM ? MAX_PROBLEM : 1;
    bool has_list = study != SCALING_THREADS && scale->times.count > 0;
    for (int i = 0, times = 1; has_list ? i < scale->times.count : times <= most; i++, times *= 2) {
        struct op_case c;
        bool is_one =
            scaling_case(first, study, has_list ? (int)scale->times.values[i] : times, &c);
        if (!is_one && study != SCALING_THREADS) return;
        if (scale->session == NULL)
            scale->num_cases++;
        else if (signals_seen() == 0)
            measure(scale, &c, study);
    }
}

static void run(struct scale *scale) {
    for (int i = 0; i < scale->options.selection.num_specs; i++)
        for (int k = 0; k < scale->counts[i]; k++)
            for (int d = 0; d < scale->options.num_dtypes; d++) {
                struct op_case first = scale->cases[i][k];
                first.dtype = first.small_dtype = scale->options.dtypes[d];
                for (int s = 0; s < SCALING_NUM_STUDIES; s++)
                    if (scale->is_wanted[s]) run_sizes(scale, &first, (enum scaling_study)s);
            }
}

// Opens a session for each number of threads. The one with all threads comes first, because it knows their number.
// Returns -1, or the exit code.
static int open_sessions(struct scale *scale) {
    struct bench_options fewer = scale->options;
    int code;
    scale->session = bench_open(&scale->options, &code);
    if (scale->session == NULL) return code;
    int all = measure_machine(scale->session)->num_threads;
    for (int n = 1; scale->is_wanted[SCALING_THREADS] && n > 0; n = scaling_next_threads(n, all)) {
        struct measure_session **own = &scale->threads[scale->num_threads++];
        fewer.measure.num_threads = n;
        *own = n == all ? scale->session : bench_open(&fewer, &code);
        if (*own == NULL) return code;
    }
    return -1;
}

static void close_sessions(struct scale *scale) {
    for (int i = 0; i < scale->num_threads; i++)
        if (scale->threads[i] != scale->session) measure_close(scale->threads[i]);
    measure_close(scale->session);
}

static int measure_all(struct scale *scale) {
    run(scale);
    int code = open_sessions(scale);
    if (code >= 0) return code;
    progress_start(&scale->progress, "scale", scale->num_cases);
    signals_hold(true);
    run(scale);
    progress_end(&scale->progress);
    if (scale->results.count == 0) signals_end();
    if (scale->results.count == 0)
        return scale->code == EXIT_FINE ? EXIT_COULD_NOT_RUN : scale->code;
    scaling_finish(&scale->results);
    bool is_written = result_write_file(scale->options.out, &scale->results,
                                        (enum result_format)scale->options.format);
    if (is_written) signals_end();
    return is_written ? scale->code : EXIT_COULD_NOT_RUN;
}

int command_scale(int argc, char **argv) {
    struct scale scale = {
        .options = BENCH_OPTIONS(.help = &help, .formats = formats, .fallback = fallback)};
    int code = parse(&scale, argc, argv);
    if (code < 0) code = build_cases(&scale);
    if (code < 0) code = measure_all(&scale);
    close_sessions(&scale);
    for (int i = 0; i < BENCH_MAX_SPECS; i++) free(scale.cases[i]);
    result_list_free(&scale.results);
    return code;
}
