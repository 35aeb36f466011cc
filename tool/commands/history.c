// SPDX-License-Identifier: Apache-2.0
// tessera history: keeps runs in one file, and compares the last one with those before it on the same machine. The scatter
// of the medians and samples of the earlier runs counts as noise, so more runs make the verdict more certain.
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "commands/command.h"
#include "files/compare_runs.h"
#include "files/history_store.h"
#include "system/environment.h"
#include "system/files.h"
#include "system/options.h"

static const char *const verbs[] = {"add", "list", "show", "check", "remove", NULL};
static const struct command_help help = {
    .name = "history",
    .synopsis = "add RESULTS... | list | show [TEXT] | check [RUN] | remove RUN...",
    .summary = "Keeps runs in one file (SQLite), and compares the last one with those before it.",
    .notes =
        "add     keeps results: the JSON of bench, a report's folder or its results.json; a run "
        "that is there already\n"
        "        is not added again\n"
        "list    lists the runs\n"
        "show    shows the times of every case, or of those whose text contains TEXT, run by run\n"
        "check   compares each case of the last run, or of RUN, with the --last earlier runs on "
        "the same machine that\n"
        "        have the case. The exit code is 1 if a case is wrong or slower: its median is "
        "above --slower times the\n"
        "        median of those runs' medians, and its p20 above the slowest p80 among them. It "
        "is 3 if no earlier run\n"
        "        has a case of the run\n"
        "remove  removes runs\n\n"
        "The file is --file, else $TESSERA_HISTORY, else tessera/history.sqlite in "
        "$XDG_DATA_HOME or ~/.local/share.",
    .operands = verbs,
    .examples = "tessera bench softmax --rows 512 --cols 512 --format json --out run.json\n"
                "tessera history add run.json --file runs.sqlite\n"
                "tessera history list --file runs.sqlite\n"
                "tessera history show softmax --file runs.sqlite",
};

struct request {
    const char *file;
    double slower;
    int64_t last;
    bool has_all, is_named; // is_named: the option or the environment names the file
    char path[PATH_MAX];
};

static bool find_path(struct request *request) {
    const char *variable = environment_value("TESSERA_HISTORY");
    const char *given = request->file != NULL ? request->file : variable;
    const char *data = environment_value("XDG_DATA_HOME"), *home = environment_value("HOME");
    int length = -1;
    request->is_named = given != NULL && *given != '\0';
    if (request->is_named)
        length = snprintf(request->path, PATH_MAX, "%s", given);
    else if (data != NULL && *data == '/')
        length = snprintf(request->path, PATH_MAX, "%s/tessera/history.sqlite", data);
    else if (home != NULL && *home == '/')
        length = snprintf(request->path, PATH_MAX, "%s/.local/share/tessera/history.sqlite", home);
    return length > 0 && length < PATH_MAX;
}

static int parse_run(const char *text, int64_t *number) {
    char *end;
    errno = 0;
    *number = strtoll(text, &end, 10);
    if (errno == 0 && *end == '\0' && *number > 0) return -1;
    return usage_error("history", "'%s' is no run, expected a number that list shows", text);
}

static int fail_run(const struct history *history, int64_t number) {
    if (history_error(history) != NULL) return EXIT_COULD_NOT_RUN;
    if (number == 0)
        fprintf(stderr, "tessera history: there is no run yet\n");
    else
        fprintf(stderr, "tessera history: there is no run %lld\n", (long long)number);
    return EXIT_USAGE;
}

// ---- What it does -------------------------------------------------------------------------------

static int add(struct history *history, const char *path) {
    struct run run;
    bool is_new = false;
    int code = run_read("history", path, &run);
    int64_t number = code < 0 ? history_add(history, &run, &is_new) : 0;
    if (number > 0) {
        printf("run %lld%s: %d cases, %s\n", (long long)number, is_new ? "" : " (there already)",
               run.count, run.date);
        code = EXIT_FINE;
    } else if (code < 0)
        code = EXIT_COULD_NOT_RUN;
    run_free(&run);
    return code;
}

