// SPDX-License-Identifier: Apache-2.0
// Shared by measure*.c: the session, its clock probe and its ceilings.
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
    int64_t fma_repeat;          // repetitions of a 10 ms probe
    double fma_best;             // the best rate, in FLOPs per second
    double fma_last_share;       // the last rate divided by the best
    double dot_best, tiles_best; // FLOPs per second of the bf16 units; 0: not measured, or no unit
    double byte_dot_best;        // the same of products of bytes
    struct bandwidth
        levels[MAX_LEVELS];     // by the logarithm of the working set; working_set 0: not measured
    void *source, *destination; // of buffer_bytes; on a device of 2^max_level bytes
    size_t buffer_bytes;        // of the largest level so far
    int min_level, max_level;
    void *stream;           // CUDA: the stream of ctx, which is probe_ctx too
    tsr_event *start, *end; // before and after a timed piece of work on it
    struct allocation_table probe_memory;

    // ---- measure_proof.c
    struct proof *proofs;
    int num_proofs;
};

// measure_events.c: on a CUDA device every clock is the device's own.
bool is_on_device(const struct measure_session *session);
void device_start(struct measure_session *session);     // starts the clock on the stream
double device_seconds(struct measure_session *session); // since then; NAN after a failure

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
// The same for any unit for products, FMA included.
double unit_burst(struct measure_session *session, tsr_probe_kind unit);
double *unit_best(struct measure_session *session, tsr_probe_kind unit);
bool flush_caches(struct measure_session *session); // false if memory is short

// measure_proof.c: the errors of one variant of a case. If the oracle would take too long, they are
// those of a smaller, similar case. The session remembers them.
struct proof {
    char key[1400];
    enum measure_outcome outcome;
    char sentence[512]; // "" if the outcome is MEASURE_OK
    double max_abs_err, mean_abs_err, max_rel_err, err_over_bound;
};
const struct proof *proof_of(struct measure_session *session, const struct op_case *c,
                             const char *variant, const char *tuning_file);
// A case like c with at most max_elements and max_flops: sizes are halved, always the largest one, or
// with in_order the first until it is small.
struct op_case case_reduced(const struct op_case *c, double max_elements, double max_flops,
                            bool in_order);
enum measure_outcome outcome_of(tsr_status status);

// measure_inputs.c: the tensors of a case for contenders and peers: contiguous, aligned to 2 MiB, inputs
// drawn from the seed (large ones repeat their content), outputs touched.
struct inputs {
    struct op_case c;
    struct allocation_table memory;
    size_t bytes[SPEC_MAX_SLOTS];
};
bool inputs_create(struct inputs *inputs, const struct op_case *c, uint64_t seed);
void inputs_release(struct inputs *inputs);
double inputs_bytes(const struct op_case *c); // of all tensors together

#endif
