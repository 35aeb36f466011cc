// SPDX-License-Identifier: Apache-2.0
// The fault table of this floor, which does not see the library's. Every request of the model library to the operating
// system that may fail goes through it; tests replace entries. The JSON library's memory has its own hook
// (json_set_alloc_funcs).
#ifndef TSRI_MODEL_SYSTEM_H
#define TSRI_MODEL_SYSTEM_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct tsri_model_system {
    void *(*alloc)(size_t alignment, size_t bytes); // bytes: a multiple of alignment
    void (*free)(void *pointer);
    char *(*resolve)(const char *path, char *resolved); // realpath, into PATH_MAX bytes
    int (*status_of)(const char *path, struct stat *status);
    int (*access)(const char *path, int wanted);
    int (*open)(const char *path, int flags, mode_t mode);
    int (*status)(int file, struct stat *status);
    ssize_t (*read)(int file, void *data, size_t bytes);
    ssize_t (*write)(int file, const void *data, size_t bytes);
    int (*sync)(int file);
    int (*close)(int file); // the file is closed, whatever it returns
    int (*rename)(const char *from, const char *to);
};
extern struct tsri_model_system tsri_model_system;

// A block of any size, 64-byte aligned; NULL if there is no memory.
void *tsri_model_alloc(size_t bytes);

#endif
