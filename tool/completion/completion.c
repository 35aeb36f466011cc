// SPDX-License-Identifier: Apache-2.0
// tessera completion: scripts for bash and zsh, written from the tables of --help. Both know a command's options and
// operands, the options that an operand adds, and the values of an option. The fixed part of each script is
// completion/bash.sh or zsh.sh.
#include <string.h>

#include "commands/command.h"
#include "commands/command_walk.h"

extern const unsigned char embedded_completion_bash[], embedded_completion_zsh[];

static void for_all(const struct command *table,
                    void (*visit)(void *user, const struct command_visit *visit)) {
    for (const struct command *c = table; c->name != NULL; c++) commands_walk(c, visit, &table);
}

// The table that a visit gets as its user data.
static const struct command *table_of(void *user) { return *(const struct command **)user; }

// ---- bash: cases over "command/operand" and "command/operand/--option" --------------------------

static void bash_operands(void *user, const struct command_visit *v) {
    const struct command *table = table_of(user), *command = v->command;
    if (v->operand != NULL || (v->help->operands == NULL && !command->takes_commands)) return;
    printf("    %s) echo '", v->command->name);
    for (int i = 0; v->help->operands != NULL && v->help->operands[i] != NULL; i++)
        printf("%s ", v->help->operands[i]);
    for (const struct command *c = table; command->takes_commands && c->name != NULL; c++)
        printf("%s ", c->name);
    printf("' ;;\n");
}

static void bash_options(void *user, const struct command_visit *v) {
    (void)user;
    if (v->options[0].name == NULL) return;
    printf("    case $1/$2 in %s/%s) printf '%%s ' '", v->command->name,
           v->operand != NULL ? v->operand : "*");
    for (int i = 0; v->options[i].name != NULL; i++) printf("--%s ", v->options[i].name);
    printf("' ;; esac\n");
}

static void bash_values(void *user, const struct command_visit *v) {
    (void)user;
    const char *operand = v->operand != NULL ? v->operand : "*";
    for (int i = 0; v->options[i].name != NULL; i++) {
        const struct option_spec *option = &v->options[i];
        enum value_kind kind = command_value_kind(option);
        if (kind == VALUE_NONE) continue;
        printf("    %s/%s/--%s", v->command->name, operand, option->name);
        if (option->letter != 0) printf(" | %s/%s/-%c", v->command->name, operand, option->letter);
        printf(") echo '%s", kind == VALUE_FILE     ? "@file"
                             : kind == VALUE_FOLDER ? "@folder"
                             : kind == VALUE_FREE   ? "@free"
                                                    : "");
        for (int c = 0; kind == VALUE_CHOICES && option->choices[c] != NULL; c++)
            printf("%s ", option->choices[c]);
        printf("' ;;\n");
    }
}

static void print_bash(const struct command *table) {
    printf("# bash completion of tessera, written by 'tessera completion bash'\n\n"
           "_tessera_commands() { echo '");
    for (const struct command *c = table; c->name != NULL; c++) printf("%s ", c->name);
    printf("'; }\n\n_tessera_operands() { # COMMAND\n    case $1 in\n");
    for_all(table, bash_operands);
    printf("    esac\n}\n\n_tessera_options() { # COMMAND OPERAND\n");
    for_all(table, bash_options);
    printf("}\n\n"
           "_tessera_value() { # COMMAND OPERAND OPTION: words, @file, @folder, @free, or nothing\n"
           "    case $1/$2/$3 in\n");
    for_all(table, bash_values);
    printf("    esac\n}\n%s", (const char *)embedded_completion_bash);
}

// ---- zsh: _arguments with the texts of --help ---------------------------------------------------

// For single quotes; escapes the separators of _arguments and _describe.
static void print_zsh_text(const char *text) {
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\'')
            printf("'\\''");
        else if (strchr("[]:\\", *c) != NULL)
            printf("\\%c", *c);
        else
            putchar(*c);
    }
}

static void zsh_options(void *user, const struct command_visit *v) {
    (void)user;
    if (v->options[0].name == NULL) return;
    printf("    case $command/$operand in %s/%s)\n", v->command->name,
           v->operand != NULL ? v->operand : "*");
    for (int i = 0; v->options[i].name != NULL; i++) {
        const struct option_spec *option = &v->options[i];
        enum value_kind kind = command_value_kind(option);
        printf("        options+=('--%s%s[", option->name, kind == VALUE_NONE ? "" : "=");
        print_zsh_text(option->help);
        putchar(']');
        if (kind != VALUE_NONE) {
            putchar(':');
            print_zsh_text(option->value);
            printf(":%s", kind == VALUE_FILE     ? "_files"
                          : kind == VALUE_FOLDER ? "_files -/"
                          : kind == VALUE_FREE   ? " "
                                                 : "(");
            for (int c = 0; kind == VALUE_CHOICES && option->choices[c] != NULL; c++)
                printf("%s%s", c ? " " : "", option->choices[c]);
            if (kind == VALUE_CHOICES) putchar(')');
        }
        printf("')\n");
    }
    printf("    esac\n");
}

static void zsh_operands(void *user, const struct command_visit *v) {
    const struct command *table = table_of(user), *command = v->command;
    if (v->operand != NULL || (v->help->operands == NULL && !command->takes_commands)) return;
    printf("    %s) operands=(", v->command->name);
    for (int i = 0; v->help->operands != NULL && v->help->operands[i] != NULL; i++)
        printf("%s%s", i ? " " : "", v->help->operands[i]);
    for (const struct command *c = table; command->takes_commands && c->name != NULL; c++)
        printf("%s ", c->name);
    printf(") ;;\n");
}

static void print_zsh(const struct command *table) {
    printf("#compdef tessera\n# zsh completion of tessera, written by 'tessera completion zsh'\n\n"
           "_tessera_commands() {\n    commands=(\n");
    for (const struct command *c = table; c->name != NULL; c++) {
        printf("        '%s:", c->name);
        print_zsh_text(c->summary);
        printf("'\n");
    }
    printf("    )\n}\n\n_tessera_operands() {\n    case $command in\n");
    for_all(table, zsh_operands);
    printf("    esac\n}\n\n_tessera_options() {\n");
    for_all(table, zsh_options);
    printf("}\n%s", (const char *)embedded_completion_zsh);
}

// ---- The command --------------------------------------------------------------------------------

int completion_of(const struct command *table, int argc, char **argv) {
    static const char *const shells[] = {"bash", "zsh", NULL};
    static const struct command_help help = {
        "completion",
        "bash|zsh",
        "Prints the script with which a shell completes command lines of tessera.",
        "For the current shell: source <(tessera completion bash). An installed copy has both "
        "scripts where all\nshells look for them; without one, save zsh's as _tessera in a folder "
        "of $fpath.",
        shells,
        "tessera completion bash"};
    const struct option_spec options[] = {{0}};
    struct text_list operands = {0};
    int code = options_parse(&help, options, argc, argv, &operands);
    if (code >= 0) return code;
    if (operands.count == 1 && strcmp(operands.items[0], "bash") == 0)
        print_bash(table);
    else if (operands.count == 1 && strcmp(operands.items[0], "zsh") == 0)
        print_zsh(table);
    else
        return usage_error("completion", "expected bash or zsh");
    return EXIT_FINE;
}
