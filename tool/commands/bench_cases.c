// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "commands/bench_cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "system/heap.h"

enum { MAX_CASES = 4096, MAX_AXES = 2 * SPEC_MAX_PARAMS };

enum alias_kind {
    ALIAS_SAME,    // the value is the parameter's
    ALIAS_UP_TO,   // lengths that double from 256 up to the value
    ALIAS_DIVIDED, // the parameter is the value divided by that of `divisor`
    ALIAS_ZERO     // a flag: the parameter's first choice
};

// Names that users know, for one or two parameters. If an operation has a parameter of the same
// name, the name means that parameter.
static const struct alias {
    const char *name, *params[2];
    enum alias_kind kind;
    const char *divisor, *help; // help NULL: made from the names of the parameters
} aliases[] = {
    {"epilogue", {"activation"}},
    {"batch_size", {"batch"}},
    {"num_heads", {"num_heads_q"}},
    {"num_kv_heads", {"num_heads_kv"}},
    {"seqlen", {"seqlen_q", "seqlen_k"}},
    {"max_seq_len",
     {"seqlen_q", "seqlen_k"},
     ALIAS_UP_TO,
     .help = "sequences that double in length from 256 up to this"},
    {"embed_dim",
     {"head_dim"},
     ALIAS_DIVIDED,
     "num_heads",
     "num_heads times head_dim; sets head_dim"},
    {"non_causal", {"mask"}, ALIAS_ZERO, .help = "no causal mask: --mask none"},
};
enum { NUM_ALIASES = sizeof aliases / sizeof *aliases };

static bool fail(char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool fail(char *error, size_t error_bytes, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error, error_bytes, format, list);
    va_end(list);
    return false;
}

// ---- Which operations, which options ----------------------------------------------------------

static void add_option(struct bench_selection *selection, const char *name, const char *help,
                       bool is_flag) {
    for (int i = 0; i < selection->num_options; i++)
        if (strcmp(selection->options[i].name, name) == 0) return;
    if (selection->num_options == BENCH_MAX_OPTIONS) abort(); // specs have outgrown the table
    struct bench_option *option = &selection->options[selection->num_options++];
    *option = (struct bench_option){.is_flag = is_flag};
    snprintf(option->name, sizeof option->name, "%s", name);
    snprintf(option->option, sizeof option->option, "%s", name);
    snprintf(option->help, sizeof option->help, "%s", help);
    for (char *c = option->option; *c != '\0'; c++)
        if (*c == '_') *c = '-';
}

static bool has_alias(const struct op_spec *spec, const struct alias *alias) {
    if (spec_param(spec, alias->name) >= 0) return false;
    for (int i = 0; i < 2 && alias->params[i] != NULL; i++)
        if (spec_param(spec, alias->params[i]) < 0) return false;
    return alias->divisor == NULL || spec_param(spec, alias->divisor) >= 0;
}

static const struct alias *find_alias(const struct op_spec *spec, const char *name) {
    for (int i = 0; i < NUM_ALIASES; i++)
        if (strcmp(aliases[i].name, name) == 0 && has_alias(spec, &aliases[i])) return &aliases[i];
    return NULL;
}

// The help of an option: the parameter's help, its choices, and its default.
static void add_param(struct bench_selection *selection, const struct param_spec *param) {
    char help[256];
    size_t used = (size_t)snprintf(help, sizeof help, "%s", param->help);
    for (int i = 0; param->kind == PARAM_CHOICE && param->choices[i] != NULL; i++)
        if (used < sizeof help)
            used += (size_t)snprintf(help + used, sizeof help - used, "%s %s", i ? "," : ":",
                                     param->choices[i]);
    if (used < sizeof help && param->kind == PARAM_CHOICE)
        snprintf(help + used, sizeof help - used, " (%s)", param->choices[(int)param->standard]);
    else if (used < sizeof help && param->kind != PARAM_FLAG)
        snprintf(help + used, sizeof help - used, " (%.10g)", param->standard);
    add_option(selection, param->name, help, param->kind == PARAM_FLAG);
}

