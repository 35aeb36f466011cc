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
enum { MAX_FILE = 1 << 20 }; // readers take no more

static const char not_ours[] = "is no tuning file";

// what: that, or the system's words.
static bool fail(char *error, size_t error_bytes, const char *path, const char *what) {
    snprintf(error, error_bytes, "'%s' %s%s", path,
             what == not_ours ? "" : "cannot be changed: ", what);
    return false;
}

// All of it: "" where there is none. NULL with a word on what is wrong; a file of another program is not ours to change.
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
        strncmp(text, first_line, strlen(first_line) - 2) == 0) // of another version too
        return text;
    free(text);
    return NULL;
}

// Whether the line has the words of key, however they are spaced.
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

// What stands in the file, and what is to.
struct change {
    char *old; // is cut into lines
    const struct tuning_line *lines;
    int count;
};

static bool write_text(FILE *out, const void *what) {
    const struct change *change = what;
    const struct tuning_line *lines = change->lines;
    char *old = change->old;
    int count = change->count;
    bool is_ours = strncmp(old, first_line, strlen(first_line)) == 0; // else of another version
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

// A descriptor of the folder that holds its lock; -1 with errno. The lock goes with the descriptor, so nothing that a killed
// writer leaves stops another.
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
        snprintf(target, sizeof target, "%s", path); // the file behind a link
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
    // Folders that are missing are made when there is something to put into them.
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
