// SPDX-License-Identifier: Apache-2.0
// Writing tuning files (tessera/tuning.h).
#ifndef TOOL_TUNING_FILE_H
#define TOOL_TUNING_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct tuning_line {
    char key[192];    // as tsr_context_tuning_key gives it
    char choice[128]; // variant, block, comment; "": no row, the built-in choice
};

// Replaces the lines with the same keys and keeps all others, those of other machines too. Makes missing folders. Writers
// wait for each other; a reader sees the file before or after the change. False, with a sentence in error, also if the file
// is no tuning file.
bool tuning_file_merge(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes);
// Whether a merge could write the file or make it; to be checked before a measurement.
bool tuning_file_can_merge(const char *path, char *error, size_t error_bytes);
// Writes a file with only these lines.
bool tuning_file_write(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes);
// Removes the file if it is a tuning file; a missing file is no error.
bool tuning_file_clear(const char *path, char *error, size_t error_bytes);

#endif
