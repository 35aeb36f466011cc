// SPDX-License-Identifier: Apache-2.0
// Compares answers with the oracle: every output of a case, element by element with verify's bound.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apply/conformance.h"
#include "commands/command.h"
#include "files/run.h"
#include "system/progress.h"
#include "system/signals.h"
#include "verify/trial.h"

// ---- NAME.json ----------------------------------------------------------------------------------

// Folders of cases may come from anybody, so this refuses pipes and the like instead of waiting for them.
static json_t *load(const char *path, char *error, size_t error_bytes) {
    struct stat info;
    json_error_t where;
    json_t *document = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool is_file = descriptor >= 0 && fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    snprintf(where.text, sizeof where.text, "%s",
             descriptor < 0 ? strerror(errno) : "it is no regular file");
    if (is_file) document = json_loadfd(descriptor, 0, &where);
    if (descriptor >= 0) close(descriptor);
    if (document == NULL) snprintf(error, error_bytes, "%s: %s", path, where.text);
    return document;
}

// NAN for a value that does not fit the parameter. Sizes are limited because they are multiplied; other numbers must be
// exact in a double.
static double param_value(const struct param_spec *param, const json_t *value) {
    if (param->kind == PARAM_CHOICE)
        for (int i = 0; json_is_string(value) && param->choices[i] != NULL; i++)
            if (strcmp(param->choices[i], json_string_value(value)) == 0) return i;
    if (param->kind == PARAM_CHOICE) return (double)NAN;
    if (param->kind == PARAM_FLAG)
        return json_is_boolean(value) ? json_is_true(value) : (double)NAN;
    const double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
    const bool is_size = param->kind == PARAM_SIZE;
    const double least = is_size ? 0 : -0x1p53, most = is_size ? 0x1p31 - 1 : 0x1p53;
    if (param->kind == PARAM_REAL || (number >= least && number <= most && floor(number) == number))
        return number;
    return (double)NAN;
}

// Reads the operation and its options from the file. On failure false, with a sentence in error.
static bool read_call(const char *path, struct op_case *c, bool *is_edge, uint64_t *seed,
                      char *error, size_t error_bytes) {
    json_t *document = load(path, error, error_bytes);
    const char *op = json_string_value(json_object_get(document, "op"));
    const struct op_spec *spec = op != NULL ? spec_find(op) : NULL;
    json_t *params = json_object_get(document, "params");
    bool is_right = spec != NULL && json_is_object(params);
    if (op != NULL && spec == NULL)
        snprintf(error, error_bytes, "%s: there is no operation '%s'", path, op);
    else if (document != NULL && !is_right)
        snprintf(error, error_bytes, "%s is no case: 'op' or 'params' is missing", path);
    if (is_right) *c = case_default(spec);
    for (int i = 0; is_right && spec->params[i].name != NULL; i++) {
        json_t *value = json_object_get(params, spec->params[i].name);
        if (value == NULL || json_is_null(value)) continue;
        c->param[i] = param_value(&spec->params[i], value);
        is_right = !isnan(c->param[i]);
        if (!is_right)
            snprintf(error, error_bytes, "%s: params.%s has a wrong type or value", path,
                     spec->params[i].name);
    }
    *is_edge = json_is_string(json_object_get(document, "edge"));
    *seed = (uint64_t)json_integer_value(json_object_get(document, "seed"));
    json_decref(document);
    return is_right;
}

// ---- An answer ----------------------------------------------------------------------------------

struct checker {
    const struct conformance_checking *with;
    char name[NAME_MAX + 1]; // of the current case, without control characters
    char inputs[CONFORMANCE_MAX_PATH], call[CONFORMANCE_MAX_PATH], answer[CONFORMANCE_MAX_PATH];
    struct verdict *verdict;
    int64_t num_absent; // optional outputs that are missing in the answers
};

// Prints words on stderr, and keeps the first ones in sentence.
static void say(const struct checker *checker, const struct op_case *c, const char *words,
                char *sentence, size_t bytes) {
    char text[512], what[800]; // words may come from a file
    snprintf(what, sizeof what, "%s", words);
    run_clean(what);
    if (*sentence == '\0') {
        snprintf(sentence, bytes, "%.120s (%.300s): %.590s", checker->name,
                 case_text(c, text, sizeof text), what);
        run_clean(sentence);
    }
    fprintf(stderr, "tessera conformance: %s: %s\n", checker->name, what);
}

