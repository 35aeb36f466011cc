// SPDX-License-Identifier: Apache-2.0
// The common command line of bench, memory, scale and tune: operations, their parameters, dtypes, device, and how to
// measure.
#ifndef TOOL_BENCH_OPTIONS_H
#define TOOL_BENCH_OPTIONS_H

#include "commands/bench_cases.h"
#include "measure/measure.h"

enum bench_pass { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH };

struct bench_options {
    const struct command_help *help;
    const char *const *formats;  // names in the order of enum result_format
    const char *const *fallback; // default operations, NULL-terminated; NULL: one must be named
    bool has_no_timing;          // the command times in its own way
    bool is_on_cpu_only;         // the command takes no --device

    struct bench_selection selection;
    struct measure_options measure;
    bool is_decoding;
    int pass, isa, format;
    int64_t threads, warmup, rep, seed;
    const char *dtype, *device, *out;
    tsr_dtype dtypes[TSR_DTYPE_COUNT];
    int num_dtypes;
};

// The defaults; the caller adds the first four fields and changes others as it needs.
#define BENCH_OPTIONS(...)                                                                         \
    ((struct bench_options){.dtype = "f32", .warmup = -1, .seed = 1, .format = -1, __VA_ARGS__})

bool bench_is_operation(const char *name); // an operation, or one pass of one
// Reads the command line with the command's own options (ends with a NULL name) and the common ones, and checks all of
// it before anything is measured. Returns as options_parse does.
int bench_options_parse(struct bench_options *options, const struct option_spec *own, int argc,
                        char **argv);

// The variants of --variant: names with commas between, "all" for every variant of the device except the oracle, or NULL
// for the library's choice, which has the name NULL. The names lie in copy. Returns their number, at most
// MEASURE_MAX_CONTENDERS.
int bench_variants(const struct bench_options *options, const struct op_spec *spec,
                   const char *asked, char *copy, size_t copy_bytes, const char **variants);
// Checks such a list before anything is measured: -1, or the exit code after a sentence on stderr.
int bench_check_variants(const struct bench_options *options, const char *asked);

// Opens a session with these options. On failure: NULL, a sentence on stderr, and the exit code in *code.
struct measure_session *bench_open(const struct bench_options *options, int *code);

#endif
