// SPDX-License-Identifier: Apache-2.0
// Memory that the tool cannot do without: if there is none, the tool prints one sentence, removes its temporary files and
// ends with EXIT_COULD_NOT_RUN. Tensors, whose size the user gives, are allocated in ways that may fail.
#ifndef TOOL_HEAP_H
#define TOOL_HEAP_H

#include <stddef.h>
#include <stdio.h>

// main calls this; command is named in the sentence. The stack gets its size, and the JSON library allocates from here too.
void heap_start(const char *command);

_Noreturn void heap_exhausted(void);

// Free all of these with free(). heap_get: count items of `bytes` bytes, zeroed; never NULL, not even for 0 items.
void *heap_get(size_t count, size_t bytes);
// As realloc: added items are not zeroed.
void *heap_grow(void *old, size_t count, size_t bytes);
char *heap_text(const char *text); // a copy; "" for NULL
// As open_memstream; the text is complete after heap_stream_end.
FILE *heap_stream(char **text, size_t *bytes);
void heap_stream_end(FILE *stream);

#endif