static void add_alias(struct bench_selection *selection, const struct alias *alias) {
    char help[96];
    if (alias->help != NULL)
        snprintf(help, sizeof help, "%s", alias->help);
    else if (alias->params[1] != NULL)
        snprintf(help, sizeof help, "both %s and %s", alias->params[0], alias->params[1]);
    else
        snprintf(help, sizeof help, "another name for %s", alias->params[0]);
    add_option(selection, alias->name, help, alias->kind == ALIAS_ZERO);
}

static void add_spec(struct bench_selection *selection, const struct op_spec *spec) {
    for (int i = 0; i < selection->num_specs; i++)
        if (selection->specs[i] == spec) return;
    if (selection->num_specs == BENCH_MAX_SPECS) abort();
    selection->specs[selection->num_specs++] = spec;
    for (int i = 0; spec->params[i].name != NULL; i++) add_param(selection, &spec->params[i]);
    for (int s = 0; spec->slots[s].name != NULL; s++)
        if (spec->slots[s].is_optional)
            add_option(selection, spec->slots[s].name,
                       spec->slots[s].role == SLOT_OUT ? "with the optional output of this name"
                                                       : "with the optional input of this name",
                       true);
    for (int i = 0; i < NUM_ALIASES; i++)
        if (has_alias(spec, &aliases[i])) add_alias(selection, &aliases[i]);
}

bool bench_select(struct bench_selection *selection, const char *name) {
    bool is_found = false;
    for (int i = 0; op_specs[i] != NULL; i++)
        if (spec_is_named(op_specs[i], name)) {
            add_spec(selection, op_specs[i]);
            is_found = true;
        }
    return is_found;
}

bool bench_keep_pass(struct bench_selection *selection, const char *pass) {
    int kept = 0;
    for (int i = 0; pass != NULL && i < selection->num_specs; i++)
        if (strcmp(selection->specs[i]->pass, pass) == 0)
            selection->specs[kept++] = selection->specs[i];
    if (pass != NULL) selection->num_specs = kept;
    return selection->num_specs > 0;
}

int bench_option_rows(struct bench_selection *selection, struct option_spec *rows, int max_rows) {
    int count = 0;
    for (int i = 0; i < selection->num_options && count < max_rows; i++, count++) {
        struct bench_option *option = &selection->options[i];
        rows[count] = (struct option_spec){
            .name = option->option,
            .value = option->is_flag ? NULL : "V,...",
            .help = option->help,
            .kind = option->is_flag ? OPTION_FLAG : OPTION_TEXT,
            .target = option->is_flag ? (void *)&option->is_set : (void *)&option->text,
        };
    }
    return count;
}

// ---- Cases ------------------------------------------------------------------------------------

// A parameter and its values; the two parameters of an alias change together.
struct axis {
    int param[2]; // -1: none
    int divisor;  // the value is divided by this parameter; -1: by none
    int count;
    double values[NUMBERS_MAX];
};

static bool parse_choices(const struct param_spec *param, const char *option, const char *text,
                          struct axis *axis, char *error, size_t error_bytes) {
    char copy[512];
    struct text_list names;
    if (strlen(text) >= sizeof copy || !text_list_split(strcpy(copy, text), &names))
        return fail(error, error_bytes, "--%s is '%s', expected names with commas between", option,
                    text);
    for (int i = 0; i < names.count; i++) {
        int index = 0;
        while (param->choices[index] != NULL && strcmp(param->choices[index], names.items[i]) != 0)
            index++;
        if (param->choices[index] == NULL) {
            char known[256] = "";
            size_t used = 0;
            for (int k = 0; param->choices[k] != NULL && used < sizeof known; k++)
                used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", k ? ", " : "",
                                         param->choices[k]);
            return fail(error, error_bytes, "--%s is '%s', expected one of %s", option,
                        names.items[i], known);
        }
        axis->values[axis->count++] = index;
    }
    return true;
}

static bool parse_values(const struct param_spec *param, const char *option, const char *text,
                         struct axis *axis, char *error, size_t error_bytes) {
    struct numbers numbers;
    char why[256];
    if (param->kind == PARAM_CHOICE)
        return parse_choices(param, option, text, axis, error, error_bytes);
    if (!numbers_parse(text, &numbers, why, sizeof why))
        return fail(error, error_bytes, "--%s: %s", option, why);
    for (int i = 0; i < numbers.count; i++) {
        double value = numbers.values[i];
        bool is_whole = value > -9e15 && value < 9e15 && value == (double)(int64_t)value;
        if (param->kind != PARAM_REAL && (!is_whole || (param->kind == PARAM_SIZE && value < 0)))
            return fail(error, error_bytes, "--%s is %.10g, expected a whole number%s", option,
                        value, param->kind == PARAM_SIZE ? ", 0 or more" : "");
        axis->values[axis->count++] = value;
    }
    return true;
}

