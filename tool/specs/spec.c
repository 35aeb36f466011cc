// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "specs/spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool spec_names_are_alike(const char *a, const char *b) {
    for (; *a == *b || (*a == '-' && *b == '_') || (*a == '_' && *b == '-'); a++, b++)
        if (*a == '\0') return true;
    return false;
}

bool spec_is_named(const struct op_spec *spec, const char *name) {
    return spec_names_are_alike(spec->command, name) || spec_names_are_alike(spec->op, name);
}

int spec_param(const struct op_spec *spec, const char *name) {
    for (int i = 0; spec->params[i].name != NULL; i++)
        if (strcmp(spec->params[i].name, name) == 0) return i;
    return -1;
}

bool spec_is_baseline(const struct op_spec *spec, const char *variant) {
    static const char prefix[] = "cuda-";
    if (variant == NULL || spec->baseline == NULL) return false;
    if (strncmp(variant, prefix, sizeof prefix - 1) == 0) variant += sizeof prefix - 1;
    return strcmp(variant, spec->baseline) == 0;
}

int spec_slot(const struct op_spec *spec, const char *name) {
    for (int i = 0; spec->slots[i].name != NULL; i++)
        if (strcmp(spec->slots[i].name, name) == 0) return i;
    return -1;
}

double case_real(const struct op_case *c, const char *name) {
    int i = spec_param(c->spec, name);
    if (i < 0) {
        fprintf(stderr, "tessera: %s has no parameter %s\n", c->spec->op, name);
        abort();
    }
    return c->param[i];
}

int64_t case_int(const struct op_case *c, const char *name) { return (int64_t)case_real(c, name); }

tsr_dtype case_slot_dtype(const struct op_case *c, int slot) {
    if (c->spec->slot_dtype != NULL) return c->spec->slot_dtype(c, slot);
    switch (case_kind(c, slot)) {
    case SLOT_SMALL: return c->small_dtype;
    case SLOT_F32: return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    case SLOT_I32:
    case SLOT_U8: return case_integer(c, slot);
    default: return c->dtype;
    }
}

tsr_dtype case_integer(const struct op_case *c, int slot) {
    switch (case_kind(c, slot)) {
    case SLOT_I32: return TSR_I32;
    case SLOT_U8: return TSR_U8;
    default: return TSR_DTYPE_NONE;
    }
}

enum slot_kind case_kind(const struct op_case *c, int slot) {
    return c->spec->kind != NULL ? c->spec->kind(c, slot) : c->spec->slots[slot].kind;
}

enum slot_role case_role(const struct op_case *c, int slot) {
    return c->spec->role != NULL ? c->spec->role(c, slot) : c->spec->slots[slot].role;
}

double eighth_of_rounding(const struct op_case *c, int slot) {
    switch (case_slot_dtype(c, slot)) {
    case TSR_BF16: return 0x1p-11;
    case TSR_F16: return 0x1p-14;
    default: return 0;
    }
}

int64_t case_numel(const struct op_case *c, int slot) {
    int64_t shape[TSR_MAX_DIMS], numel = 1;
    int ndim = c->spec->shape(c, slot, shape);
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0) return 0;
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(numel, shape[i], &numel)) return INT64_MAX;
    return numel;
}

double case_elements(const struct op_case *c, int slot) {
    int64_t shape[TSR_MAX_DIMS];
    int ndim = c->spec->shape(c, slot, shape);
    double elements = 1;
    for (int i = 0; i < ndim; i++) elements *= (double)shape[i];
    return elements;
}

double case_bytes(const struct op_case *c) {
    if (c->spec->bytes != NULL) return c->spec->bytes(c);
    double bytes = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s])
            bytes += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s)) *
                     (case_role(c, s) == SLOT_INOUT ? 2 : 1);
    return bytes;
}

const double *case_values(const struct op_case *c, const char *slot) {
    int s = spec_slot(c->spec, slot);
    return s >= 0 && c->is_present[s] ? c->tensor[s].data : NULL;
}

