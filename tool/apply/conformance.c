// SPDX-License-Identifier: Apache-2.0
// tessera conformance: the two verbs, write and check, and verify's table of the answers.
#define _GNU_SOURCE
#include "apply/conformance.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "commands/command.h"
#include "system/environment.h"
#include "system/signals.h"
#include "system/temporary.h"

static const char *const verbs[] = {"write", "check", NULL};
static const char *const formats[] = {"md", "json", NULL};

static const struct command_help help = {
    .name = "conformance",
    .synopsis = "write OP... --output DIR | check DIR --results DIR | check DIR --command CMD",
    .summary =
        "Compares any implementation of an operation with the oracle, through files: write puts "
        "the cases of\nverify into a folder, check compares the answers element by element with "
        "the derived bound.",
    .notes =
        "A case is two files: NAME.safetensors has the inputs, NAME.json the call: op, params, the "
        "options for\n'tessera apply', and the dtype and shape of every tensor. The answer is a "
        "file NAME.safetensors with the\noutputs in exactly these dtypes and shapes; optional "
        "outputs may be left out.\n"
        "sh runs CMD once for every case. {input}, {output}, {call} (the JSON file), {op} and "
        "{options} in CMD are\nreplaced; all but {options}, which is several words, may stand "
        "between quotes:\n"
        "  tessera conformance check DIR --command 'tessera apply {op} --input {input} --output "
        "{output} {options}'\n"
        "A path with other characters than letters, digits and _./-+,:@%= is passed as a link with "
        "a plain name,\nso that sh never reads a file's name as code.\n"
        "err/bound is the largest ratio of an element's error to its bound; above 1 the result is "
        "wrong and the\nexit code 1. Each failed case is named on stderr.\n"
        "After Ctrl-C, write leaves only complete cases, and check shows the cases answered so "
        "far.",
    .operands = verbs,
    .examples = "tessera conformance write softmax --configs 5 --output cases\n"
                "tessera conformance check cases --command 'tessera apply {op} --input {input} "
                "--output {output} {options}'",
};

struct request {
    struct conformance_writing writing;
    struct conformance_checking checking;
    int64_t seed;
    int format;
};

static bool is_an_operation(const char *name) {
    struct apply found = {0};
    return apply_find_operation(&found, name);
}

static int run_write(struct request *request, const struct text_list *operands) {
    struct text_list names = {0};
    char known[512];
    for (int i = 1; i < operands->count; i++) names.items[names.count++] = operands->items[i];
    if (names.count == 0) return usage_error("conformance", "write needs an operation");
    for (int i = 0; i < names.count; i++)
        if (!is_an_operation(names.items[i]))
            return usage_error("conformance", "there is no operation '%s', expected one of %s",
                               names.items[i], spec_commands_text(", ", known, sizeof known));
    const char *dtype = request->writing.dtype;
    if (dtype != NULL && strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0 &&
        strcmp(dtype, "f16") != 0)
        return usage_error("conformance", "--dtype is '%s', expected f32, bf16 or f16", dtype);
    if (request->writing.folder == NULL) return usage_error("conformance", "write needs --output");
    if (*request->writing.folder == '\0')
        return usage_error("conformance", "--output is empty, expected a folder");
    request->writing.seed = (uint64_t)request->seed;
    return conformance_write(&request->writing, &names);
}

static int check_into(struct request *request) {
    struct verify_report report;
    uint64_t seed = 0;
    int code = conformance_check(&request->checking, &report, &seed);
    if (code < 0 && (report.num_runs > 0 || !report.is_interrupted)) {
        if (request->format == 1)
            verify_print_json(&report, (int64_t)seed, 0);
        else
            verify_print_markdown(&report, seed);
        code = verify_exit_code(&report, "conformance");
    }
    verify_report_free(&report);
    return code;
}