static void fail_case(struct checker *checker, const struct op_case *c, const char *words) {
    struct verdict *verdict = checker->verdict;
    verdict->num_failed++;
    say(checker, c, words, verdict->failure, sizeof verdict->failure);
}

// There is not enough memory, so the answer is neither right nor wrong.
static void skip_case(struct checker *checker, const struct op_case *c, const char *words) {
    struct verdict *verdict = checker->verdict;
    verdict->num_not_run++;
    verdict->num_configs--;
    say(checker, c, words, verdict->obstacle, sizeof verdict->obstacle);
}

// Checks one output of the answer. *is_there: the file has it.
static bool check_output(const struct trial *trial, const struct apply_value *expected,
                         const tsr_safetensors *file, struct verdict *verdict, bool *is_there,
                         char *what, size_t bytes) {
    const struct op_spec *spec = trial->c.spec;
    int slot = spec_slot(spec, expected->name);
    int64_t index = tsr_safetensors_find(file, expected->name);
    tsr_safetensors_info info;
    char got[160], wanted[160];
    *is_there = index >= 0 && tsr_safetensors_info_get(file, index, &info) == TSR_OK;
    if (!*is_there) {
        snprintf(what, bytes, "the results have no '%s'", expected->name);
        return spec->slots[slot].is_optional;
    }
    const tsr_tensor *t = &expected->tensor;
    if (info.dtype != t->dtype) {
        snprintf(what, bytes, "%s has dtype %s, expected %s", expected->name,
                 info.dtype != TSR_DTYPE_NONE ? tsr_dtype_name(info.dtype) : info.dtype_name,
                 tsr_dtype_name(t->dtype));
        return false;
    }
    if (info.ndim != t->ndim ||
        memcmp(info.shape, t->shape, (size_t)t->ndim * sizeof *t->shape) != 0) {
        snprintf(what, bytes, "%s has shape %s, expected %s", expected->name,
                 apply_shape_text(info.ndim, info.shape, got, sizeof got),
                 apply_shape_text(t->ndim, t->shape, wanted, sizeof wanted));
        return false;
    }
    // A batch dimension of 1 does not change the order of the elements.
    const tsr_tensor *plain = &trial->oracle.c.tensor[slot];
    tsr_tensor view =
        tsr_tensor_contiguous((void *)(uintptr_t)info.data, t->dtype, plain->ndim, plain->shape);
    return trial_compare(trial, slot, &view, verdict, what, bytes);
}

static void check_answer(struct checker *checker, const struct conformance_case *opened) {
    struct trial trial;
    tsr_safetensors *file;
    char what[800];
    int num_there = 0;
    if (access(checker->answer, F_OK) != 0) {
        snprintf(what, sizeof what, "there is no %.700s", checker->answer);
        fail_case(checker, &opened->c, what);
        return;
    }
    tsr_status status = tsr_safetensors_open(checker->answer, &file);
    if (status != TSR_OK) {
        (status == TSR_OUT_OF_MEMORY ? skip_case : fail_case)(checker, &opened->c,
                                                              tsr_last_error());
        return;
    }
    status = trial_create_of(&trial, &opened->c);
    bool is_right = status == TSR_OK;
    if (!is_right) {
        (status == TSR_OUT_OF_MEMORY ? skip_case : fail_case)(checker, &opened->c, trial.refusal);
        tsr_safetensors_close(file);
        return;
    }
    for (int i = 0; is_right && i < opened->apply.num_values; i++) {
        bool is_there = false;
        if (!opened->apply.values[i].is_result) continue;
        is_right = check_output(&trial, &opened->apply.values[i], file, checker->verdict, &is_there,
                                what, sizeof what);
        num_there += is_there;
        checker->num_absent += is_right && !is_there;
    }
    if (is_right && num_there == 0) {
        is_right = false;
        snprintf(what, sizeof what, "the results have none of the outputs");
    }
    if (!is_right) fail_case(checker, &opened->c, what);
    trial_release(&trial);
    tsr_safetensors_close(file);
}

// ---- All cases ------------------------------------------------------------------------------------

static int is_call(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return length > 5 && strcmp(entry->d_name + length - 5, ".json") == 0;
}

