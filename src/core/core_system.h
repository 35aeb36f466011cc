// SPDX-License-Identifier: Apache-2.0
// The fault table: every request to the operating system that may fail goes through it. Tests make each request fail in
// turn (tests/support/fault_case.h), in the same binary that ships. The CUDA driver has its own table
// (cuda/cuda_driver.h); NVRTC, CUPTI and NVML are found with find_symbol.
//
// Two kinds of calls bypass the table: those that cannot fail, and those whose failure has no consequence (madvise;
// mkdir before an open; unlink of a leftover file).
#ifndef TSRI_CORE_SYSTEM_H
#define TSRI_CORE_SYSTEM_H

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct tsri_system {
    void *(*alloc)(size_t alignment, size_t bytes); // bytes: a multiple of alignment
    void (*free)(void *pointer);
    int (*thread_create)(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                         void *arg);
    int (*at_fork)(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
    void *(*open_library)(const char *path); // NULL if it does not exist
    void *(*find_symbol)(void *library, const char *name);
    int (*open)(int folder, const char *path, int flags, mode_t mode); // openat
    DIR *(*open_list)(int folder);                                     // fdopendir
    int (*status)(int file, struct stat *status);                      // fstat
    ssize_t (*read)(int file, void *data, size_t bytes, off_t at);     // pread
    ssize_t (*write)(int file, const void *data, size_t bytes);
    int (*sync)(int file);
    int (*close)(int file); // the file is closed, whatever it returns
    int (*rename)(int folder, const char *from, int to_folder, const char *to);
};

extern struct tsri_system tsri_system;

// A zeroed block of any size, freed with tsri_system.free. NULL: out of memory.
void *tsri_alloc(size_t bytes);
// Moves the old block (NULL: none) to a larger one and frees it. If memory is short, returns NULL and keeps the old
// block.
void *tsri_grow(void *block, size_t old_bytes, size_t bytes);

// Value of an environment variable; NULL if it is not set. Also NULL in a program with raised privileges (set-user-id,
// capabilities), because a stranger controls the environment there.
const char *tsri_environment(const char *name);

// Reads up to `bytes` bytes of a file from offset `at` and returns how many it read: fewer at the end of the file or on
// an error.
size_t tsri_read(int file, void *data, size_t bytes, off_t at);
// Reads the first bytes of a file and adds a zero. False if the file cannot be opened.
bool tsri_read_text(const char *path, char *text, size_t bytes);

#endif
