// SPDX-License-Identifier: Apache-2.0
// tessera profile: steps (calls of operations, with their tensors), their recording, the figures from it, and its two
// output forms: tables, and a trace for chrome://tracing and Perfetto.
//
// Each step runs in four phases: copies in (CUDA), calls one at a time on an idle stream, calls in a row, copies out
// (CUDA). A phase is a range of the recording; in it each call is a range with its step's label.
#ifndef TOOL_PROFILE_STEPS_H
#define TOOL_PROFILE_STEPS_H

#include "measure/measure.h"
#include "measure/measure_session.h"
#include "verify/device_case.h"

enum profile_phase { PHASE_NONE, PHASE_IN, PHASE_ALONE, PHASE_ROW, PHASE_OUT, PHASE_COUNT };
extern const char *const profile_phases[PHASE_COUNT]; // names of their ranges

struct profile_step {
    char label[192]; // "softmax_forward rows=4096 cols=4096 bf16"
    struct inputs inputs;
    struct device_case device; // on CUDA
    struct op_case *c;         // the case with the tensors for the calls
    bool is_drawn;
    char variant[32];
    double bandwidth, compute; // ceilings of its working set and its products' unit; 0: unknown
};

// A stored record; its texts are those of profile.words.
struct profile_event {
    tsr_profile_record record;
    enum profile_phase phase;
    int step;     // -1: none
    int64_t call; // the id of the range of its call
};

struct profile {
    tsr_context *ctx;
    tsr_device device;
    char device_name[16], machine[160];
    const char *variant;
    int num_threads, rep;
    struct profile_step *steps;
    int num_steps;
    struct profile_event *events; // sorted by start
    int64_t num_events, room, num_lost;
    char **words; // names that events refer to
    int num_words;
};

// profile_run.c: makes tensors, warms up, records. After a failure its status, with a sentence in tsr_last_error.
tsr_status profile_run(struct profile *profile, uint64_t seed);
void profile_free(struct profile *profile);

// ---- profile_figures.c: the figures; all times in microseconds, NAN if unknown -------------------

// Kernels of one name and operation; on the CPU calls of one operation and variant.
struct profile_kernel {
    const char *name, *op;
    int64_t count, num_blocks;
    int block_threads, num_registers, shared_bytes;
    double total_us, min_us, max_us, share; // share of all kernels' time
};
// The figures of a step: medians over its calls.
struct profile_figures {
    double num_kernels; // in a call
    double device_us;   // CUDA: time of a call's kernels, in a row; CPU: time of the call
    double gb_s, tflops, bandwidth_share, compute_share;
    double host_us;      // time of the calling thread
    double start_us;     // CUDA, one at a time: from the call to its first kernel
    double launch_us;    // CUDA, one at a time: from the driver's launch to the kernel
    double gap_us;       // CUDA, in a row: since the kernel before, of any step
    double threads_busy; // CPU: share of the call's time on all threads
    double num_loops;    // CPU: parallel loops in a call
};
struct profile_copies {
    const char *name;
    int64_t count;
    double bytes, total_us, gb_s;
};
enum { PROFILE_MAX_KERNELS = 256, PROFILE_MAX_COPIES = 4 };
struct profile_summary {
    struct profile_kernel kernels[PROFILE_MAX_KERNELS]; // by total time
    int num_kernels;
    struct profile_figures *steps; // of every step
    struct profile_copies copies[PROFILE_MAX_COPIES];
    int num_copies;
    double busy_share; // CUDA: share of busy time from the first kernel in a row to the last
    double copy_share; // share of the copies in a pass: copies in, each step once, copies out
};
void profile_summarise(const struct profile *profile, struct profile_summary *summary);
void profile_summary_free(struct profile_summary *summary);

// ---- profile_write.c, profile_trace.c ---------------------------------------------------------
void profile_write_md(FILE *out, const struct profile *profile,
                      const struct profile_summary *summary, int top);
bool profile_write_json(FILE *out, const struct profile *profile,
                        const struct profile_summary *summary);
// False, with a sentence on stderr, if the file could not be written.
bool profile_write_trace(const char *path, const struct profile *profile);

// ---- profile_workloads.c: several operations under one name -------------------------------------
struct profile_workload {
    const char *name, *summary;
    const char *const *steps; // "op params", ends with NULL
};
extern const struct profile_workload profile_workloads[]; // ends with a NULL name
const struct profile_workload *profile_workload_find(const char *name);

#endif
