// SPDX-License-Identifier: Apache-2.0
// Measures on a CUDA device, by its own clock. A sample is one call between two events on an idle stream, so it includes
// the launch latency: median_ms. The device's own time comes from replaying a graph of many calls: graph_ms; rates and
// the share of the ceiling follow from it. Contenders take turns, sample by sample. Cold samples flush the second-level
// cache by reading a larger buffer, so that no dirty lines are written back during the sample; they have no graph.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/measure_contender.h"
#include "system/device_option.h"
#include "system/heap.h"
#include "system/progress.h"
#include "verify/device_case.h"

enum { MAX_SAMPLES = 200, MIN_REPLAYS = 5, MAX_REPLAYS = 20, MAX_GRAPH_CALLS = 64 };
static const double graph_seconds = 0.002; // the least time of one replay

// ---- The session ------------------------------------------------------------------------------

static tsr_status fill_source(struct measure_session *session, size_t bytes) {
    enum { CHUNK = 1 << 20 };
    static uint32_t chunk[CHUNK / 4];
    for (uint32_t i = 0; i < CHUNK / 4; i++) chunk[i] = 0x3f800000u | (i * 2654435761u >> 9);
    for (size_t at = 0; at < bytes; at += CHUNK) {
        tsr_status status =
            tsr_memory_copy(session->ctx, (char *)session->source + at, chunk, CHUNK);
        if (status != TSR_OK) return status;
    }
    return tsr_context_synchronize(session->ctx);
}

tsr_status device_open(struct measure_session *session) {
    tsr_device_info info = TSR_DEVICE_INFO;
    tsr_context *ctx = session->ctx;
    session->probe_ctx = ctx;
    tsr_status status = tsr_device_info_get(session->options.device, &info);
    // Buffers of four times the cache: after reading one, nothing else is left in the cache.
    session->min_level = 20;
    session->max_level = 22;
    while (((int64_t)1 << session->max_level) < 4 * info.l2_bytes) session->max_level++;
    size_t bytes = (size_t)1 << session->max_level;
    session->machine = (struct machine){
        .l1_bytes = info.shared_bytes_per_sm, .l2_bytes = info.l2_bytes, .l3_bytes = info.l2_bytes};
    if (status == TSR_OK) status = tsr_stream_create(ctx, &session->stream);
    if (status == TSR_OK) status = tsr_context_set_stream(ctx, session->stream);
    if (status == TSR_OK) status = tsr_event_create(ctx, &session->start);
    if (status == TSR_OK) status = tsr_event_create(ctx, &session->end);
    if (status == TSR_OK) status = tsr_memory_alloc(ctx, bytes, &session->source);
    if (status == TSR_OK) status = tsr_memory_alloc(ctx, bytes, &session->destination);
    if (status == TSR_OK) status = fill_source(session, bytes);
    if (status == TSR_OK) status = tsr_memory_fill(ctx, session->destination, 0x3f, bytes);
    if (status == TSR_OK) ceilings_start(session);
    return status;
}

void device_close(struct measure_session *session) {
    tsr_context *ctx = session->ctx;
    if (ctx == NULL) return;
    (void)tsr_memory_free(ctx, session->source);
    (void)tsr_memory_free(ctx, session->destination);
    tsr_event_destroy(ctx, session->start);
    tsr_event_destroy(ctx, session->end);
    (void)tsr_stream_destroy(ctx, session->stream);
}

// ---- Sampling ---------------------------------------------------------------------------------

static bool call(const struct op_case *c, struct contender *contender) {
    tsr_status status = c->spec->call(contender->ctx, c, contender->variant, NULL, 0, NULL);
    if (status != TSR_OK) contender_fail(contender, outcome_of(status), "%s", tsr_last_error());
    return status == TSR_OK;
}

static void take_sample(struct measure_session *session, const struct op_case *c,
                        struct contender *contender) {
    if (session->options.is_cold && !flush_caches(session))
        contender_fail(contender, MEASURE_FAILED, "the caches cannot be flushed: %s",
                       tsr_last_error());
    // With cold caches the call is queued right after the flush, without a wait.
    if (!session->options.is_cold) (void)tsr_context_synchronize(session->ctx);
    device_start(session);
    if (!call(c, contender)) return;
    double seconds = device_seconds(session);
    if (isnan(seconds)) contender_fail(contender, MEASURE_FAILED, "%s", tsr_last_error());
    contender->samples[contender->num_samples++].seconds = seconds;
}

