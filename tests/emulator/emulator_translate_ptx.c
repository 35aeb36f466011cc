// SPDX-License-Identifier: Apache-2.0
// Translates one asm to a block of C++: operands get names, registers are declared, instructions become calls, and
// labels and branches stay. mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, ...} becomes a call of
// ptx_mma_sync_aligned_row_col_f32_bf16_bf16_f32<16, 8, 16>(ptx_list(ptx0, ptx1, ...), ...). Loads and stores call
// functions with their space, type and number of elements as template arguments.
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator_translate.h"

enum { MAX_PARTS = 16, MAX_NAME = 48 };

struct parse {
    const struct ptx *ptx;
    const char *at;
    struct text declarations, body;
    char names[16][MAX_NAME]; // declared registers
    int num_names;
};

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static void skip_space(struct parse *p) {
    for (;;) {
        while (isspace((unsigned char)*p->at)) p->at++;
        if (strncmp(p->at, "//", 2) != 0) return;
        p->at += strcspn(p->at, "\n");
    }
}

static void read_name(struct parse *p, char name[MAX_NAME]) {
    int length = 0;
    while (is_name(*p->at) && length < MAX_NAME - 1) name[length++] = *p->at++;
    name[length] = '\0';
}

static bool is_declared(const struct parse *p, const char *name) {
    for (int i = 0; i < p->num_names; i++)
        if (strcmp(p->names[i], name) == 0) return true;
    return false;
}

static const char *type_of(const char *type) {
    static const char *const types[][2] = {
        {"pred", "bool"},
        {"b8", "unsigned char"},
        {"u8", "unsigned char"},
        {"s8", "signed char"},
        {"b16", "unsigned short"},
        {"u16", "unsigned short"},
        {"s16", "short"},
        {"b32", "unsigned"},
        {"u32", "unsigned"},
        {"s32", "int"},
        {"b64", "unsigned long long"},
        {"u64", "unsigned long long"},
        {"s64", "long long"},
        {"f32", "float"},
        {"f64", "double"},
        {"f16x2", "unsigned"},
        {"bf16x2", "unsigned"},
        {"f16", "unsigned short"},
        {"bf16", "unsigned short"},
        {"b128", "uint4"},
    };
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i][0], type) == 0) return types[i][1];
    return NULL;
}

// ---- Operands of the asm ----------------------------------------------------------------------

static void bind_operands(struct parse *p) {
    struct text *to = &p->declarations;
    for (int i = 0; i < p->ptx->num_operands; i++) {
        const struct ptx_operand *o = &p->ptx->operands[i];
        const char *c = o->constraint;
        bool is_output = i < p->ptx->num_outputs;
        while (*c == '=' || *c == '+' || *c == '&') c++;
        const char *type = *c == 'f'   ? "float"
                           : *c == 'd' ? "double"
                           : *c == 'l' ? "unsigned long long"
                           : *c == 'h' ? "unsigned short"
                           : *c == 'n' ? "int"
                                       : "unsigned";
        if (is_output)
            text_add(to, "auto &&ptx%d = (", i);
        else
            text_add(to, "const %s ptx%d = (%s)(", type, i, type);
        text_add_bytes(to, o->expression, (size_t)o->length);
        text_add(to, "); ");
    }
}

// ---- Operands of an instruction ---------------------------------------------------------------

static int translate_operand(struct parse *p, struct text *to);

static int translate_list(struct parse *p, struct text *to, char end) {
    for (int i = 0;; i++) {
        skip_space(p);
        if (*p->at == end) return p->at++, 0;
        if (*p->at == ',') p->at++;
        if (i > 0) text_add(to, ", ");
        if (translate_operand(p, to) != 0) return -1;
    }
}

