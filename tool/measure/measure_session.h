// SPDX-License-Identifier: Apache-2.0
// What measure*.c share: the session, its clock probe and its ceilings.
#ifndef TOOL_MEASURE_SESSION_H
#define TOOL_MEASURE_SESSION_H

#include "measure/allocation.h"
#include "measure/measure.h"

enum {
    MAX_LEVELS = 40,                     // powers of two of bytes
    MAX_ERRORS = 2 * MEASURE_MAX_THREADS // at least MEASURE_MAX_CONTENDERS
};

struct measure_session {
    struct measure_options options;
    struct machine machine;
    char errors[MAX_ERRORS][512]; // of the last case
    char tuning_key[192];         // of the last case
    tsr_context *ctx;             // the options' ISA and threads, for proofs

    // ---- measure_ceilings.c
    tsr_context *probe_ctx;      // ISA and threads of the options
    int64_t fma_repeat;          // of a 10 ms probe
    double fma_best;             // FLOPs per second
    double fma_last_share;       // of the best
    double dot_best, tiles_best; // FLOPs per second of the bf16 units; 0: not yet, or none
    struct bandwidth
        levels[MAX_LEVELS];     // by the logarithm of the working set; working_set 0: not yet
    void *source, *destination; // of buffer_bytes; on a device of 2^max_level
    size_t buffer_bytes;        // of the largest level yet
    int min_level, max_level;
    void *stream;           // CUDA: of ctx, which is then probe_ctx too
    tsr_event *start, *end; // of a timed stretch of it
    struct allocation_table probe_memory;

    // ---- measure_proof.c
    struct proof *proofs;
    int num_proofs;
};

// measure_events.c: on a CUDA device every clock is the device's own.
bool is_on_device(const struct measure_session *session);
void device_start(struct measure_session *session);     // of a stretch of the stream
double device_seconds(struct measure_session *session); // since then; NAN when something failed

// measure_cuda.c
tsr_status device_open(struct measure_session *session);
void device_close(struct measure_session *session);
enum measure_outcome device_measure(struct measure_session *session, const struct op_case *c,
                                    const struct measure_entry *entries, int count,
                                    struct result *results, enum measure_outcome *outcomes);

// measure_ceilings.c
tsr_status ceilings_open(struct measure_session *session);
void ceilings_start(struct measure_session *session);
void ceilings_close(struct measure_session *session);
double clock_probe(struct measure_session *session); // 10 ms on all threads: FLOPs per second
double clock_burst(struct measure_session *session); // the same in 0.3 ms, right after a sample
// The same of a unit for products, FMA included.
double unit_burst(struct measure_session *session, tsr_probe_kind unit);
double *unit_best(struct measure_session *session, tsr_probe_kind unit);
bool flush_caches(struct measure_session *session); // false when short of memory

// measure_proof.c: err_over_bound and its company for one variant of a case, on the case itself or,
// where the oracle would take too long, on a smaller one like it. Remembered by the session.
struct proof {
    char key[800];
    enum measure_outcome outcome;
    char sentence[512]; // unless the outcome is MEASURE_OK
    double max_abs_err, mean_abs_err, max_rel_err, err_over_bound;
};
const struct proof *proof_of(struct measure_session *session, const struct op_case *c,
                             const char *variant, const char *tuning_file);
// A case like c with at most so many elements and FLOPs: sizes are halved, always the largest one,
// or with in_order the first until it is small.
struct op_case case_reduced(const struct op_case *c, double max_elements, double max_flops,
                            bool in_order);
enum measure_outcome outcome_of(tsr_status status);

// measure_inputs.c: tensors of a case as contenders and peers get them: contiguous, 2 MiB aligned,
// inputs drawn from the seed (large ones repeat themselves), outputs touched.
struct inputs {
    struct op_case c;
    struct allocation_table memory;
    size_t bytes[SPEC_MAX_SLOTS];
};
bool inputs_create(struct inputs *inputs, const struct op_case *c, uint64_t seed);
void inputs_release(struct inputs *inputs);
double inputs_bytes(const struct op_case *c); // what all tensors take

#endif
