// SPDX-License-Identifier: Apache-2.0
// tessera memory: traffic and footprint of the forms of an operation, and their place on the roofline.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "commands/bench_walk.h"
#include "commands/command.h"
#include "measure/memory_rows.h"
#include "system/device_option.h"
#include "system/files.h"
#include "system/signals.h"

static const char *const formats[] = {"md", "csv", "json", NULL};

struct memory {
    struct bench_options options;
    const char *variant;

    struct bench_walk walk;
    struct measure_session *session;
    struct memory_rows rows;
    int code;
};

// ---- The command line -------------------------------------------------------------------------

static const struct command_help help = {
    .name = "memory",
    .synopsis = "OP... [options]",
    .summary = "Shows traffic and footprint of an operation's unfused form, its baseline, and of "
               "its fused form: launches, bytes read\nand written, arithmetic intensity, position "
               "on the roofline of this machine's measured ceilings, memory predicted\nand "
               "measured.",
    .notes =
        "Numbers take lists (512,1024) and sweeps (256:8192:x2). Without sizes the operation's "
        "standard shapes are run.\n'tessera memory OP --help' lists the options of OP.\n"
        "Ctrl-C ends it after the current case, and it writes the results so far; a second Ctrl-C "
        "ends it at once.",
    .examples = "tessera memory softmax --rows 1024 --cols 1024\n"
                "tessera memory attention --batch-size 1 --num-heads 2 --seqlen 256:1024:x2 "
                "--format csv --out memory.csv",
};

static int parse(struct memory *memory, int argc, char **argv) {
    const struct option_spec own[] = {
        {"variant", 0, "V,...",
         "names of variants, or all (the baseline and the library's choice; for attention all)",
         OPTION_TEXT, &memory->variant, NULL, 0, 0},
        {"rep", 0, "N", "samples of each variant (3)", OPTION_INT, &memory->options.rep, NULL, 1,
         1e6},
        {0},
    };
    int code = bench_options_parse(&memory->options, own, argc, argv);
    return code < 0 ? bench_check_variants(&memory->options, memory->variant) : code;
}

// ---- Running ----------------------------------------------------------------------------------

// The variants of --variant; without it the baseline and the library's choice, but for attention, whose variants differ
// mainly in memory, all except the oracle. The names lie in copy.
static int list_variants(const struct memory *memory, const struct op_spec *spec, char *copy,
                         size_t copy_bytes, const char **variants) {
    const char *asked = memory->variant;
    if (asked == NULL && strstr(spec->command, "attention") != NULL) asked = "all";
    if (asked != NULL)
        return bench_variants(&memory->options, spec, asked, copy, copy_bytes, variants);
    const char *baseline = device_baseline(memory->options.measure.device, spec);
    int count = 0;
    if (baseline != NULL) variants[count++] = baseline;
    variants[count++] = NULL;
    return count;
}

static void run_case(void *command, const struct op_case *c) {
    struct memory *memory = command;
    const char *variants[MEASURE_MAX_CONTENDERS];
    enum measure_outcome outcomes[MEASURE_MAX_CONTENDERS];
    char copy[256], text[256];
    int count = list_variants(memory, c->spec, copy, sizeof copy, variants);
    memory_rows_add(&memory->rows, memory->session, c, variants, count, outcomes);
    for (int i = 0; i < count; i++) {
        if (outcomes[i] == MEASURE_OK) continue;
        progress_note(&memory->walk.progress, "%s, %s: %s", case_text(c, text, sizeof text),
                      tsr_dtype_name(c->dtype), measure_error_of(memory->session, i));
        bool is_named = memory->variant != NULL && strcmp(memory->variant, "all") != 0;
        if (outcomes[i] == MEASURE_INVALID) memory->code = EXIT_USAGE;
        if (outcomes[i] == MEASURE_UNSUPPORTED && is_named && memory->code == EXIT_FINE)
            memory->code = EXIT_COULD_NOT_RUN;
    }
}

static bool write_rows(FILE *out, const void *what) {
    const struct memory *memory = what;
    return memory_rows_write(out, &memory->rows, (enum result_format)memory->options.format);
}

static int measure_all(struct memory *memory) {
    int code;
    memory->session = bench_open(&memory->options, &code);
    if (memory->session == NULL) return code;
    progress_start(&memory->walk.progress, "memory", memory->walk.num_cases);
    bench_walk_run(&memory->walk, run_case, memory);
    progress_end(&memory->walk.progress);
    measure_close(memory->session);
    code = memory->code;
    if (memory->rows.count == 0 && code == EXIT_FINE) code = EXIT_COULD_NOT_RUN;
    if (memory->rows.count > 0 && !file_write(memory->options.out, write_rows, memory))
        return EXIT_COULD_NOT_RUN;
    signals_end();
    return code;
}

int command_memory(int argc, char **argv) {
    struct memory memory = {
        .options = BENCH_OPTIONS(.help = &help, .formats = formats, .has_no_timing = true)};
    memory.options.rep = 3;
    memory.options.measure.is_unproved = true; // verify and bench check results
    int code = parse(&memory, argc, argv);
    if (code < 0) code = bench_walk_build(&memory.walk, &memory.options);
    if (code < 0) code = measure_all(&memory);
    bench_walk_free(&memory.walk);
    memory_rows_free(&memory.rows);
    return code;
}