static int translate_operand(struct parse *p, struct text *to) {
    skip_space(p);
    if (*p->at == '{') {
        p->at++;
        text_add(to, "ptx_list(");
        if (translate_list(p, to, '}') != 0) return -1;
        text_add(to, ")");
    } else if (*p->at == '[') {
        p->at++;
        if (translate_list(p, to, ']') != 0) return -1;
    } else if (p->at[0] == '%' && isdigit((unsigned char)p->at[1])) {
        text_add(to, "ptx%ld", strtol(p->at + 1, (char **)&p->at, 10));
    } else if (p->at[0] == '%' && p->at[1] == '%') { // a special register
        text_add(to, "ptx_register");
        p->at += 2;
        for (text_add(to, "_"); is_name(*p->at) || *p->at == '.'; p->at++)
            text_add(to, "%c", *p->at == '.' ? '_' : *p->at);
        text_add(to, "()");
    } else if (p->at[0] == '!') {
        p->at++;
        text_add(to, "!");
        return translate_operand(p, to);
    } else if (isdigit((unsigned char)*p->at) || *p->at == '-') {
        char *end;
        if (strncmp(p->at, "0f", 2) == 0) {
            text_add(to, "ptx_float(0x%lxu)", strtoul(p->at + 2, &end, 16));
        } else {
            long long value = strtoll(p->at, &end, 0);
            text_add(to, "%lld", value);
        }
        p->at = end;
    } else if (is_name(*p->at)) {
        char name[MAX_NAME];
        read_name(p, name);
        if (strcmp(name, "_") == 0)
            text_add(to, "ptx_nothing");
        else if (is_declared(p, name))
            text_add(to, "register_%s", name);
        else
            return -1;
    } else {
        return -1;
    }
    skip_space(p);
    if (*p->at == '+') { // an offset to an address
        p->at++;
        text_add(to, " + ");
        return translate_operand(p, to);
    }
    if (*p->at == '|') { // a second result
        p->at++;
        text_add(to, ", ");
        return translate_operand(p, to);
    }
    return 0;
}

// ---- Opcodes ----------------------------------------------------------------------------------

static bool is_any(const char *part, const char *const *words) {
    for (; *words != NULL; words++)
        if (strcmp(part, *words) == 0) return true;
    return false;
}

// "ld.shared::cta.v4.u32" becomes ptx_ld<PTX_SHARED, unsigned, 4, order>.
static int name_access(char parts[MAX_PARTS][MAX_NAME], int count, struct text *to) {
    static const char *const spaces[] = {"shared", "shared::cta", "shared::cluster", NULL};
    static const char *const orders[] = {"volatile", "acquire", "release", "acq_rel",
                                         "relaxed",  "mmio",    NULL};
    static const char *const operations[] = {"add", "min",  "max", "and", "or",
                                             "xor", "exch", "cas", "inc", NULL};
    const char *type = NULL, *space = "PTX_GENERIC", *operation = NULL;
    int elements = 1, is_ordered = 0;
    for (int i = 1; i < count; i++) {
        const char *part = parts[i];
        if (type_of(part) != NULL) type = type_of(part);
        if (strcmp(part, "v2") == 0) elements = 2;
        if (strcmp(part, "v4") == 0) elements = 4;
        if (strcmp(part, "v8") == 0) elements = 8;
        if (is_any(part, spaces)) space = "PTX_SHARED";
        if (is_any(part, orders)) is_ordered = 1;
        if (is_any(part, operations)) operation = part;
    }
    if (type == NULL) return -1;
    text_add(to, "ptx_%s", parts[0]);
    if (operation != NULL) text_add(to, "_%s", operation);
    text_add(to, "<%s, %s, %d, %d>", space, type, elements, is_ordered);
    return 0;
}

// The function's name: shapes such as m64n128k16 become template arguments, and cache modifiers are dropped.
static int name_function(const char *opcode, struct text *to) {
    char parts[MAX_PARTS][MAX_NAME];
    int count = 0, m = 0, n = 0, k = 0;
    static const char *const accesses[] = {"ld", "ldu", "st", "red", "atom", NULL};
    for (const char *at = opcode; *at != '\0' && count < MAX_PARTS; count++) {
        size_t length = strcspn(at, ".");
        snprintf(parts[count], MAX_NAME, "%.*s", (int)length, at);
        at += length + (at[length] == '.');
    }
    const int is_async = count > 1 && strcmp(parts[1], "async") == 0; // arrives at a barrier
    if (is_any(parts[0], accesses) && !is_async) return name_access(parts, count, to);
    text_add(to, "ptx");
    for (int i = 0; i < count; i++) {
        int length = 0;
        if (sscanf(parts[i], "m%dn%dk%d%n", &m, &n, &k, &length) == 3 && parts[i][length] == '\0')
            continue;
        text_add(to, "_");
        for (const char *c = parts[i]; *c != '\0'; c++)
            if (c[0] != ':' || c[1] != ':') text_add(to, "%c", is_name(*c) ? *c : '_');
    }
    if (k > 0) text_add(to, "<%d, %d, %d>", m, n, k);
    return 0;
}