// With a tuning file, the contender gets its own context on the session's stream.
static tsr_status open_context(struct measure_session *session, struct contender *contender) {
    contender->ctx = session->ctx;
    if (contender->tuning_file == NULL) return TSR_OK;
    return tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = session->options.device,
                                                   .stream = session->stream,
                                                   .tuning_file = contender->tuning_file),
                              &contender->ctx);
}

static void close_context(struct measure_session *session, struct contender *contender) {
    if (contender->ctx != session->ctx) tsr_context_destroy(contender->ctx);
}

static void prepare(struct measure_session *session, const struct op_case *c,
                    struct contender *contender) {
    size_t workspace_bytes = 0;
    tsr_status status = open_context(session, contender);
    if (status == TSR_OK)
        status = c->spec->call(contender->ctx, c, contender->variant, NULL, 0, &workspace_bytes);
    if (status != TSR_OK) {
        contender_fail(contender, outcome_of(status), "%s", tsr_last_error());
        return;
    }
    snprintf(contender->result->variant, sizeof contender->result->variant, "%s",
             tsr_context_last_variant(contender->ctx));
    snprintf(session->tuning_key, sizeof session->tuning_key, "%s",
             tsr_context_tuning_key(contender->ctx));
    contender->result->predicted_bytes = inputs_bytes(c) + (double)workspace_bytes;
    contender->samples = heap_get(MAX_SAMPLES, sizeof *contender->samples);
    int warmup = session->options.num_warmup > 0 ? session->options.num_warmup : 10;
    tsr_context_reset_peak(contender->ctx);
    for (int i = 0; i < warmup && contender->outcome == MEASURE_OK; i++) call(c, contender);
    contender->result->peak_bytes =
        inputs_bytes(c) + (double)tsr_context_peak_workspace_bytes(contender->ctx);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const struct sample *)a)->seconds, y = ((const struct sample *)b)->seconds;
    return (x > y) - (x < y);
}

static double quantile(const struct contender *contender, double q) {
    return contender->samples[(int)(q * (contender->num_samples - 1) + 0.5)].seconds;
}

// Seconds of one call: the median of some replays, without the first.
static double replay(struct measure_session *session, const struct op_case *c,
                     struct contender *contender, double estimate) {
    tsr_context *ctx = contender->ctx;
    tsr_graph *graph = NULL;
    struct contender replays = {.samples = contender->samples}; // the samples are no longer needed
    double wanted = ceil(graph_seconds / estimate);
    int num_calls = wanted > MAX_GRAPH_CALLS ? MAX_GRAPH_CALLS : (int)wanted;
    if (tsr_graph_begin(ctx) != TSR_OK) return NAN;
    for (int i = 0; i < num_calls; i++) call(c, contender);
    if (tsr_graph_end(ctx, &graph) != TSR_OK) return NAN;
    double spent = 0;
    for (int i = 0; i < MAX_REPLAYS && (i <= MIN_REPLAYS || spent < session->options.budget_s);
         i++) {
        device_start(session);
        tsr_status status = tsr_graph_launch(ctx, graph);
        double seconds = status == TSR_OK ? device_seconds(session) : NAN;
        spent += seconds;
        if (i > 0) replays.samples[replays.num_samples++].seconds = seconds / num_calls;
    }
    tsr_graph_destroy(ctx, graph);
    qsort(replays.samples, (size_t)replays.num_samples, sizeof *replays.samples, by_seconds);
    return quantile(&replays, 0.5);
}

