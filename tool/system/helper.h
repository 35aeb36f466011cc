// SPDX-License-Identifier: Apache-2.0
// Programs that commands start: Python for peers, gnuplot for reports.
#ifndef TOOL_HELPER_H
#define TOOL_HELPER_H

#include <stdbool.h>

// The path of a program, of PATH_MAX bytes. A name with '/' stands for itself. Else it is looked for in $PATH, in whose
// absolute folders alone: "", "." and the like mean the current directory, which may be somebody else's. False where there is none.
bool helper_find(const char *name, char *path);

#endif
