// SPDX-License-Identifier: Apache-2.0
// Memory that the tool cannot do without: where there is none, it says so in one sentence, removes its temporary files and
// ends with EXIT_COULD_NOT_RUN. Tensors, whose size the command line says, are asked for in ways that can be refused.
#ifndef TOOL_HEAP_H
#define TOOL_HEAP_H

#include <stddef.h>
#include <stdio.h>

// main calls it: command for the sentence. What the JSON library needs comes from here as well.
void heap_start(const char *command);

_Noreturn void heap_exhausted(void);

// For free() all of them. Zeros; bytes of one item; never NULL, for 0 items too.
void *heap_get(size_t count, size_t bytes);
// As realloc: more are not zeros.
void *heap_grow(void *old, size_t count, size_t bytes);
char *heap_text(const char *text); // a copy; of NULL ""
// As open_memstream; the text is whole after heap_stream_end.
FILE *heap_stream(char **text, size_t *bytes);
void heap_stream_end(FILE *stream);

#endif
