// SPDX-License-Identifier: Apache-2.0
// One measured row, as --format json and results.json give it.
#ifndef TOOL_RESULT_H
#define TOOL_RESULT_H

#include <stdbool.h>
#include <stdio.h>

#include "specs/spec.h"

// What does not apply is NAN (null in JSON), an empty string, or NULL.
struct result {
    struct op_case c; // op, parameters, dtype; its tensors are gone
    char variant[32]; // what ran; "default" where the library came to no choice
    char device[16];  // "cuda:0"; "" is the CPU
    char isa[16];     // of the CPU; "sm_90a" of a GPU
    int num_threads;
    double median_ms, p20_ms, p80_ms, graph_ms;
    double tflops, gb_s;     // from spec->flops and case_bytes
    double ceiling_ms;       // the floor: flops and bytes at the measured ceilings
    double share_of_ceiling; // ceiling_ms / median_ms
    double
        unit_gflops; // measured, of what does its products: fp32 multiply-adds, or a unit for bf16
    double speedup_over_naive;
    double ours_ms;      // of a peer: our median, measured in turns with it
    double ours_call_ms; // of a peer on a device: our call alone; ours_ms is then the device's time
    double speedup_over_peer; // its time over ours_ms: above 1 we are faster
    double max_abs_err, mean_abs_err, max_rel_err, err_over_bound;
    double peak_bytes, predicted_bytes; // of workspace and tensors
    double joules;
    int num_samples;      // kept
    int num_set_aside;    // the clock probe beside them was low, or another process cut in
    bool is_cold;         // caches flushed before each sample, or far exceeded
    bool is_choice;       // of the library, in a study, whatever variants of it have a name there
    bool is_throttled;    // too few good samples: the best of a bad lot were kept
    char scaled_from[96]; // the shape asked for, where this machine ran a smaller one
    double asked_bytes;   // predicted, of that shape
    const char *study;    // the sweep that it belongs to
    double times;         // of a sweep over sizes or threads: how many times the first's
    double efficiency;    // work per second over the first's; over threads, of each of them
    double efficiency_apart; // over threads: of as many that share nothing, each a call of its own
    const char *peer;        // its name; variant is then what it ran of its own
};

struct result_list {
    struct result *items;
    int count, capacity;
};
void result_add(struct result_list *list, const struct result *result);
void result_list_free(struct result_list *list);

// Of a device by its own clock where that is known, else the median.
double result_device_ms(const struct result *result);

// NAN, "" and NULL throughout, for what is filled in later.
struct result result_empty(const struct op_case *c);

enum result_format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL };
bool result_format_parse(const char *name, enum result_format *format);
// JSON is {"schema": 1, "env": {...}, "results": [...]}, jsonl one result a line. False when the
// file could not be written.
bool result_write(FILE *out, const struct result_list *list, enum result_format format);
// The same as file_write writes.
bool result_write_file(const char *path, const struct result_list *list, enum result_format format);

// The parts of the JSON, for larger documents; the caller owns them.
struct json_t;
// Every parameter, and true for each optional tensor that was given.
struct json_t *result_params_json(const struct op_case *c);
struct json_t *result_json(const struct result *result);
struct json_t *result_env_json(void);
struct json_t *result_list_json(const struct result_list *list); // the whole document

#endif
