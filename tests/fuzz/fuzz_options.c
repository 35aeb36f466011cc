// SPDX-License-Identifier: Apache-2.0
// Any command line, with one argument per line, for a table with options of every kind. It is accepted, and every value
// is then one that the table allows; or it is refused with one sentence; or it is answered with the help.
#define _GNU_SOURCE
#include "system/options.h"

#include <math.h>

#include "commands/command.h"
#include "fuzz.h"

enum { MAX_ARGUMENTS = 100, UNTOUCHED = -77 };

static const char *const choices[] = {"f32", "bf16", "f16", NULL};
static struct targets {
    bool flag, other_flag;
    const char *text;
    int64_t count, any;
    double real;
    int choice;
    struct numbers numbers;
    struct text_list list;
} got;

static const struct option_spec table[] = {
    {"verbose", 'v', NULL, "a flag", OPTION_FLAG, &got.flag},
    {"verify", 0, NULL, "another, that begins as the first does", OPTION_FLAG, &got.other_flag},
    {"text", 't', "TEXT", "a text", OPTION_TEXT, &got.text},
    {"count", 'n', "N", "a whole number in a range", OPTION_INT, &got.count, NULL, 1, 4096},
    {"any", 'a', "N", "a whole number", OPTION_INT, &got.any},
    {"real", 'r', "X", "a number in a range", OPTION_REAL, &got.real, NULL, -1.5, 2.5},
    {"dtype", 'd', "NAME", "a choice", OPTION_CHOICE, &got.choice, choices},
    {"sizes", 's', "LIST", "numbers", OPTION_NUMBERS, &got.numbers},
    {"append", 'p', "TEXT", "texts", OPTION_APPEND, &got.list},
    {NULL},
};
static const struct command_help help = {"fuzz", "[options]", "A table.", "Notes."};

static void check_values(const char *first, const char *end) {
    fuzz_require(got.text == NULL || (got.text >= first && got.text < end));
    fuzz_require(got.count == UNTOUCHED || (got.count >= 1 && got.count <= 4096));
    fuzz_require(got.real == UNTOUCHED || (got.real >= -1.5 && got.real <= 2.5));
    fuzz_require(got.choice == UNTOUCHED || (got.choice >= 0 && got.choice < 3));
    fuzz_require(got.numbers.count >= 0 && got.numbers.count <= NUMBERS_MAX);
    for (int i = 0; i < got.numbers.count; i++) fuzz_require(isfinite(got.numbers.values[i]));
    fuzz_require(got.list.count >= 0 && got.list.count <= OPERANDS_MAX);
    for (int i = 0; i < got.list.count; i++)
        fuzz_require(got.list.items[i] >= first && got.list.items[i] < end);
}

// Parses the whole text as a list.
static void check_lists(const char *text, size_t bytes) {
    struct numbers numbers;
    char error[64];
    error[0] = '\0';
    if (numbers_parse(text, &numbers, error, sizeof error))
        fuzz_require(numbers.count > 0 && numbers.count <= NUMBERS_MAX);
    else
        fuzz_require(error[0] != '\0' && memchr(error, '\0', sizeof error) != NULL);
    char *copy = malloc(bytes + 1);
    fuzz_require(copy != NULL);
    memcpy(copy, text, bytes + 1);
    struct text_list list;
    if (text_list_split(copy, &list)) {
        fuzz_require(list.count > 0 && list.count <= OPERANDS_MAX);
        for (int i = 0; i < list.count; i++)
            fuzz_require(list.items[i] >= copy && *list.items[i] != '\0' &&
                         strchr(list.items[i], ',') == NULL);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *lines = malloc(bytes + 1);
    fuzz_require(lines != NULL);
    if (bytes > 0) memcpy(lines, data, bytes);
    lines[bytes] = '\0';
    check_lists(lines, strlen(lines));

    static char name[] = "fuzz";
    char *argv[MAX_ARGUMENTS + 2] = {name};
    int argc = 1;
    for (char *line = lines; argc <= MAX_ARGUMENTS;) {
        char *end = line + strcspn(line, "\n");
        bool is_last = end >= lines + bytes || *end == '\0';
        *end = '\0';
        argv[argc++] = line;
        if (is_last) break;
        line = end + 1;
    }

    // The parser's output goes to our own memory.
    static char out_text[8192], error_text[65536];
    out_text[0] = error_text[0] = '\0';
    FILE *out = fmemopen(out_text, sizeof out_text, "w");
    FILE *error = fmemopen(error_text, sizeof error_text, "w");
    fuzz_require(out != NULL && error != NULL);
    FILE *stdout_before = stdout, *stderr_before = stderr;
    stdout = out;
    stderr = error;
    struct text_list operands = {0};
    got = (struct targets){.count = UNTOUCHED, .real = UNTOUCHED, .choice = UNTOUCHED};
    bool has_operands = bytes % 2 == 0;
    int outcome = options_parse(&help, table, argc, argv, has_operands ? &operands : NULL);
    stdout = stdout_before;
    stderr = stderr_before;
    fclose(out);
    fclose(error);

    fuzz_require(outcome == -1 || outcome == EXIT_FINE || outcome == EXIT_USAGE);
    bool is_silent = error_text[0] == '\0';
    fuzz_require(is_silent == (outcome != EXIT_USAGE));
    fuzz_require(is_silent || strncmp(error_text, "tessera fuzz: ", 14) == 0);
    fuzz_require(outcome != EXIT_FINE || strncmp(out_text, "Usage: tessera fuzz", 19) == 0);
    check_values(lines, lines + bytes + 1);
    fuzz_require(operands.count >= 0 && operands.count <= OPERANDS_MAX);
    for (int i = 0; i < operands.count; i++)
        fuzz_require(operands.items[i] >= lines && operands.items[i] <= lines + bytes);
    free(lines);
    return 0;
}
