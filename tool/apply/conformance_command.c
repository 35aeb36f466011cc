// SPDX-License-Identifier: Apache-2.0
// The command that answers a case. The user wrote its text, and a shell reads it, but the names of cases may come from
// anybody. A placeholder may stand between quotes, in a nested command or in a script of another language; so it is only
// replaced by a path of harmless characters. Any other path is passed as a link with a harmless name.
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apply/conformance.h"
#include "system/heap.h"

static bool is_harmless(const char *text) {
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_./-+,:@%=")] == '\0';
}

bool conformance_can_work_in(const char *folder) { return is_harmless(folder); }

// ---- Harmless names -----------------------------------------------------------------------------

static bool fail(char *what, size_t bytes, const char *path) {
    snprintf(what, bytes, "cannot make %.300s: %s", path, strerror(errno));
    return false;
}

// place, of CONFORMANCE_MAX_PATH bytes: receives a harmless path to target.
static bool name_plainly(const char *target, const char *work, const char *name, char *place,
                         char *what, size_t bytes) {
    char whole[PATH_MAX];
    snprintf(place, CONFORMANCE_MAX_PATH, "%s", target);
    if (is_harmless(target)) return true;
    snprintf(place, CONFORMANCE_MAX_PATH, "%s/%s", work, name);
    (void)unlink(place);
    return (realpath(target, whole) != NULL && symlink(whole, place) == 0) ||
           fail(what, bytes, place);
}

// place: where the command puts its answer. It lies in the folder of the answers, so that a rename is enough.
static bool name_answer(const struct conformance_answering *with, char *place, char *what,
                        size_t bytes) {
    char folder[CONFORMANCE_MAX_PATH], plain[CONFORMANCE_MAX_PATH];
    snprintf(place, CONFORMANCE_MAX_PATH, "%s", with->answer);
    if (is_harmless(with->answer)) return true;
    snprintf(folder, sizeof folder, "%s", with->answer);
    *strrchr(folder, '/') = '\0';
    if (!name_plainly(folder, with->work, "results", plain, what, bytes)) return false;
    int length = snprintf(place, CONFORMANCE_MAX_PATH, "%.900s/answer-%ld.safetensors", plain,
                          (long)getpid());
    return length < CONFORMANCE_MAX_PATH;
}

// ---- The text -------------------------------------------------------------------------------------

struct words {
    const char *input, *output, *call, *op;
};

// Makes the options from the parameters, not from the file's "options", which could be any option, such as --output.
static bool put_options(FILE *out, const struct apply *apply) {
    char text[CONFORMANCE_OPTION_BYTES];
    const char *space = "";
    for (int i = 0; i < apply->num_options; i++) {
        if (!apply->options[i].is_given) continue;
        if (!is_harmless(conformance_option_text(&apply->options[i], text))) return false;
        fprintf(out, "%s%s", space, text);
        space = " ";
    }
    return true;
}

static bool put_command(FILE *out, const char *command, const struct words *words,
                        const struct apply *apply) {
    const struct {
        const char *name, *value;
    } table[] = {{"{input}", words->input},
                 {"{output}", words->output},
                 {"{call}", words->call},
                 {"{op}", words->op}};
    for (const char *c = command; *c != '\0';) {
        int w = 0;
        while (w < 4 && strncmp(c, table[w].name, strlen(table[w].name)) != 0) w++;
        if (w < 4) {
            if (!is_harmless(table[w].value)) return false;
            fputs(table[w].value, out);
            c += strlen(table[w].name);
        } else if (strncmp(c, "{options}", 9) == 0) {
            if (!put_options(out, apply)) return false;
            c += 9;
        } else {
            fputc(*c++, out);
        }
    }
    return true;
}

// The shell does not see quotes inside other quotes, such as those of a script.
bool conformance_quotes_options(const char *command) {
    char open = 0;
    for (const char *c = command; *c != '\0'; c++) {
        if (*c == '\\' && open != '\'' && c[1] != '\0') {
            c++;
        } else if (open != 0) {
            if (*c == open) open = 0;
        } else if (*c == '"' || *c == '\'') {
            open = *c;
            if (strncmp(c + 1, "{options}", 9) == 0 && c[10] == open) return true;
        }
    }
    return false;
}

// ---- Running it -----------------------------------------------------------------------------------

// False if the command failed. Its output goes to stderr, because stdout is for the table.
static bool run(const char *line, char *what, size_t bytes) {
    fflush(NULL);
    int status = system(line);
    // Ctrl-C ends the command, but system() hides the signal from this process.
    if (status != -1 && ((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) ||
                         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT)))
        raise(SIGINT);
    if (status == 0) return true;
    if (status != -1 && WIFEXITED(status))
        snprintf(what, bytes, "the command ended with exit code %d", WEXITSTATUS(status));
    else
        snprintf(what, bytes, "the command was ended by a signal or could not start");
    return false;
}

bool conformance_answer(const struct conformance_answering *with, const struct apply *apply,
                        char *what, size_t bytes) {
    char input[CONFORMANCE_MAX_PATH], output[CONFORMANCE_MAX_PATH], call[CONFORMANCE_MAX_PATH];
    char *line = NULL;
    size_t length;
    if (!name_plainly(with->inputs, with->work, "case.safetensors", input, what, bytes) ||
        !name_plainly(with->call, with->work, "case.json", call, what, bytes) ||
        !name_answer(with, output, what, bytes))
        return false;
    const struct words words = {input, output, call, apply->forward->op};
    FILE *out = heap_stream(&line, &length);
    fputs("( ", out);
    bool is_plain = put_command(out, with->command, &words, apply);
    fputs("\n) >&2", out);
    heap_stream_end(out);
    (void)unlink(with->answer); // an earlier answer must not count
    (void)unlink(output);
    if (!is_plain) snprintf(what, bytes, "a path or option is not safe to pass to a shell");
    bool is_answered = is_plain && run(line, what, bytes);
    if (strcmp(output, with->answer) != 0 && rename(output, with->answer) != 0 && errno != ENOENT)
        is_answered = fail(what, bytes, with->answer);
    free(line);
    return is_answered;
}
