// SPDX-License-Identifier: Apache-2.0
// The rules of a measurement: verify first, warm up, interleave the contenders, take the median with
// p20 and p80, probe the clock with every sample, state whether caches were warm, and compare the
// figures with ceilings measured on the same threads.
#ifndef TOOL_MEASURE_H
#define TOOL_MEASURE_H

#include "files/result.h"

struct peer_blas;

enum {
    MEASURE_MAX_CONTENDERS = 12,
    MEASURE_MAX_THREADS = 13 // numbers of threads: 1, 2, 4 ... 4096
};

struct measure_options {
    tsr_device device;
    int num_threads;         // 0: all CPUs
    tsr_isa isa;             // of the calls, the ceilings and the clock probe
    int num_warmup;          // calls before the first sample; 0: as many as needed, at least 2
    bool has_no_warmup;      // the first sample is the first call; batches of one call
    int num_rep;             // samples of each contender; 0: as many as the budget allows
    double budget_s;         // seconds of samples for each contender if num_rep is 0; 0: one second
    bool is_cold;            // flush the caches before each sample
    const char *tuning_file; // as tsr_context_options.tuning_file
    bool is_unproved;        // do not verify first: err_over_bound stays NAN
    uint64_t seed;
};

// How a measurement ended. Except after MEASURE_OK, measure_error() has one sentence.
enum measure_outcome {
    MEASURE_OK,
    MEASURE_WRONG,       // err_over_bound is above 1: not timed
    MEASURE_INVALID,     // the library refuses the parameters
    MEASURE_UNSUPPORTED, // this variant cannot serve the case
    MEASURE_FAILED       // out of memory, or an impossible figure
};

struct measure_session;

// NULL, with a sentence in error, if the context cannot be created. One session for each number of threads is enough for
// the whole process: it measures its ceilings and its best clock once.
struct measure_session *measure_open(const struct measure_options *options, char *error,
                                     size_t error_bytes);
void measure_close(struct measure_session *session);
const char *measure_error(const struct measure_session *session); // of the first failed contender
const char *measure_error_of(const struct measure_session *session, int contender);
// Changes budget_s, num_rep, num_warmup or is_cold between cases.
struct measure_options *measure_options_of(struct measure_session *session);

// Measures one variant (NULL: the library's choice), with speedup_over_naive against the spec's baseline, measured
// interleaved, if the baseline supports the case (else NAN). Whatever the outcome, the result has all that is known.
enum measure_outcome measure_case(struct measure_session *session, const struct op_case *c,
                                  const char *variant, struct result *result);

// Measures several variants of one case, interleaved call by call; variants[i] NULL is the library's choice.
// speedup_over_naive refers to the spec's baseline if it is among them. MEASURE_OK if at least one
// succeeded; outcomes[i] is each one's outcome.
enum measure_outcome measure_variants(struct measure_session *session, const struct op_case *c,
                                      const char *const *variants, int count,
                                      struct result *results, enum measure_outcome *outcomes);

// A contender: one of our variants, or a library that is a peer.
struct measure_entry {
    const char *variant;          // as above
    const struct peer_blas *peer; // NULL: ours
    const char *peer_name;        // for the result
    const char *tuning_file;      // for a context of its own; NULL: the session's
};
// The same with peers, which are timed in the same rounds on the same inputs. The first entry is ours. A peer's output
// must agree with the first entry's (else its outcome is MEASURE_WRONG), and a peer's ours_ms and speedup_over_peer refer
// to the first entry.
enum measure_outcome measure_entries(struct measure_session *session, const struct op_case *c,
                                     const struct measure_entry *entries, int count,
                                     struct result *results, enum measure_outcome *outcomes);

// Measures one variant on several numbers of threads, with a session for each, in the same rounds. results and outcomes
// are in the order of the sessions; measure_error_of the first session has each one's sentence. has_apart: for each number
// of threads but the first, which is 1, as many contexts of one thread run at the same time. They share nothing but the
// machine's clocks, caches and memory, so they show the limit for any library: efficiency_apart. Their sentences come
// after the others.
enum measure_outcome measure_threads(struct measure_session *const *sessions, int count,
                                     const struct op_case *c, const char *variant, bool has_apart,
                                     struct result *results, enum measure_outcome *outcomes);

// tsr_context_tuning_key of the last case that was measured or passed to measure_tuning_choice.
const char *measure_tuning_key(const struct measure_session *session);

// The index-th tsr_context_tuning_choice of a case; NULL after the last. Index 0 prepares the case.
const char *measure_tuning_choice(struct measure_session *session, const struct op_case *c,
                                  int index, double *expected_ns);

// Bytes of tensors and workspace by _prepare, without allocating them; NAN if this variant does not serve the case.
double measure_predict_bytes(struct measure_session *session, const struct op_case *c,
                             const char *variant);

// ---- Ceilings ---------------------------------------------------------------------------------

// For all threads together, in bytes or FLOPs per second; the best of many samples. A ceiling is
// measured at the first request, then remembered.
struct bandwidth {
    double working_set; // the bytes with which it was measured, over all threads
    double read, write; // write: the better of normal and streaming stores
    double copy;        // likewise; counts both directions
    double update;      // in place; counts both directions
};
double measure_fma_ceiling(struct measure_session *session);
// The ceiling of a unit for bf16, TSR_PROBE_BF16_*; 0 if there is none.
double measure_unit_ceiling(struct measure_session *session, tsr_probe_kind unit);
// The unit that computes a variant's products.
tsr_probe_kind measure_unit_of(struct measure_session *session, const struct op_case *c,
                               const char *variant);
// The bandwidth at the largest measured power of two of bytes that is at most working_set; the largest is at least twice
// the last cache.
const struct bandwidth *measure_bandwidth(struct measure_session *session, double working_set);
// Seconds that the case takes at the ceilings: the larger of its FLOPs at fma_rate and its bytes at the
// bandwidth of its working set, with reads and writes in the case's proportion.
double measure_floor_s(struct measure_session *session, const struct op_case *c, double fma_rate,
                       bool is_cold);
// Seconds that these bytes take at the bandwidth of a working set.
double measure_traffic_s(struct measure_session *session, double read_bytes, double write_bytes,
                         double working_set);

// The current clock: FMA rate of a new 10 ms probe divided by the best rate so far.
double measure_clock_share(struct measure_session *session);

// Caches and threads as the session sees them.
struct machine {
    int num_threads;
    tsr_isa isa;                          // of the calls
    int64_t l1_bytes, l2_bytes, l3_bytes; // per core, per core, shared
};
const struct machine *measure_machine(const struct measure_session *session);

#endif