static int check(struct history *history, const struct request *request, int64_t number) {
    struct run run, base;
    int num_runs = 0;
    if (number == 0) number = history_last(history);
    if (!history_get(history, number, &run)) {
        run_free(&run);
        return fail_run(history, number);
    }
    if (!history_before(history, number, (int)request->last, &base, &num_runs)) {
        run_free(&run);
        run_free(&base);
        return EXIT_COULD_NOT_RUN;
    }
    if (num_runs > 0)
        printf("Run %lld of %s, compared with %d before it:\n\n", (long long)number, run.date,
               num_runs);
    int code = compare_runs_write(stdout, &base, &run, request->slower, request->has_all);
    if (code == EXIT_NOT_COMPARABLE)
        fprintf(stderr, "tessera history: no earlier run on this machine has a case of run %lld\n",
                (long long)number);
    run_free(&run);
    run_free(&base);
    return code;
}

static int run_verb(const struct request *request, struct history *history,
                    const struct text_list *words) {
    const char *verb = words->items[0];
    int64_t number = 0;
    int code = EXIT_FINE;
    if (strcmp(verb, "list") == 0) history_list(history, stdout);
    if (strcmp(verb, "show") == 0 &&
        history_show(history, words->count > 1 ? words->items[1] : "", stdout) == 0 &&
        history_error(history) == NULL) {
        fprintf(stderr, "tessera history: no run has a case with this text\n");
        return EXIT_USAGE;
    }
    if (strcmp(verb, "check") == 0) {
        if (words->count > 1 && (code = parse_run(words->items[1], &number)) >= 0) return code;
        return check(history, request, number);
    }
    bool is_add = strcmp(verb, "add") == 0, is_remove = strcmp(verb, "remove") == 0;
    for (int i = 1; code == EXIT_FINE && (is_add || is_remove) && i < words->count; i++) {
        if (is_add) {
            code = add(history, words->items[i]);
            continue;
        }
        code = parse_run(words->items[i], &number);
        if (code < 0)
            code = history_remove(history, number) ? EXIT_FINE : fail_run(history, number);
    }
    return code;
}

static int check_words(const struct text_list *words) {
    const char *verb = words->count > 0 ? words->items[0] : "";
    int i = 0;
    while (verbs[i] != NULL && strcmp(verbs[i], verb) != 0) i++;
    if (words->count == 0)
        return usage_error("history", "expected add, list, show, check or remove");
    if (verbs[i] == NULL)
        return usage_error("history", "'%s' is no verb, expected add, list, show, check or remove",
                           verb);
    bool needs_more = strcmp(verb, "add") == 0 || strcmp(verb, "remove") == 0;
    if (needs_more && words->count < 2)
        return usage_error("history", "there is nothing to %s, expected one or more names", verb);
    int most = strcmp(verb, "list") == 0 ? 1 : 2;
    if (!needs_more && words->count > most)
        return usage_error("history", "unexpected '%s'", words->items[most]);
    return -1;
}

int command_history(int argc, char **argv) {
    struct request request = {.slower = 1.05, .last = 10};
    struct text_list words = {0};
    char error[PATH_MAX + 256];
    const struct option_spec options[] = {
        {"file", 0, "FILE", "the file of runs (the user's, see below)", OPTION_TEXT, &request.file,
         NULL, 0, 0},
        {"last", 0, "N", "check: number of earlier runs to compare a case with (10)", OPTION_INT,
         &request.last, NULL, 1, 1000},
        {"slower", 0, "R", "check: a case counts as slower above this ratio of the medians (1.05)",
         OPTION_REAL, &request.slower, NULL, 1, 100},
        {"all", 0, NULL, "check: show every case, not only those that differ", OPTION_FLAG,
         &request.has_all, NULL, 0, 0},
        {0}};
    int code = options_parse(&help, options, argc, argv, &words);
    if (code < 0) code = check_words(&words);
    if (code >= 0) return code;
    if (request.file != NULL && *request.file == '\0')
        return usage_error("history", "--file is empty, expected the name of a file");
    if (!find_path(&request))
        return usage_error("history", "there is no home folder for the file, name one with --file");
    bool is_add = strcmp(words.items[0], "add") == 0;
    // The folders of a named file must exist; those of the user's own file are made.
    if (is_add && !request.is_named) file_make_folders(request.path);
    struct history *history = history_open(request.path, is_add, error, sizeof error);
    if (history == NULL) {
        fprintf(stderr, "tessera history: %s\n", error);
        return EXIT_COULD_NOT_RUN;
    }
    code = run_verb(&request, history, &words);
    if (history_error(history) != NULL) {
        fprintf(stderr, "tessera history: '%s': %s\n", request.path, history_error(history));
        code = EXIT_COULD_NOT_RUN;
    }
    history_close(history);
    return code;
}
