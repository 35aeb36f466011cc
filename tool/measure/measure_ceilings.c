// SPDX-License-Identifier: Apache-2.0
// Ceilings: the rates that the context's threads reach when only the probe runs. Bandwidths are measured
// at powers of two of bytes, each when it is first needed. A figure is compared with the power below its
// working set, so never with a cache into which it does not fit.
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "measure/measure_session.h"
#include "system/environment.h"
#include "system/progress.h"

static const double fma_seconds = 0.010, sweep_seconds = 0.002;
static const double stretch_seconds = 0.002; // on a device
static const double round_seconds = 0.25; // long sweeps average by themselves, so fewer are enough
enum {
    FMA_SAMPLES = 12,
    SWEEP_SAMPLES = 12,
    MIN_SWEEP_SAMPLES = 3,
    SWEEP_ROUNDS = 5,
    LOOK_SAMPLES = 2,
    MIN_SHARE = 8192, // bytes of one thread
};

// ---- The clock --------------------------------------------------------------------------------

// Runs one probe and times it, on a device by the device's clock.
static tsr_status run_probe(struct measure_session *session, const tsr_probe_args *args,
                            double *work, double *seconds) {
    double start = seconds_now();
    if (is_on_device(session)) device_start(session);
    tsr_status status = tsr_probe_run(session->probe_ctx, args, work);
    *seconds = is_on_device(session) ? device_seconds(session) : seconds_now() - start;
    return status;
}

static double run_unit(struct measure_session *session, tsr_probe_kind unit, int64_t repeat,
                       double *seconds) {
    double flops = 0;
    run_probe(session, &TSR_PROBE_ARGS(.kind = unit, .repeat = repeat), &flops, seconds);
    return flops;
}

static double run_fma(struct measure_session *session, int64_t repeat, double *seconds) {
    return run_unit(session, TSR_PROBE_FMA, repeat, seconds);
}

double clock_probe(struct measure_session *session) {
    double seconds, flops = run_fma(session, session->fma_repeat, &seconds);
    double rate = flops / seconds;
    // A probe that was sized while other processes ran is too short: its start-up would count.
    double repeat = 1 + fma_seconds * rate / flops * (double)session->fma_repeat;
    if (rate > session->fma_best && repeat > (double)session->fma_repeat)
        session->fma_repeat = (int64_t)fmin(repeat, 0x1p40);
    session->fma_best = fmax(session->fma_best, rate);
    session->fma_last_share = rate / session->fma_best;
    return rate;
}

// Short bursts, to catch the clock of the work before them: many processors change their clock after some
// milliseconds of FMAs alone, often to a higher one, because loads and stores cost no power.
double unit_burst(struct measure_session *session, tsr_probe_kind unit) {
    enum { BURSTS = 3, PART = 100 }; // about 0.1 ms each
    double best = 0;
    for (int i = 0; i < BURSTS; i++) {
        double seconds, flops = run_unit(session, unit, 1 + session->fma_repeat / PART, &seconds);
        best = fmax(best, flops / seconds);
    }
    if (unit != TSR_PROBE_FMA) *unit_best(session, unit) = fmax(best, *unit_best(session, unit));
    return best;
}

double clock_burst(struct measure_session *session) { return unit_burst(session, TSR_PROBE_FMA); }

double *unit_best(struct measure_session *session, tsr_probe_kind unit) {
    return unit == TSR_PROBE_BF16_DOT     ? &session->dot_best
           : unit == TSR_PROBE_BF16_TILES ? &session->tiles_best
           : unit == TSR_PROBE_BYTE_DOT   ? &session->byte_dot_best
                                          : &session->fma_best;
}

// The best of a few stretches of 2 ms; measured once.
static double device_unit_ceiling(struct measure_session *session, tsr_probe_kind unit) {
    enum { SAMPLES = 5 };
    double *best = unit_best(session, unit), work, seconds;
    if (unit == TSR_PROBE_FMA || *best > 0) return *best;
    tsr_probe_args args = TSR_PROBE_ARGS(.kind = unit, .repeat = 1);
    for (int i = 0; i < SAMPLES;) {
        device_start(session);
        if (tsr_probe_run(session->ctx, &args, &work) != TSR_OK) return 0;
        seconds = device_seconds(session);
        if (!(seconds > 0)) return 0;
        *best = fmax(*best, work / seconds);
        if (seconds < stretch_seconds && args.repeat < 1 << 24)
            args.repeat *= 2;
        else
            i++;
    }
    return *best;
}

double measure_unit_ceiling(struct measure_session *session, tsr_probe_kind unit) {
    if (is_on_device(session)) return device_unit_ceiling(session, unit);
    for (int i = 0; i < FMA_SAMPLES; i++) unit_burst(session, unit);
    return *unit_best(session, unit);
}

