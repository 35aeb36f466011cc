// SPDX-License-Identifier: Apache-2.0
// tessera bench: any operation on any shapes, proved and measured.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cases.h"
#include "bench_peers.h"
#include "command.h"
#include "device_option.h"
#include "measure.h"
#include "progress.h"

enum { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH };
static const char *const passes[] = {"forward", "backward", "both", NULL};
static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
static const char *const formats[] = {"md", "csv", "json", "jsonl", NULL};

struct bench {
    struct measure_options measure;
    int pass, isa, format;
    int64_t threads, warmup, rep, seed;
    const char *variant, *dtype, *peer, *out, *device;
    tsr_dtype dtypes[TSR_DTYPE_COUNT];
    int num_dtypes;

    struct op_case *cases[BENCH_MAX_SPECS]; // of each operation selected
    int counts[BENCH_MAX_SPECS];

    struct measure_session *session;
    struct bench_peers peers;
    struct result_list results;
    struct progress progress;
    int64_t num_cases, num_done;
    int code; // the exit code so far
};

static const struct command_help help = {
    .name = "bench",
    .synopsis = "OP [options]",
    .summary =
        "Proves an operation on this machine, then measures it: median, p20, p80, TFLOP/s, GB/s, "
        "share of\nthe measured ceiling, speed-up over the baseline measured in turns with it, "
        "memory measured and predicted.",
    .notes =
        "Numbers take lists (512,1024) and sweeps (256:8192:x2, 256:1024:+256). Without sizes the\n"
        "operation's standard shapes are run. 'tessera bench OP --help' lists what OP takes.\n"
        "Peers are never required: what is missing is said, the rest is measured. $TESSERA_PYTHON\n"
        "names the Python that has torch; $TESSERA_OPENBLAS, $TESSERA_BLIS, $TESSERA_ONEDNN name\n"
        "files of libraries; $TESSERA_LIBRARY is the libtessera.so that runs beside torch.\n"
        "On a GPU torch's ways include torch.compile, but for $TESSERA_TORCH_COMPILE=0; ours "
        "beside\n"
        "is then the device's time, as is peer / ours.",
};

// ---- The command line -------------------------------------------------------------------------

static bool parse_dtypes(struct bench *bench) {
    char copy[256];
    struct text_list names;
    if (strlen(bench->dtype) >= sizeof copy ||
        !text_list_split(strcpy(copy, bench->dtype), &names)) {
        usage_error("bench", "--dtype is '%s', expected names with commas between", bench->dtype);
        return false;
    }
    for (int i = 0; i < names.count && i < TSR_DTYPE_COUNT; i++) {
        tsr_dtype dtype = tsr_dtype_from_name(names.items[i]);
        if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16) {
            usage_error("bench", "--dtype is '%s', expected f32, bf16 or f16", names.items[i]);
            return false;
        }
        bench->dtypes[bench->num_dtypes++] = dtype;
    }
    return true;
}

// The format by the file's name, where none is given.
static int format_of(const char *path) {
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    enum result_format format;
    return dot != NULL && result_format_parse(dot + 1, &format) ? (int)format : FORMAT_MD;
}

static bool is_an_operation(const char *name) {
    struct bench_selection selection = {.num_specs = 0};
    return bench_select(&selection, name);
}

