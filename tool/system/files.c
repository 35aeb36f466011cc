// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "system/signals.h"
#include "system/temporary.h"

static bool fail_file(const char *path, const char *what) {
    fprintf(stderr, "tessera: cannot %s '%s': %s\n", what, path, strerror(errno));
    return false;
}

// For devices, pipes and sockets, which cannot be replaced, and for a link whose target does not exist yet: this makes
// the target.
static bool write_directly(const char *path, file_writer *write, const void *what) {
    FILE *file = fopen(path, "we");
    if (file == NULL) return fail_file(path, "write");
    bool is_written = write(file, what);
    if (!is_written) fail_file(path, "write");
    if (fclose(file) == 0 || !is_written) return is_written;
    return fail_file(path, "write");
}

// ---- Onto the disk ----------------------------------------------------------------------------

// Pipes and some file systems have no fsync; that is no error.
static bool sync_descriptor(int descriptor) {
    return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
}

bool file_sync(const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return false;
    bool is_synced = sync_descriptor(descriptor);
    int number = errno;
    close(descriptor);
    errno = number;
    return is_synced;
}

void file_folder(const char *path, char *folder) {
    snprintf(folder, PATH_MAX, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        strcpy(folder, ".");
    else
        slash[slash == folder] = '\0';
}

// Writes the file; after a failure errno has the first error.
static bool fill(FILE *file, mode_t mode, file_writer *write, const void *what) {
    errno = 0;
    bool is_written = write(file, what) && fflush(file) == 0 && !ferror(file) &&
                      (mode == 0 || fchmod(fileno(file), mode) == 0) &&
                      sync_descriptor(fileno(file));
    int number = errno != 0 ? errno : EIO;
    if (fclose(file) == 0 && is_written) return true;
    errno = is_written ? errno : number;
    return false;
}

bool file_replace(const char *target, mode_t mode, file_writer *write, const void *what) {
    char temporary[PATH_MAX + 16], folder[PATH_MAX];
    int length = snprintf(temporary, sizeof temporary, "%s.XXXXXX", target);
    if (length < 0 || length >= PATH_MAX) return errno = ENAMETOOLONG, false;
    int descriptor = mkostemp(temporary, O_CLOEXEC);
    if (descriptor < 0) return false;
    int note = temporary_note(temporary);
    FILE *file = fdopen(descriptor, "w");
    bool is_in_place =
        file != NULL && fill(file, mode, write, what) && rename(temporary, target) == 0;
    int number = errno;
    if (file == NULL) close(descriptor);
    if (!is_in_place) unlink(temporary);
    temporary_forget(note);
    file_folder(target, folder);
    if (is_in_place) (void)file_sync(folder); // may fail: a folder can be writable but not readable
    errno = number;
    return is_in_place;
}

static bool replace(const char *path, const char *target, mode_t mode, file_writer *write,
                    const void *what) {
    return file_replace(target, mode, write, what) || fail_file(path, "write");
}

// The mode that fopen gives a new file.
static mode_t usual_mode(void) {
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static bool write_or_replace(const char *path, file_writer *write, const void *what) {
    char target[PATH_MAX];
    struct stat info;
    if (lstat(path, &info) != 0) return replace(path, path, usual_mode(), write, what);
    // Follow links, so that the file is replaced and not the link.
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || realpath(path, target) == NULL)
        return write_directly(path, write, what);
    return replace(path, target, info.st_mode & 07777, write, what);
}

bool file_write(const char *path, file_writer *write, const void *what) {
    struct stat info;
    sigset_t before;
    if (path == NULL)
        return (write(stdout, what) && fflush(stdout) == 0) ||
               fail_file("standard output", "write");
    // Signals are not held here: a pipe's reader may never come, and Ctrl-C must end the wait.
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) return write_directly(path, write, what);
    signals_wait(&before);
    bool is_written = write_or_replace(path, write, what);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return is_written;
}

tsr_status file_write_tensors(const char *path, const tsr_safetensors_entry *entries,
                              int64_t num_entries) {
    sigset_t before;
    signals_wait(&before);
    tsr_status status = tsr_safetensors_write(path, entries, num_entries, NULL, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

static bool write_text(FILE *out, const void *text) { return fputs(text, out) >= 0; }

bool file_write_text(const char *path, const char *text) {
    return file_write(path, write_text, text);
}

bool file_can_write(const char *path) {
    char folder[PATH_MAX + 4];
    struct stat info;
    size_t length = strlen(path);
    bool is_folder = length > 0 && path[length - 1] == '/';
    if (stat(path, &info) == 0) {
        is_folder = S_ISDIR(info.st_mode);
        if (!is_folder && access(path, W_OK) != 0) return false;
        if (!is_folder && !S_ISREG(info.st_mode)) return true;
    }
    errno = is_folder ? EISDIR : ENOENT;
    if (is_folder || length == 0) return false;
    if (realpath(path, folder) == NULL) snprintf(folder, PATH_MAX, "%s", path);
    char *slash = strrchr(folder, '/');
    strcpy(slash != NULL ? slash + 1 : folder, ".");
    return access(folder, W_OK) == 0;
}

void file_make_folders(const char *path) {
    char folder[PATH_MAX] = "";
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = folder; (slash = strchr(slash + 1, '/')) != NULL; *slash = '/') {
        *slash = '\0';
        (void)mkdir(folder, 0700);
    }
}
