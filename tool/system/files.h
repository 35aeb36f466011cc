// SPDX-License-Identifier: Apache-2.0
// Files that commands write: they are replaced as a whole, checked before a measurement, and their folders are made.
#ifndef TOOL_FILES_H
#define TOOL_FILES_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <tessera/safetensors.h>

// Writes a file as a whole: a temporary file replaces the one at path (or the target of a link there) only when it is
// complete and on the disk. Anything but a regular file is written in place. path NULL: standard output. False after a
// sentence on stderr. SIGINT, SIGTERM and SIGHUP wait until the file is in place: afterwards there is either the earlier
// file or the new one, and no temporary file.
typedef bool file_writer(FILE *out, const void *what);
bool file_write(const char *path, file_writer *write, const void *what);
bool file_write_text(const char *path, const char *text);
// The same for a regular or missing file, without following a link; mode 0: only its user may read it. False with errno.
bool file_replace(const char *target, mode_t mode, file_writer *write, const void *what);
// Flushes to the disk: a file, or the names in a folder. False with errno; a pipe or the like is no error.
bool file_sync(const char *path);
// The folder of path, for file_sync: "." if path has none. folder has PATH_MAX bytes.
void file_folder(const char *path, char *folder);
// tsr_safetensors_write, with the signals as above.
tsr_status file_write_tensors(const char *path, const tsr_safetensors_entry *entries,
                              int64_t num_entries);
// Whether path can be written, to be checked before a measurement; errno says why not.
bool file_can_write(const char *path);
// Makes the folders above path, for their user alone, as the XDG specification requires. A failure shows when the file is
// opened.
void file_make_folders(const char *path);

#endif
