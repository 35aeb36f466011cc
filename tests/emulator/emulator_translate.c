// SPDX-License-Identifier: Apache-2.0
#include "emulator_translate.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Text -------------------------------------------------------------------------------------

void text_add_bytes(struct text *text, const char *bytes, size_t length) {
    if (text->length + length + 1 > text->room) {
        text->room = 2 * (text->length + length) + 256;
        text->data = realloc(text->data, text->room);
        if (text->data == NULL) abort();
    }
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void text_add(struct text *text, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text_add_bytes(text, line, length < (int)sizeof line ? (size_t)length : sizeof line - 1);
}

// ---- Scanning ---------------------------------------------------------------------------------

struct scan {
    const char *at;
    struct text *result;
    char *problem;
    int depth; // of braces
    int num_sites;
    bool has_failed;
    char kernels[16][64];
    int num_kernels;
};

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static const char *skip_space(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

// Returns the end of the literal that starts here.
static const char *skip_literal(const char *at) {
    char quote = *at++;
    while (*at != '\0' && *at != quote) at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
    return *at != '\0' ? at + 1 : at;
}

// Finds the first of `ends` outside parentheses and literals.
static const char *find_end(const char *at, const char *ends) {
    int depth = 0;
    while (*at != '\0') {
        if (*at == '"' || *at == '\'') {
            at = skip_literal(at);
            continue;
        }
        if (depth == 0 && strchr(ends, *at) != NULL) return at;
        depth +=
            (*at == '(' || *at == '[' || *at == '{') - (*at == ')' || *at == ']' || *at == '}');
        at++;
    }
    return at;
}

static bool starts_with(const char *at, const char *word) {
    size_t length = strlen(word);
    return strncmp(at, word, length) == 0 && !is_word(at[length]);
}

// ---- asm --------------------------------------------------------------------------------------

// Reads adjacent string literals and resolves their escapes.
static const char *read_literals(const char *at, struct text *code) {
    for (at = skip_space(at); *at == '"'; at = skip_space(at)) {
        const char *end = skip_literal(at);
        for (at++; at < end - 1; at++) {
            char c = *at;
            if (c == '\\') {
                at++;
                c = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at;
            }
            text_add_bytes(code, &c, 1);
        }
        at = end;
    }
    return at;
}

static const char *read_operands(const char *at, struct ptx *ptx) {
    for (at = skip_space(at); *at == '"'; at = skip_space(at)) {
        struct ptx_operand *operand = &ptx->operands[ptx->num_operands];
        const char *end = skip_literal(at);
        if (ptx->num_operands == PTX_MAX_OPERANDS) return NULL;
        snprintf(operand->constraint, sizeof operand->constraint, "%.*s", (int)(end - at - 2),
                 at + 1);
        at = skip_space(end);
        if (*at != '(') return NULL;
        end = find_end(at + 1, ")");
        operand->expression = at + 1;
        operand->length = (int)(end - at - 1);
        ptx->num_operands++;
        at = skip_space(end + 1);
        if (*at == ',') at++;
    }
    return at;
}

static const char *translate_asm(struct scan *s, const char *at) {
    struct ptx ptx = {.site = s->num_sites++};
    struct text code = {0};
    text_add(&code, "%s", "");
    at = skip_space(at);
    while (starts_with(at, "volatile")) at = skip_space(at + 8);
    if (*at != '(') return NULL;
    at = skip_space(read_literals(at + 1, &code));
    if (*at == ':') {
        at = read_operands(at + 1, &ptx);
        ptx.num_outputs = ptx.num_operands;
        if (at != NULL && *at == ':') at = read_operands(at + 1, &ptx);
    }
    if (at != NULL) at = find_end(at, ")");
    ptx.code = code.data;
    if (at == NULL || *at != ')' || emulator_translate_ptx(&ptx, s->result, s->problem) != 0) {
        s->has_failed = true;
        if (s->problem[0] == '\0')
            snprintf(s->problem, 256, "an asm cannot be read: %.120s", ptx.code);
        at = NULL;
    }
    free(code.data);
    return at != NULL ? at + 1 : NULL;
}

// ---- Shared memory and kernels ----------------------------------------------------------------

// [extern] __shared__ [alignas(n)] type name dims;
static const char *translate_shared(struct scan *s, const char *at, bool is_extern) {
    const char *end = find_end(at, ";"), *dims = end, *align = "", *name;
    int align_length = 0;
    at = skip_space(at);
    if (starts_with(at, "alignas")) {
        align = at;
        at = find_end(skip_space(at + 7) + 1, ")") + 1;
        align_length = (int)(at - align);
    }
    for (const char *p = at; p < end; p++)
        if (*p == '[') {
            dims = p;
            break;
        }
    const char *name_end = dims;
    while (name_end > at && isspace((unsigned char)name_end[-1])) name_end--;
    for (name = name_end; name > at && is_word(name[-1]);) name--;
    if (name == name_end || *end != ';') return NULL;
    int type = (int)(name - at), length = (int)(name_end - name), rest = (int)(end - dims);
    if (is_extern)
        text_add(s->result, "static const emulator_dynamic<%.*s> %.*s;", type, at, length, name);
    else
        text_add(s->result,
                 "typedef %.*s %.*s_in_shared%.*s; %.*s static %.*s_in_shared %.*s_slot "
                 "__attribute__((section(\"emulator_shared\"))); auto &%.*s = "
                 "emulator_static(%.*s_slot);",
                 type, at, length, name, rest, dims, align_length, align, length, name, length,
                 name, length, name, length, name);
    return end + 1;
}

// The name is the word before the first parenthesis.
static void note_kernel(struct scan *s, const char *at) {
    const char *end = strchr(at, '('), *name;
    if (end == NULL || s->num_kernels == 16) return;
    while (end > at && isspace((unsigned char)end[-1])) end--;
    for (name = end; name > at && is_word(name[-1]);) name--;
    snprintf(s->kernels[s->num_kernels++], 64, "%.*s", (int)(end - name), name);
}

// Translates a special word and returns its end, or NULL for an ordinary word.
static const char *translate_word(struct scan *s, const char *at) {
    if (starts_with(at, "asm")) {
        const char *end = translate_asm(s, at + 3);
        return end != NULL ? end : at + strlen(at);
    }
    if (starts_with(at, "__global__")) {
        note_kernel(s, at + 10);
        return at + 10;
    }
    bool is_extern = starts_with(at, "extern");
    const char *word = is_extern ? skip_space(at + 6) : at;
    if (starts_with(word, "__shared__")) return translate_shared(s, word + 10, is_extern);
    return NULL;
}

int emulator_translate(const char *source, struct text *result, char problem[256]) {
    struct scan s = {.at = source, .result = result, .problem = problem};
    problem[0] = '\0';
    while (*s.at != '\0' && !s.has_failed) {
        const char *end = NULL;
        if (*s.at == '"' || *s.at == '\'') {
            end = skip_literal(s.at);
        } else if (*s.at == '#') { // a preprocessor line
            end = s.at + strcspn(s.at, "\n");
        } else if (is_word(*s.at)) {
            const char *next = translate_word(&s, s.at);
            if (next != NULL) {
                s.at = next;
                continue;
            }
            for (end = s.at; is_word(*end);) end++;
        } else {
            end = s.at + 1;
        }
        text_add_bytes(result, s.at, (size_t)(end - s.at));
        s.at = end;
    }
    for (int i = 0; i < s.num_kernels; i++)
        text_add(result,
                 "\nextern \"C\" __attribute__((visibility(\"default\"))) const emulator_kernel "
                 "emulator_of_%s = {[](void **params) { emulator_call(%s, params); }, "
                 "decltype(emulator_signature_of(%s))::bytes, "
                 "sizeof decltype(emulator_signature_of(%s))::bytes / sizeof(unsigned) - 1};\n",
                 s.kernels[i], s.kernels[i], s.kernels[i], s.kernels[i]);
    return s.has_failed ? -1 : 0;
}
