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

// Puts the lines in the place of those of the same keys, and keeps the rest: those of other machines too. Makes folders that
// are missing. Writers wait for each other, and readers see the file before or after. False, with a sentence in error: also
// for a file that is no tuning file.
bool tuning_file_merge(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes);
// Whether merging would find a file that it can write, or none yet, for a look before the measuring.
bool tuning_file_can_merge(const char *path, char *error, size_t error_bytes);
// A file of these lines alone.
bool tuning_file_write(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes);
// Removes the file, if it is one; none is fine too.
bool tuning_file_clear(const char *path, char *error, size_t error_bytes);

#endif
