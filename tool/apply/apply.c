// SPDX-License-Identifier: Apache-2.0
// tessera apply: runs an operation on the tensors of a safetensors file. The operations' descriptions
// give the options, the names in the files, sizes and shapes, so that a new operation needs no change
// here.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/safetensors.h>
#include <unistd.h>

#include "apply/apply.h"
#include "commands/command.h"
#include "system/device_option.h"
#include "system/files.h"
#include "system/options.h"
#include "verify/tensors.h"

enum { COMMON_OPTIONS = 10 };

// The command line, read.
struct request {
    const char *input, *output, *results, *device, *variant, *dtype, *isa;
    int64_t num_threads;
    bool is_deterministic, is_batch_invariant;
};

// The value of a parameter's option, before it is turned into a double.
struct slot_value {
    bool flag;
    int64_t whole;
    double real;
    int choice;
};

// ---- Options ----------------------------------------------------------------------------------

static int fill_common(struct option_spec *options, struct request *request) {
    const struct option_spec common[COMMON_OPTIONS] = {
        {"input", 'i', "FILE", "safetensors file with the inputs", OPTION_TEXT, &request->input},
        {"output", 'o', "FILE", "safetensors file for the outputs; it is replaced at the end",
         OPTION_TEXT, &request->output},
        {"results", 0, "LIST",
         "only these outputs, with :T for another dtype: c:f32,dbias (all that the inputs imply)",
         OPTION_TEXT, &request->results},
        {"dtype", 0, "T", "convert the inputs first: f32, bf16, f16, f64, ... (no conversion)",
         OPTION_TEXT, &request->dtype},
        {"variant", 0, "V", "name of a variant, as verify lists it (the library's choice)",
         OPTION_TEXT, &request->variant},
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &request->device},
        {"threads", 0, "N", "threads (all CPUs)", OPTION_INT, &request->num_threads, NULL, 1, 4096},
        {"isa", 0, "I", "instruction set: scalar, avx2, avx512 (the best available)", OPTION_TEXT,
         &request->isa},
        {"deterministic", 0, NULL, "the same bits in every run; on the CPU always", OPTION_FLAG,
         &request->is_deterministic},
        {"batch-invariant", 0, NULL, "a row's bits do not depend on the other rows", OPTION_FLAG,
         &request->is_batch_invariant},
    };
    memcpy(options, common, sizeof common);
    return COMMON_OPTIONS;
}

static enum option_kind option_kind(enum param_kind kind) {
    switch (kind) {
    case PARAM_FLAG: return OPTION_FLAG;
    case PARAM_CHOICE: return OPTION_CHOICE;
    case PARAM_REAL: return OPTION_REAL;
    default: return OPTION_INT;
    }
}

