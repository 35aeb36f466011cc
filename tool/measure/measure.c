// SPDX-License-Identifier: Apache-2.0
// Measures several variants of one case, interleaved: a batch of calls of each in turn, with a 10 ms
// clock probe between the batches, until each has enough good samples. A sample is good if the probes
// before and after it ran at full speed and no other process took a processor. So a neighbour on the
// machine, a lower clock or heat hit all contenders alike, and one rule drops the spoilt samples.
#define _GNU_SOURCE
#include "measure/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "measure/measure_contender.h"
#include "system/device_option.h"
#include "system/heap.h"
#include "system/progress.h"

static const double switches_per_second = 20; // a quiet system has a few
static const double lowest_clock = 0.7;       // share of the best clock, under the heaviest load
static const double batch_seconds = 0.010;    // as long as the probe after it
static const double sample_seconds = 10e-6;   // shorter calls are timed several at once
static const double evicted_seconds = 0.05;   // evicted tensors do not matter to longer calls

enum {
    MAX_SAMPLES = 400, // of a contender, if the budget decides
    MAX_BATCH = 64,
    PATIENCE = 3 // times the budget, while good samples are missing
};

// ---- Before: memory, warm-up ------------------------------------------------------------------

static void prepare(const struct op_case *c, struct contender *contender) {
    struct measure_session *session = contender->session;
    tsr_status status =
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = session->machine.isa,
                                                .num_threads = session->machine.num_threads,
                                                .allocator = allocation_hooks(&contender->memory),
                                                .tuning_file = contender->tuning_file != NULL
                                                                   ? contender->tuning_file
                                                                   : session->options.tuning_file),
                           &contender->ctx);
    contender->context_bytes = contender->memory.current_bytes;
    size_t workspace_bytes = 0;
    if (status == TSR_OK)
        status = c->spec->call(contender->ctx, c, contender->variant, NULL, 0, &workspace_bytes);
    if (status == TSR_OK) { // the library's choice now has a name
        snprintf(contender->result->variant, sizeof contender->result->variant, "%s",
                 tsr_context_last_variant(contender->ctx));
        snprintf(session->tuning_key, sizeof session->tuning_key, "%s",
                 tsr_context_tuning_key(contender->ctx));
        contender->unit = measure_unit_of(session, c, contender->result->variant);
    }
    if (status != TSR_OK) {
        contender_fail(contender, outcome_of(status), "%s", tsr_last_error());
        return;
    }
    double predicted =
        c->spec->predict != NULL ? c->spec->predict(contender->ctx, c, contender->variant) : NAN;
    contender->result->predicted_bytes =
        isnan(predicted) ? inputs_bytes(c) + (double)workspace_bytes : predicted;
    double available = allocation_available();
    char needed[32], left[32];
    if (!allocation_fits((double)workspace_bytes, available))
        contender_fail(contender, MEASURE_FAILED,
                       "%s: variant '%s' needs %s of workspace, the machine has %s left",
                       c->spec->op, contender_name(contender),
                       allocation_text((double)workspace_bytes, needed, sizeof needed),
                       allocation_text(available, left, sizeof left));
}

static bool call(const struct op_case *c, struct contender *contender) {
    if (contender->peer != NULL) return peer_call(c, contender);
    tsr_status status = c->spec->call(contender->ctx, c, contender->variant, NULL, 0, NULL);
    if (status != TSR_OK) contender_fail(contender, outcome_of(status), "%s", tsr_last_error());
    return status == TSR_OK;
}

// The mean seconds of `count` calls.
static double time_calls(const struct op_case *c, struct contender *contender, int count) {
    if (contender->beside != NULL) return apart_seconds(contender);
    double start = seconds_now();
    for (int i = 0; i < count; i++)
        if (!call(c, contender)) break;
    return (seconds_now() - start) / count;
}

