// SPDX-License-Identifier: Apache-2.0
// The fault table of this floor: what it asks of the operating system and could be refused. Tests swap
// an entry to make a library absent, a disk full, or a process die in the middle.
#ifndef TSRI_CUDA_SYSTEM_H
#define TSRI_CUDA_SYSTEM_H

#include <stddef.h>
#include <sys/types.h>

struct tsri_cuda_system {
    void *(*open_library)(const char *path); // dlopen; NULL when it is not there
    void *(*find_symbol)(void *handle, const char *name);
    ssize_t (*write)(int file, const void *data, size_t bytes);
    int (*sync)(int file);
};

extern struct tsri_cuda_system tsri_cuda_system;

#endif
