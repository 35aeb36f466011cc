// SPDX-License-Identifier: Apache-2.0
// The command line that bench, memory, scale and tune have in common: operations, their parameters, dtypes, device,
// and how to measure.
#ifndef TOOL_BENCH_OPTIONS_H
#define TOOL_BENCH_OPTIONS_H

#include "commands/bench_cases.h"
#include "measure/measure.h"

enum bench_pass { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH };

struct bench_options {
    const struct command_help *help;
    const char *const *formats; // names in the order of enum result_format
    const char *const
        *fallback;       // operations where none is named, NULL-terminated; NULL: one must be
    bool has_no_timing;  // the command has a way of its own to time
    bool is_on_cpu_only; // it takes no --device

    struct bench_selection selection;
    struct measure_options measure;
    int pass, isa, format;
    int64_t threads, warmup, rep, seed;
    const char *dtype, *device, *out;
    tsr_dtype dtypes[TSR_DTYPE_COUNT];
    int num_dtypes;
};

// What holds where nothing is said; the caller adds the first four, and what else it wants.
#define BENCH_OPTIONS(...)                                                                         \
    ((struct bench_options){.dtype = "f32", .warmup = -1, .seed = 1, .format = -1, __VA_ARGS__})

bool bench_is_operation(const char *name); // one pass of it, or all
// Reads the command line with the command's own options (ends with a NULL name) and the common ones, and looks at all
// that can be wrong before anything is measured. Returns as options_parse does.
int bench_options_parse(struct bench_options *options, const struct option_spec *own, int argc,
                        char **argv);

// The variants that --variant asks for: names with commas between, "all" for every one of the device but the oracle, NULL
// for the library's choice (NULL). Names stay in copy. Returns their number, at most MEASURE_MAX_CONTENDERS.
int bench_variants(const struct bench_options *options, const struct op_spec *spec,
                   const char *asked, char *copy, size_t copy_bytes, const char **variants);
// Whether that is a list, before anything is measured: -1, or the exit code after a sentence on stderr.
int bench_check_variants(const struct bench_options *options, const char *asked);

// A session of these options; NULL after a sentence on stderr, and *code is the exit code.
struct measure_session *bench_open(const struct bench_options *options, int *code);

#endif