static void warm_up(const struct op_case *c, struct contender *contender) {
    const struct measure_options *options = &contender->session->options;
    double best = INFINITY, start = seconds_now();
    if (options->has_no_warmup) { // the call's time is unknown
        contender->batch = contender->num_calls = 1;
        return;
    }
    for (int i = 0; contender->outcome == MEASURE_OK; i++) {
        double elapsed = seconds_now() - start;
        bool is_warm = (i >= 2 && elapsed > 0.02) || (i == 1 && elapsed > options->budget_s);
        if (options->num_warmup > 0 ? i >= options->num_warmup : is_warm) break;
        best = fmin(best, time_calls(c, contender, 1));
    }
    contender->estimate_s = fmax(best, 1e-8);
    double batch = batch_seconds / contender->estimate_s;
    contender->batch = batch < 1 ? 1 : batch > MAX_BATCH ? MAX_BATCH : (int)batch;
    double num_calls = ceil(sample_seconds / contender->estimate_s);
    contender->num_calls = options->is_cold ? 1 : (int)num_calls;
    if (options->num_rep > 0 && contender->batch > options->num_rep)
        contender->batch = options->num_rep;
}

// ---- Sampling ---------------------------------------------------------------------------------

// Involuntary switches of all our threads so far.
static long count_switches(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

static void add_sample(struct contender *contender, double seconds, bool is_disturbed) {
    if (contender->num_samples == contender->capacity) {
        contender->capacity = contender->capacity > 0 ? 2 * contender->capacity : 64;
        contender->samples =
            heap_grow(contender->samples, (size_t)contender->capacity, sizeof *contender->samples);
    }
    contender->samples[contender->num_samples++] =
        (struct sample){.seconds = seconds, .is_disturbed = is_disturbed};
}

// If the tensors fit into the caches, an untimed call first reloads what the other contenders evicted, and wakes a
// peer's threads. For a long call neither matters.
static void run_batch(const struct op_case *c, struct contender *contender) {
    struct measure_session *session = contender->session;
    bool is_cold = session->options.is_cold;
    bool is_evicted = !session->options.has_no_warmup && contender->estimate_s < evicted_seconds &&
                      inputs_bytes(c) <= (double)session->machine.l3_bytes;
    bool is_asleep = contender->peer != NULL && contender->estimate_s < evicted_seconds;
    if (!is_cold && (is_evicted || is_asleep)) time_calls(c, contender, 1);
    for (int i = 0; i < contender->batch && contender->outcome == MEASURE_OK; i++) {
        if (is_cold && !flush_caches(session))
            contender_fail(contender, MEASURE_FAILED, "no memory to flush the caches with");
        long switches = count_switches();
        double start = seconds_now();
        double seconds = time_calls(c, contender, contender->num_calls);
        switches = count_switches() - switches;
        add_sample(contender, seconds,
                   (double)switches > switches_per_second * (seconds_now() - start));
    }
    if (contender->peer != NULL) peer_settle();
}

static bool wants_more(const struct contender *contender, double elapsed, double budget) {
    const struct measure_options *options = &contender->session->options;
    if (contender->outcome != MEASURE_OK) return false;
    int good = contender_count_good(contender);
    if (options->num_rep > 0)
        return good < options->num_rep && contender->num_samples < PATIENCE * options->num_rep;
    if (contender->num_samples >= PATIENCE * MAX_SAMPLES) return false;
    bool is_long = contender->estimate_s > options->budget_s; // one sample is enough
    if (contender->num_samples < (is_long ? 1 : MIN_SAMPLES)) return true;
    if (is_long) return false;
    if (good < MIN_GOOD) return elapsed < PATIENCE * budget;
    return good < MAX_SAMPLES && elapsed < budget;
}

// A round includes every contender, so that they stay interleaved, except a slow one that has enough samples.
static bool is_in_round(const struct contender *contender, double elapsed, double budget) {
    return contender->estimate_s < contender->session->options.budget_s / 8 ||
           wants_more(contender, elapsed, budget);
}

// A batch between two clock probes on its threads. before: the rate of the last probe, on the threads of `probed`.
static void take_batch(const struct op_case *c, struct contender *contender,
                       struct measure_session **probed, double *before) {
    struct measure_session *session = contender->session;
    if (*probed != session) *before = clock_probe(session);
    int first = contender->num_samples;
    run_batch(c, contender);
    double burst = clock_burst(session), unit = burst;
    if (contender->unit != TSR_PROBE_FMA) unit = unit_burst(session, contender->unit);
    double after = clock_probe(session);
    // A clock does not fall this far, so another process had a processor during the burst.
    bool is_clock = burst >= lowest_clock * session->fma_best;
    for (int s = first; s < contender->num_samples; s++) {
        struct sample *sample = &contender->samples[s];
        sample->clock = fmin(*before, after);
        sample->unit_rate = is_clock ? unit : *unit_best(session, contender->unit);
        sample->is_disturbed |= !is_clock;
    }
    *probed = session;
    *before = after;
}

// Runs rounds until all have enough samples. A batch's clock is the lower of the two probes around it.
static void sample_all(const struct op_case *c, struct contender *contenders, int count) {
    struct measure_session *probed = NULL;
    double start = seconds_now(), before = NAN;
    double budget = contenders[0].session->options.budget_s * count;
    for (bool is_wanted = true; is_wanted;) {
        is_wanted = false;
        double elapsed = seconds_now() - start;
        for (int i = 0; i < count; i++) is_wanted |= wants_more(&contenders[i], elapsed, budget);
        for (int i = 0; is_wanted && i < count; i++)
            if (contenders[i].outcome == MEASURE_OK && is_in_round(&contenders[i], elapsed, budget))
                take_batch(c, &contenders[i], &probed, &before);
    }
}

// ---- The whole --------------------------------------------------------------------------------

static void measure_prepared(const struct op_case *c, const struct allocation_table *tensors,
                             struct contender *contenders, int count) {
    for (int i = 0; i < count; i++)
        if (contenders[i].outcome == MEASURE_OK && contenders[i].beside != NULL)
            apart_prepare(c, &contenders[i]);
        else if (contenders[i].outcome == MEASURE_OK && contenders[i].peer == NULL)
            prepare(c, &contenders[i]);
    for (int i = 0; i < count; i++)
        if (contenders[i].peer != NULL) peer_prepare(c, &contenders[i], &contenders[0]);
    for (int i = 0; i < count; i++)
        if (contenders[i].outcome == MEASURE_OK) warm_up(c, &contenders[i]);
    sample_all(c, contenders, count);
    for (int i = 0; i < count; i++)
        if (contenders[i].outcome == MEASURE_OK) contender_summarise(c, tensors, &contenders[i]);
    contenders_compare(c, contenders, count);
}

static void start_result(const struct op_case *c, struct contender *contender) {
    struct result *result = contender->result;
    const char *peer = result->peer;
    *result = result_empty(c);
    result->num_threads = contender->session->machine.num_threads;
    result->peer = peer;
    if (peer != NULL) return;
    snprintf(result->variant, sizeof result->variant, "%s", contender_name(contender));
    snprintf(result->isa, sizeof result->isa, "%s", tsr_isa_name(contender->session->machine.isa));
    if (contender->beside == NULL) contender_check_proof(c, contender);
}

// The session of the first contender keeps the error sentences of all.
static enum measure_outcome measure_contenders(const struct op_case *c,
                                               struct contender *contenders, int count) {
    struct measure_session *session = contenders[0].session;
    for (int i = 0; i < count; i++) start_result(c, &contenders[i]);
    struct inputs inputs;
    double bytes = inputs_bytes(c), available = allocation_available();
    bool is_fitting = allocation_fits(bytes, available);
    if (is_fitting && inputs_create(&inputs, c, session->options.seed)) {
        measure_prepared(&inputs.c, &inputs.memory, contenders, count);
        inputs_release(&inputs);
    } else {
        char needed[32], left[32];
        for (int i = 0; i < count; i++)
            contender_fail(&contenders[i], MEASURE_FAILED,
                           "%s: the tensors need %s, the machine has %s left", c->spec->op,
                           allocation_text(bytes, needed, sizeof needed),
                           allocation_text(available, left, sizeof left));
    }
    enum measure_outcome outcome = contenders[0].outcome;
    for (int i = 0; i < count; i++) {
        tsr_context_destroy(contenders[i].ctx);
        apart_release(&contenders[i]);
        allocation_release(&contenders[i].memory, contenders[i].peer_out,
                           contenders[i].peer_out_bytes);
        free(contenders[i].samples);
        if (contenders[i].outcome == MEASURE_OK) outcome = MEASURE_OK;
    }
    memset(session->errors, 0, sizeof session->errors);
    for (int i = 0; i < count; i++)
        snprintf(session->errors[i], sizeof session->errors[i], "%s", contenders[i].sentence);
    return outcome;
}

enum measure_outcome measure_entries(struct measure_session *session, const struct op_case *c,
                                     const struct measure_entry *entries, int count,
                                     struct result *results, enum measure_outcome *outcomes) {
    struct contender contenders[MEASURE_MAX_CONTENDERS] = {0};
    if (count < 1) return MEASURE_OK;
    if (count > MEASURE_MAX_CONTENDERS) count = MEASURE_MAX_CONTENDERS;
    if (is_on_device(session)) return device_measure(session, c, entries, count, results, outcomes);
    for (int i = 0; i < count; i++) {
        contenders[i] = (struct contender){.session = session,
                                           .variant = entries[i].variant,
                                           .tuning_file = entries[i].tuning_file,
                                           .peer = entries[i].peer,
                                           .result = &results[i]};
        results[i].peer = entries[i].peer_name;
    }
    enum measure_outcome outcome = measure_contenders(c, contenders, count);
    for (int i = 0; i < count; i++) outcomes[i] = contenders[i].outcome;
    return outcome;
}

enum measure_outcome measure_variants(struct measure_session *session, const struct op_case *c,
                                      const char *const *variants, int count,
                                      struct result *results, enum measure_outcome *outcomes) {
    struct measure_entry entries[MEASURE_MAX_CONTENDERS] = {0};
    if (count > MEASURE_MAX_CONTENDERS) count = MEASURE_MAX_CONTENDERS;
    for (int i = 0; i < count; i++) entries[i].variant = variants[i];
    return measure_entries(session, c, entries, count, results, outcomes);
}

enum measure_outcome measure_case(struct measure_session *session, const struct op_case *c,
                                  const char *variant, struct result *result) {
    struct result results[2];
    enum measure_outcome outcomes[2];
    const char *baseline = device_baseline(session->options.device, c->spec);
    const char *variants[2] = {variant, baseline};
    bool is_alone = baseline == NULL || spec_is_baseline(c->spec, variant);
    measure_variants(session, c, variants, is_alone ? 1 : 2, results, outcomes);
    *result = results[0];
    return outcomes[0];
}

enum measure_outcome measure_threads(struct measure_session *const *sessions, int count,
                                     const struct op_case *c, const char *variant, bool has_apart,
                                     struct result *results, enum measure_outcome *outcomes) {
    struct contender contenders[2 * MEASURE_MAX_THREADS] = {0};
    struct result apart[MEASURE_MAX_THREADS] = {0}; // not of the first, which has one thread
    int num_contenders = has_apart ? 2 * count - 1 : count;
    for (int i = 0; i < num_contenders; i++) {
        bool is_apart = i >= count;
        int at = is_apart ? i - count + 1 : i;
        contenders[i] = (struct contender){.session = sessions[at],
                                           .variant = variant,
                                           .beside = is_apart ? &contenders[at] : NULL,
                                           .result = is_apart ? &apart[at] : &results[at]};
        contenders[i].result->peer = NULL;
    }
    enum measure_outcome outcome = measure_contenders(c, contenders, num_contenders);
    for (int i = 0; i < count; i++) {
        outcomes[i] = contenders[i].outcome;
        if (has_apart)
            results[i].efficiency_apart = i > 0 ? results[0].median_ms / apart[i].median_ms : 1;
    }
    return outcome;
}
