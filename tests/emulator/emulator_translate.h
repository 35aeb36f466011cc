// SPDX-License-Identifier: Apache-2.0
// Translates preprocessed CUDA C to C++ for the host: what g++ does not know becomes calls to emulator_kernel.cuh and
// emulator_ptx.cuh. Inline PTX is translated literally: each instruction becomes a call of a function with its name, so
// that the test checks the same text that runs on a GPU.
#ifndef EMULATOR_TRANSLATE_H
#define EMULATOR_TRANSLATE_H

#include <stddef.h>

// A growing string.
struct text {
    char *data;
    size_t length, room;
};
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(struct text *text, const char *bytes, size_t length);

// Returns 0, or nonzero with a sentence in `problem`.
int emulator_translate(const char *source, struct text *result, char problem[256]);

// The statements of one asm: its unescaped text, and its operands.
struct ptx_operand {
    char constraint[8];
    const char *expression;
    int length; // of the expression
};
enum { PTX_MAX_OPERANDS = 160 };
struct ptx {
    const char *code;
    struct ptx_operand operands[PTX_MAX_OPERANDS];
    int num_operands, num_outputs, site;
};
int emulator_translate_ptx(const struct ptx *ptx, struct text *result, char problem[256]);

#endif
