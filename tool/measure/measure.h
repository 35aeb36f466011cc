// SPDX-License-Identifier: Apache-2.0
// Measuring by the rules of the project: prove first, warm up, interleave the contenders, take the
// median with p20 and p80, watch the clock beside every sample, state the cache's state, and hold
// the figures against ceilings measured on the same threads.
#ifndef TOOL_MEASURE_H
#define TOOL_MEASURE_H

#include "files/result.h"

struct peer_blas;

enum {
    MEASURE_MAX_CONTENDERS = 12,
    MEASURE_MAX_THREADS = 13 // numbers of them: 1, 2, 4 ... 4096
};

struct measure_options {
    tsr_device device;
    int num_threads;         // 0: all CPUs
    tsr_isa isa;             // of the calls, the ceilings and the clock probe
    int num_warmup;          // calls before the first sample; 0: as many as it takes, at least 2
    bool has_no_warmup;      // the first sample is the first call; batches of one call
    int num_rep;             // samples of each contender; 0: as many as the budget allows
    double budget_s;         // of samples for each contender, where num_rep is 0; 0: one second
    bool is_cold;            // flush the caches before each sample
    const char *tuning_file; // as tsr_context_options.tuning_file
    bool is_unproved;        // skip the proof: err_over_bound stays NAN
    uint64_t seed;
};

// How a measurement ended. After all but MEASURE_OK measure_error() has one sentence.
enum measure_outcome {
    MEASURE_OK,
    MEASURE_WRONG,       // err_over_bound is above 1: not timed
    MEASURE_INVALID,     // the library refuses the parameters
    MEASURE_UNSUPPORTED, // this variant cannot serve the case
    MEASURE_FAILED       // short of memory, or a figure that cannot be
};

struct measure_session;

// NULL, with a sentence in error, when there is no such context. One session for each number of threads serves the whole
// process: its ceilings and its best clock are found once.
struct measure_session *measure_open(const struct measure_options *options, char *error,
                                     size_t error_bytes);
void measure_close(struct measure_session *session);
const char *measure_error(const struct measure_session *session); // of the first that failed
const char *measure_error_of(const struct measure_session *session, int contender);
// Changes budget_s, num_rep, num_warmup or is_cold between cases.
struct measure_options *measure_options_of(struct measure_session *session);

// One variant (NULL: the one that the library chooses), with speedup_over_naive against the spec's
// baseline, measured interleaved, where that one supports the case (else NAN). The result is filled
// as far as things went, whatever the outcome.
enum measure_outcome measure_case(struct measure_session *session, const struct op_case *c,
                                  const char *variant, struct result *result);

// Several variants of one case, interleaved call by call; variants[i] NULL is the library's choice.
// speedup_over_naive refers to the spec's baseline where it is among them. MEASURE_OK when at least
// one came through; outcomes[i] tells of each.
enum measure_outcome measure_variants(struct measure_session *session, const struct op_case *c,
                                      const char *const *variants, int count,
                                      struct result *results, enum measure_outcome *outcomes);

// One of those that take turns: a variant of ours, or a library that is a peer.
struct measure_entry {
    const char *variant;          // as above
    const struct peer_blas *peer; // NULL: ours
    const char *peer_name;        // for the result
    const char *tuning_file;      // of a context of its own; NULL: the session's
};
// The same with peers among them, which are timed in the same rounds on the same inputs. The first entry is
// ours: a peer's result must agree with what it computes (else its outcome is MEASURE_WRONG), and its
// ours_ms and speedup_over_peer refer to it.
enum measure_outcome measure_entries(struct measure_session *session, const struct op_case *c,
                                     const struct measure_entry *entries, int count,
                                     struct result *results, enum measure_outcome *outcomes);

// One variant on several numbers of threads, a session for each, in the same rounds; results and outcomes are in the order of
// the sessions, and measure_error_of the first one tells of each. has_apart: beside each but the first, of one thread, as many
// contexts of one thread, which share nothing, and efficiency_apart is filled in (measure_error_of: behind the others). The
// machine has that much left for threads: clocks, caches and memory are shared whatever a library does.
enum measure_outcome measure_threads(struct measure_session *const *sessions, int count,
                                     const struct op_case *c, const char *variant, bool has_apart,
                                     struct result *results, enum measure_outcome *outcomes);

// tsr_context_tuning_key of the case that was measured last, or asked below.
const char *measure_tuning_key(const struct measure_session *session);

// The index-th tsr_context_tuning_choice of a case, which is prepared for the first of them; NULL after the last.
const char *measure_tuning_choice(struct measure_session *session, const struct op_case *c,
                                  int index, double *expected_ns);

// Bytes of tensors and workspace that prepare announces, without making any of them; NAN where this variant
// does not serve the case.
double measure_predict_bytes(struct measure_session *session, const struct op_case *c,
                             const char *variant);

// ---- Ceilings ---------------------------------------------------------------------------------

// All threads together, in bytes or FLOPs per second; the best of many samples. Measured when first
// asked for, then remembered.
struct bandwidth {
    double working_set; // bytes over all threads at which it was measured
    double read, write; // the best of normal and streaming stores
    double copy;        // the same; both directions counted
    double update;      // read and written in place, both counted
};
double measure_fma_ceiling(struct measure_session *session);
// Of a unit for bf16, TSR_PROBE_BF16_*; 0 where there is none.
double measure_unit_ceiling(struct measure_session *session, tsr_probe_kind unit);
// What does the products of a variant.
tsr_probe_kind measure_unit_of(struct measure_session *session, const struct op_case *c,
                               const char *variant);
// At a power of two of bytes, no larger than working_set, up to twice the last cache at least.
const struct bandwidth *measure_bandwidth(struct measure_session *session, double working_set);
// Seconds that the work takes at the ceilings: the larger of flops at fma_rate and bytes at the
// bandwidth of its working set, reads and writes in this case's proportion.
double measure_floor_s(struct measure_session *session, const struct op_case *c, double fma_rate,
                       bool is_cold);
// Seconds that so many bytes take at the bandwidth of a working set.
double measure_traffic_s(struct measure_session *session, double read_bytes, double write_bytes,
                         double working_set);

// The clock beside the samples: FMA rate of the last 10 ms probe over the best one seen.
double measure_clock_share(struct measure_session *session);

// Caches and threads as the session sees them.
struct machine {
    int num_threads;
    tsr_isa isa;                          // of the calls
    int64_t l1_bytes, l2_bytes, l3_bytes; // per core, per core, shared
};
const struct machine *measure_machine(const struct measure_session *session);

#endif
