// SPDX-License-Identifier: Apache-2.0
// tessera profile: steps (calls of operations, with their tensors), the recording of them, what follows from it, and the
// two forms in which it is written: tables, and a trace for chrome://tracing and Perfetto.
//
// Each step runs in four phases, ranges of the recording: copies in (CUDA), calls one at a time on an idle stream,
// calls in a row, copies out (CUDA). A call is a range of its step's label in its phase's.
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
    struct op_case *c;         // where the calls find their tensors
    bool is_drawn;
    char variant[32];
    double bandwidth, compute; // ceilings: of its working set, of what does its products; 0 without
};

// A record that is kept: its texts are of the recording's vocabulary.
struct profile_event {
    tsr_profile_record record;
    enum profile_phase phase;
    int step;     // -1: of none
    int64_t call; // of the step: the id of its range
};

struct profile {
    tsr_context *ctx;
    tsr_device device;
    char device_name[16], machine[160];
    const char *variant;
    int num_threads, rep;
    struct profile_step *steps;
    int num_steps;
    struct profile_event *events; // in the order of their starts
    int64_t num_events, room, num_lost;
    char **words; // names that events refer to
    int num_words;
};

// profile_run.c: tensors, warm-up, the recording. The status of what failed first, with its sentence.
tsr_status profile_run(struct profile *profile, uint64_t seed);
void profile_free(struct profile *profile);

// ---- profile_figures.c: what follows; all times in microseconds, NAN for what is not known -------

// Kernels of one name and operation; on the CPU calls of one operation and variant.
struct profile_kernel {
    const char *name, *op;
    int64_t count, num_blocks;
    int block_threads, num_registers, shared_bytes;
    double total_us, min_us, max_us, share; // of all
};
// A step. Medians over its calls.
struct profile_figures {
    double num_kernels; // of a call
    double device_us;   // CUDA: kernels of a call, in a row; CPU: the call
    double gb_s, tflops, bandwidth_share, compute_share;
    double host_us;      // of the thread that calls
    double start_us;     // CUDA, alone: from the call to its first kernel
    double launch_us;    // CUDA, alone: from the driver's launch to the kernel
    double gap_us;       // CUDA, in a row: since the kernel before, of any step
    double threads_busy; // CPU: of the call's time on all threads
    double num_loops;    // CPU: parallel loops of a call
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
    double busy_share; // CUDA: of the calls in a row, from the first kernel to the last
    double copy_share; // of a pass: copies in, each step once, copies out
};
void profile_summarise(const struct profile *profile, struct profile_summary *summary);
void profile_summary_free(struct profile_summary *summary);

// ---- profile_write.c, profile_trace.c ---------------------------------------------------------
void profile_write_md(FILE *out, const struct profile *profile,
                      const struct profile_summary *summary, int top);
bool profile_write_json(FILE *out, const struct profile *profile,
                        const struct profile_summary *summary);
// False, with a sentence on stderr, where the file could not be written.
bool profile_write_trace(const char *path, const struct profile *profile);

// ---- profile_workloads.c: several operations under one name -------------------------------------
struct profile_workload {
    const char *name, *summary;
    const char *const *steps; // "op params", ends with NULL
};
extern const struct profile_workload profile_workloads[]; // ends with a NULL name
const struct profile_workload *profile_workload_find(const char *name);

#endif
