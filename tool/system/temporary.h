// SPDX-License-Identifier: Apache-2.0
// Temporary files and folders of this process: whatever ends it early removes them, be it a signal or a lack of memory.
#ifndef TOOL_TEMPORARY_H
#define TOOL_TEMPORARY_H

#include <stdbool.h>

// From here on path is removed at an early end, a folder with all that is in it. A relative one stays right while the
// working directory does. Returns a number for temporary_forget; -1, which that takes too, where there is no room.
int temporary_note(const char *path);
void temporary_forget(int number);
// mkdtemp, noted before any signal comes. False with errno.
bool temporary_folder(char *path, int *number);

// Removes them all, in a handler of signals too.
void temporary_remove_all(void);

// Removes a file, or a folder with all that is in it; links are not followed. For a handler of signals too.
void temporary_remove(const char *path);

#endif