static int parse(struct apply *apply, struct request *request, int argc, char **argv) {
    struct option_spec options[COMMON_OPTIONS + 2 * APPLY_MAX_OPTIONS + 1] = {0};
    struct slot_value values[APPLY_MAX_OPTIONS];
    char names[APPLY_MAX_OPTIONS][48], helps[APPLY_MAX_OPTIONS][192];
    int count = fill_common(options, request);
    for (int i = 0; i < apply->num_options; i++) {
        const struct param_spec *param = apply->options[i].param;
        values[i] = (struct slot_value){false, INT64_MIN, -1e308, -1};
        apply_option_name(param, names[i], sizeof names[i]);
        enum option_kind kind = option_kind(param->kind);
        void *target = kind == OPTION_FLAG     ? (void *)&values[i].flag
                       : kind == OPTION_CHOICE ? (void *)&values[i].choice
                       : kind == OPTION_REAL   ? (void *)&values[i].real
                                               : (void *)&values[i].whole;
        const char *value = kind == OPTION_FLAG     ? NULL
                            : kind == OPTION_CHOICE ? "NAME"
                            : kind == OPTION_REAL   ? "X"
                                                    : "N";
        if (kind == OPTION_FLAG)
            snprintf(helps[i], sizeof helps[i], "%s", param->help);
        else if (kind == OPTION_CHOICE)
            snprintf(helps[i], sizeof helps[i], "%s, %s by default", param->help,
                     param->choices[(int)param->standard]);
        else
            snprintf(helps[i], sizeof helps[i],
                     param->source == SOURCE_OPTION ? "%s (from a tensor)" : "%s (%.10g)",
                     param->help, param->standard);
        options[count++] = (struct option_spec){
            names[i], 0, value, helps[i], kind, target, param->choices, param->least, param->most};
        if (strcmp(param->name, "activation") == 0)
            options[count++] = (struct option_spec){
                "epilogue", 0, value, "the same as --activation", kind, target, param->choices};
    }

    char synopsis[96], summary[600], names_text[512];
    snprintf(synopsis, sizeof synopsis, "%s --input FILE --output FILE [options]",
             apply->command != NULL ? apply->command : "OP");
    snprintf(summary, sizeof summary, "Runs an operation on the tensors of a safetensors file%s%s.",
             apply->command == NULL ? ". OP is one of " : "",
             apply->command == NULL ? spec_commands_text(" ", names_text, sizeof names_text) : "");
    char notes[2000];
    const struct command_help help = {"apply",
                                      synopsis,
                                      summary,
                                      apply_notes(apply, notes, sizeof notes),
                                      spec_commands(),
                                      "tessera apply softmax --input in.safetensors --output "
                                      "out.safetensors\n"
                                      "tessera apply softmax -i in.safetensors -o out.safetensors "
                                      "--variant online --threads 2"};
    struct text_list operands = {0};
    int outcome = options_parse(&help, options, argc, argv, &operands);
    if (outcome >= 0) return outcome;
    if (operands.count != 1 || apply->command == NULL)
        return usage_error("apply", "expected one operation, got %d", operands.count);
    for (int i = 0; i < apply->num_options; i++) {
        struct apply_option *option = &apply->options[i];
        switch (option->param->kind) {
        case PARAM_FLAG: option->is_given = values[i].flag; break;
        case PARAM_CHOICE: option->is_given = values[i].choice >= 0; break;
        case PARAM_REAL: option->is_given = values[i].real != -1e308; break;
        default: option->is_given = values[i].whole != INT64_MIN;
        }
        if (!option->is_given) continue;
        option->value = option->param->kind == PARAM_FLAG     ? 1
                        : option->param->kind == PARAM_CHOICE ? values[i].choice
                        : option->param->kind == PARAM_REAL   ? values[i].real
                                                              : (double)values[i].whole;
    }
    return -1;
}

// Finds the operation's name anywhere in the command line, because it determines the other options.
// The value of a common option is not taken for a name.
static int find_command(int argc, char **argv, const char **command) {
    struct request request;
    struct apply found = {0};
    struct option_spec common[COMMON_OPTIONS];
    fill_common(common, &request);
    const char *first = NULL;
    *command = NULL;
    for (int i = 1; i < argc && *command == NULL; i++) {
        bool is_value = false;
        for (int o = 0; o < COMMON_OPTIONS; o++) {
            const char *before = argv[i - 1];
            bool is_long = strncmp(before, "--", 2) == 0 && strcmp(before + 2, common[o].name) == 0;
            bool is_short = before[0] == '-' && before[1] == common[o].letter &&
                            common[o].letter != 0 && before[2] == '\0';
            is_value |= common[o].kind != OPTION_FLAG && i > 1 && (is_long || is_short);
        }
        if (is_value || argv[i][0] == '-') continue;
        if (first == NULL) first = argv[i];
        if (apply_find_operation(&found, argv[i])) *command = argv[i];
    }
    if (*command != NULL || first == NULL) return -1;
    char names[512];
    return usage_error("apply", "there is no operation '%s', expected one of %s", first,
                       spec_commands_text(", ", names, sizeof names));
}

// ---- The context ------------------------------------------------------------------------------

// An operation without a variant for the device is skipped, like an operation on a missing device.
static int check_device(struct apply *apply, const char *text) {
    int code = device_parse("apply", text, &apply->device);
    if (code >= 0 || device_has_op(apply->device, apply->forward->op)) return code;
    fprintf(stderr, "tessera apply: %s has no variant for %s, expected --device cpu\n",
            apply->forward->op, text);
    return EXIT_SKIPPED;
}

static int create_context(struct apply *apply, const struct request *request) {
    tsr_isa isa = TSR_ISA_AUTO;
    if (request->isa != NULL) {
        while (isa < TSR_ISA_COUNT && strcmp(tsr_isa_name(isa), request->isa) != 0) isa++;
        if (isa == TSR_ISA_COUNT)
            return usage_error("apply", "--isa is '%s', expected scalar, avx2 or avx512",
                               request->isa);
    }
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.device = apply->device, .isa = isa,
                                                      .num_threads = (int32_t)request->num_threads);
    tsr_status status = tsr_context_create(&options, &apply->ctx);
    if (status == TSR_OK) return -1;
    fprintf(stderr, "tessera apply: %s\n", tsr_last_error());
    return status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED ? EXIT_USAGE
                                                                       : EXIT_COULD_NOT_RUN;
}