static const struct alias *find_params(const struct op_spec *spec, const char *name,
                                       struct axis *axis) {
    const struct alias *alias = find_alias(spec, name);
    axis->param[0] = spec_param(spec, alias != NULL ? alias->params[0] : name);
    axis->param[1] = axis->divisor = -1;
    if (alias == NULL) return NULL;
    if (alias->params[1] != NULL) axis->param[1] = spec_param(spec, alias->params[1]);
    if (alias->divisor != NULL) axis->divisor = spec_param(spec, alias->divisor);
    return alias;
}

// Replaces the one value of an "up to" alias by the lengths up to it.
static bool double_lengths(struct axis *axis, const char *option, char *error, size_t error_bytes) {
    double last = axis->values[0];
    if (axis->count != 1)
        return fail(error, error_bytes, "--%s takes one length, the longest", option);
    axis->count = 0;
    for (double length = 256; length < last && axis->count + 1 < NUMBERS_MAX; length *= 2)
        axis->values[axis->count++] = length;
    axis->values[axis->count++] = last;
    return true;
}

// Refuses an alias that computes its parameters if another option sets one of them.
static bool check_alone(const struct alias *alias, const char *name, const struct op_spec *spec,
                        const struct bench_selection *selection, char *error, size_t error_bytes) {
    for (int i = 0; alias->kind != ALIAS_SAME && i < selection->num_options; i++) {
        const struct bench_option *other = &selection->options[i];
        struct axis axis;
        if ((!other->is_set && other->text == NULL) || strcmp(other->name, alias->name) == 0)
            continue;
        find_params(spec, other->name, &axis);
        for (int p = 0; p < 2 && alias->params[p] != NULL; p++)
            if (axis.param[0] == spec_param(spec, alias->params[p]))
                return fail(error, error_bytes, "--%s and --%s both set %s", other->option, name,
                            alias->params[p]);
    }
    return true;
}

// A given number sets its has_ flag: scale sets has_scale.
static void add_has_flag(const struct op_spec *spec, const char *name, struct axis *axes,
                         int *num_axes) {
    char flag[64];
    snprintf(flag, sizeof flag, "has_%s", name);
    int param = spec_param(spec, flag);
    if (param >= 0)
        axes[(*num_axes)++] =
            (struct axis){.param = {param, -1}, .divisor = -1, .count = 1, .values = {1}};
}

// Turns options into axes, and sets flags in the case. has_size: a size was given.
static bool read_options(const struct bench_selection *selection, const struct op_spec *spec,
                         struct op_case *flags, struct axis *axes, int *num_axes, bool *has_size,
                         char *error, size_t error_bytes) {
    for (int i = 0; i < selection->num_options; i++) {
        const struct bench_option *option = &selection->options[i];
        if (!option->is_set && option->text == NULL) continue;
        int slot = spec_slot(spec, option->name);
        struct axis axis = {.count = 0};
        const struct alias *alias = find_params(spec, option->name, &axis);
        enum alias_kind kind = alias != NULL ? alias->kind : ALIAS_SAME;
        if (axis.param[0] >= 0) {
            const struct param_spec *param = &spec->params[axis.param[0]];
            if (alias != NULL &&
                !check_alone(alias, option->option, spec, selection, error, error_bytes))
                return false;
            if (option->is_flag)
                axis.values[axis.count++] = kind == ALIAS_ZERO ? 0 : 1;
            else if (!parse_values(param, option->option, option->text, &axis, error, error_bytes))
                return false;
            if (kind == ALIAS_UP_TO && !double_lengths(&axis, option->option, error, error_bytes))
                return false;
            *has_size |= param->kind == PARAM_SIZE;
            if (*num_axes + 2 > MAX_AXES) return fail(error, error_bytes, "too many options");
            axes[(*num_axes)++] = axis;
            add_has_flag(spec, option->name, axes, num_axes);
        } else if (slot >= 0 && spec->slots[slot].is_optional) {
            flags->is_present[slot] = true;
        }
    }
    return true;
}

