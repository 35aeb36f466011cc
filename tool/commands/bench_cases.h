// SPDX-License-Identifier: Apache-2.0
// The cases of a bench from the command line: every parameter and optional tensor of an operation
// is an option, with lists and sweeps, and the cases are the product of all values.
#ifndef TOOL_BENCH_CASES_H
#define TOOL_BENCH_CASES_H

#include "specs/spec.h"
#include "system/options.h"

enum { BENCH_MAX_SPECS = 48, BENCH_MAX_OPTIONS = 192 };

// An option that comes from the specs. Flags have no text.
struct bench_option {
    char name[48];   // as in the spec: "head_dim"
    char option[48]; // as on the command line: "head-dim"
    char help[256];
    const char *text;
    bool is_flag, is_set;
};

struct bench_selection {
    const struct op_spec *specs[BENCH_MAX_SPECS];
    int num_specs;
    struct bench_option options[BENCH_MAX_OPTIONS];
    int num_options;
};

// Adds the specs of an operation, by command ("softmax": every pass) or by full name
// ("softmax_backward"). False when there is none.
bool bench_select(struct bench_selection *selection, const char *name);
// Keeps only the specs of this pass, unless pass is NULL. False if an operation has no such pass.
bool bench_keep_pass(struct bench_selection *selection, const char *pass);

// Rows for the option table; returns their number.
int bench_option_rows(struct bench_selection *selection, struct option_spec *rows, int max_rows);

// The cases of one spec: the product of the options that it has. If no size is given, this product is made for each shape
// of `standard`, which ends with NULL (NULL: the spec's standard shapes). The caller frees *cases. Returns the number of
// cases, or -1 with a sentence in error.
int bench_cases(const struct bench_selection *selection, const struct op_spec *spec,
                const char *const *standard, struct op_case **cases, char *error,
                size_t error_bytes);

#endif
