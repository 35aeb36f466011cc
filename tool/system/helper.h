// SPDX-License-Identifier: Apache-2.0
// Programs that commands start: Python for peers, gnuplot for reports.
#ifndef TOOL_HELPER_H
#define TOOL_HELPER_H

#include <stdbool.h>

// Finds a program; path has PATH_MAX bytes. A name with '/' stands for itself. Any other name is looked for in the
// absolute folders of $PATH: "", "." and the like are skipped, because the current directory may belong to somebody else.
// False if there is no such program.
bool helper_find(const char *name, char *path);

#endif
