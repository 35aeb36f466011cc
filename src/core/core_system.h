// SPDX-License-Identifier: Apache-2.0
// The fault table: whatever the library asks of the operating system and could be refused goes through it, so that
// tests refuse each request in turn (tests/support/fault_case.h) and the binary that they do it to is the one that ships. The
// CUDA driver has a table of its own (cuda/cuda_driver.h); NVRTC, CUPTI and NVML come in through find_symbol.
//
// Called as they are: what cannot fail, and what may fail without a consequence (madvise; mkdir before an open;
// unlink of a leftover).
#ifndef TSRI_CORE_SYSTEM_H
#define TSRI_CORE_SYSTEM_H

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct tsri_system {
    void *(*alloc)(size_t alignment, size_t bytes); // bytes a multiple of alignment
    void (*free)(void *pointer);
    int (*thread_create)(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                         void *arg);
    int (*at_fork)(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
    void *(*open_library)(const char *path); // NULL when it is not there
    void *(*find_symbol)(void *library, const char *name);
    int (*open)(int folder, const char *path, int flags, mode_t mode); // openat
    DIR *(*open_list)(int folder);                                     // fdopendir
    int (*status)(int file, struct stat *status);                      // fstat
    ssize_t (*read)(int file, void *data, size_t bytes, off_t at);     // pread
    ssize_t (*write)(int file, const void *data, size_t bytes);
    int (*sync)(int file);
    int (*close)(int file); // closed, whatever it returns
    int (*rename)(int folder, const char *from, int to_folder, const char *to);
};

extern struct tsri_system tsri_system;

// A block of zeros of any size, for tsri_system.free; NULL where there is no memory.
void *tsri_alloc(size_t bytes);
// A larger one with the bytes of the old one (NULL: there is none), which goes. NULL, and the old one stays, where
// there is no memory.
void *tsri_grow(void *block, size_t old_bytes, size_t bytes);

// A variable of the environment; NULL where it is not set, and in a program that runs with more rights than who started
// it (set-user-id, capabilities): there the environment is a stranger's.
const char *tsri_environment(const char *name);

// Bytes of a file from there on, as many as it has; fewer too where it cannot be read.
size_t tsri_read(int file, void *data, size_t bytes, off_t at);
// The first bytes of a file, ended by a zero. False where it cannot be opened.
bool tsri_read_text(const char *path, char *text, size_t bytes);

#endif
