// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "command.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {{"verify", command_verify}};

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "usage: tessera verify ...\n");
    return EXIT_USAGE;
}
