// SPDX-License-Identifier: Apache-2.0
#include "commands/command_walk.h"

#include <string.h>

const char commands_exit_codes[] =
    "0 fine, 1 wrong or slower, 2 usage, 3 not comparable, 4 could not run, 77 no such device.";

const struct command *commands_find(const struct command *table, const char *name) {
    for (const struct command *c = table; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

// ---- The walk: runs every --help once, and hands its table on instead of printing it ------------

enum { MAX_ROWS = 256, MAX_NAME = 64 };

// Static, because options_parse passes no user data on.
static struct walk {
    void (*visit)(void *user, const struct command_visit *visit);
    void *user;
    const struct command *command;
    const char *operand;
    const char *operands[OPERANDS_MAX + 1]; // of the command
    char names[MAX_ROWS][MAX_NAME];         // of its own options
    int num_names;
} walk;

static bool is_of_the_command(const char *name) {
    for (int i = 0; i < walk.num_names; i++)
        if (strcmp(walk.names[i], name) == 0) return true;
    return false;
}

static void visit_help(FILE *out, const struct command_help *help,
                       const struct option_spec *options) {
    struct option_spec rows[MAX_ROWS] = {0};
    int count = 0;
    (void)out;
    for (int i = 0; walk.operand == NULL && options[i].name != NULL && i < MAX_ROWS; i++)
        snprintf(walk.names[walk.num_names++], MAX_NAME, "%s", options[i].name);
    for (int i = 0; walk.operand == NULL && help->operands != NULL && help->operands[i] != NULL;
         i++)
        if (i < OPERANDS_MAX) walk.operands[i] = help->operands[i];
    for (int i = 0; options[i].name != NULL && count + 1 < MAX_ROWS; i++)
        if (walk.operand == NULL || !is_of_the_command(options[i].name)) rows[count++] = options[i];
    const struct command_visit visit = {walk.command, walk.operand, help, rows};
    walk.visit(walk.user, &visit);
}

void commands_walk(const struct command *command,
                   void (*visit)(void *user, const struct command_visit *visit), void *user) {
    char name[MAX_NAME], operand[MAX_NAME], help_option[] = "--help";
    walk = (struct walk){.visit = visit, .user = user, .command = command};
    options_write_help = visit_help;
    snprintf(name, sizeof name, "%s", command->name);
    (void)command->run(2, (char *[]){name, help_option, NULL});
    for (int i = 0; walk.operands[i] != NULL; i++) {
        walk.operand = walk.operands[i];
        snprintf(operand, sizeof operand, "%s", walk.operand);
        (void)command->run(3, (char *[]){name, operand, help_option, NULL});
    }
    options_write_help = options_print_help;
}

enum value_kind command_value_kind(const struct option_spec *option) {
    if (option->value == NULL) return VALUE_NONE;
    if (option->kind == OPTION_CHOICE) return VALUE_CHOICES;
    if (strcmp(option->value, "FILE") == 0) return VALUE_FILE;
    return strcmp(option->value, "DIR") == 0 ? VALUE_FOLDER : VALUE_FREE;
}
