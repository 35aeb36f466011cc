// SPDX-License-Identifier: Apache-2.0
// tessera memory: what the forms of an operation move and take, and where the roofline puts them.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cases.h"
#include "command.h"
#include "device_option.h"
#include "memory_rows.h"
#include "progress.h"

enum { PASS_BOTH = 2 };
static const char *const passes[] = {"forward", "backward", "both", NULL};
static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
static const char *const formats[] = {"md", "csv", "json", NULL};

struct memory {
    struct measure_options measure;
    int pass, isa, format;
    int64_t threads, rep, seed;
    const char *variant, *dtype, *out, *device;
    tsr_dtype dtypes[TSR_DTYPE_COUNT];
    int num_dtypes;

    struct measure_session *session;
    struct memory_rows rows;
    struct progress progress;
    int64_t num_cases, num_done;
    int code;
};

// ---- The command line -------------------------------------------------------------------------

static const struct command_help help = {
    .name = "memory",
    .synopsis = "OP... [options]",
    .summary = "Traffic and footprint of an operation's unfused form, its baseline, and of the "
               "fused one: launches, bytes read\nand written, arithmetic intensity, the place "
               "under this machine's measured ceilings, bytes predicted and measured.",
};

static bool is_an_operation(const char *name) {
    struct bench_selection selection = {.num_specs = 0};
    return bench_select(&selection, name);
}

static bool parse_dtypes(struct memory *memory) {
    char copy[256];
    struct text_list names;
    if (strlen(memory->dtype) >= sizeof copy ||
        !text_list_split(strcpy(copy, memory->dtype), &names)) {
        usage_error("memory", "--dtype is '%s', expected names with commas between", memory->dtype);
        return false;
    }
    for (int i = 0; i < names.count && i < TSR_DTYPE_COUNT; i++) {
        tsr_dtype dtype = tsr_dtype_from_name(names.items[i]);
        if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16) {
            usage_error("memory", "--dtype is '%s', expected f32, bf16 or f16", names.items[i]);
            return false;
        }
        memory->dtypes[memory->num_dtypes++] = dtype;
    }
    return true;
}

// The format by the file's name, where none is given.
static int format_of(const char *path) {
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    for (int i = 0; dot != NULL && formats[i] != NULL; i++)
        if (strcmp(dot + 1, formats[i]) == 0) return i;
    return FORMAT_MD;
}

static int parse(struct memory *memory, struct bench_selection *selection, int argc, char **argv) {
    static char notes[1024], names[512];
    for (int i = 1; i < argc; i++)
        if (is_an_operation(argv[i]) && (i == 1 || strcmp(argv[i - 1], "--out") != 0))
            bench_select(selection, argv[i]);
    struct option_spec rows[12 + BENCH_MAX_OPTIONS + 1] = {
        {"pass", 0, "P", "which of the operation's passes", OPTION_CHOICE, &memory->pass, passes, 0,
         0},
        {"variant", 0, "V,...",
         "variants by name, or all; else the baseline and the library's choice, of attention all",
         OPTION_TEXT, &memory->variant, NULL, 0, 0},
        {"dtype", 0, "T,...", "f32, bf16, f16", OPTION_TEXT, &memory->dtype, NULL, 0, 0},
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &memory->device, NULL, 0, 0},
        {"threads", 0, "N", "threads (all CPUs)", OPTION_INT, &memory->threads, NULL, 1, 4096},
        {"isa", 0, "I", "instruction set", OPTION_CHOICE, &memory->isa, isas, 0, 0},
        {"rep", 0, "N", "samples of each (3)", OPTION_INT, &memory->rep, NULL, 1, 1e6},
        {"seed", 0, "N", "of the inputs", OPTION_INT, &memory->seed, NULL, 0, 9e15},
        {"format", 0, "F", "output", OPTION_CHOICE, &memory->format, formats, 0, 0},
        {"out", 0, "FILE", "write there (format by its name, unless given)", OPTION_TEXT,
         &memory->out, NULL, 0, 0},
        {0},
    };
    int count = 0;
    while (rows[count].name != NULL) count++;
    count += bench_option_rows(selection, rows + count, BENCH_MAX_OPTIONS);
    rows[count] = (struct option_spec){0};
    spec_commands_text(" ", names, sizeof names);
    snprintf(
        notes, sizeof notes,
        "Numbers take lists (512,1024) and sweeps (256:8192:x2). Without sizes the operation's "
        "standard shapes are run.\n'tessera memory OP --help' lists what OP "
        "takes.\nOperations: %s.",
        names);
    struct command_help with = help;
    with.notes = notes;
    with.operands = spec_commands();
    struct text_list operands = {0};
    int code = options_parse(&with, rows, argc, argv, &operands);
    if (code >= 0) return code;
    if (operands.count == 0)
        return usage_error("memory", "no operation given, expected one of %s", names);
    bool is_exact = false; // softmax_backward says its pass itself
    for (int i = 0; i < operands.count; i++) {
        if (!is_an_operation(operands.items[i]))
            return usage_error("memory", "there is no operation '%s', expected one of %s",
                               operands.items[i], names);
        is_exact |= spec_find(operands.items[i]) != NULL;
    }
    if (!is_exact && memory->pass != PASS_BOTH && !bench_keep_pass(selection, passes[memory->pass]))
        return usage_error("memory", "%s has no %s pass", operands.items[0], passes[memory->pass]);
    if (!parse_dtypes(memory)) return EXIT_USAGE;
    code = device_parse("memory", memory->device, &memory->measure.device);
    if (code >= 0) return code;
    for (int i = 0; i < selection->num_specs; i++)
        if (!device_has_op(memory->measure.device, selection->specs[i]->op))
            return usage_error("memory", "%s has no variant for %s", selection->specs[i]->op,
                               memory->device);
    if (memory->format < 0) memory->format = format_of(memory->out);
    if (memory->out != NULL && !result_can_write(memory->out))
        return usage_error("memory", "--out is '%s', which cannot be written: %s", memory->out,
                           strerror(errno));
    memory->measure.num_threads = (int)memory->threads;
    memory->measure.num_rep = (int)memory->rep;
    memory->measure.seed = (uint64_t)memory->seed;
    memory->measure.isa = (tsr_isa)memory->isa;
    return -1;
}

