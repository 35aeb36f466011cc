// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/heap.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "commands/command.h"
#include "system/temporary.h"

enum { STACK_BYTES = 1 << 20 }; // the deepest command takes a third of it

static const char *command_name = "";

// _exit ends the process at once: other threads may still run, and the buffered output is not a complete result.
void heap_exhausted(void) {
    char text[128];
    int length = snprintf(text, sizeof text, "tessera%s%.64s: out of memory\n",
                          *command_name != '\0' ? " " : "", command_name);
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
    temporary_remove_all();
    _exit(EXIT_COULD_NOT_RUN);
}

static void *never_null(void *block) {
    if (block == NULL) heap_exhausted();
    return block;
}

static void *json_alloc(size_t bytes) { return never_null(malloc(bytes > 0 ? bytes : 1)); }

__attribute__((noinline)) static void touch_stack(void) {
    volatile char pages[STACK_BYTES];
    for (size_t i = 0; i < sizeof pages; i += 4096) pages[sizeof pages - 1 - i] = 0;
}

// A process dies if its stack cannot grow. The stack gets its size now, while a lack of memory can still be told.
static void reserve_stack(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur < 2 * STACK_BYTES) return;
    void *room =
        mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) heap_exhausted();
    munmap(room, 2 * STACK_BYTES);
    touch_stack();
}

void heap_start(const char *command) {
    command_name = command;
    reserve_stack();
    json_set_alloc_funcs(json_alloc, free);
}

void *heap_get(size_t count, size_t bytes) {
    return never_null(calloc(count > 0 ? count : 1, bytes > 0 ? bytes : 1));
}

void *heap_grow(void *old, size_t count, size_t bytes) {
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) heap_exhausted();
    return never_null(realloc(old, all > 0 ? all : 1));
}

char *heap_text(const char *text) { return never_null(strdup(text != NULL ? text : "")); }

FILE *heap_stream(char **text, size_t *bytes) { return never_null(open_memstream(text, bytes)); }

void heap_stream_end(FILE *stream) {
    int is_cut = ferror(stream);
    if (fclose(stream) != 0 || is_cut) heap_exhausted();
}
