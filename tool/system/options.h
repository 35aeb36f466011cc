// SPDX-License-Identifier: Apache-2.0
// Command lines: a command describes its options in one table, which drives getopt_long, checks the
// values and prints --help. A wrong command line gives one sentence on stderr.
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { NUMBERS_MAX = 256, OPERANDS_MAX = 64 };

// Several values of one number: "512,1024", the sweeps "256:8192:x2" and "256:1024:+256", or
// a mixture.
struct numbers {
    int count;
    double values[NUMBERS_MAX];
};

enum option_kind {
    OPTION_FLAG,    // bool: no value, set to true
    OPTION_TEXT,    // const char *
    OPTION_INT,     // int64_t, from min to max
    OPTION_REAL,    // double, from min to max
    OPTION_CHOICE,  // int: index into choices
    OPTION_NUMBERS, // struct numbers: a list or sweep
    OPTION_APPEND   // struct text_list: every occurrence adds one
};

struct text_list {
    int count;
    const char *items[OPERANDS_MAX];
};

// A row of the table; the last one has a NULL name.
struct option_spec {
    const char *name;  // long name; words joined by '-'
    char letter;       // short name, 0 for none
    const char *value; // what --help calls the value: "N"; NULL for flags
    const char *help;
    enum option_kind kind;
    void *target;               // where the value goes, of the kind's type
    const char *const *choices; // OPTION_CHOICE: NULL-terminated
    double min, max;            // OPTION_INT, OPTION_REAL: both 0 for any
};

// The texts of --help around the options.
struct command_help {
    const char *name;            // "bench"
    const char *synopsis;        // "OP [options]"
    const char *summary;         // one or two sentences
    const char *notes;           // after the options; NULL for none
    const char *const *operands; // the words it takes, ends with NULL; NULL: none, or any word
    const char *examples;        // command lines that work as they are, one per line; NULL for none
};

// Reads argv[1...] (argv[0] is the command's name) into the targets and the operands. Options and operands come in any
// order; "--" ends the options. Every table has --help without a row for it. Returns -1 to go on, else the exit code:
// EXIT_FINE after --help, EXIT_USAGE after a sentence on stderr. operands NULL: the command takes none. The target of
// an option that is not given keeps its value.
int options_parse(const struct command_help *help, const struct option_spec *options, int argc,
                  char **argv, struct text_list *operands);
// The help of an option, with the values that it takes and its default in parentheses.
const char *option_help_text(const struct option_spec *option, char *text, size_t bytes);
void options_print_help(FILE *out, const struct command_help *help,
                        const struct option_spec *options);
// The function that --help calls: options_print_help, except while commands_walk reads the tables.
typedef void (*options_help_writer)(FILE *out, const struct command_help *help,
                                    const struct option_spec *options);
extern options_help_writer options_write_help;

// False if text is no list or sweep; error then has a sentence without a full stop.
bool numbers_parse(const char *text, struct numbers *numbers, char *error, size_t error_bytes);

// Splits "f32,bf16" in place; false if an item is empty or there are too many.
bool text_list_split(char *text, struct text_list *list);

// Prints "tessera bench: <sentence>" and a hint at --help on stderr; returns EXIT_USAGE.
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
