// SPDX-License-Identifier: Apache-2.0
// Makes the steps' tensors, warms up, and records the phases.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/allocation.h"
#include "measure/profile_steps.h"
#include "system/heap.h"

const char *const profile_phases[PHASE_COUNT] = {
    [PHASE_NONE] = "",        [PHASE_IN] = "copies in",   [PHASE_ALONE] = "one at a time",
    [PHASE_ROW] = "in a row", [PHASE_OUT] = "copies out",
};

static bool is_on_cuda(const struct profile *profile) { return profile->device.type == TSR_CUDA; }

// ---- Keeping records --------------------------------------------------------------------------

static const char *word(struct profile *profile, const char *text) {
    for (int i = 0; i < profile->num_words; i++)
        if (strcmp(profile->words[i], text) == 0) return profile->words[i];
    profile->words =
        heap_grow(profile->words, (size_t)(profile->num_words + 1), sizeof *profile->words);
    return profile->words[profile->num_words++] = heap_text(text);
}

static void keep(void *user, const tsr_profile_record *record) {
    struct profile *profile = user;
    if (profile->num_events == profile->room) {
        profile->room = profile->room > 0 ? 2 * profile->room : 4096;
        profile->events =
            heap_grow(profile->events, (size_t)profile->room, sizeof *profile->events);
    }
    struct profile_event *event = &profile->events[profile->num_events++];
    *event = (struct profile_event){.record = *record, .step = -1};
    event->record.name = word(profile, record->name);
    event->record.op = word(profile, record->op);
    event->record.variant = word(profile, record->variant);
}

static int phase_of(const char *name) {
    for (int p = PHASE_IN; p < PHASE_COUNT; p++)
        if (strcmp(profile_phases[p], name) == 0) return p;
    return PHASE_NONE;
}

static int step_of(const struct profile *profile, const char *name) {
    for (int s = 0; s < profile->num_steps; s++)
        if (strcmp(profile->steps[s].label, name) == 0) return s;
    return -1;
}

// Finds phase and step of every event from the ranges around it. Ranges come before the events in them, and the host's
// records before the device's.
static void place_events(struct profile *profile) {
    int64_t last = 0;
    for (int64_t i = 0; i < profile->num_events; i++)
        if (profile->events[i].record.id > last) last = profile->events[i].record.id;
    int64_t *by_id = heap_get((size_t)(last + 1), sizeof *by_id);
    for (int64_t i = 0; i <= last; i++) by_id[i] = -1;
    for (int64_t i = 0; i < profile->num_events; i++) {
        struct profile_event *event = &profile->events[i];
        const tsr_profile_record *r = &event->record;
        if (r->parent > 0 && r->parent <= last && by_id[r->parent] >= 0) {
            const struct profile_event *around = &profile->events[by_id[r->parent]];
            event->phase = around->phase;
            event->step = around->step;
            event->call = around->call;
        }
        if (r->kind == TSR_PROFILE_RANGE && event->phase == PHASE_NONE)
            event->phase = (enum profile_phase)phase_of(r->name);
        else if (r->kind == TSR_PROFILE_RANGE && event->step < 0) {
            event->step = step_of(profile, r->name);
            event->call = r->id;
        }
        if (r->id > 0) by_id[r->id] = i;
    }
    free(by_id);
}

static int by_start(const void *a, const void *b) {
    const tsr_profile_record *x = &((const struct profile_event *)a)->record;
    const tsr_profile_record *y = &((const struct profile_event *)b)->record;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns); // an outer event before an inner one
}

// ---- The phases -------------------------------------------------------------------------------

static tsr_status call(struct profile *profile, struct profile_step *step) {
    const struct op_case *c = step->c;
    return c->spec->call(profile->ctx, c, profile->variant, NULL, 0, NULL);
}

static tsr_status run_step(struct profile *profile, struct profile_step *step,
                           enum profile_phase phase) {
    tsr_status status = TSR_OK;
    tsr_profile_begin(step->label);
    switch (phase) {
    case PHASE_IN: status = device_case_copy_in(&step->device); break;
    case PHASE_OUT: status = device_case_copy_out(&step->device); break;
    default: status = call(profile, step);
    }
    tsr_profile_end();
    if (status == TSR_OK && phase != PHASE_ROW) status = tsr_context_synchronize(profile->ctx);
    return status;
}

