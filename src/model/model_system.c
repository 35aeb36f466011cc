// SPDX-License-Identifier: Apache-2.0
#define _XOPEN_SOURCE 700
#include "model/model_system.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int open_file(const char *path, int flags, mode_t mode) { return open(path, flags, mode); }

struct tsri_model_system tsri_model_system = {
    .alloc = aligned_alloc,
    .free = free,
    .resolve = realpath,
    .status_of = stat,
    .access = access,
    .open = open_file,
    .status = fstat,
    .read = read,
    .write = write,
    .sync = fsync,
    .close = close,
    .rename = rename,
};

void *tsri_model_alloc(size_t bytes) {
    enum { ALIGNMENT = 64 };
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    return tsri_model_system.alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
}
