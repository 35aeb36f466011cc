// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "files/tuning_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "system/files.h"
#include "system/heap.h"
#include "system/signals.h"

static const char first_line[] = "tessera-tuning 1\n";
enum { MAX_FILE = 1 << 20 }; // the largest file that the library reads

static const char not_ours[] = "is no tuning file";

// what: not_ours, or the system's message.
static bool fail(char *error, size_t error_bytes, const char *path, const char *what) {
    snprintf(error, error_bytes, "'%s' %s%s", path,
             what == not_ours ? "" : "cannot be changed: ", what);
    return false;
}

// The file's text; "" if there is no file. NULL, with the reason in *wrong, if it cannot be read or belongs to another
// program.
static char *read_text(const char *path, const char **wrong) {
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *wrong = strerror(errno);
    if (file < 0) return errno == ENOENT ? heap_get(1, 1) : NULL;
    char *text = NULL;
    *wrong = not_ours;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= MAX_FILE)
        text = heap_get((size_t)info.st_size + 1, 1);
    if (text != NULL && read(file, text, (size_t)info.st_size) != info.st_size) text[0] = '?';
    close(file);
    if (text == NULL || text[0] == '\0' ||
        strncmp(text, first_line, strlen(first_line) - 2) == 0) // another version counts too
        return text;
    free(text);
    return NULL;
}

// Whether the line starts with the words of key, with any spaces between them.
static bool has_key(const char *line, const char *key) {
    for (;;) {
        line += strspn(line, " \t");
        size_t word = strcspn(key, " ");
        if (strncmp(line, key, word) != 0 || strchr(" \t", line[word]) == NULL ||
            line[word] == '\0')
            return false;
        line += word;
        if (key[word] == '\0') return true;
        key += word + 1;
    }
}

// The file's old text, and the lines to write into it.
struct change {
    char *old; // is split into lines
    const struct tuning_line *lines;
    int count;
};

static bool write_text(FILE *out, const void *what) {
    const struct change *change = what;
    const struct tuning_line *lines = change->lines;
    char *old = change->old;
    int count = change->count;
    bool is_ours = strncmp(old, first_line, strlen(first_line)) == 0; // else another version
    fputs(first_line, out);
    char *next = is_ours ? old + strlen(first_line) : NULL;
    for (char *line = next; line != NULL && *line != '\0'; line = next) {
        bool is_replaced = false;
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        for (int i = 0; i < count; i++) is_replaced |= has_key(line, lines[i].key);
        if (!is_replaced) fprintf(out, "%s\n", line);
    }
    for (int i = 0; i < count; i++)
        if (lines[i].choice[0] != '\0') fprintf(out, "%s %s\n", lines[i].key, lines[i].choice);
    return !ferror(out);
}

// Opens the folder and locks it; -1 with errno. The lock ends with the descriptor, so a killed writer never blocks another.
static int lock_folder(const char *folder) {
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (descriptor >= 0 && flock(descriptor, LOCK_EX) != 0 && errno == EINTR) continue;
    return descriptor;
}

static bool replace(const char *path, char *old, const struct tuning_line *lines, int count) {
    const struct change change = {old, lines, count};
    return file_replace(path, 0, write_text, &change);
}

bool tuning_file_merge(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes) {
    char folder[PATH_MAX], target[PATH_MAX];
    const char *wrong;
    if (strlen(path) >= PATH_MAX) return fail(error, error_bytes, path, strerror(ENAMETOOLONG));
    if (realpath(path, target) == NULL)
        snprintf(target, sizeof target, "%s", path); // no file yet, so no link to follow
    file_folder(target, folder);
    file_make_folders(target);
    int lock = lock_folder(folder);
    if (lock < 0) return fail(error, error_bytes, folder, strerror(errno));
    sigset_t before;
    signals_wait(&before);
    char *old = read_text(target, &wrong);
    bool is_written = old != NULL && replace(target, old, lines, count);
    if (old != NULL && !is_written) wrong = strerror(errno);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(old);
    close(lock);
    return is_written || fail(error, error_bytes, path, wrong);
}

bool tuning_file_can_merge(const char *path, char *error, size_t error_bytes) {
    const char *wrong;
    char *old = read_text(path, &wrong);
    if (old == NULL) return fail(error, error_bytes, path, wrong);
    free(old);
    // Missing folders are made when the file is written.
    if (file_can_write(path) || errno == ENOENT) return true;
    return fail(error, error_bytes, path, strerror(errno));
}

bool tuning_file_write(const char *path, const struct tuning_line *lines, int count, char *error,
                       size_t error_bytes) {
    char nothing[1] = "";
    return replace(path, nothing, lines, count) || fail(error, error_bytes, path, strerror(errno));
}

bool tuning_file_clear(const char *path, char *error, size_t error_bytes) {
    const char *wrong;
    char *old = read_text(path, &wrong);
    bool is_ours = old != NULL;
    free(old);
    if (!is_ours) return fail(error, error_bytes, path, wrong);
    return unlink(path) == 0 || errno == ENOENT || fail(error, error_bytes, path, strerror(errno));
}
