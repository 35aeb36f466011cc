// SPDX-License-Identifier: Apache-2.0
// A table of commands, and a walk over the options of each command. --help, man pages and shell completions all come
// from these tables.
#ifndef TOOL_COMMAND_WALK_H
#define TOOL_COMMAND_WALK_H

#include "system/options.h"

// A row of the table, which ends with a NULL name.
struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
    bool takes_commands; // its operand is the name of a command
};
extern const char commands_exit_codes[]; // the meaning of the exit codes, in one line
// NULL if no command has this name.
const struct command *commands_find(const struct command *table, const char *name);

// One step of a walk. operand NULL: the command, with its whole help. Else: the options that this operand adds to those
// of the command.
struct command_visit {
    const struct command *command;
    const char *operand;
    const struct command_help *help;
    const struct option_spec *options;
};
// Visits a command, then each of its operands, including those without options of their own.
void commands_walk(const struct command *command,
                   void (*visit)(void *user, const struct command_visit *visit), void *user);

// How a shell completes the value of an option.
enum value_kind { VALUE_NONE, VALUE_CHOICES, VALUE_FILE, VALUE_FOLDER, VALUE_FREE };
enum value_kind command_value_kind(const struct option_spec *option);

#endif
