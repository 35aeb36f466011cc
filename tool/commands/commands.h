// SPDX-License-Identifier: Apache-2.0
// The table of the tool's commands.
#ifndef TOOL_COMMANDS_H
#define TOOL_COMMANDS_H

#include "commands/command_walk.h"

extern const struct command commands[]; // ends with a NULL name

#endif