// Returns -1, or the exit code for a case that cannot be read.
static int check_case(struct checker *checker, struct verify_report *report, uint64_t *seed) {
    struct op_case like;
    struct conformance_case opened;
    char error[CONFORMANCE_MAX_PATH + 200], what[400];
    bool is_edge;
    if (!read_call(checker->call, &like, &is_edge, seed, error, sizeof error)) {
        fprintf(stderr, "tessera conformance: %s\n", run_clean(error));
        return EXIT_USAGE;
    }
    if (!conformance_open(&opened, &like, checker->inputs)) {
        int exit_code = opened.apply.exit_code;
        fprintf(stderr, "tessera conformance: %s\n", run_clean(opened.apply.error));
        conformance_close(&opened);
        return exit_code;
    }
    const struct conformance_answering with = {checker->with->command, checker->with->work,
                                               checker->inputs, checker->call, checker->answer};
    bool has_run =
        with.command == NULL || conformance_answer(&with, &opened.apply, what, sizeof what);
    if (!has_run && signals_seen() != 0) { // the command was interrupted: there is no answer
        conformance_close(&opened);
        return -1;
    }
    checker->verdict =
        verify_row_of(report, like.spec->op, checker->with->name, opened.c.dtype, TSR_ISA_AUTO);
    struct verdict *verdict = checker->verdict;
    int64_t failed = verdict->num_failed, not_run = verdict->num_not_run;
    verdict->num_configs++;
    report->num_runs++;
    report->num_edges += is_edge;
    report->num_configs += !is_edge;
    if (has_run)
        check_answer(checker, &opened);
    else
        fail_case(checker, &opened.c, what);
    verdict->mean_abs_err =
        verdict->num_elements > 0 ? verdict->sum_abs_err / verdict->num_elements : 0;
    report->num_failed += verdict->num_failed - failed;
    report->num_not_run += verdict->num_not_run - not_run;
    report->num_runs -= verdict->num_not_run - not_run;
    report->worst_err_over_bound = fmax(report->worst_err_over_bound, verdict->err_over_bound);
    conformance_close(&opened);
    return -1;
}

int conformance_check(const struct conformance_checking *checking, struct verify_report *report,
                      uint64_t *seed) {
    struct dirent **entries;
    struct checker checker = {.with = checking};
    struct progress progress;
    int code = -1, count = scandir(checking->folder, &entries, is_call, alphasort);
    *report = (struct verify_report){.device = "results", .arch = "-"};
    if (count <= 0) {
        fprintf(stderr, "tessera conformance: %s: %s\n", checking->folder,
                count < 0 ? strerror(errno) : "no cases; 'conformance write' makes them");
        if (count == 0) free(entries);
        return count < 0 ? EXIT_COULD_NOT_RUN : EXIT_USAGE;
    }
    double start = seconds_now();
    progress_start(&progress, "conformance", count);
    signals_hold(true);
    for (int i = 0; i < count; i++) {
        char *name = entries[i]->d_name;
        name[strlen(name) - 5] = '\0';
        snprintf(checker.name, sizeof checker.name, "%s", name);
        run_clean(checker.name);
        int longest = snprintf(checker.inputs, CONFORMANCE_MAX_PATH, "%s/%s.safetensors",
                               checking->folder, name);
        snprintf(checker.call, CONFORMANCE_MAX_PATH, "%s/%s.json", checking->folder, name);
        int other = snprintf(checker.answer, CONFORMANCE_MAX_PATH, "%s/%s.safetensors",
                             checking->results, name);
        if (code < 0 && (longest >= CONFORMANCE_MAX_PATH || other >= CONFORMANCE_MAX_PATH)) {
            fprintf(stderr, "tessera conformance: the path of %s is too long\n", checker.name);
            code = EXIT_USAGE;
        }
        if (code < 0 && signals_seen() == 0) {
            code = check_case(&checker, report, seed);
            progress_step(&progress, i + 1, checker.name);
        }
        free(entries[i]);
    }
    progress_end(&progress);
    free(entries);
    report->seconds = seconds_now() - start;
    report->is_interrupted = signals_seen() != 0;
    if (code < 0 && checker.num_absent > 0)
        fprintf(stderr, "tessera conformance: %lld optional outputs were missing, not compared\n",
                (long long)checker.num_absent);
    return code;
}
