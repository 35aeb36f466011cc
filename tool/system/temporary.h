// SPDX-License-Identifier: Apache-2.0
// Temporary files and folders of this process. They are removed if a signal or a lack of memory ends it early.
#ifndef TOOL_TEMPORARY_H
#define TOOL_TEMPORARY_H

#include <stdbool.h>

// From here on path is removed at an early end, a folder with all its content. The working directory must not change
// while a relative path is noted. Returns a number for temporary_forget, or -1 if there is no room; temporary_forget
// takes -1 too.
int temporary_note(const char *path);
void temporary_forget(int number);
// mkdtemp; the folder is noted before a signal can come. False with errno.
bool temporary_folder(char *path, int *number);

// Removes all of them. Safe in a signal handler.
void temporary_remove_all(void);

// Removes a file, or a folder with all its content, without following links. Safe in a signal handler.
void temporary_remove(const char *path);

#endif