tsr_probe_kind measure_unit_of(struct measure_session *session, const struct op_case *c,
                               const char *variant) {
    const char *op = c->spec->op;
    tsr_variant_info info;
    // On a GPU 16-bit products are compared with the tensor cores, whether the variant uses them or not.
    bool is_product = strstr(op, "matmul") != NULL || strstr(op, "attention") != NULL;
    if (is_on_device(session))
        return is_product && c->dtype != TSR_F32 ? TSR_PROBE_BF16_TILES : TSR_PROBE_FMA;
    // The parts of a composed operation choose their own variants, so they are compared with the fastest unit.
    if (c->spec->is_composed && c->dtype == TSR_BF16)
        return measure_unit_ceiling(session, TSR_PROBE_BF16_TILES) > session->fma_best
                   ? TSR_PROBE_BF16_TILES
               : measure_unit_ceiling(session, TSR_PROBE_BF16_DOT) > session->fma_best
                   ? TSR_PROBE_BF16_DOT
                   : TSR_PROBE_FMA;
    for (int i = 0; i < tsr_variant_count(op); i++) {
        if (tsr_variant_info_get(op, i, &info) != TSR_OK || strcmp(info.name, variant) != 0)
            continue;
        if (info.flags & TSR_VARIANT_BF16_DOT) return TSR_PROBE_BF16_DOT;
        if (info.flags & TSR_VARIANT_BF16_TILES) return TSR_PROBE_BF16_TILES;
        if (info.flags & TSR_VARIANT_BYTE_DOT) return TSR_PROBE_BYTE_DOT;
    }
    return TSR_PROBE_FMA;
}

double measure_clock_share(struct measure_session *session) {
    clock_probe(session);
    return session->fma_last_share;
}

double measure_fma_ceiling(struct measure_session *session) { return session->fma_best; }

// ---- Memory -----------------------------------------------------------------------------------

static void release_buffers(struct measure_session *session) {
    allocation_release(&session->probe_memory, session->source, session->buffer_bytes);
    allocation_release(&session->probe_memory, session->destination, session->buffer_bytes);
    session->source = session->destination = NULL;
}

// Makes buffers of at least `bytes` each. They grow on demand, so small working sets do not pay for the largest.
static bool get_buffers(struct measure_session *session, size_t bytes) {
    if (is_on_device(session)) return session->source != NULL; // device_open made them
    if (session->buffer_bytes < bytes) {
        release_buffers(session);
        session->buffer_bytes = bytes;
    }
    bytes = session->buffer_bytes;
    if (session->source == NULL) {
        session->source = allocation_get(&session->probe_memory, bytes);
        // Some machines move zeros faster than data.
        for (size_t i = 0; session->source != NULL && i < bytes / 4; i++)
            ((uint32_t *)session->source)[i] = 0x3f800000u | ((uint32_t)i * 2654435761u >> 9);
    }
    if (session->destination == NULL) {
        session->destination = allocation_get(&session->probe_memory, bytes);
        if (session->destination != NULL) memset(session->destination, 0x3f, bytes);
    }
    return session->source != NULL && session->destination != NULL;
}

bool flush_caches(struct measure_session *session) {
    double work;
    size_t bytes = (size_t)1 << session->max_level;
    return get_buffers(session, bytes) &&
           tsr_probe_run(session->probe_ctx,
                         &TSR_PROBE_ARGS(.kind = TSR_PROBE_READ, .repeat = 1,
                                         .source = session->source, .bytes = bytes),
                         &work) == TSR_OK;
}

// The best of many sweeps, in bytes per second. The two buffers of a copy share the working set. While the
// clock probe shows that other processes run, there are more sweeps, unless the user asked for only one or two
// samples.
static double best_sweep(struct measure_session *session, tsr_probe_kind kind, size_t working_set) {
    bool is_copy = kind == TSR_PROBE_COPY || kind == TSR_PROBE_COPY_STREAM;
    tsr_probe_args args = TSR_PROBE_ARGS(.kind = kind, .repeat = 1, .source = session->source,
                                         .destination = session->destination,
                                         .bytes = is_copy ? working_set / 2 : working_set);
    double best = 0, work, opened = seconds_now();
    bool is_look = session->options.num_rep > 0 && session->options.num_rep <= LOOK_SAMPLES;
    int num_rounds = is_look ? 1 : SWEEP_ROUNDS;
    for (int round = 0; round < num_rounds; round++) {
        for (int sample = 0; sample < SWEEP_SAMPLES; sample++) {
            double seconds;
            if (sample >= MIN_SWEEP_SAMPLES && seconds_now() > opened + (1 + round) * round_seconds)
                break;
            if (run_probe(session, &args, &work, &seconds) != TSR_OK) return NAN;
            best = fmax(best, work / seconds);
            double one = work / (double)args.repeat;
            args.repeat = 1 + (int64_t)(sweep_seconds * best / one);
        }
        if (measure_clock_share(session) > 0.97 || seconds_now() > opened + 4 * round_seconds)
            break;
    }
    return best;
}