// A pass for which no output is requested computes all of them, gradients for the tensors that are present.
static void want_outputs(struct op_case *c) {
    const struct slot_spec *slots = c->spec->slots;
    for (int s = 0; slots[s].name != NULL; s++)
        if (case_role(c, s) != SLOT_IN && c->is_present[s]) return;
    for (int s = 0; slots[s].name != NULL; s++) {
        const int model = slots[s].model != NULL ? spec_slot(c->spec, slots[s].model) : -1;
        if (case_role(c, s) == SLOT_OUT && (model < 0 || c->is_present[model]))
            c->is_present[s] = true;
    }
}

// Sets the parameters of the axes; those that are divided come after their divisors.
static bool set_axes(struct op_case *c, const struct axis *axes, const int *index, int num_axes,
                     char *error, size_t error_bytes) {
    for (int a = 0; a < num_axes; a++)
        for (int p = 0; p < 2; p++)
            if (axes[a].param[p] >= 0) c->param[axes[a].param[p]] = axes[a].values[index[a]];
    for (int a = 0; a < num_axes; a++) {
        if (axes[a].divisor < 0) continue;
        double value = axes[a].values[index[a]], divisor = c->param[axes[a].divisor];
        if (!(divisor > 0) || value / divisor != floor(value / divisor))
            return fail(error, error_bytes, "--embed-dim %.10g is no multiple of %s %.10g", value,
                        c->spec->params[axes[a].divisor].name, divisor);
        c->param[axes[a].param[0]] = value / divisor;
    }
    return true;
}

static bool add_product(struct op_case base, const struct op_case *flags, const struct axis *axes,
                        int num_axes, struct op_case *cases, int *count, char *error,
                        size_t error_bytes) {
    for (int s = 0; base.spec->slots[s].name != NULL; s++)
        base.is_present[s] |= flags->is_present[s];
    want_outputs(&base);
    int index[MAX_AXES] = {0};
    for (;;) {
        if (*count == MAX_CASES)
            return fail(error, error_bytes, "the lists make more than %d cases", (int)MAX_CASES);
        struct op_case *c = &cases[(*count)++];
        *c = base;
        if (!set_axes(c, axes, index, num_axes, error, error_bytes)) return false;
        if (c->spec->complete != NULL) c->spec->complete(c);
        int a = num_axes - 1; // the last axis changes fastest
        while (a >= 0 && ++index[a] == axes[a].count) index[a--] = 0;
        if (a < 0) return true;
    }
}

int bench_cases(const struct bench_selection *selection, const struct op_spec *spec,
                const char *const *standard, struct op_case **cases, char *error,
                size_t error_bytes) {
    if (standard == NULL) standard = spec->standard;
    struct axis *axes = heap_get(MAX_AXES, sizeof *axes);
    *cases = heap_get(MAX_CASES, sizeof **cases);
    int num_axes = 0, count = 0;
    bool has_size = false;
    struct op_case plain = case_default(spec), flags = plain, first = plain;
    bool is_fine =
        read_options(selection, spec, &flags, axes, &num_axes, &has_size, error, error_bytes);
    bool is_standard = is_fine && !has_size && standard != NULL && standard[0] != NULL;
    for (int i = 0; is_fine && is_standard && standard[i] != NULL; i++) {
        struct op_case c = plain;
        is_fine = case_set(&c, standard[i], error, error_bytes);
        is_fine =
            is_fine && add_product(c, &flags, axes, num_axes, *cases, &count, error, error_bytes);
    }
    // Request the optional outputs of the standard shapes.
    if (is_fine && standard != NULL && standard[0] != NULL)
        is_fine = case_set(&first, standard[0], error, error_bytes);
    for (int s = 0; spec->slots[s].name != NULL; s++)
        if (case_role(&first, s) == SLOT_OUT) plain.is_present[s] |= first.is_present[s];
    if (is_fine && !is_standard)
        is_fine = add_product(plain, &flags, axes, num_axes, *cases, &count, error, error_bytes);
    free(axes);
    if (is_fine) return count;
    free(*cases);
    *cases = NULL;
    return -1;
}
