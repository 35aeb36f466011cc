// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.h"

#include "commands/command.h"

// These two write down what the table has: it is handed to them.
static int command_manual(int argc, char **argv) { return manual_of(commands, argc, argv); }
static int command_completion(int argc, char **argv) { return completion_of(commands, argc, argv); }

// A new command: its declaration in command.h and its line here.
const struct command commands[] = {
    {"info", "machine, instruction sets, measured ceilings", command_info},
    {"verify", "every operation, variant and dtype against the oracle", command_verify},
    {"bench", "any operation on any shape: times, ceilings, speed-up, memory", command_bench},
    {"compare",
     "two runs' results, or the library's choice beside every other variant: what is slower",
     command_compare},
    {"history", "runs kept, and the last one beside those before it", command_history},
    {"memory", "traffic, launches, footprint and roofline, fused and unfused", command_memory},
    {"profile", "where the time of calls goes: kernels, launches, copies, a timeline",
     command_profile},
    {"scale", "how the time grows with batch, problem and threads, with efficiency", command_scale},
    {"tune", "which variants and blocks are best here, kept in the tuning file", command_tune},
    {"apply", "one operation on the tensors of a safetensors file", command_apply},
    {"conformance", "any implementation against the oracle, through files", command_conformance},
    {"kernels", "CUDA kernels ahead of time: check, pack, and the cache of them", command_kernels},
    {"report", "everything measured and proved, as one folder with a page", command_report},
    {"manual", "a command's man page, or all of them into a folder", command_manual,
     .takes_commands = true},
    {"completion", "what a shell needs to complete command lines", command_completion},
    {0},
};
