// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "core/core_system.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    return openat(folder, path, flags, mode);
}

struct tsri_system tsri_system = {
    .alloc = aligned_alloc,
    .free = free,
    .thread_create = pthread_create,
    .at_fork = pthread_atfork,
    .open_library = open_library,
    .find_symbol = dlsym,
    .open = open_file,
    .open_list = fdopendir,
    .status = fstat,
    .read = pread,
    .write = write,
    .sync = fsync,
    .close = close,
    .rename = renameat,
};

// ---- Memory -----------------------------------------------------------------------------------

enum { ALIGNMENT = 64 };

void *tsri_alloc(size_t bytes) {
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT; // never 0
    void *block = tsri_system.alloc(ALIGNMENT, rounded);
    return block != NULL ? memset(block, 0, rounded) : NULL;
}

void *tsri_grow(void *block, size_t old_bytes, size_t bytes) {
    void *larger = tsri_alloc(bytes);
    if (larger == NULL) return NULL;
    if (old_bytes > 0) memcpy(larger, block, old_bytes);
    tsri_system.free(block);
    return larger;
}

// ---- Environment ------------------------------------------------------------------------------

const char *tsri_environment(const char *name) {
#if defined(__GLIBC__)
    return secure_getenv(name);
#else
    return getauxval(AT_SECURE) == 0 ? getenv(name) : NULL;
#endif
}

// ---- Files ------------------------------------------------------------------------------------

size_t tsri_read(int file, void *data, size_t bytes, off_t at) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t more = tsri_system.read(file, (char *)data + done, bytes - done, at + (off_t)done);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) break;
        done += (size_t)more;
    }
    return done;
}

bool tsri_read_text(const char *path, char *text, size_t bytes) {
    int file = tsri_system.open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    *text = '\0';
    if (file < 0) return false;
    text[tsri_read(file, text, bytes - 1, 0)] = '\0';
    (void)tsri_system.close(file);
    return true;
}
