// SPDX-License-Identifier: Apache-2.0
// The tessera command: finds what stands behind the first word and hands over.
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

#include "command.h"
#include "environment.h"

// A new command: its declaration in command.h and its line here.
static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"info", "machine, instruction sets, measured ceilings", command_info},
    {"verify", "every operation, variant and dtype against the oracle", command_verify},
    {"bench", "any operation on any shape: times, ceilings, speed-up, memory", command_bench},
    {"memory", "traffic, launches, footprint and roofline, fused and unfused", command_memory},
    {"profile", "where the time of calls goes: kernels, launches, copies, a timeline",
     command_profile},
    {"apply", "one operation on the tensors of a safetensors file", command_apply},
    {"kernels", "CUDA kernels ahead of time: check, pack, and the cache of them", command_kernels},
    {"report", "everything measured and proved, as one folder with a page", command_report},
    {NULL, NULL, NULL},
};

static const struct command *find(const char *name) {
    for (const struct command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static void print_help(void) {
    printf("Usage: tessera COMMAND [options]\n\n"
           "Fused transformer kernels: proved and measured on this machine.\n\nCommands:\n");
    for (const struct command *c = commands; c->name != NULL; c++)
        printf("  %-10s%s\n", c->name, c->summary);
    printf("\nOptions:\n"
           "  --help    this text; 'tessera COMMAND --help' for a command's\n"
           "  --version the library's version\n\n"
           "Exit codes: 0 fine, 1 wrong or slower, 2 usage, 3 not comparable, 4 could not run, "
           "77 no such device.\n");
}

static int fail_unknown(const char *name) {
    fprintf(stderr, "tessera: there is no command '%s', expected one of", name);
    for (const struct command *c = commands; c->name != NULL; c++)
        fprintf(stderr, "%s %s", c == commands ? "" : ",", c->name);
    fprintf(stderr, " (see 'tessera --help')\n");
    return EXIT_USAGE;
}

static int run(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "--help";
    if (strcmp(name, "--version") == 0) {
        printf("tessera %s\n", tsr_version());
        return EXIT_FINE;
    }
    bool is_help =
        strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    if (is_help && argc <= 2) {
        print_help();
        return argc > 1 ? EXIT_FINE : EXIT_USAGE;
    }
    const struct command *command = find(is_help ? argv[2] : name);
    if (command == NULL) return fail_unknown(is_help ? argv[2] : name);
    if (!is_help) return command->run(argc - 1, argv + 1);
    char help_option[] = "--help";
    char *arguments[] = {argv[2], help_option, NULL};
    return command->run(2, arguments);
}

// What could not be written is no success. A wrong result outweighs it.
static int flush_output(int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (code == EXIT_WRONG || code == EXIT_COULD_NOT_RUN) return code;
    fprintf(stderr, "tessera: cannot write standard output%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return EXIT_COULD_NOT_RUN;
}

int main(int argc, char **argv) {
    environment_set_command(argc, argv);
    return flush_output(run(argc, argv));
}