// ---- Parameter strings ------------------------------------------------------------------------

struct op_case case_default(const struct op_spec *spec) {
    struct op_case c = {.spec = spec, .dtype = TSR_F32, .small_dtype = TSR_F32};
    for (int i = 0; spec->params[i].name != NULL; i++) c.param[i] = spec->params[i].standard;
    for (int s = 0; spec->slots[s].name != NULL; s++) c.is_present[s] = !spec->slots[s].is_optional;
    return c;
}

static bool fail(char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool fail(char *error, size_t error_bytes, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error, error_bytes, format, list);
    va_end(list);
    return false;
}

static bool parse_value(const struct param_spec *param, const char *text, double *value,
                        char *error, size_t error_bytes) {
    if (param->kind == PARAM_CHOICE) {
        for (int i = 0; param->choices[i] != NULL; i++)
            if (strcmp(param->choices[i], text) == 0) {
                *value = i;
                return true;
            }
        size_t used =
            (size_t)snprintf(error, error_bytes, "%s is '%s', expected one of", param->name, text);
        for (int i = 0; param->choices[i] != NULL && used < error_bytes; i++)
            used += (size_t)snprintf(error + used, error_bytes - used, "%s %s", i ? "," : "",
                                     param->choices[i]);
        return false;
    }
    char *end;
    *value = strtod(text, &end);
    bool is_whole = *value == (double)(int64_t)*value;
    if (*text == '\0' || *end != '\0' || !(*value >= -9e15 && *value <= 9e15))
        return fail(error, error_bytes, "%s is '%s', expected a number", param->name, text);
    if (param->kind == PARAM_SIZE && (!is_whole || *value < 0))
        return fail(error, error_bytes, "%s is '%s', expected a whole number, 0 or more",
                    param->name, text);
    if (param->kind != PARAM_REAL && !is_whole)
        return fail(error, error_bytes, "%s is '%s', expected a whole number", param->name, text);
    return true;
}

bool case_set(struct op_case *c, const char *params, char *error, size_t error_bytes) {
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", params);
    char *rest = copy;
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        if (*word == '+' || *word == '-') {
            int slot = spec_slot(c->spec, word + 1);
            if (slot < 0)
                return fail(error, error_bytes, "%s has no tensor '%s'", c->spec->op, word + 1);
            c->is_present[slot] = *word == '+';
            continue;
        }
        char *equals = strchr(word, '=');
        if (equals == NULL) return fail(error, error_bytes, "'%s' is no name=value", word);
        *equals = '\0';
        int param = spec_param(c->spec, word);
        if (param < 0)
            return fail(error, error_bytes, "%s has no parameter '%s'", c->spec->op, word);
        if (!parse_value(&c->spec->params[param], equals + 1, &c->param[param], error, error_bytes))
            return false;
    }
    return true;
}

const char *case_text(const struct op_case *c, char *buffer, size_t bytes) {
    size_t used = 0;
    if (bytes > 0) *buffer = '\0';
    for (int i = 0; c->spec->params[i].name != NULL && used < bytes; i++) {
        const struct param_spec *param = &c->spec->params[i];
        bool is_shown = param->kind == PARAM_SIZE && param->standard != 0;
        if (!is_shown && c->param[i] == param->standard) continue;
        used +=
            (size_t)snprintf(buffer + used, bytes - used, "%s%s=", used ? " " : "", param->name);
        if (used >= bytes) break;
        if (param->kind == PARAM_CHOICE)
            used += (size_t)snprintf(buffer + used, bytes - used, "%s",
                                     param->choices[(int)c->param[i]]);
        else
            used += (size_t)snprintf(buffer + used, bytes - used, "%.10g", c->param[i]);
    }
    for (int s = 0; c->spec->slots[s].name != NULL && used < bytes; s++)
        if (c->spec->slots[s].is_optional && c->is_present[s])
            used += (size_t)snprintf(buffer + used, bytes - used, "%s+%s", used ? " " : "",
                                     c->spec->slots[s].name);
    return buffer;
}
