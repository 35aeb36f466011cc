// SPDX-License-Identifier: Apache-2.0
// A contender of a measurement: what measure.c samples, measure_peer.c adds to, and measure_figures.c sums
// up.
#ifndef TOOL_MEASURE_CONTENDER_H
#define TOOL_MEASURE_CONTENDER_H

#include "measure/measure_session.h"

enum {
    MIN_GOOD = 5, // samples of the full clock and without a disturbance
    MIN_SAMPLES = 3
};

struct sample {
    double seconds;
    double clock;      // FMA rate of the lower of the 10 ms probes around it
    double unit_rate;  // of the unit that does the products, right after it
    bool is_disturbed; // another process had a processor of ours
};

struct contender {
    struct measure_session *session; // whose threads it has
    const char *variant, *tuning_file;
    tsr_probe_kind unit;          // what does its products
    const struct peer_blas *peer; // NULL: ours
    float *peer_out;              // its output
    size_t peer_out_bytes;
    struct result *result;
    enum measure_outcome outcome;
    char sentence[512];
    struct allocation_table memory; // of its context
    double context_bytes;
    tsr_context *ctx;
    const struct contender *beside; // NULL, or whose threads have contexts of their own here
    struct apart *apart;            // these, in place of ctx
    double estimate_s;              // of a call
    int batch, num_calls;           // samples at a time; calls in a sample
    struct sample *samples;
    int num_samples, capacity;
};

// measure_contender.c. Ends it with one sentence.
void contender_fail(struct contender *contender, enum measure_outcome outcome, const char *format,
                    ...) __attribute__((format(printf, 3, 4)));
const char *contender_name(const struct contender *contender);
// Takes over what the proof of its variant says, and ends it where that failed.
void contender_check_proof(const struct op_case *c, struct contender *contender);

// measure_apart.c: as many contexts of one thread each as the session has threads, with tensors of their own, that call at
// once: what the machine has for threads that share nothing.
void apart_prepare(const struct op_case *c, struct contender *contender);
// Of a call, by the mean of their rates; NAN: one failed.
double apart_seconds(struct contender *contender);
void apart_release(struct contender *contender);

// measure_peer.c: a contender that is a library.
// Finds its call, its output, and whether it agrees with what `ours`, prepared, computes.
void peer_prepare(const struct op_case *c, struct contender *contender,
                  const struct contender *ours);
bool peer_call(const struct op_case *c, struct contender *contender);
void peer_settle(void); // after its turn: until its threads sleep

// measure_figures.c
int contender_count_good(const struct contender *contender);
// The figures of a contender that has its samples. tensors: where the case's are counted.
void contender_summarise(const struct op_case *c, const struct allocation_table *tensors,
                         struct contender *contender);
void contenders_compare(const struct op_case *c, const struct contender *contenders, int count);

#endif
