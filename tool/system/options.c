// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/options.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "commands/command.h"

enum { MAX_OPTIONS = 192, FIRST_CODE = 256 };

int usage_error(const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "tessera %s: ", command);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (see 'tessera %s --help')\n", command);
    va_end(list);
    return EXIT_USAGE;
}

// ---- Values -----------------------------------------------------------------------------------

static bool parse_number(const char *text, size_t length, double *value) {
    char copy[64], *end;
    if (length == 0 || length >= sizeof copy) return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    *value = strtod(copy, &end);
    return *end == '\0' && isfinite(*value);
}

static bool add_number(struct numbers *numbers, double value, char *error, size_t error_bytes) {
    if (numbers->count == NUMBERS_MAX) {
        snprintf(error, error_bytes, "more than %d values", (int)NUMBERS_MAX);
        return false;
    }
    numbers->values[numbers->count++] = value;
    return true;
}

// One part of a list, "512" or "256:8192:x2" or "256:1024:+256"; a sweep includes its end.
static bool parse_part(const char *text, size_t length, struct numbers *numbers, char *error,
                       size_t error_bytes) {
    const char *end = text + length;
    const char *colon = memchr(text, ':', length);
    double first, last, step;
    if (colon == NULL && parse_number(text, length, &first))
        return add_number(numbers, first, error, error_bytes);
    if (colon == NULL) {
        snprintf(error, error_bytes, "'%.*s' is not a number", (int)length, text);
        return false;
    }
    const char *second = memchr(colon + 1, ':', (size_t)(end - colon - 1));
    bool is_factor = second != NULL && second + 1 < end && second[1] == 'x';
    bool is_step = second != NULL && second + 1 < end && second[1] == '+';
    if ((!is_factor && !is_step) || !parse_number(text, (size_t)(colon - text), &first) ||
        !parse_number(colon + 1, (size_t)(second - colon - 1), &last) ||
        !parse_number(second + 2, (size_t)(end - second - 2), &step)) {
        snprintf(error, error_bytes,
                 "'%.*s' is not a sweep, expected first:last:xFACTOR or first:last:+STEP",
                 (int)length, text);
        return false;
    }
    if (is_factor ? !(step > 1 && first > 0) : !(step > 0)) {
        snprintf(error, error_bytes, "the sweep '%.*s' never ends", (int)length, text);
        return false;
    }
    for (double value = first; value <= last * (1 + 1e-12);
         value = is_factor ? value * step : value + step)
        if (!add_number(numbers, value, error, error_bytes)) return false;
    return true;
}

bool numbers_parse(const char *text, struct numbers *numbers, char *error, size_t error_bytes) {
    *numbers = (struct numbers){0};
    for (;;) {
        size_t length = strcspn(text, ",");
        if (!parse_part(text, length, numbers, error, error_bytes)) return false;
        if (text[length] == '\0') break;
        text += length + 1;
    }
    if (numbers->count > 0) return true;
    snprintf(error, error_bytes, "the sweep is empty");
    return false;
}

bool text_list_split(char *text, struct text_list *list) {
    list->count = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        bool is_last = text[length] == '\0';
        if (length == 0 || list->count == OPERANDS_MAX) return false;
        text[length] = '\0';
        list->items[list->count++] = text;
        if (is_last) return true;
        text += length + 1;
    }
}

static int set_choice(const char *command, const struct option_spec *option, const char *text) {
    char names[512] = "";
    size_t used = 0;
    for (int i = 0; option->choices[i] != NULL; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int *)option->target = i;
            return -1;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                     option->choices[i]);
    }
    return usage_error(command, "--%s is '%s', expected one of %s", option->name, text, names);
}

static int set_number(const char *command, const struct option_spec *option, const char *text) {
    double value;
    bool is_int = option->kind == OPTION_INT;
    if (!parse_number(text, strlen(text), &value) ||
        (is_int && (value != floor(value) || fabs(value) > 9e15)))
        return usage_error(command, "--%s is '%s', expected a %s", option->name, text,
                           is_int ? "whole number up to 9e15" : "number");
    bool has_range = option->min != 0 || option->max != 0;
    if (has_range && !(value >= option->min && value <= option->max))
        return usage_error(command, "--%s is %s, expected %.10g to %.10g", option->name, text,
                           option->min, option->max);
    if (is_int)
        *(int64_t *)option->target = (int64_t)value;
    else
        *(double *)option->target = value;
    return -1;
}

static int set_value(const char *command, const struct option_spec *option, const char *text) {
    char error[256];
    switch (option->kind) {
    case OPTION_FLAG: *(bool *)option->target = true; return -1;
    case OPTION_TEXT: *(const char **)option->target = text; return -1;
    case OPTION_CHOICE: return set_choice(command, option, text);
    case OPTION_INT:
    case OPTION_REAL: return set_number(command, option, text);
    case OPTION_NUMBERS:
        if (numbers_parse(text, option->target, error, sizeof error)) return -1;
        return usage_error(command, "--%s: %s", option->name, error);
    case OPTION_APPEND: break;
    }
    struct text_list *list = option->target;
    if (list->count == OPERANDS_MAX)
        return usage_error(command, "--%s is given more than %d times", option->name,
                           (int)OPERANDS_MAX);
    list->items[list->count++] = text;
    return -1;
}