// Which options there are depends on the operations, so those are looked for first.
static int parse(struct bench *bench, struct bench_selection *selection, int argc, char **argv) {
    static char notes[2048], names[512];
    for (int i = 1; i < argc; i++)
        if (is_an_operation(argv[i]) && (i == 1 || strcmp(argv[i - 1], "--out") != 0))
            bench_select(selection, argv[i]);
    struct option_spec rows[18 + BENCH_MAX_OPTIONS + 1] = {
        {"pass", 0, "P", "which of the operation's passes", OPTION_CHOICE, &bench->pass, passes, 0,
         0},
        {"variant", 0, "V,...", "variants by name, or all; else what the library chooses",
         OPTION_TEXT, &bench->variant, NULL, 0, 0},
        {"peer", 0, "P,...", bench_peers_help, OPTION_TEXT, &bench->peer, NULL, 0, 0},
        {"dtype", 0, "T,...", "f32, bf16, f16", OPTION_TEXT, &bench->dtype, NULL, 0, 0},
        {"device", 0, "D", "cpu, or cuda:N, by its events and by graphs (cpu)", OPTION_TEXT,
         &bench->device, NULL, 0, 0},
        {"threads", 0, "N", "threads (all CPUs)", OPTION_INT, &bench->threads, NULL, 1, 4096},
        {"isa", 0, "I", "instruction set", OPTION_CHOICE, &bench->isa, isas, 0, 0},
        {"cold", 0, NULL, "flush the caches before each sample", OPTION_FLAG,
         &bench->measure.is_cold, NULL, 0, 0},
        {"warmup", 0, "N", "calls before the first sample", OPTION_INT, &bench->warmup, NULL, 0,
         1e6},
        {"rep", 0, "N", "samples (as many as the budget allows)", OPTION_INT, &bench->rep, NULL, 1,
         1e6},
        {"budget", 0, "S", "seconds for each variant of a case (1)", OPTION_REAL,
         &bench->measure.budget_s, NULL, 0.001, 3600},
        {"seed", 0, "N", "of the inputs", OPTION_INT, &bench->seed, NULL, 0, 9e15},
        {"no-verify", 0, NULL, "measure without proving first (format md only)", OPTION_FLAG,
         &bench->measure.is_unproved, NULL, 0, 0},
        {"format", 0, "F", "output", OPTION_CHOICE, &bench->format, formats, 0, 0},
        {"out", 0, "FILE", "write there (format by its name, unless given)", OPTION_TEXT,
         &bench->out, NULL, 0, 0},
        {0},
    };
    int count = 0;
    while (rows[count].name != NULL) count++;
    count += bench_option_rows(selection, rows + count, BENCH_MAX_OPTIONS);
    rows[count] = (struct option_spec){0};
    snprintf(notes, sizeof notes, "%s\nOperations: %s.", help.notes,
             spec_commands_text(" ", names, sizeof names));
    struct command_help with = help;
    with.notes = notes;
    with.operands = spec_commands();
    struct text_list operands = {0};
    bench->format = -1;
    int code = options_parse(&with, rows, argc, argv, &operands);
    if (code >= 0) return code;

    if (operands.count == 0)
        return usage_error("bench", "no operation given, expected one of %s", names);
    bool is_exact = false; // softmax_backward says its pass itself
    for (int i = 0; i < operands.count; i++) {
        if (!is_an_operation(operands.items[i]))
            return usage_error("bench", "there is no operation '%s', expected one of %s",
                               operands.items[i], names);
        is_exact |= spec_find(operands.items[i]) != NULL;
    }
    if (!is_exact && bench->pass != PASS_BOTH && !bench_keep_pass(selection, passes[bench->pass]))
        return usage_error("bench", "%s has no %s pass", operands.items[0], passes[bench->pass]);
    code = device_parse("bench", bench->device, &bench->measure.device);
    if (code >= 0) return code;
    for (int i = 0; i < selection->num_specs; i++)
        if (!device_has_op(bench->measure.device, selection->specs[i]->op))
            return usage_error("bench", "%s has no variant for %s", selection->specs[i]->op,
                               bench->device);
    if (!parse_dtypes(bench)) return EXIT_USAGE;
    char error[256];
    bool is_on_cpu = bench->measure.device.type == TSR_CPU;
    if (!bench_peers_known(bench->peer, is_on_cpu, error, sizeof error))
        return usage_error("bench", "%s", error);
    if (bench->format < 0) bench->format = format_of(bench->out);
    if (bench->measure.is_unproved && bench->format != FORMAT_MD)
        return usage_error("bench",
                           "--no-verify is for tables that are read (md): results in %s state how "
                           "far they were proved",
                           formats[bench->format]);
    if (bench->out != NULL && !result_can_write(bench->out))
        return usage_error("bench", "--out is '%s', which cannot be written: %s", bench->out,
                           strerror(errno));
    bench->measure.num_threads = (int)bench->threads;
    bench->measure.num_warmup = bench->warmup > 0 ? (int)bench->warmup : 0;
    bench->measure.has_no_warmup = bench->warmup == 0;
    bench->measure.num_rep = (int)bench->rep;
    bench->measure.seed = (uint64_t)bench->seed;
    bench->measure.isa = (tsr_isa)bench->isa;
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

// Variants of `all`: every one but the oracle. Names stay in copy.
static int list_variants(const struct bench *bench, const struct op_spec *spec, char *copy,
                         size_t copy_bytes, const char **variants) {
    struct text_list names;
    int count = 0;
    if (bench->variant == NULL) return variants[0] = NULL, 1;
    if (strcmp(bench->variant, "all") != 0) {
        snprintf(copy, copy_bytes, "%s", bench->variant);
        if (!text_list_split(copy, &names)) return 0;
        for (; count < names.count && count < MEASURE_MAX_CONTENDERS; count++)
            variants[count] = names.items[count];
        return count;
    }
    tsr_variant_info info;
    for (int i = 0;
         count < MEASURE_MAX_CONTENDERS && tsr_variant_info_get(spec->op, i, &info) == TSR_OK; i++)
        if (!(info.flags & TSR_VARIANT_REFERENCE) &&
            device_has_variant(bench->measure.device, &info))
            variants[count++] = info.name;
    return count;
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
        progress_note(&bench->progress, "%s, %s: %s", case_text(c, text, sizeof text),
                      tsr_dtype_name(c->dtype), error);
}

// The baseline runs along for the speed-up, shown or not; peers after it.
static void run_case(struct bench *bench, const struct op_case *c) {
    enum { MOST = MEASURE_MAX_CONTENDERS };
    const char *variants[MOST + 1];
    struct measure_entry entries[MOST] = {0};
    struct result results[MOST];
    enum measure_outcome outcomes[MOST];
    char copy[256];
    bool is_all = bench->variant != NULL && strcmp(bench->variant, "all") == 0;
    int shown = list_variants(bench, c->spec, copy, sizeof copy, variants), ours = shown;
    const char *baseline = device_baseline(bench->measure.device, c->spec);
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
    if (shown == 0 || outcomes[0] != MEASURE_OK) return; // nothing of ours to set beside a peer
    int code = bench_peers_run(&bench->peers, bench->session, c, variants[0], &bench->results);
    if (bench->code == EXIT_FINE) bench->code = code;
}

// The cases of every operation, before the first is measured: a wrong option of the last one must not
// cost the results of the others.
static int build_cases(struct bench *bench, const struct bench_selection *selection) {
    char error[512];
    for (int i = 0; i < selection->num_specs; i++) {
        int count =
            bench_cases(selection, selection->specs[i], &bench->cases[i], error, sizeof error);
        if (count < 0) return usage_error("bench", "%s", error);
        bench->counts[i] = count;
        bench->num_cases += (int64_t)count * bench->num_dtypes;
    }
    return -1;
}

static void run_cases(struct bench *bench, struct op_case *cases, int count) {
    char text[256];
    for (int i = 0; i < count; i++)
        for (int d = 0; d < bench->num_dtypes; d++) {
            cases[i].dtype = cases[i].small_dtype = bench->dtypes[d];
            progress_step(&bench->progress, bench->num_done++,
                          case_text(&cases[i], text, sizeof text));
            run_case(bench, &cases[i]);
        }
}

static int measure_all(struct bench *bench, int num_specs) {
    char error[512];
    bench->session = measure_open(&bench->measure, error, sizeof error);
    if (bench->session == NULL) {
        fprintf(stderr, "tessera bench: %s\n", error);
        return bench->isa != TSR_ISA_AUTO ? EXIT_USAGE : EXIT_COULD_NOT_RUN;
    }
    progress_start(&bench->progress, "bench", bench->num_cases);
    bench_peers_open(&bench->peers, bench->peer, measure_machine(bench->session)->num_threads,
                     &bench->progress);
    for (int i = 0; i < num_specs; i++) run_cases(bench, bench->cases[i], bench->counts[i]);
    progress_end(&bench->progress);
    bench_peers_close(&bench->peers);
    measure_close(bench->session);
    bool is_empty = bench->results.count == 0;
    if (is_empty && bench->code == EXIT_FINE)
        return bench->peers.is_incomplete ? EXIT_SKIPPED : EXIT_COULD_NOT_RUN;
    if (!is_empty &&
        !result_write_file(bench->out, &bench->results, (enum result_format)bench->format))
        return EXIT_COULD_NOT_RUN;
    return bench->code;
}

int command_bench(int argc, char **argv) {
    struct bench bench = {.dtype = "f32", .warmup = -1, .seed = 1};
    struct bench_selection selection = {.num_specs = 0};
    int code = parse(&bench, &selection, argc, argv);
    if (code < 0) code = build_cases(&bench, &selection);
    if (code < 0) code = measure_all(&bench, selection.num_specs);
    for (int i = 0; i < BENCH_MAX_SPECS; i++) free(bench.cases[i]);
    result_list_free(&bench.results);
    return code;
}
