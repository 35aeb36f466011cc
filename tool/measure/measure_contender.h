// SPDX-License-Identifier: Apache-2.0
// A contender of a measurement: measure.c takes its samples, measure_peer.c handles peers, and measure_figures.c computes
// its figures.
#ifndef TOOL_MEASURE_CONTENDER_H
#define TOOL_MEASURE_CONTENDER_H

#include "measure/measure_session.h"

enum {
    MIN_GOOD = 5, // samples at the full clock and without a disturbance
    MIN_SAMPLES = 3
};

struct sample {
    double seconds;
    double clock;      // FMA rate of the lower of the two 10 ms probes around it
    double unit_rate;  // rate right after it, of the unit that computes the products
    bool is_disturbed; // another process had one of our processors
};

struct contender {
    struct measure_session *session; // has the threads that it uses
    const char *variant, *tuning_file;
    tsr_probe_kind unit;          // computes its products
    const struct peer_blas *peer; // NULL: ours
    float *peer_out;              // its output
    size_t peer_out_bytes;
    struct result *result;
    enum measure_outcome outcome;
    char sentence[512];
    struct allocation_table memory; // of its context
    double context_bytes;
    tsr_context *ctx;
    const struct contender *beside; // NULL, or the contender with as many threads in one context
    struct apart *apart;            // with beside: the contexts of one thread, in place of ctx
    double estimate_s;              // estimated time of a call
    int batch, num_calls;           // samples in a batch; calls in a sample
    struct sample *samples;
    int num_samples, capacity;
};

// measure_contender.c. Fails the contender with one sentence.
void contender_fail(struct contender *contender, enum measure_outcome outcome, const char *format,
                    ...) __attribute__((format(printf, 3, 4)));
const char *contender_name(const struct contender *contender);
// Copies the errors from the verification of its variant, and fails the contender if the verification failed.
void contender_check_proof(const struct op_case *c, struct contender *contender);

// measure_apart.c: for each of the session's threads a context of one thread with its own tensors; all call at the same
// time, to show how far the machine scales for threads that share nothing.
void apart_prepare(const struct op_case *c, struct contender *contender);
// Seconds of a call, from the mean of the callers' rates; NAN if one failed.
double apart_seconds(struct contender *contender);
void apart_release(struct contender *contender);

// measure_peer.c: a contender that is a library.
// Finds its call, makes its output, and checks that it agrees with `ours`, which is prepared.
void peer_prepare(const struct op_case *c, struct contender *contender,
                  const struct contender *ours);
bool peer_call(const struct op_case *c, struct contender *contender);
void peer_settle(void); // after a peer's turn: waits until its threads sleep

// measure_figures.c
int contender_count_good(const struct contender *contender);
// The figures of a contender from its samples. tensors: the table that counts the case's tensors.
void contender_summarise(const struct op_case *c, const struct allocation_table *tensors,
                         struct contender *contender);
void contenders_compare(const struct op_case *c, const struct contender *contenders, int count);

#endif