// A misspelt variant must not silently become the default.
static int check_variant(const struct apply *apply) {
    if (apply->variant == NULL) return -1;
    const struct op_spec *const passes[] = {apply->forward, apply->backward};
    char names[512] = "";
    size_t used = 0;
    for (int p = 0; p < 2 && passes[p] != NULL; p++)
        for (int i = 0; i < tsr_variant_count(passes[p]->op); i++) {
            tsr_variant_info info;
            if (tsr_variant_info_get(passes[p]->op, i, &info) != TSR_OK) continue;
            if (strcmp(info.name, apply->variant) == 0) return -1;
            if (strstr(names, info.name) == NULL && used < sizeof names)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                         used ? ", " : "", info.name);
        }
    return usage_error("apply", "%s has no variant '%s', expected one of %s", apply->command,
                       apply->variant, names);
}

// ---- The results ------------------------------------------------------------------------------

static bool save(struct apply *apply, const char *path) {
    tsr_safetensors_entry entries[APPLY_MAX_VALUES];
    int count = 0;
    for (int i = 0; i < apply->num_values; i++)
        if (apply->values[i].is_result && apply_is_asked(apply, apply->values[i].name))
            entries[count++] =
                (tsr_safetensors_entry){apply->values[i].name, apply->values[i].tensor};
    tsr_status status = file_write_tensors(path, entries, count);
    return status == TSR_OK || apply_fail(apply, EXIT_COULD_NOT_RUN, "%s", tsr_last_error());
}

// ---- The command ------------------------------------------------------------------------------

static int run(struct apply *apply, const struct request *request, tsr_dtype dtype) {
    tsr_safetensors *file;
    tsr_status status = tsr_safetensors_open(request->input, &file);
    bool is_done = status == TSR_OK;
    bool is_readable = access(request->input, R_OK) == 0; // else the content cannot be wrong
    if (!is_done)
        apply_fail(apply,
                   status == TSR_OUT_OF_MEMORY || !is_readable ? EXIT_COULD_NOT_RUN : EXIT_USAGE,
                   "%s", tsr_last_error());
    is_done = is_done && apply_load(apply, file, dtype) && apply_passes(apply) &&
              save(apply, request->output);
    apply_release(apply);
    tsr_safetensors_close(file);
    if (is_done) return EXIT_FINE;
    fprintf(stderr, "tessera apply: %s\n", apply->error);
    return apply->exit_code;
}

int command_apply(int argc, char **argv) {
    struct apply apply = {0};
    struct request request = {0};
    int outcome = find_command(argc, argv, &apply.command);
    if (outcome >= 0) return outcome;
    if (apply.command != NULL) {
        apply_find_operation(&apply, apply.command);
        apply_add_params(&apply, apply.forward);
        apply_add_params(&apply, apply.backward);
    }
    outcome = parse(&apply, &request, argc, argv);
    if (outcome >= 0) return outcome;
    if (request.input == NULL || request.output == NULL)
        return usage_error("apply", "--%s is missing", request.input == NULL ? "input" : "output");
    if (*request.input == '\0' || *request.output == '\0')
        return usage_error("apply", "--%s is empty, expected the name of a file",
                           *request.input == '\0' ? "input" : "output");
    tsr_dtype dtype = request.dtype != NULL ? tsr_dtype_from_name(request.dtype) : TSR_DTYPE_NONE;
    if (request.dtype != NULL && (dtype == TSR_DTYPE_NONE || dtype >= TSR_I32))
        return usage_error("apply", "--dtype is '%s', expected f32, bf16, f16, f64, e4m3 or e5m2",
                           request.dtype);
    apply.input_path = request.input;
    apply.variant = request.variant;
    apply.flags = (request.is_deterministic ? TSR_DETERMINISTIC : 0) |
                  (request.is_batch_invariant ? TSR_BATCH_INVARIANT : 0);
    if (request.results != NULL && !apply_ask(&apply, request.results))
        return usage_error("apply", "%s", apply.error);
    outcome = check_device(&apply, request.device);
    if (outcome < 0) outcome = check_variant(&apply);
    if (outcome < 0) outcome = create_context(&apply, &request);
    if (outcome < 0) outcome = run(&apply, &request, dtype);
    tsr_context_destroy(apply.ctx);
    return outcome;
}
