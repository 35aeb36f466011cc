// SPDX-License-Identifier: Apache-2.0
// Computes figures from events. On CUDA a call's time is that of its kernels when calls run in a row and no kernel waits
// for the host; calls made one at a time on an idle stream show the host's overhead.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/profile_steps.h"
#include "system/heap.h"

static double us(int64_t ns) { return 1e-3 * (double)ns; }
static double duration(const tsr_profile_record *r) { return us(r->end_ns - r->start_ns); }
static bool is_call_phase(enum profile_phase phase) {
    return phase == PHASE_ALONE || phase == PHASE_ROW;
}

// ---- Medians ----------------------------------------------------------------------------------

struct series {
    double *values;
    int count, room;
};

static void add(struct series *series, double value) {
    if (series->count == series->room) {
        series->room = series->room > 0 ? 2 * series->room : 32;
        series->values = heap_grow(series->values, (size_t)series->room, sizeof *series->values);
    }
    series->values[series->count++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median; frees the series.
static double median(struct series *series) {
    double value = NAN;
    if (series->count > 0) {
        qsort(series->values, (size_t)series->count, sizeof *series->values, by_value);
        value = 0.5 * (series->values[series->count / 2] + series->values[(series->count - 1) / 2]);
    }
    free(series->values);
    *series = (struct series){0};
    return value;
}

// ---- A step -----------------------------------------------------------------------------------

// The sums of one call of a step while its events pass. Its kernels come after its begin and before the next call's
// kernels, because a stream keeps the order.
struct one_call {
    double start, first_kernel, kernel_us, num_kernels, num_loops, thread_us, call_us;
    bool is_open;
};

struct step_series {
    struct series device_us, host_us, start_us, launch_us, gap_us, num_kernels, num_loops, busy;
};

static void close_call(const struct profile *profile, struct one_call *call,
                       enum profile_phase phase, struct step_series *series) {
    if (!call->is_open) return;
    if (profile->device.type != TSR_CUDA) {
        add(&series->device_us, call->call_us);
        add(&series->busy, call->thread_us / (call->call_us * profile->num_threads));
        add(&series->num_loops, call->num_loops);
    } else if (phase == PHASE_ROW) {
        add(&series->device_us, call->kernel_us);
        add(&series->num_kernels, call->num_kernels);
    } else if (call->num_kernels > 0) {
        add(&series->start_us, call->first_kernel - call->start);
    }
    call->is_open = false;
}

// A kernel and its launch share a number; the launch comes first.
static double launch_start(const struct profile *profile, int64_t at) {
    int64_t launch = profile->events[at].record.launch;
    for (int64_t i = at - 1; i >= 0 && launch > 0; i--)
        if (profile->events[i].record.kind == TSR_PROFILE_DRIVER &&
            profile->events[i].record.launch == launch)
            return us(profile->events[i].record.start_ns);
    return NAN;
}

// Events are sorted by start. When calls run in a row, the device's events lag behind the host's, so there a call begins
// with its first kernel.
static void walk_step(const struct profile *profile, int step, enum profile_phase phase,
                      struct step_series *series) {
    struct one_call call = {0};
    int64_t current = -1;
    double last = NAN;
    bool is_cuda = profile->device.type == TSR_CUDA;
    for (int64_t i = 0; i < profile->num_events; i++) {
        const struct profile_event *event = &profile->events[i];
        const tsr_profile_record *r = &event->record;
        if (event->phase != phase) continue;
        bool is_here = event->step == step, is_kernel = r->kind == TSR_PROFILE_KERNEL;
        if (is_kernel && is_here && phase == PHASE_ROW && !isnan(last)) // since any step's kernel
            add(&series->gap_us, us(r->start_ns) - last);
        if (is_kernel) last = us(r->end_ns);
        if (!is_here) continue;
        bool is_outermost = r->kind == TSR_PROFILE_RANGE;
        if (is_outermost && phase == PHASE_ALONE) {
            close_call(profile, &call, phase, series);
            call = (struct one_call){.start = us(r->start_ns), .is_open = true};
            call.call_us = duration(r);
        } else if (is_outermost && !is_cuda) {
            close_call(profile, &call, phase, series);
            call = (struct one_call){.is_open = true, .call_us = duration(r)};
        }
        if (is_outermost) add(&series->host_us, duration(r));
        if (r->kind == TSR_PROFILE_THREAD) {
            call.thread_us += duration(r);
            call.num_loops += r->thread == 0;
        }
        if (!is_kernel) continue;
        if (phase == PHASE_ROW && event->call != current) {
            close_call(profile, &call, phase, series);
            call = (struct one_call){.is_open = true};
            current = event->call;
        }
        if (call.num_kernels == 0) call.first_kernel = us(r->start_ns);
        if (call.num_kernels == 0 && phase == PHASE_ALONE)
            add(&series->launch_us, us(r->start_ns) - launch_start(profile, i));
        call.num_kernels++;
        call.kernel_us += duration(r);
    }
    close_call(profile, &call, phase, series);
}

static void summarise_step(const struct profile *profile, int s, struct profile_figures *f) {
    const struct profile_step *step = &profile->steps[s];
    struct step_series series = {0};
    walk_step(profile, s, PHASE_ALONE, &series);
    free(series.host_us.values); // one at a time, the host also waits for the device
    series.host_us = (struct series){0};
    walk_step(profile, s, PHASE_ROW, &series);
    *f = (struct profile_figures){
        .num_kernels = median(&series.num_kernels),
        .device_us = median(&series.device_us),
        .host_us = median(&series.host_us),
        .start_us = median(&series.start_us),
        .launch_us = median(&series.launch_us),
        .gap_us = median(&series.gap_us),
        .threads_busy = median(&series.busy),
        .num_loops = median(&series.num_loops),
    };
    double seconds = 1e-6 * f->device_us;
    f->gb_s = 1e-9 * case_bytes(step->c) / seconds;
    f->tflops = 1e-12 * step->c->spec->flops(step->c) / seconds;
    f->bandwidth_share = step->bandwidth > 0 ? 1e9 * f->gb_s / step->bandwidth : NAN;
    f->compute_share = step->compute > 0 ? 1e12 * f->tflops / step->compute : NAN;
}

// ---- Kernels, copies --------------------------------------------------------------------------

static bool is_kernel(const struct profile *profile, const struct profile_event *event) {
    return event->record.kind ==
               (profile->device.type == TSR_CUDA ? TSR_PROFILE_KERNEL : TSR_PROFILE_CALL) &&
           is_call_phase(event->phase);
}

// Names are interned in the profile, so equal texts have equal addresses.
static struct profile_kernel *find_kernel(struct profile_summary *summary,
                                          const tsr_profile_record *r, const char *name,
                                          const char *op) {
    for (int i = 0; i < summary->num_kernels; i++) {
        struct profile_kernel *k = &summary->kernels[i];
        if (k->name == name && k->op == op && k->num_blocks == r->num_blocks &&
            k->block_threads == r->block_threads)
            return k;
    }
    if (summary->num_kernels == PROFILE_MAX_KERNELS) return NULL;
    struct profile_kernel *k = &summary->kernels[summary->num_kernels++];
    *k = (struct profile_kernel){.name = name,
                                 .op = op,
                                 .num_blocks = r->num_blocks,
                                 .block_threads = r->block_threads,
                                 .num_registers = r->num_registers,
                                 .shared_bytes = r->shared_bytes,
                                 .min_us = INFINITY};
    return k;
}

static int by_total(const void *a, const void *b) {
    double x = ((const struct profile_kernel *)a)->total_us;
    double y = ((const struct profile_kernel *)b)->total_us;
    return (x < y) - (x > y);
}

static void summarise_kernels(const struct profile *profile, struct profile_summary *summary) {
    bool is_cuda = profile->device.type == TSR_CUDA;
    double total = 0;
    for (int64_t i = 0; i < profile->num_events; i++) {
        if (!is_kernel(profile, &profile->events[i])) continue;
        const tsr_profile_record *r = &profile->events[i].record;
        struct profile_kernel *k =
            find_kernel(summary, r, is_cuda ? r->name : r->variant, is_cuda ? r->op : r->name);
        if (k == NULL) continue;
        double d = duration(r);
        k->count++;
        k->total_us += d;
        k->min_us = fmin(k->min_us, d);
        k->max_us = fmax(k->max_us, d);
        total += d;
    }
    for (int i = 0; i < summary->num_kernels; i++)
        summary->kernels[i].share = summary->kernels[i].total_us / total;
    qsort(summary->kernels, (size_t)summary->num_kernels, sizeof *summary->kernels, by_total);
}

static void summarise_copies(const struct profile *profile, struct profile_summary *summary) {
    double copies_us = 0, steps_us = 0;
    for (int64_t i = 0; i < profile->num_events; i++) {
        const struct profile_event *event = &profile->events[i];
        const tsr_profile_record *r = &event->record;
        if (r->kind != TSR_PROFILE_COPY || event->phase == PHASE_NONE) continue;
        int at = 0;
        while (at < summary->num_copies && summary->copies[at].name != r->name) at++;
        if (at == PROFILE_MAX_COPIES) continue;
        if (at == summary->num_copies)
            summary->copies[summary->num_copies++] = (struct profile_copies){.name = r->name};
        struct profile_copies *copies = &summary->copies[at];
        copies->count++;
        copies->bytes += (double)r->bytes;
        copies->total_us += duration(r);
        copies_us += duration(r);
    }
    for (int i = 0; i < summary->num_copies; i++)
        summary->copies[i].gb_s = 1e-3 * summary->copies[i].bytes / summary->copies[i].total_us;
    for (int s = 0; s < profile->num_steps; s++) steps_us += summary->steps[s].device_us;
    summary->copy_share =
        summary->num_copies > 0 ? copies_us / (copies_us + steps_us) : (double)NAN;
}

// The share of busy time from the first kernel of the calls in a row to the end of the last.
static double busy_share(const struct profile *profile) {
    double busy_us = 0, first = NAN, last = NAN;
    for (int64_t i = 0; i < profile->num_events; i++) {
        const struct profile_event *event = &profile->events[i];
        if (event->phase != PHASE_ROW || event->record.kind != TSR_PROFILE_KERNEL) continue;
        if (isnan(first)) first = us(event->record.start_ns);
        last = us(event->record.end_ns);
        busy_us += duration(&event->record);
    }
    return busy_us / (last - first);
}

void profile_summarise(const struct profile *profile, struct profile_summary *summary) {
    *summary = (struct profile_summary){
        .steps = heap_get((size_t)profile->num_steps + 1, sizeof *summary->steps)};
    for (int s = 0; s < profile->num_steps; s++) summarise_step(profile, s, &summary->steps[s]);
    summary->busy_share = busy_share(profile);
    summarise_kernels(profile, summary);
    summarise_copies(profile, summary);
}

void profile_summary_free(struct profile_summary *summary) {
    free(summary->steps);
    *summary = (struct profile_summary){0};
}