// ---- Running ----------------------------------------------------------------------------------

// Those asked for; else the baseline and the library's choice, and of attention, whose variants differ in
// memory above all, every one but the oracle. Names stay in copy.
static int list_variants(const struct memory *memory, const struct op_spec *spec, char *copy,
                         size_t copy_bytes, const char **variants) {
    struct text_list names;
    int count = 0;
    bool is_all = memory->variant != NULL ? strcmp(memory->variant, "all") == 0
                                          : strstr(spec->command, "attention") != NULL;
    if (memory->variant != NULL && !is_all) {
        snprintf(copy, copy_bytes, "%s", memory->variant);
        if (!text_list_split(copy, &names)) return 0;
        for (; count < names.count && count < MEASURE_MAX_CONTENDERS; count++)
            variants[count] = names.items[count];
        return count;
    }
    tsr_variant_info info;
    for (int i = 0; is_all && count < MEASURE_MAX_CONTENDERS &&
                    tsr_variant_info_get(spec->op, i, &info) == TSR_OK;
         i++)
        if (!(info.flags & TSR_VARIANT_REFERENCE) &&
            device_has_variant(memory->measure.device, &info))
            variants[count++] = info.name;
    if (is_all) return count;
    const char *baseline = device_baseline(memory->measure.device, spec);
    if (baseline != NULL) variants[count++] = baseline;
    variants[count++] = NULL;
    return count;
}

static void run_case(struct memory *memory, const struct op_case *c) {
    const char *variants[MEASURE_MAX_CONTENDERS];
    enum measure_outcome outcomes[MEASURE_MAX_CONTENDERS];
    char copy[256], text[256];
    int count = list_variants(memory, c->spec, copy, sizeof copy, variants);
    memory_rows_add(&memory->rows, memory->session, c, variants, count, outcomes);
    for (int i = 0; i < count; i++) {
        if (outcomes[i] == MEASURE_OK) continue;
        progress_note(&memory->progress, "%s, %s: %s", case_text(c, text, sizeof text),
                      tsr_dtype_name(c->dtype), measure_error_of(memory->session, i));
        bool is_named = memory->variant != NULL && strcmp(memory->variant, "all") != 0;
        if (outcomes[i] == MEASURE_INVALID) memory->code = EXIT_USAGE;
        if (outcomes[i] == MEASURE_UNSUPPORTED && is_named && memory->code == EXIT_FINE)
            memory->code = EXIT_COULD_NOT_RUN;
    }
}

static int run_spec(struct memory *memory, const struct bench_selection *selection,
                    const struct op_spec *spec) {
    struct op_case *cases;
    char error[512], text[256];
    int count = bench_cases(selection, spec, &cases, error, sizeof error);
    if (count < 0) return usage_error("memory", "%s", error);
    memory->num_cases += (int64_t)count * memory->num_dtypes;
    memory->progress.total = memory->num_cases;
    for (int i = 0; i < count; i++)
        for (int d = 0; d < memory->num_dtypes; d++) {
            cases[i].dtype = cases[i].small_dtype = memory->dtypes[d];
            progress_step(&memory->progress, memory->num_done++,
                          case_text(&cases[i], text, sizeof text));
            run_case(memory, &cases[i]);
        }
    free(cases);
    return -1;
}

static bool write_rows(const struct memory *memory) {
    FILE *out = memory->out != NULL ? fopen(memory->out, "we") : stdout;
    bool is_written =
        out != NULL && memory_rows_write(out, &memory->rows, (enum result_format)memory->format);
    if (out != NULL && out != stdout) is_written &= fclose(out) == 0;
    if (!is_written)
        fprintf(stderr, "tessera: cannot write '%s': %s\n",
                memory->out != NULL ? memory->out : "standard output", strerror(errno));
    return is_written;
}

int command_memory(int argc, char **argv) {
    struct memory memory = {.dtype = "f32", .seed = 1, .rep = 3, .format = -1};
    struct bench_selection selection = {.num_specs = 0};
    memory.measure.is_unproved = true; // verify and bench prove
    int code = parse(&memory, &selection, argc, argv);
    if (code >= 0) return code;
    char error[512];
    memory.session = measure_open(&memory.measure, error, sizeof error);
    if (memory.session == NULL) {
        fprintf(stderr, "tessera memory: %s\n", error);
        return memory.isa != TSR_ISA_AUTO ? EXIT_USAGE : EXIT_COULD_NOT_RUN;
    }
    progress_start(&memory.progress, "memory", 0);
    for (int i = 0; i < selection.num_specs && code < 0; i++)
        code = run_spec(&memory, &selection, selection.specs[i]);
    progress_end(&memory.progress);
    measure_close(memory.session);
    if (code < 0) {
        code = memory.code;
        if (memory.rows.count == 0 && code == EXIT_FINE) code = EXIT_COULD_NOT_RUN;
        if (memory.rows.count > 0 && !write_rows(&memory)) code = EXIT_COULD_NOT_RUN;
    }
    memory_rows_free(&memory.rows);
    return code;
}
