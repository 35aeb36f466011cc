// SPDX-License-Identifier: Apache-2.0
// The report's folder. Everything is written into save_dir/.partial-XXXXXX and put in place by
// renames within save_dir. So save_dir may be a mount point, a link or not empty, other files in it
// are never touched, and a run that ends before the renames leaves the previous report unchanged.
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/report.h"
#include "system/files.h"
#include "system/temporary.h"

static const char *const entries[] = {"plots", "results.json", "results.md", "report.html"};
enum { NUM_ENTRIES = sizeof entries / sizeof *entries, PATH_BYTES = 1400 };

static bool fail(char *error, size_t error_bytes, const char *what, const char *path) {
    int number = errno;
    snprintf(error, error_bytes, "%s %s: %s", what, path, strerror(number));
    return false;
}

// ---- Trees ------------------------------------------------------------------------------------

static bool make_folders(const char *path, bool *made) {
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    *made = false;
    for (char *slash = part + 1;; slash++) {
        if (*slash != '/' && *slash != '\0') continue;
        char kept = *slash;
        *slash = '\0';
        if (mkdir(part, 0777) == 0)
            *made = true;
        else if (errno != EEXIST)
            return false;
        else
            *made = false;
        *slash = kept;
        if (kept == '\0') break;
    }
    struct stat status;
    if (stat(path, &status) != 0) return false;
    if (S_ISDIR(status.st_mode)) return true;
    errno = ENOTDIR;
    return false;
}

// A full disk may show only here.
static bool sync_tree(const char *path) {
    DIR *folder = opendir(path);
    bool is_synced = true;
    if (folder == NULL) return errno == ENOTDIR && file_sync(path);
    for (struct dirent *entry; is_synced && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char inner[PATH_BYTES];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (length > 0 && (size_t)length < sizeof inner) is_synced = sync_tree(inner);
    }
    closedir(folder);
    return is_synced && file_sync(path);
}

// ---- Begin, publish, discard ------------------------------------------------------------------

bool report_folder_begin(struct report_folder *folder, const char *save_dir, char *error,
                         size_t error_bytes) {
    *folder = (struct report_folder){.note = -1};
    size_t length = strlen(save_dir);
    while (length > 1 && save_dir[length - 1] == '/') length--;
    if (length == 0 || length >= sizeof folder->target - 64) {
        snprintf(error, error_bytes, "--save-dir is %s, expected the path of a folder",
                 length ? "too long" : "empty");
        return false;
    }
    memcpy(folder->target, save_dir, length);
    if (!make_folders(folder->target, &folder->made_target))
        return fail(error, error_bytes, "cannot make the folder", folder->target);
    snprintf(folder->partial, sizeof folder->partial, "%s/.partial-XXXXXX", folder->target);
    if (!temporary_folder(folder->partial, &folder->note)) {
        fail(error, error_bytes, "cannot write into the folder", folder->target);
        folder->partial[0] = '\0';
        report_folder_discard(folder);
        return false;
    }
    return true;
}

void report_folder_discard(struct report_folder *folder) {
    if (folder->partial[0] != '\0') temporary_remove(folder->partial);
    temporary_forget(folder->note);
    folder->note = -1;
    if (folder->made_target) rmdir(folder->target); // fails, rightly, if it is no longer empty
    folder->partial[0] = '\0';
    folder->made_target = false;
}

static bool exists(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

bool report_folder_publish(struct report_folder *folder, char *error, size_t error_bytes) {
    char place[PATH_BYTES], fresh[PATH_BYTES], old[PATH_BYTES];
    if (!sync_tree(folder->partial)) {
        fail(error, error_bytes, "cannot write", folder->partial);
        report_folder_discard(folder);
        return false;
    }
    temporary_forget(folder->note); // from here on it holds the previous report
    folder->note = -1;
    snprintf(old, sizeof old, "%s/previous", folder->partial);
    bool is_fine = mkdir(old, 0777) == 0 || fail(error, error_bytes, "cannot make", old);
    int step = 0; // two per entry: move the previous one aside, then the new one into its place
    for (; is_fine && step < 2 * NUM_ENTRIES; step++) {
        const char *entry = entries[step / 2];
        snprintf(place, sizeof place, "%s/%s", folder->target, entry);
        snprintf(fresh, sizeof fresh, "%s/%s", folder->partial, entry);
        snprintf(old, sizeof old, "%s/previous/%s", folder->partial, entry);
        const char *from = step % 2 ? fresh : place, *to = step % 2 ? place : old;
        if (!exists(from)) continue;
        if (rename(from, to) != 0) {
            is_fine = fail(error, error_bytes, "cannot put in place", place);
            break;
        }
    }
    while (!is_fine && --step >= 0) { // undo, in reverse order
        const char *entry = entries[step / 2];
        snprintf(place, sizeof place, "%s/%s", folder->target, entry);
        snprintf(fresh, sizeof fresh, "%s/%s", folder->partial, entry);
        snprintf(old, sizeof old, "%s/previous/%s", folder->partial, entry);
        if (step % 2)
            (void)rename(place, fresh);
        else if (exists(old))
            (void)rename(old, place);
    }
    if (is_fine) folder->made_target = false;
    if (is_fine) (void)file_sync(folder->target);
    report_folder_discard(folder);
    return is_fine;
}

// ---- Files ------------------------------------------------------------------------------------

FILE *report_open(const char *folder, const char *name, char *error, size_t error_bytes) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (file == NULL) fail(error, error_bytes, "cannot write", path);
    return file;
}

bool report_close(FILE *file, const char *name, char *error, size_t error_bytes) {
    errno = 0;
    bool is_fine = !ferror(file) && fflush(file) == 0;
    if (!is_fine) fail(error, error_bytes, "cannot write", name);
    if (fclose(file) != 0 && is_fine) is_fine = fail(error, error_bytes, "cannot write", name);
    return is_fine;
}
