// SPDX-License-Identifier: Apache-2.0
// tessera manual: man pages (roff, the man macros), one for the tool and one for every command, written from the tables
// of --help.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <tessera/types.h>

#include "commands/command.h"
#include "commands/command_walk.h"
#include "system/files.h"

// Prints plain text for roff: a hyphen stays a hyphen, and no line is taken for a request.
static void print_text(FILE *out, const char *text) {
    bool is_first = true; // of a line
    for (const char *c = text; *c != '\0'; c++) {
        if (is_first && (*c == '.' || *c == '\'')) fputs("\\&", out);
        is_first = *c == '\n';
        if (*c == '\\')
            fputs("\\e", out);
        else if (*c == '-')
            fputs("\\-", out);
        else
            fputc(*c, out);
    }
}

static void print_head(FILE *out, const char *page, const char *summary) {
    fputs(".TH \"", out);
    for (const char *c = page; *c != '\0'; c++)
        fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, out);
    fprintf(out, "\" 1 \"\" \"Tessera %s\" \"Tessera\"\n.SH NAME\n", tsr_version());
    print_text(out, page);
    fputs(" \\- ", out);
    print_text(out, summary);
    fputc('\n', out);
}

static void print_section(FILE *out, const char *title, const char *text) {
    fprintf(out, ".SH %s\n", title);
    print_text(out, text);
    fputc('\n', out);
}

static void print_see_also(FILE *out, const struct command *table, const char *page) {
    fputs(".SH SEE ALSO\n", out);
    const char *separator = "";
    if (page != NULL) fputs(".BR tessera (1)", out), separator = ",\n";
    for (const struct command *c = table; c->name != NULL; c++) {
        if (page != NULL && strcmp(c->name, page) == 0) continue;
        fprintf(out, "%s.BR tessera\\-%s (1)", separator, c->name);
        separator = ",\n";
    }
    fputc('\n', out);
}

// ---- A page -------------------------------------------------------------------------------------

static void print_option(FILE *out, const struct option_spec *option) {
    char text[512];
    fputs(".TP\n\\fB", out);
    if (option->letter != 0) fprintf(out, "\\-%c\\fR, \\fB", option->letter);
    fputs("\\-\\-", out);
    print_text(out, option->name);
    fputs("\\fR", out);
    if (option->value != NULL) {
        fputs(" \\fI", out);
        print_text(out, option->value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    print_text(out, option_help_text(option, text, sizeof text));
    fputc('\n', out);
}

static void visit(void *user, const struct command_visit *v) {
    FILE *out = user;
    if (v->operand == NULL) {
        char page[64];
        snprintf(page, sizeof page, "tessera-%s", v->command->name);
        print_head(out, page, v->command->summary);
        fprintf(out, ".SH SYNOPSIS\n\\fBtessera %s\\fR ", v->command->name);
        print_text(out, v->help->synopsis);
        fputc('\n', out);
        print_section(out, "DESCRIPTION", v->help->summary);
        fputs(".SH OPTIONS\n", out);
    } else if (v->options[0].name != NULL) {
        fputs(".SS ", out);
        print_text(out, v->operand);
        fputc('\n', out);
    }
    for (int i = 0; v->options[i].name != NULL; i++) print_option(out, &v->options[i]);
    if (v->operand != NULL) return;
    fputs(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprint this help as text\n", out);
    if (v->help->notes != NULL) {
        fputs(".SH NOTES\n.nf\n", out);
        print_text(out, v->help->notes);
        fputs("\n.fi\n", out);
    }
    if (v->help->examples != NULL) {
        fputs(".SH EXAMPLES\n.nf\n", out);
        print_text(out, v->help->examples);
        fputs("\n.fi\n", out);
    }
    if (v->help->operands != NULL) fputs(".SH OPTIONS THAT FOLLOW AN OPERAND\n", out);
}

// command NULL: the page of the tool.
static void print_page(FILE *out, const struct command *table, const struct command *command) {
    if (command != NULL) {
        commands_walk(command, visit, out);
        print_section(out, "EXIT STATUS", commands_exit_codes);
        print_see_also(out, table, command->name);
        return;
    }
    print_head(out, "tessera", "fused transformer kernels: proved and measured on this machine");
    fputs(".SH SYNOPSIS\n\\fBtessera\\fR \\fICOMMAND\\fR [options]\n.SH COMMANDS\n", out);
    for (const struct command *c = table; c->name != NULL; c++) {
        fprintf(out, ".TP\n.BR tessera\\-%s (1)\n", c->name);
        print_text(out, c->summary);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n.TP\n\\fB\\-\\-help\\fR\nthe commands\n", out);
    fputs(".TP\n\\fB\\-\\-version\\fR\nthe library's version\n", out);
    print_section(out, "EXIT STATUS", commands_exit_codes);
    print_see_also(out, table, NULL);
}

// ---- The command --------------------------------------------------------------------------------

struct page {
    const struct command *table, *command;
};

// Writes folder/tessera.1, folder/tessera-bench.1, ...; the folder exists.
static bool write_page_text(FILE *out, const void *data) {
    const struct page *page = data;
    print_page(out, page->table, page->command);
    return !ferror(out);
}

static int write_page(const char *folder, const struct command *table,
                      const struct command *command) {
    const struct page page = {table, command};
    char path[1024];
    int length = snprintf(path, sizeof path, "%s/tessera%s%s.1", folder, command ? "-" : "",
                          command ? command->name : "");
    if (length >= (int)sizeof path) return usage_error("manual", "--output is too long");
    return file_write(path, write_page_text, &page) ? EXIT_FINE : EXIT_COULD_NOT_RUN;
}

int manual_of(const struct command *table, int argc, char **argv) {
    static const struct command_help help = {
        "manual",
        "[COMMAND] [options]",
        "Prints the man page of a command, or of the tool: tessera manual bench | man -l -.",
        "The pages have the texts of --help; an installed copy has them as files.",
        NULL,
        "tessera manual bench\ntessera manual"};
    const char *folder = NULL;
    const struct option_spec options[] = {
        {"output", 'o', "DIR", "write all pages into this folder", OPTION_TEXT, &folder, NULL, 0,
         0},
        {0},
    };
    struct text_list operands = {0};
    int code = options_parse(&help, options, argc, argv, &operands);
    if (code >= 0) return code;
    if (operands.count > 1 || (operands.count == 1 && folder != NULL))
        return usage_error("manual", "expected one command, or only --output");
    if (folder != NULL && *folder == '\0')
        return usage_error("manual", "--output is empty, expected a folder");
    const struct command *command =
        operands.count == 1 ? commands_find(table, operands.items[0]) : NULL;
    if (operands.count == 1 && command == NULL)
        return usage_error("manual", "there is no command '%s'", operands.items[0]);
    if (folder == NULL) {
        print_page(stdout, table, command);
        return EXIT_FINE;
    }
    code = write_page(folder, table, NULL);
    for (const struct command *c = table; c->name != NULL && code == EXIT_FINE; c++)
        code = write_page(folder, table, c);
    return code;
}
