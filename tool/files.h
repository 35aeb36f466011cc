// SPDX-License-Identifier: Apache-2.0
// Files that commands write: replaced as a whole, looked at before the measuring, in folders that may have to be made.
#ifndef TOOL_FILES_H
#define TOOL_FILES_H

#include <stdbool.h>
#include <stdio.h>

// Writes a file as a whole: a temporary one takes the place of the file at path, or of the one that a link there names, only
// when it is complete; what is no regular file is written to. path NULL: standard output. False after a sentence on stderr.
// SIGINT, SIGTERM and SIGHUP wait until it is in place: the earlier file stays or the new one is there, and nothing beside
// it.
typedef bool file_writer(FILE *out, const void *what);
bool file_write(const char *path, file_writer *write, const void *what);
bool file_write_text(const char *path, const char *text);
// Whether that would be allowed, for a look before the measuring; errno says why not.
bool file_can_write(const char *path);
// The folders above path, for their user alone, as the XDG specification has it. What could not be made shows when the file is
// opened.
void file_make_folders(const char *path);

#endif