// ---- Statements -------------------------------------------------------------------------------

static int translate_declaration(struct parse *p) {
    char type[MAX_NAME];
    p->at += 4; // .reg
    skip_space(p);
    if (*p->at++ != '.') return -1;
    read_name(p, type);
    if (type_of(type) == NULL) return -1;
    for (;;) {
        skip_space(p);
        if (*p->at == ';') return p->at++, 0;
        if (*p->at == ',') p->at++;
        skip_space(p);
        if (p->num_names == 16 || !is_name(*p->at)) return -1;
        read_name(p, p->names[p->num_names]);
        text_add(&p->declarations, "%s register_%s; ", type_of(type), p->names[p->num_names++]);
    }
}

static int translate_instruction(struct parse *p) {
    char opcode[160];
    int length = 0;
    if (*p->at == '@') {
        bool is_not = *++p->at == '!';
        p->at += is_not;
        text_add(&p->body, "if (%s", is_not ? "!" : "");
        if (translate_operand(p, &p->body) != 0) return -1;
        text_add(&p->body, ") ");
        skip_space(p);
    }
    while ((is_name(*p->at) || *p->at == '.' || *p->at == ':') && length < (int)sizeof opcode - 1)
        opcode[length++] = *p->at++;
    opcode[length] = '\0';
    if (length > 0 && opcode[length - 1] == ':') { // a label
        text_add(&p->body, "at%d_%.*s:; ", p->ptx->site, length - 1, opcode);
        return 0;
    }
    if (length == 0) return -1;
    if (strcmp(opcode, "bra") == 0 || strcmp(opcode, "bra.uni") == 0) {
        char label[MAX_NAME];
        skip_space(p);
        read_name(p, label);
        text_add(&p->body, "goto at%d_%s; ", p->ptx->site, label);
    } else {
        if (name_function(opcode, &p->body) != 0) return -1;
        text_add(&p->body, "(");
        if (translate_list(p, &p->body, ';') != 0) return -1;
        text_add(&p->body, "); ");
        return 0;
    }
    skip_space(p);
    return *p->at == ';' ? p->at++, 0 : -1;
}

// An asm without instructions is a compiler barrier. Its outputs may have any values.
static void forget_outputs(struct parse *p) {
    for (int i = 0; i < p->ptx->num_outputs; i++)
        if (p->ptx->operands[i].constraint[0] == '=') text_add(&p->body, "ptx_forget(ptx%d); ", i);
}

int emulator_translate_ptx(const struct ptx *ptx, struct text *result, char problem[256]) {
    struct parse p = {.ptx = ptx, .at = ptx->code};
    int failure = 0, num_instructions = 0;
    bind_operands(&p);
    for (skip_space(&p); failure == 0 && *p.at != '\0'; skip_space(&p)) {
        if (*p.at == '{' || *p.at == '}' || *p.at == ';') {
            p.at++;
        } else if (strncmp(p.at, ".reg", 4) == 0) {
            failure = translate_declaration(&p);
        } else {
            failure = translate_instruction(&p);
            num_instructions++;
        }
    }
    if (num_instructions == 0) forget_outputs(&p);
    if (failure != 0)
        snprintf(problem, 256, "PTX that the emulator cannot read, at '%.60s' of '%.120s'", p.at,
                 ptx->code);
    text_add(result, "do { ");
    if (num_instructions > 0)
        text_add(result, "emulator->now->line = __LINE__; emulator->now->file = __FILE__; ");
    if (p.declarations.data != NULL)
        text_add_bytes(result, p.declarations.data, p.declarations.length);
    if (p.body.data != NULL) text_add_bytes(result, p.body.data, p.body.length);
    text_add(result, "} while (0)");
    free(p.declarations.data);
    free(p.body.data);
    return failure;
}