// Makes a folder for the command's links, and for the answers if --results does not keep them.
static bool make_work_folder(char *folder, size_t bytes, int *note) {
    const char *tmp = environment_value("TMPDIR");
    if (tmp == NULL || *tmp == '\0' || !conformance_can_work_in(tmp)) tmp = "/tmp";
    snprintf(folder, bytes, "%.400s/tessera-conformance-XXXXXX", tmp);
    if (temporary_folder(folder, note)) return true;
    fprintf(stderr, "tessera conformance: cannot make a folder in %.400s: %s\n", tmp,
            strerror(errno));
    return false;
}

static bool is_same_folder(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static int run_check(struct request *request, const struct text_list *operands) {
    struct conformance_checking *checking = &request->checking;
    char folder[512], answers[520];
    int note;
    if (operands->count != 2) return usage_error("conformance", "check needs one folder of cases");
    checking->folder = operands->items[1];
    const char *command = checking->command;
    if (checking->results == NULL && command == NULL)
        return usage_error("conformance", "check needs --results or --command");
    if (command != NULL && command[strspn(command, " \t\n")] == '\0')
        return usage_error("conformance", "--command is empty, expected a command");
    if (command != NULL && conformance_quotes_options(command))
        return usage_error("conformance", "--command has {options} between quotes, expected it "
                                          "without, because it is several words");
    if (checking->results != NULL) {
        if (command != NULL) mkdir(checking->results, 0777); // it may exist already
        DIR *there = opendir(checking->results);
        if (there == NULL) {
            fprintf(stderr, "tessera conformance: cannot open the folder '%s': %s\n",
                    checking->results, strerror(errno));
            return EXIT_COULD_NOT_RUN;
        }
        closedir(there);
        // An answer has the file name of its inputs, so answers would replace the inputs.
        if (command != NULL && is_same_folder(checking->folder, checking->results))
            return usage_error("conformance", "--results is the folder of the cases, '%s'",
                               checking->folder);
    }
    if (command == NULL) {
        int code = check_into(request);
        signals_end();
        return code;
    }
    if (!make_work_folder(folder, sizeof folder, &note)) return EXIT_COULD_NOT_RUN;
    checking->work = folder;
    if (checking->results == NULL) {
        snprintf(answers, sizeof answers, "%s/answers", folder);
        (void)mkdir(answers, 0700); // a failure shows with the first answer
        checking->results = answers;
    }
    int code = check_into(request);
    temporary_remove(folder);
    temporary_forget(note);
    signals_end();
    return code;
}

int command_conformance(int argc, char **argv) {
    struct request request = {.writing = {.num_configs = 60},
                              .checking = {.name = "results"},
                              .seed = (int64_t)time(NULL)};
    const struct option_spec options[] = {
        {"output", 'o', "DIR", "write: the folder for the cases", OPTION_TEXT,
         &request.writing.folder, NULL, 0, 0},
        {"configs", 0, "N", "write: random cases in addition to the edge cases, in all (60)",
         OPTION_INT, &request.writing.num_configs, NULL, 0, 1e6},
        {"seed", 0, "N", "write: seed of the random cases (from the clock)", OPTION_INT,
         &request.seed, NULL, 0, 9e15},
        {"dtype", 0, "T", "write: only tensors of this dtype: f32, bf16, f16 (all three)",
         OPTION_TEXT, &request.writing.dtype, NULL, 0, 0},
        {"results", 0, "DIR", "check: the folder with the answers", OPTION_TEXT,
         &request.checking.results, NULL, 0, 0},
        {"command", 0, "CMD", "check: the command that answers a case", OPTION_TEXT,
         &request.checking.command, NULL, 0, 0},
        {"name", 0, "NAME", "check: name of the implementation in the table (results)", OPTION_TEXT,
         &request.checking.name, NULL, 0, 0},
        {"format", 0, "F", "check: output", OPTION_CHOICE, &request.format, formats, 0, 0},
        {0},
    };
    struct text_list operands = {0};
    int code = options_parse(&help, options, argc, argv, &operands);
    if (code >= 0) return code;
    const char *verb = operands.count > 0 ? operands.items[0] : "";
    if (strcmp(verb, "write") == 0) return run_write(&request, &operands);
    if (strcmp(verb, "check") == 0) return run_check(&request, &operands);
    return usage_error("conformance", "expected write or check");
}
