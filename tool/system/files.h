// SPDX-License-Identifier: Apache-2.0
// Files that commands write: replaced as a whole, looked at before the measuring, in folders that may have to be made.
#ifndef TOOL_FILES_H
#define TOOL_FILES_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <tessera/safetensors.h>

// Writes a file as a whole: a temporary one takes the place of the file at path, or of the one that a link there names, only
// when it is complete and on the disk; what is no regular file is written to. path NULL: standard output. False after a
// sentence on stderr. SIGINT, SIGTERM and SIGHUP wait until it is in place: the earlier file stays or the new one is there,
// and nothing beside it.
typedef bool file_writer(FILE *out, const void *what);
bool file_write(const char *path, file_writer *write, const void *what);
bool file_write_text(const char *path, const char *text);
// The same for a regular file or none, not through a link; mode 0: for its user alone. False with errno.
bool file_replace(const char *target, mode_t mode, file_writer *write, const void *what);
// Onto the disk: a file, or the names in a folder. False with errno; what knows no such thing, as a pipe, is fine.
bool file_sync(const char *path);
// The folder that path lies in, for file_sync: "." where path has none. folder has PATH_MAX bytes.
void file_folder(const char *path, char *folder);
// tsr_safetensors_write, with the signals as above.
tsr_status file_write_tensors(const char *path, const tsr_safetensors_entry *entries,
                              int64_t num_entries);
// Whether writing would be allowed, for a look before the measuring; errno says why not.
bool file_can_write(const char *path);
// The folders above path, for their user alone, as the XDG specification has it. What could not be made shows when the file is
// opened.
void file_make_folders(const char *path);

#endif
