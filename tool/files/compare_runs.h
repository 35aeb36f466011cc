// SPDX-License-Identifier: Apache-2.0
// tessera compare A B: two runs' results side by side.
#ifndef TOOL_COMPARE_RUNS_H
#define TOOL_COMPARE_RUNS_H

#include <stdbool.h>

#include "files/run.h"
#include "system/options.h"

// Whether the operands are files or folders, not operations.
bool compare_runs_asked(int argc, char **argv);
int compare_runs(int argc, char **argv, const struct command_help *help);

// Writes the table of two runs (only changes, or everything with has_all) and a summary. Returns the exit code.
int compare_runs_write(FILE *out, const struct run *old, const struct run *new, double limit,
                       bool has_all);

#endif
