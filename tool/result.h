// SPDX-License-Identifier: Apache-2.0
// One measured row, as --format json and results.json give it.
#ifndef TOOL_RESULT_H
#define TOOL_RESULT_H

#include <stdbool.h>
#include <stdio.h>

#include "spec.h"

// What does not apply is NAN (null in JSON), an empty string, or NULL.
struct result {
    struct op_case c; // op, parameters, dtype; its tensors are gone
    char variant[32];
    char isa[16];
    int num_threads;
    double median_ms, p20_ms, p80_ms, graph_ms;
    double tflops, gb_s;     // from spec->flops and case_bytes
    double ceiling_ms;       // the floor: flops and bytes at the measured ceilings
    double share_of_ceiling; // ceiling_ms / median_ms
    double speedup_over_naive;
    double max_abs_err, mean_abs_err, max_rel_err, err_over_bound;
    double peak_bytes, predicted_bytes; // of workspace and tensors
    double joules;
    bool is_cold;      // caches flushed before each sample
    bool is_throttled; // the clock probe beside the samples was low; the samples kept are the good ones
    char scaled_from[96]; // the guide's shape, where this machine ran a smaller one
    const char *peer;
};

struct result_list {
    struct result *items;
    int count, capacity;
};
void result_add(struct result_list *list, const struct result *result);
void result_list_free(struct result_list *list);

enum result_format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL };
bool result_format_parse(const char *name, enum result_format *format);
// JSON is {"schema": 1, "env": {...}, "results": [...]}, jsonl one result a line.
void result_write(FILE *out, const struct result_list *list, enum result_format format);

#endif
