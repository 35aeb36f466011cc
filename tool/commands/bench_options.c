// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "commands/bench_options.h"

#include <errno.h>
#include <string.h>

#include "commands/command.h"
#include "system/device_option.h"
#include "system/files.h"

static const char *const passes[] = {"forward", "backward", "both", NULL};
static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};

enum { MAX_OWN = 12, MAX_COMMON = 16 };

// ---- Operations -------------------------------------------------------------------------------

bool bench_is_operation(const char *name) {
    struct bench_selection selection = {.num_specs = 0};
    return bench_select(&selection, name);
}

static bool takes_value(const struct option_spec *rows, const char *argument) {
    for (int i = 0; strncmp(argument, "--", 2) == 0 && rows[i].name != NULL; i++)
        if (strcmp(argument + 2, rows[i].name) == 0) return rows[i].kind != OPTION_FLAG;
    return false;
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

// The options depend on the operations, so the operations are looked for first. Help without an operation does not list
// the options of the default operations.
static void select_operations(struct bench_options *options, const struct option_spec *rows,
                              int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (bench_is_operation(argv[i]) && (i == 1 || !takes_value(rows, argv[i - 1])))
            bench_select(&options->selection, argv[i]);
    if (options->fallback == NULL || options->selection.num_specs > 0 || asks_for_help(argc, argv))
        return;
    for (int i = 0; options->fallback[i] != NULL; i++)
        bench_select(&options->selection, options->fallback[i]);
}

static int check_operations(struct bench_options *options, const struct text_list *operands,
                            const char *names) {
    const char *command = options->help->name;
    if (operands->count == 0 && options->fallback == NULL)
        return usage_error(command, "no operation given, expected one of %s", names);
    bool is_exact = false; // softmax_backward names its pass
    for (int i = 0; i < operands->count; i++) {
        if (!bench_is_operation(operands->items[i]))
            return usage_error(command, "there is no operation '%s', expected one of %s",
                               operands->items[i], names);
        is_exact |= spec_find(operands->items[i]) != NULL;
    }
    // The name of an operation with a single pass, such as cast, names that pass too.
    bool has_pass = options->pass != PASS_BACKWARD;
    for (int i = 0; i < options->selection.num_specs; i++)
        has_pass |= strcmp(options->selection.specs[i]->pass, passes[options->pass]) == 0;
    if (!is_exact && options->pass != PASS_BOTH)
        has_pass = bench_keep_pass(&options->selection, passes[options->pass]);
    if (!has_pass && options->pass != PASS_BOTH)
        return usage_error(command, "%s has no %s pass", operands->items[0], passes[options->pass]);
    return -1;
}

// ---- Values -----------------------------------------------------------------------------------

static int parse_dtypes(struct bench_options *options) {
    char copy[256];
    struct text_list names;
    if (strlen(options->dtype) >= sizeof copy ||
        !text_list_split(strcpy(copy, options->dtype), &names))
        return usage_error(options->help->name,
                           "--dtype is '%s', expected names with commas between", options->dtype);
    for (int i = 0; i < names.count && i < TSR_DTYPE_COUNT; i++) {
        tsr_dtype dtype = tsr_dtype_from_name(names.items[i]);
        if (dtype != TSR_F32 && dtype != TSR_BF16 && dtype != TSR_F16)
            return usage_error(options->help->name, "--dtype is '%s', expected f32, bf16 or f16",
                               names.items[i]);
        options->dtypes[options->num_dtypes++] = dtype;
    }
    return -1;
}

static int check_device(struct bench_options *options) {
    int code = device_parse(options->help->name, options->device, &options->measure.device);
    for (int i = 0; code < 0 && i < options->selection.num_specs; i++)
        if (!device_has_op(options->measure.device, options->selection.specs[i]->op))
            return usage_error(options->help->name, "%s has no variant for %s",
                               options->selection.specs[i]->op, options->device);
    return code;
}

// The format that --format gives, else that of the file's ending.
static int format_of(const struct bench_options *options) {
    const char *dot = options->out != NULL ? strrchr(options->out, '.') : NULL;
    for (int i = 0; dot != NULL && options->formats[i] != NULL; i++)
        if (strcmp(dot + 1, options->formats[i]) == 0) return i;
    return FORMAT_MD;
}

static int check_output(struct bench_options *options) {
    const char *command = options->help->name;
    if (options->format < 0) options->format = format_of(options);
    if (!options->has_no_timing && options->measure.is_unproved && options->format != FORMAT_MD)
        return usage_error(command,
                           "--no-verify needs the format md: results in %s state how far they "
                           "were verified",
                           options->formats[options->format]);
    if (options->out != NULL && !file_can_write(options->out))
        return usage_error(command, "--out is '%s', which cannot be written: %s", options->out,
                           strerror(errno));
    return -1;
}

static bool is_size(const struct bench_selection *selection, const char *name) {
    for (int i = 0; i < selection->num_specs; i++) {
        const int param = spec_param(selection->specs[i], name);
        if (param >= 0 && selection->specs[i]->params[param].kind == PARAM_SIZE) return true;
    }
    return false;
}

// With sizes, their product with 1, 8 and 64 tokens; without, the shapes that the operations have for this.
static int set_decoding(struct bench_options *options) {
    struct bench_selection *selection = &options->selection;
    struct bench_option *tokens = NULL;
    bool has_size = false;
    if (!options->is_decoding) return -1;
    for (int i = 0; i < selection->num_specs; i++)
        if (selection->specs[i]->decode == NULL)
            return usage_error(options->help->name, "--decode: %s has no steps of decoding",
                               selection->specs[i]->op);
    for (int i = 0; i < selection->num_options; i++) {
        struct bench_option *option = &selection->options[i];
        if (strcmp(option->name, "tokens") == 0) tokens = option;
        has_size |= option->text != NULL && is_size(selection, option->name);
    }
    if (has_size && tokens != NULL && tokens->text == NULL) tokens->text = "1,8,64";
    options->measure.is_cold = true;
    return -1;
}

// ---- All of it --------------------------------------------------------------------------------

static int add_rows(struct option_spec *rows, int count, const struct option_spec *more) {
    for (int i = 0; more[i].name != NULL; i++) rows[count++] = more[i];
    return count;
}

int bench_options_parse(struct bench_options *options, const struct option_spec *own, int argc,
                        char **argv) {
    static char notes[3072], names[512], listed[640];
    struct option_spec rows[MAX_OWN + 2 * MAX_COMMON + BENCH_MAX_OPTIONS + 1];
    const struct option_spec what[] = {
        {"pass", 0, "P", "the operation's passes", OPTION_CHOICE, &options->pass, passes, 0, 0},
        {"dtype", 0, "T,...", "dtypes of the tensors: f32, bf16, f16 (f32)", OPTION_TEXT,
         &options->dtype, NULL, 0, 0},
        {"threads", 0, "N", "threads (all CPUs)", OPTION_INT, &options->threads, NULL, 1, 4096},
        {"isa", 0, "I", "instruction set", OPTION_CHOICE, &options->isa, isas, 0, 0},
        {"seed", 0, "N", "seed of the random inputs (1)", OPTION_INT, &options->seed, NULL, 0,
         9e15},
        {"format", 0, "F", "output", OPTION_CHOICE, &options->format, options->formats, 0, 0},
        {"out", 0, "FILE",
         "output file; its ending gives the format unless --format does (standard output, md)",
         OPTION_TEXT, &options->out, NULL, 0, 0},
        {0},
    };
    const struct option_spec device[] = {
        {"device", 0, "D", "cpu, or cuda:N, timed by the GPU's clock (cpu)", OPTION_TEXT,
         &options->device, NULL, 0, 0},
        {0},
    };
    const struct option_spec timing[] = {
        {"cold", 0, NULL, "flush the caches before each sample (warm caches)", OPTION_FLAG,
         &options->measure.is_cold, NULL, 0, 0},
        {"decode", 0, NULL, "steps of decoding: 1, 8 and 64 tokens unless --tokens, and --cold",
         OPTION_FLAG, &options->is_decoding, NULL, 0, 0},
        {"warmup", 0, "N", "calls before the first sample (until the times settle)", OPTION_INT,
         &options->warmup, NULL, 0, 1e6},
        {"rep", 0, "N", "samples (as many as the budget allows)", OPTION_INT, &options->rep, NULL,
         1, 1e6},
        {"budget", 0, "S", "seconds for each variant of a case (1)", OPTION_REAL,
         &options->measure.budget_s, NULL, 0.001, 3600},
        {"no-verify", 0, NULL, "measure without verifying first; format md only", OPTION_FLAG,
         &options->measure.is_unproved, NULL, 0, 0},
        {0},
    };
    int count = add_rows(rows, 0, own);
    count = add_rows(rows, count, what);
    if (!options->is_on_cpu_only) count = add_rows(rows, count, device);
    if (!options->has_no_timing) count = add_rows(rows, count, timing);
    rows[count] = (struct option_spec){0};
    select_operations(options, rows, argc, argv);
    count += bench_option_rows(&options->selection, rows + count, BENCH_MAX_OPTIONS);
    rows[count] = (struct option_spec){0};

    snprintf(notes, sizeof notes, "%s\nOperations: %s.", options->help->notes,
             spec_commands_text(" ", names, sizeof names));
    spec_commands_text(", ", listed, sizeof listed);
    struct command_help with = *options->help;
    with.notes = notes;
    with.operands = spec_commands();
    struct text_list operands = {0};
    int code = options_parse(&with, rows, argc, argv, &operands);
    if (code < 0) code = check_operations(options, &operands, listed);
    if (code < 0) code = check_device(options);
    if (code < 0) code = set_decoding(options);
    if (code < 0) code = parse_dtypes(options);
    if (code < 0) code = check_output(options);
    if (code >= 0) return code;
    options->measure.num_threads = (int)options->threads;
    options->measure.num_warmup = options->warmup > 0 ? (int)options->warmup : 0;
    options->measure.has_no_warmup = options->warmup == 0;
    options->measure.num_rep = (int)options->rep;
    options->measure.seed = (uint64_t)options->seed;
    options->measure.isa = (tsr_isa)options->isa;
    return -1;
}

int bench_variants(const struct bench_options *options, const struct op_spec *spec,
                   const char *asked, char *copy, size_t copy_bytes, const char **variants) {
    struct text_list names;
    tsr_variant_info info;
    int count = 0;
    if (asked == NULL) return variants[0] = NULL, 1;
    if (strcmp(asked, "all") != 0) {
        snprintf(copy, copy_bytes, "%s", asked);
        if (!text_list_split(copy, &names)) return 0;
        for (; count < names.count && count < MEASURE_MAX_CONTENDERS; count++)
            variants[count] = names.items[count];
        return count;
    }
    for (int i = 0;
         count < MEASURE_MAX_CONTENDERS && tsr_variant_info_get(spec->op, i, &info) == TSR_OK; i++)
        if (!(info.flags & TSR_VARIANT_REFERENCE) &&
            device_has_variant(options->measure.device, &info))
            variants[count++] = info.name;
    return count;
}

int bench_check_variants(const struct bench_options *options, const char *asked) {
    char copy[256];
    struct text_list names;
    if (asked == NULL) return -1;
    if (strlen(asked) < sizeof copy && text_list_split(strcpy(copy, asked), &names) &&
        names.count <= MEASURE_MAX_CONTENDERS)
        return -1;
    return usage_error(options->help->name,
                       "--variant is '%s', expected at most %d names with commas between, or all",
                       asked, MEASURE_MAX_CONTENDERS);
}

struct measure_session *bench_open(const struct bench_options *options, int *code) {
    char error[512];
    struct measure_session *session = measure_open(&options->measure, error, sizeof error);
    if (session != NULL) return session;
    fprintf(stderr, "tessera %s: %s\n", options->help->name, error);
    *code = options->isa != TSR_ISA_AUTO ? EXIT_USAGE : EXIT_COULD_NOT_RUN;
    return NULL;
}
