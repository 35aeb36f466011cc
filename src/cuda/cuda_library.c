// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_library.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_system.h"

// A folder, or a pattern of folders, appended to the variable's value (NULL: as it stands).
static const struct place {
    const char *variable, *folder;
} places[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_PATH", "/lib64"},
    {NULL, "/usr/local/cuda/lib64"},
    {"CUDA_HOME", "/extras/CUPTI/lib64"},
    {NULL, "/usr/local/cuda/extras/CUPTI/lib64"},
    {NULL, "/opt/cuda/lib64"},
    {NULL, "/usr/local/nvidia/lib64"}, // containers that mount the driver here
    {NULL, "/usr/lib/wsl/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
    {NULL, "/usr/local/cuda-1[23]*/lib64"},
};
enum { NUM_PLACES = sizeof places / sizeof *places, PATH_BYTES = 1024 };

// The pattern of a place; false if its variable is not set.
static bool place_pattern(const struct place *place, char *pattern, size_t bytes) {
    const char *base = place->variable != NULL ? tsri_environment(place->variable) : "";
    if (base == NULL || (place->variable != NULL && *base == '\0')) return false;
    return snprintf(pattern, bytes, "%s%s", base, place->folder) < (int)bytes;
}

// Tries every file of this name in the place.
static void *open_in(const struct place *place, const char *name) {
    char pattern[PATH_BYTES], path[2 * PATH_BYTES];
    glob_t found;
    void *handle = NULL;
    if (!place_pattern(place, pattern, sizeof pattern)) return NULL;
    snprintf(path, sizeof path, "%s/%s", pattern, name);
    if (glob(path, 0, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && handle == NULL; i++)
        handle = tsri_system.open_library(found.gl_pathv[i]);
    globfree(&found);
    return handle;
}

static void append(char *text, size_t bytes, const char *format, const char *what) {
    size_t used = strlen(text);
    if (used < bytes) snprintf(text + used, bytes - used, format, what);
}

// True if an earlier place is the same folder, because variables often name a default folder.
static bool is_listed(int i, const char *pattern) {
    char earlier[PATH_BYTES];
    while (i-- > 0)
        if (place_pattern(&places[i], earlier, sizeof earlier) && strcmp(earlier, pattern) == 0)
            return true;
    return false;
}

static void say_not_found(const struct tsri_cuda_library *library, char *sentence, size_t bytes) {
    char pattern[PATH_BYTES];
    snprintf(sentence, bytes, "%s was not found: looked for %s", library->what, library->names[0]);
    for (int i = 1; library->names[i] != NULL; i++)
        append(sentence, bytes, " and %s", library->names[i]);
    append(sentence, bytes, "%s", " in the loader's path");
    for (int i = 0; i < NUM_PLACES; i++)
        if (place_pattern(&places[i], pattern, sizeof pattern) && !is_listed(i, pattern))
            append(sentence, bytes, ", %s", pattern);
    append(sentence, bytes, "; %s can name the file", library->variable);
}

void *tsri_cuda_library_open(const struct tsri_cuda_library *library, char *sentence,
                             size_t sentence_bytes) {
    const char *given = tsri_environment(library->variable);
    if (given != NULL && *given != '\0') {
        void *handle = tsri_system.open_library(given);
        if (handle == NULL)
            snprintf(sentence, sentence_bytes, "%s cannot be opened: %s names '%.300s'",
                     library->what, library->variable, given);
        return handle;
    }
    for (int i = 0; library->names[i] != NULL; i++) {
        void *handle = tsri_system.open_library(library->names[i]);
        for (int p = 0; p < NUM_PLACES && handle == NULL; p++)
            handle = open_in(&places[p], library->names[i]);
        if (handle != NULL) return handle;
    }
    say_not_found(library, sentence, sentence_bytes);
    return NULL;
}

void *tsri_cuda_library_symbol(const struct tsri_cuda_library *library, void *handle,
                               const char *name, char *sentence, size_t sentence_bytes) {
    void *symbol = tsri_system.find_symbol(handle, name);
    if (symbol == NULL)
        snprintf(sentence, sentence_bytes, "%s lacks the symbol %s: it is too old, or not %s",
                 library->what, name, library->names[0]);
    return symbol;
}