static tsr_status run_phase(struct profile *profile, enum profile_phase phase) {
    bool is_copy = phase == PHASE_IN || phase == PHASE_OUT;
    tsr_status status = TSR_OK;
    tsr_profile_begin(profile_phases[phase]);
    for (int i = 0; i < (is_copy ? 1 : profile->rep) && status == TSR_OK; i++)
        for (int s = 0; s < profile->num_steps && status == TSR_OK; s++)
            status = run_step(profile, &profile->steps[s], phase);
    if (status == TSR_OK) status = tsr_context_synchronize(profile->ctx);
    tsr_profile_end();
    return status;
}

static tsr_status record(struct profile *profile) {
    tsr_status status = tsr_profile_start(profile->ctx);
    if (status != TSR_OK) return status;
    for (int phase = PHASE_IN; phase < PHASE_COUNT && status == TSR_OK; phase++)
        if (is_on_cuda(profile) || phase == PHASE_ALONE || phase == PHASE_ROW)
            status = run_phase(profile, (enum profile_phase)phase);
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", tsr_last_error());
    tsr_status stopped = tsr_profile_stop(profile->ctx, keep, profile, &profile->num_lost);
    if (status != TSR_OK) return tsr_fail(status, sentence);
    if (stopped != TSR_OK) return stopped;
    place_events(profile);
    qsort(profile->events, (size_t)profile->num_events, sizeof *profile->events, by_start);
    return TSR_OK;
}

// ---- Preparation ------------------------------------------------------------------------------

static tsr_status warm_up(struct profile *profile, struct profile_step *step) {
    enum { CALLS = 3 };
    size_t workspace_bytes;
    const struct op_case *c = step->c;
    tsr_status status = c->spec->call(profile->ctx, c, profile->variant, NULL, 0, &workspace_bytes);
    if (status == TSR_OK)
        snprintf(step->variant, sizeof step->variant, "%s", tsr_context_last_variant(profile->ctx));
    for (int i = 0; i < CALLS && status == TSR_OK; i++) status = call(profile, step);
    return status == TSR_OK ? tsr_context_synchronize(profile->ctx) : status;
}

static tsr_status make_tensors(struct profile *profile, struct profile_step *step,
                               const struct op_case *c, uint64_t seed) {
    double bytes = inputs_bytes(c), available = allocation_available();
    char needed[32], left[32], sentence[192];
    step->is_drawn = allocation_fits(bytes, available) && inputs_create(&step->inputs, c, seed);
    if (!step->is_drawn) {
        snprintf(sentence, sizeof sentence, "%s: the tensors need %s, the machine has %s left",
                 c->spec->op, allocation_text(bytes, needed, sizeof needed),
                 allocation_text(available, left, sizeof left));
        return tsr_fail(TSR_OUT_OF_MEMORY, sentence);
    }
    step->c = &step->inputs.c;
    if (!is_on_cuda(profile)) return TSR_OK;
    tsr_status status = device_case_create(&step->device, profile->ctx, &step->inputs.c);
    step->c = &step->device.c;
    return status;
}

tsr_status profile_run(struct profile *profile, uint64_t seed) {
    tsr_status status = TSR_OK;
    for (int s = 0; s < profile->num_steps && status == TSR_OK; s++) {
        struct profile_step *step = &profile->steps[s];
        struct op_case c = step->inputs.c; // a copy, because make_tensors fills step->inputs
        status = make_tensors(profile, step, &c, seed);
        if (status == TSR_OK) status = warm_up(profile, step);
    }
    return status == TSR_OK ? record(profile) : status;
}

void profile_free(struct profile *profile) {
    for (int s = 0; s < profile->num_steps; s++) {
        device_case_release(&profile->steps[s].device);
        if (profile->steps[s].is_drawn) inputs_release(&profile->steps[s].inputs);
    }
    free(profile->steps);
    free(profile->events);
    for (int i = 0; i < profile->num_words; i++) free(profile->words[i]);
    free(profile->words);
}
