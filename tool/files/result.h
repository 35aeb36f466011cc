// SPDX-License-Identifier: Apache-2.0
// One measured row, as --format json and results.json give it.
#ifndef TOOL_RESULT_H
#define TOOL_RESULT_H

#include <stdbool.h>
#include <stdio.h>

#include "specs/spec.h"

// A field that does not apply is NAN (null in JSON), an empty string, or NULL.
struct result {
    struct op_case c; // op, parameters, dtype; its tensors are gone
    char variant[32]; // the variant that ran; "default" if the library made no choice
    char device[16];  // "cuda:0"; "" is the CPU
    char isa[16];     // of the CPU; for a GPU its architecture, "sm_90a"
    int num_threads;
    double median_ms, p20_ms, p80_ms, graph_ms;
    double tflops, gb_s;     // from spec->flops and case_bytes
    double ceiling_ms;       // the floor: flops and bytes at the measured ceilings
    double share_of_ceiling; // ceiling_ms / median_ms
    double unit_gflops; // measured rate of the unit that computes the products: fp32 FMA or bf16
    double speedup_over_naive;
    double ours_ms;           // for a peer: our median, measured in turns with it
    double ours_call_ms;      // for a peer on a GPU: our call's time; ours_ms is then the device's
    double speedup_over_peer; // the peer's time / ours_ms: above 1 we are faster
    double max_abs_err, mean_abs_err, max_rel_err, err_over_bound;
    double peak_bytes, predicted_bytes; // of workspace and tensors
    double joules;
    int num_samples;         // the samples kept
    int num_set_aside;       // dropped: the clock probe was low, or another process ran
    bool is_cold;            // the caches were flushed before each sample, or are far too small
    bool is_choice;          // in a study: the library's own choice, not a named variant
    bool is_throttled;       // too few good samples: the best of the bad ones were kept
    char scaled_from[96];    // the requested shape, if this machine ran a smaller one
    double asked_bytes;      // memory predicted for the requested shape
    const char *study;       // the sweep that it belongs to
    double times;            // in a sweep over sizes or threads: multiple of the first row's
    double efficiency;       // work per second / the first row's; over threads also / their number
    double efficiency_apart; // over threads: the same for as many separate single-threaded calls
    const char *peer;        // name of the peer; variant is then the peer's function
};

struct result_list {
    struct result *items;
    int count, capacity;
};
void result_add(struct result_list *list, const struct result *result);
void result_list_free(struct result_list *list);

// The time by the device's clock if that is known, else the median.
double result_device_ms(const struct result *result);

// A result whose other fields are NAN, "" and NULL.
struct result result_empty(const struct op_case *c);

enum result_format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL };
bool result_format_parse(const char *name, enum result_format *format);
// JSON is {"schema": 1, "env": {...}, "results": [...]}, jsonl has one result per line. False if
// writing failed.
bool result_write(FILE *out, const struct result_list *list, enum result_format format);
// The same through file_write.
bool result_write_file(const char *path, const struct result_list *list, enum result_format format);

// The parts of the JSON, for larger documents; the caller owns them.
struct json_t;
// Every parameter, and true for each optional tensor that is present.
struct json_t *result_params_json(const struct op_case *c);
struct json_t *result_json(const struct result *result);
struct json_t *result_env_json(void);
struct json_t *result_list_json(const struct result_list *list); // the whole document

#endif