static void summarise(struct measure_session *session, const struct op_case *c,
                      struct contender *contender) {
    struct result *result = contender->result;
    qsort(contender->samples, (size_t)contender->num_samples, sizeof *contender->samples,
          by_seconds);
    result->num_samples = contender->num_samples;
    result->median_ms = 1e3 * quantile(contender, 0.5);
    result->p20_ms = 1e3 * quantile(contender, 0.2);
    result->p80_ms = 1e3 * quantile(contender, 0.8);
    if (!session->options.is_cold)
        result->graph_ms = 1e3 * replay(session, c, contender, 1e-3 * result->median_ms);
    double device_ms = isnan(result->graph_ms) ? result->median_ms : result->graph_ms;
    result->tflops = 1e-9 * c->spec->flops(c) / device_ms;
    result->gb_s = 1e-6 * case_bytes(c) / device_ms;
    result->is_cold =
        session->options.is_cold || inputs_bytes(c) > (double)session->machine.l3_bytes;
    double rate = measure_unit_ceiling(session, measure_unit_of(session, c, result->variant));
    if (!(rate > 0)) rate = session->fma_best;
    result->unit_gflops = 1e-9 * rate;
    result->ceiling_ms = 1e3 * measure_floor_s(session, c, rate, session->options.is_cold);
    result->share_of_ceiling = result->ceiling_ms / device_ms;
}

static void sample_in_turns(struct measure_session *session, const struct op_case *c,
                            struct contender *contenders, int count) {
    const struct measure_options *options = &session->options;
    int wanted =
        options->num_rep > 0 && options->num_rep < MAX_SAMPLES ? options->num_rep : MAX_SAMPLES;
    for (int i = 0; i < count; i++)
        if (contenders[i].outcome == MEASURE_OK) prepare(session, c, &contenders[i]);
    double start = seconds_now(); // after compilation
    for (int round = 0; round < wanted; round++) {
        if (round >= MIN_SAMPLES && options->num_rep == 0 &&
            seconds_now() - start > options->budget_s * count)
            break;
        for (int i = 0; i < count; i++)
            if (contenders[i].outcome == MEASURE_OK) take_sample(session, c, &contenders[i]);
    }
    for (int i = 0; i < count; i++)
        if (contenders[i].outcome == MEASURE_OK) summarise(session, c, &contenders[i]);
}

enum measure_outcome device_measure(struct measure_session *session, const struct op_case *given,
                                    const struct measure_entry *entries, int count,
                                    struct result *results, enum measure_outcome *outcomes) {
    struct contender contenders[MEASURE_MAX_CONTENDERS] = {0};
    struct inputs inputs;
    struct device_case device = {0};
    for (int i = 0; i < count; i++) {
        results[i] = result_empty(given);
        contenders[i] = (struct contender){.session = session,
                                           .variant = entries[i].variant,
                                           .tuning_file = entries[i].tuning_file,
                                           .ctx = session->ctx,
                                           .result = &results[i]};
        snprintf(results[i].variant, sizeof results[i].variant, "%s",
                 contender_name(&contenders[i]));
        snprintf(results[i].isa, sizeof results[i].isa, "%s", device_arch(session->ctx));
        snprintf(results[i].device, sizeof results[i].device, "%s",
                 tsr_device_name(session->options.device));
        contender_check_proof(given, &contenders[i]);
    }
    bool is_drawn = inputs_create(&inputs, given, session->options.seed);
    tsr_status status =
        is_drawn ? device_case_create(&device, session->ctx, &inputs.c) : TSR_OUT_OF_MEMORY;
    char needed[32];
    for (int i = 0; i < count && status != TSR_OK; i++)
        contender_fail(&contenders[i], MEASURE_FAILED, "%s: no memory for %s of tensors",
                       given->spec->op,
                       allocation_text(inputs_bytes(given), needed, sizeof needed));
    if (status == TSR_OK) sample_in_turns(session, &device.c, contenders, count);
    device_case_release(&device);
    if (is_drawn) inputs_release(&inputs);
    contenders_compare(given, contenders, count);
    memset(session->errors, 0, sizeof session->errors);
    enum measure_outcome outcome = contenders[0].outcome;
    for (int i = 0; i < count; i++) {
        free(contenders[i].samples);
        close_context(session, &contenders[i]);
        outcomes[i] = contenders[i].outcome;
        if (outcomes[i] == MEASURE_OK) outcome = MEASURE_OK;
        snprintf(session->errors[i], sizeof session->errors[i], "%s", contenders[i].sentence);
    }
    return outcome;
}
