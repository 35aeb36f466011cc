// SPDX-License-Identifier: Apache-2.0
// tessera bench: verifies and measures any operation on any shapes.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "commands/bench_walk.h"
#include "commands/command.h"
#include "measure/measure.h"
#include "peers/bench_peers.h"
#include "system/device_option.h"
#include "system/signals.h"

static const char *const formats[] = {"md", "csv", "json", "jsonl", NULL};

struct bench {
    struct bench_options options;
    const char *variant, *peer;

    struct bench_walk walk;
    struct measure_session *session;
    struct bench_peers peers;
    struct result_list results;
    int code; // the exit code so far
};

static const struct command_help help = {
    .name = "bench",
    .synopsis = "OP [options]",
    .summary =
        "Verifies an operation on this machine, then measures it: median, p20 and p80 of the time, "
        "TFLOP/s, GB/s,\nshare of the measured ceiling, speed-up over the baseline (in turns with "
        "it), memory measured and predicted.",
    .notes =
        "Numbers take lists (512,1024) and sweeps (256:8192:x2, 256:1024:+256). Without sizes the\n"
        "operation's standard shapes are run. 'tessera bench OP --help' lists the options of OP.\n"
        "Peers are optional: bench names those that are missing and measures the others.\n"
        "$TESSERA_PYTHON names the Python that has torch; it imports nothing from the current "
        "directory.\n"
        "$TESSERA_OPENBLAS, $TESSERA_BLIS, $TESSERA_ONEDNN name the files of these libraries,\n"
        "$TESSERA_LIBRARY the libtessera.so that runs in torch's process.\n"
        "On a GPU torch.compile is one of torch's contenders, unless $TESSERA_TORCH_COMPILE=0.\n"
        "The column 'ours' is then the device's time, and 'peer / ours' compares it with the "
        "peer's.\n"
        "Ctrl-C ends a bench after the current case, and it writes the results so far; a second "
        "Ctrl-C ends it at once.",
    .examples =
        "tessera bench softmax\n"
        "tessera bench softmax --rows 4096 --cols 256:4096:x2 --dtype f32,bf16 --variant all\n"
        "tessera bench attention --batch-size 2 --num-heads 4 --seqlen 512 --head-dim 64 "
        "--mask causal --pass both\n"
        "tessera bench matmul --m 512 --n 512 --k 512 --format json --out matmul.json",
};

// ---- The command line -------------------------------------------------------------------------

static int parse(struct bench *bench, int argc, char **argv) {
    const struct option_spec own[] = {
        {"variant", 0, "V,...", "names of variants, or all (the library's choice)", OPTION_TEXT,
         &bench->variant, NULL, 0, 0},
        {"peer", 0, "P,...", bench_peers_help, OPTION_TEXT, &bench->peer, NULL, 0, 0},
        {0},
    };
    char error[256];
    int code = bench_options_parse(&bench->options, own, argc, argv);
    if (code < 0) code = bench_check_variants(&bench->options, bench->variant);
    if (code >= 0) return code;
    bool is_on_cpu = bench->options.measure.device.type == TSR_CPU;
    if (!bench_peers_known(bench->peer, is_on_cpu, error, sizeof error))
        return usage_error("bench", "%s", error);
    return -1;
}

// ---- Running ----------------------------------------------------------------------------------

static void raise_code(struct bench *bench, enum measure_outcome outcome, bool is_optional) {
    int code = outcome == MEASURE_WRONG     ? EXIT_WRONG
               : outcome == MEASURE_INVALID ? EXIT_USAGE
                                            : EXIT_COULD_NOT_RUN;
    if (outcome == MEASURE_OK || (is_optional && code == EXIT_COULD_NOT_RUN)) return;
    if (bench->code != EXIT_WRONG) bench->code = code; // a wrong result outweighs the rest
}

static void add_result(struct bench *bench, const struct op_case *c, int index,
                       enum measure_outcome outcome, const struct result *result) {
    char text[256];
    const char *error = measure_error_of(bench->session, index);
    if (result->peer != NULL && outcome != MEASURE_OK) {
        int code = bench_peers_failed(&bench->peers, c, result->peer, outcome, error);
        if (bench->code == EXIT_FINE) bench->code = code;
        return;
    }
    if (outcome == MEASURE_OK || outcome == MEASURE_WRONG) result_add(&bench->results, result);
    if (outcome != MEASURE_OK)
        progress_note(&bench->walk.progress, "%s, %s: %s", case_text(c, text, sizeof text),
                      tsr_dtype_name(c->dtype), error);
}

// The baseline always runs too, for the speed-up, even if it is not shown; peers run after it.
static void run_case(void *command, const struct op_case *c) {
    struct bench *bench = command;
    enum { MOST = MEASURE_MAX_CONTENDERS };
    const char *variants[MOST + 1];
    struct measure_entry entries[MOST] = {0};
    struct result results[MOST];
    enum measure_outcome outcomes[MOST];
    char copy[256];
    bool is_all = bench->variant != NULL && strcmp(bench->variant, "all") == 0;
    int shown =
            bench_variants(&bench->options, c->spec, bench->variant, copy, sizeof copy, variants),
        ours = shown;
    const char *baseline = device_baseline(bench->options.measure.device, c->spec);
    bool has_baseline = baseline == NULL || ours == MOST;
    for (int i = 0; i < ours; i++) has_baseline |= spec_is_baseline(c->spec, variants[i]);
    if (!has_baseline) variants[ours++] = baseline;
    for (int i = 0; i < ours; i++) entries[i].variant = variants[i];
    int count = bench_peers_enter(&bench->peers, c, entries, ours, MOST);
    measure_entries(bench->session, c, entries, count, results, outcomes);
    for (int i = 0; i < count; i++) {
        if (i >= shown && i < ours) continue;
        if (i < shown) raise_code(bench, outcomes[i], is_all);
        add_result(bench, c, i, outcomes[i], &results[i]);
    }
    if (shown == 0 || outcomes[0] != MEASURE_OK) return; // no result of ours to compare with a peer
    int code = bench_peers_run(&bench->peers, bench->session, c, variants[0], &bench->results);
    if (bench->code == EXIT_FINE) bench->code = code;
}

static int measure_all(struct bench *bench) {
    int code;
    bench->session = bench_open(&bench->options, &code);
    if (bench->session == NULL) return code;
    progress_start(&bench->walk.progress, "bench", bench->walk.num_cases);
    bench_peers_open(&bench->peers, bench->peer, measure_machine(bench->session)->num_threads,
                     &bench->walk.progress);
    bench_walk_run(&bench->walk, run_case, bench);
    progress_end(&bench->walk.progress);
    bench_peers_close(&bench->peers);
    measure_close(bench->session);
    bool is_empty = bench->results.count == 0;
    if (is_empty) signals_end();
    if (is_empty && bench->code == EXIT_FINE)
        return bench->peers.is_incomplete ? EXIT_SKIPPED : EXIT_COULD_NOT_RUN;
    if (!is_empty && !result_write_file(bench->options.out, &bench->results,
                                        (enum result_format)bench->options.format))
        return EXIT_COULD_NOT_RUN;
    signals_end();
    return bench->code;
}

int command_bench(int argc, char **argv) {
    struct bench bench = {.options = BENCH_OPTIONS(.help = &help, .formats = formats)};
    int code = parse(&bench, argc, argv);
    if (code < 0) code = bench_walk_build(&bench.walk, &bench.options);
    if (code < 0) code = measure_all(&bench);
    bench_walk_free(&bench.walk);
    result_list_free(&bench.results);
    return code;
}
