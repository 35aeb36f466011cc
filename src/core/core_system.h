// SPDX-License-Identifier: Apache-2.0
// The fault table: what the library asks of the operating system and could be refused. Tests swap
// an entry to make the n-th request fail.
#ifndef TSRI_CORE_SYSTEM_H
#define TSRI_CORE_SYSTEM_H

#include <pthread.h>
#include <stddef.h>

struct tsri_system {
    void *(*alloc)(size_t alignment, size_t bytes); // bytes a multiple of alignment
    void (*free)(void *pointer);
    int (*thread_create)(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                         void *arg);
};

extern struct tsri_system tsri_system;

#endif