const struct bandwidth *measure_bandwidth(struct measure_session *session, double working_set) {
    double smallest = ldexp(1, session->min_level), largest = ldexp(1, session->max_level);
    int level = (int)floor(log2(fmin(fmax(working_set, smallest), largest)));
    // A working set somewhat larger than a device's cache is partly in it. It is compared with memory, measured by a copy
    // whose two halves are each larger than the cache.
    if (is_on_device(session) && working_set > (double)session->machine.l3_bytes)
        level = session->max_level;
    struct bandwidth *b = &session->levels[level];
    if (b->working_set > 0) return b;
    size_t bytes = (size_t)1 << level;
    *b = (struct bandwidth){
        .working_set = (double)bytes, .read = NAN, .write = NAN, .copy = NAN, .update = NAN};
    if (!get_buffers(session, bytes)) return b;
    b->read = best_sweep(session, TSR_PROBE_READ, bytes);
    b->write = fmax(best_sweep(session, TSR_PROBE_WRITE, bytes),
                    best_sweep(session, TSR_PROBE_WRITE_STREAM, bytes));
    b->copy = fmax(best_sweep(session, TSR_PROBE_COPY, bytes),
                   best_sweep(session, TSR_PROBE_COPY_STREAM, bytes));
    b->update = best_sweep(session, TSR_PROBE_UPDATE, bytes);
    return b;
}

// ---- The floor --------------------------------------------------------------------------------

// The time for memory: tensors updated in place, then copies for the pairs of reads and writes, then the
// remaining reads or writes.
static double memory_floor_s(const struct bandwidth *b, double read, double written,
                             double updated) {
    double copied = fmin(read, written);
    return 2 * updated / fmax(b->copy, b->update) + 2 * copied / b->copy +
           (read - copied) / b->read + (written - copied) / b->write;
}

double measure_floor_s(struct measure_session *session, const struct op_case *c, double fma_rate,
                       bool is_cold) {
    double read = 0, written = 0, updated = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        double bytes = case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
        switch (case_role(c, s)) {
        case SLOT_IN: read += bytes; break;
        case SLOT_OUT: written += bytes; break;
        case SLOT_INOUT: updated += bytes; break;
        case SLOT_NONE: break;
        }
    }
    double working_set = read + written + updated, moved = working_set + updated;
    // Scale to the bytes that the spec requires, in the proportion of the tensors.
    double scale = moved > 0 ? case_bytes(c) / moved : 0;
    read *= scale;
    written *= scale;
    updated *= scale;
    if (c->spec->written != NULL) {
        written = c->spec->written(c);
        read = case_bytes(c) - written;
        updated = 0;
    }
    const struct bandwidth *b = measure_bandwidth(session, is_cold ? INFINITY : working_set);
    return fmax(c->spec->flops(c) / fma_rate, memory_floor_s(b, read, written, updated));
}

double measure_traffic_s(struct measure_session *session, double read_bytes, double write_bytes,
                         double working_set) {
    return memory_floor_s(measure_bandwidth(session, working_set), read_bytes, write_bytes, 0);
}

// ---- Opening ----------------------------------------------------------------------------------

static int level_of(double bytes) { return (int)ceil(log2(bytes)); }

// Finds the length of the 10 ms FMA probe, and the best rate of a few.
void ceilings_start(struct measure_session *session) {
    double seconds;
    session->fma_repeat = 1;
    do {
        session->fma_repeat *= 2;
        run_fma(session, session->fma_repeat, &seconds);
    } while (seconds < fma_seconds / 4 && session->fma_repeat < (int64_t)1 << 40);
    session->fma_repeat = 1 + (int64_t)((double)session->fma_repeat * fma_seconds / seconds);
    for (int i = 0; i < FMA_SAMPLES; i++) clock_probe(session);
}

tsr_status ceilings_open(struct measure_session *session) {
    tsr_status status =
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = session->machine.isa,
                                                .num_threads = session->machine.num_threads),
                           &session->probe_ctx);
    if (status != TSR_OK) return status;

    const struct environment *env = environment_get();
    struct machine *m = &session->machine;
    m->l1_bytes = env->l1_bytes > 0 ? env->l1_bytes : 32 << 10;
    m->l2_bytes = env->l2_bytes > 0 ? env->l2_bytes : 512 << 10;
    m->l3_bytes = env->l3_bytes > m->l2_bytes ? env->l3_bytes : m->l2_bytes * m->num_threads;
    // Buffers of at least twice the last cache, but of at most an eighth of the memory each.
    session->min_level = level_of((double)MIN_SHARE * m->num_threads);
    session->max_level = level_of(2 * fmax((double)m->l3_bytes, 16 << 20));
    while ((double)((int64_t)1 << session->max_level) > allocation_available() / 8 &&
           session->max_level > 26)
        session->max_level--;
    if (session->max_level < session->min_level) session->max_level = session->min_level;

    ceilings_start(session);
    return TSR_OK;
}

void ceilings_close(struct measure_session *session) {
    release_buffers(session);
    tsr_context_destroy(session->probe_ctx);
}
