// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.h"

#include "commands/command.h"

// These two commands describe the table, so they get it.
static int command_manual(int argc, char **argv) { return manual_of(commands, argc, argv); }
static int command_completion(int argc, char **argv) { return completion_of(commands, argc, argv); }

// A new command: its declaration in command.h and its line here.
const struct command commands[] = {
    {"info", "show the machine, its instruction sets and measured ceilings", command_info},
    {"verify", "check every operation, variant and dtype against the oracle", command_verify},
    {"bench", "measure any operation on any shape: time, ceiling, speed-up, memory", command_bench},
    {"compare", "find what became slower, or where another variant beats the library's choice",
     command_compare},
    {"history", "keep runs, and compare the last one with those before it", command_history},
    {"memory", "show traffic, launches, footprint and roofline, fused and unfused", command_memory},
    {"profile", "show where the time of calls goes: kernels, launches, copies, a timeline",
     command_profile},
    {"scale", "show how time and efficiency change with batch, problem and threads", command_scale},
    {"tune", "find the best variants and blocks here, and keep them in a file", command_tune},
    {"apply", "run one operation on the tensors of a safetensors file", command_apply},
    {"conformance", "check any implementation against the oracle, through files",
     command_conformance},
    {"kernels", "compile CUDA kernels ahead of time: check, pack, list, clear", command_kernels},
    {"report", "measure and verify, and write one folder with a page", command_report},
    {"manual", "print a command's man page, or write all pages into a folder", command_manual,
     .takes_commands = true},
    {"completion", "print the script with which a shell completes command lines",
     command_completion},
    {0},
};
