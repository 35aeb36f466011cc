// SPDX-License-Identifier: Apache-2.0
// The tool's commands: each takes the arguments after its name and returns the exit code.
#ifndef TOOL_COMMAND_H
#define TOOL_COMMAND_H

enum exit_code {
    EXIT_FINE = 0,
    EXIT_WRONG = 1, // a result is wrong, or slower than before; outweighs the other codes
    EXIT_USAGE = 2, // the command line or the content of an input file is wrong
    EXIT_NOT_COMPARABLE = 3,
    EXIT_COULD_NOT_RUN = 4, // no such file, a full disk, no memory, no variant for the case
    EXIT_SKIPPED = 77       // no such device
};

// argv[0] is the command's name.
int command_info(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_compare(int argc, char **argv);
int command_history(int argc, char **argv);
int command_memory(int argc, char **argv);
int command_profile(int argc, char **argv);
int command_scale(int argc, char **argv);
int command_tune(int argc, char **argv);
int command_apply(int argc, char **argv);
int command_conformance(int argc, char **argv);
int command_kernels(int argc, char **argv);
int command_report(int argc, char **argv);

// The two commands that describe a table of commands: man pages and shell completions.
struct command;
int manual_of(const struct command *table, int argc, char **argv);
int completion_of(const struct command *table, int argc, char **argv);

#endif
