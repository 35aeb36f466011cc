// SPDX-License-Identifier: Apache-2.0
// The tessera command: finds the command that the first word names and runs it.
#include <errno.h>
#include <fenv.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

#include "commands/command.h"
#include "commands/commands.h"
#include "system/environment.h"
#include "system/heap.h"
#include "system/signals.h"

static void print_help(void) {
    printf("Usage: tessera COMMAND [options]\n\n"
           "Fused transformer kernels: proved and measured on this machine.\n\nCommands:\n");
    for (const struct command *c = commands; c->name != NULL; c++)
        printf("  %-13s%s\n", c->name, c->summary);
    printf("\nOptions:\n"
           "  --help      this text; 'tessera COMMAND --help' explains a command\n"
           "  --version   the library's version\n\n"
           "First steps:\n"
           "  tessera info              show this machine and its measured ceilings\n"
           "  tessera verify --quick    check the results of every operation\n"
           "  tessera bench softmax     measure an operation\n"
           "  tessera report --quick    do all of that and write a page, report/report.html\n\n"
           "Exit codes: %s\n",
           commands_exit_codes);
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
    const struct command *command = commands_find(commands, is_help ? argv[2] : name);
    if (command == NULL) return fail_unknown(is_help ? argv[2] : name);
    heap_start(command->name);
    if (!is_help) return command->run(argc - 1, argv + 1);
    char help_option[] = "--help";
    char *arguments[] = {argv[2], help_option, NULL};
    return command->run(2, arguments);
}

// A failed write is a failure of the command, but a wrong result outweighs it.
static int flush_output(int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (code == EXIT_WRONG || code == EXIT_COULD_NOT_RUN) return code;
    fprintf(stderr, "tessera: cannot write standard output%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return EXIT_COULD_NOT_RUN;
}

int main(int argc, char **argv) {
    // A linked library may have set flush-to-zero (crtfastmath.o), but oracles and bounds need subnormals.
    fesetenv(FE_DFL_ENV);
    signals_start();
    environment_set_command(argc, argv);
    return flush_output(run(argc, argv));
}