// ---- The table through getopt_long ------------------------------------------------------------

static int fail_option(const char *command, const struct option_spec *options, int code,
                       char **argv) {
    const char *text = argv[optind - 1];
    if (code == ':' && optopt >= FIRST_CODE)
        return usage_error(command, "--%s needs a value", options[optopt - FIRST_CODE].name);
    if (code == ':') return usage_error(command, "-%c needs a value", optopt);
    if (optopt >= FIRST_CODE)
        return usage_error(command, "--%s takes no value", options[optopt - FIRST_CODE].name);
    if (optopt != 0 && optopt < FIRST_CODE && strncmp(text, "--", 2) != 0)
        return usage_error(command, "there is no option -%c", optopt);
    return usage_error(command, "there is no option %.*s", (int)strcspn(text, "="), text);
}

options_help_writer options_write_help = options_print_help;

int options_parse(const struct command_help *help, const struct option_spec *options, int argc,
                  char **argv, struct text_list *operands) {
    struct option longs[MAX_OPTIONS + 2] = {0};
    char letters[2 * MAX_OPTIONS + 4] = ":h";
    size_t num_letters = 2;
    int count = 0;
    for (; options[count].name != NULL; count++) {
        const struct option_spec *option = &options[count];
        if (count == MAX_OPTIONS) abort(); // a table has outgrown MAX_OPTIONS
        bool has_value = option->kind != OPTION_FLAG;
        longs[count] = (struct option){option->name, has_value ? required_argument : no_argument,
                                       NULL, FIRST_CODE + count};
        if (option->letter == 0) continue;
        letters[num_letters++] = option->letter;
        if (has_value) letters[num_letters++] = ':';
    }
    longs[count] = (struct option){"help", no_argument, NULL, 'h'};

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0;
         i++) // so that no option's value hides it
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            options_write_help(stdout, help, options);
            return EXIT_FINE;
        }
    opterr = 0;
    optind = 0; // GNU: restart, after an earlier table too
    for (int code; (code = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        if (code == 'h') {
            options_write_help(stdout, help, options);
            return EXIT_FINE;
        }
        if (code == '?' || code == ':') return fail_option(help->name, options, code, argv);
        int index = code - FIRST_CODE;
        for (int i = 0; code < FIRST_CODE && i < count; i++)
            if (options[i].letter == code) index = i;
        if (optarg != NULL && optarg == argv[optind - 1] && strncmp(optarg, "--", 2) == 0)
            return usage_error(help->name,
                               "--%s needs a value, got the option %s (write --%s=%s if "
                               "that is the value)",
                               options[index].name, optarg, options[index].name, optarg);
        int outcome = set_value(help->name, &options[index], optarg);
        if (outcome >= 0) return outcome;
    }
    for (int i = optind; i < argc; i++) {
        if (operands == NULL) return usage_error(help->name, "unexpected '%s'", argv[i]);
        if (operands->count == OPERANDS_MAX)
            return usage_error(help->name, "more than %d arguments", (int)OPERANDS_MAX);
        operands->items[operands->count++] = argv[i];
    }
    return -1;
}

// ---- Help -------------------------------------------------------------------------------------

const char *option_help_text(const struct option_spec *option, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "%s", option->help);
    if (option->kind != OPTION_CHOICE || option->choices == NULL) return text;
    for (int i = 0; option->choices[i] != NULL && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : ": ",
                                 option->choices[i]);
    int standard = *(const int *)option->target; // no value has been read yet
    if (standard >= 0 && used < bytes)
        snprintf(text + used, bytes - used, " (%s)", option->choices[standard]);
    return text;
}

static void print_option(FILE *out, const struct option_spec *option) {
    char left[64], letter[8] = "    ", text[512];
    if (option->letter != 0) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name, option->value ? " " : "",
             option->value ? option->value : "");
    fprintf(out, "  %-32s%s%s\n", left, strlen(left) > 31 ? " " : "",
            option_help_text(option, text, sizeof text));
}

void options_print_help(FILE *out, const struct command_help *help,
                        const struct option_spec *options) {
    fprintf(out, "Usage: tessera %s %s\n\n%s\n\nOptions, with defaults in parentheses:\n",
            help->name, help->synopsis, help->summary);
    for (int i = 0; options[i].name != NULL; i++) print_option(out, &options[i]);
    fprintf(out, "  %-32s%s\n", "-h, --help", "this text");
    if (help->notes != NULL) fprintf(out, "\n%s\n", help->notes);
    if (help->examples == NULL) return;
    fputs("\nExamples:\n", out);
    for (const char *line = help->examples; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        fprintf(out, "  %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}
