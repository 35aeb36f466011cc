// SPDX-License-Identifier: Apache-2.0
// The trace: complete events of the Trace Event Format, times in microseconds from the first event. Process 0 is the
// host: the library's and the driver's calls share one track, because they are nested, and each thread of the team has its
// own. Process 1 is the device, with a track for each stream. Arrows lead from launches to kernels.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "measure/profile_steps.h"
#include "system/files.h"

enum { HOST, DEVICE };

static bool is_of_device(const tsr_profile_record *r) { return r->kind >= TSR_PROFILE_KERNEL; }

static json_t *name_json(const char *what, int process, int track, const char *name) {
    return json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", process,
                     "tid", track, "args", "name", name);
}

// Some texts come from the driver; JSON allows only valid UTF-8.
static json_t *text(const char *value) {
    json_t *string = json_string(value);
    return string != NULL ? string : json_string("?");
}

static int track_of(const tsr_profile_record *r) {
    return is_of_device(r) ? r->stream : r->kind == TSR_PROFILE_THREAD ? 1 + r->thread : 0;
}

static json_t *args_json(const struct profile *profile, const struct profile_event *event) {
    const tsr_profile_record *r = &event->record;
    json_t *args = json_object();
    if (*r->op != '\0') json_object_set_new(args, "operation", text(r->op));
    if (*r->variant != '\0') json_object_set_new(args, "variant", text(r->variant));
    if (event->phase != PHASE_NONE)
        json_object_set_new(args, "phase", text(profile_phases[event->phase]));
    if (event->step >= 0)
        json_object_set_new(args, "step", text(profile->steps[event->step].label));
    if (r->launch > 0) json_object_set_new(args, "correlation", json_integer(r->launch));
    if (r->bytes > 0) json_object_set_new(args, "bytes", json_integer(r->bytes));
    if (r->kind != TSR_PROFILE_KERNEL) return args;
    json_object_set_new(args, "blocks", json_integer(r->num_blocks));
    json_object_set_new(args, "threads of a block", json_integer(r->block_threads));
    json_object_set_new(args, "registers of a thread", json_integer(r->num_registers));
    json_object_set_new(args, "shared bytes of a block", json_integer(r->shared_bytes));
    return args;
}

static json_t *event_json(const struct profile *profile, const struct profile_event *event,
                          double ts) {
    static const char *const categories[] = {
        [TSR_PROFILE_RANGE] = "range",   [TSR_PROFILE_CALL] = "call",
        [TSR_PROFILE_THREAD] = "thread", [TSR_PROFILE_DRIVER] = "driver",
        [TSR_PROFILE_KERNEL] = "kernel", [TSR_PROFILE_COPY] = "copy",
        [TSR_PROFILE_FILL] = "fill",
    };
    const tsr_profile_record *r = &event->record;
    return json_pack("{s:s, s:o, s:s, s:f, s:f, s:i, s:i, s:o}", "ph", "X", "name", text(r->name),
                     "cat", categories[r->kind], "ts", ts, "dur",
                     1e-3 * (double)(r->end_ns - r->start_ns), "pid", is_of_device(r), "tid",
                     track_of(r), "args", args_json(profile, event));
}

// One end of an arrow: "s" is its start, "f" its end.
static json_t *arrow_json(const tsr_profile_record *r, const char *end, double ts) {
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:i, s:i}", "ph", end, "bp", "e", "name",
                     "launch", "cat", "launch", "id", (json_int_t)r->launch, "ts", ts, "pid",
                     is_of_device(r), "tid", track_of(r));
}

// Adds the names of the tracks.
static void name_tracks(const struct profile *profile, json_t *events) {
    enum { MOST = 64 };
    int seen[MOST], num_seen = 0;
    char name[64];
    json_array_append_new(events, name_json("process_name", HOST, 0, "host"));
    json_array_append_new(events, name_json("thread_name", HOST, 0, "calls"));
    if (profile->device.type == TSR_CUDA)
        json_array_append_new(events, name_json("process_name", DEVICE, 0, profile->device_name));
    for (int64_t i = 0; i < profile->num_events; i++) {
        const tsr_profile_record *r = &profile->events[i].record;
        bool is_device = is_of_device(r);
        int track = track_of(r), key = 2 * track + is_device, at = 0;
        if (track == 0 && !is_device) continue;
        while (at < num_seen && seen[at] != key) at++;
        if (at < num_seen || num_seen == MOST) continue;
        seen[num_seen++] = key;
        snprintf(name, sizeof name, is_device ? "stream %d" : "thread %d",
                 is_device ? track : track - 1);
        json_array_append_new(events, name_json("thread_name", is_device, track, name));
    }
}

// Whether the driver call put work on a stream, so that a kernel or copy has its number. Only such calls have an arrow.
static bool is_launch(const struct profile *profile, int64_t at) {
    int64_t launch = profile->events[at].record.launch;
    enum { NEAR = 4096 };
    for (int64_t i = at + 1; i < profile->num_events && i < at + NEAR; i++)
        if (is_of_device(&profile->events[i].record) && profile->events[i].record.launch == launch)
            return true;
    return false;
}

static bool write_document(FILE *out, const void *document) {
    return json_dumpf(document, out, JSON_COMPACT | JSON_REAL_PRECISION(12)) == 0;
}

bool profile_write_trace(const char *path, const struct profile *profile) {
    json_t *events = json_array();
    int64_t first = profile->num_events > 0 ? profile->events[0].record.start_ns : 0;
    name_tracks(profile, events);
    for (int64_t i = 0; i < profile->num_events; i++) {
        const tsr_profile_record *r = &profile->events[i].record;
        double ts = 1e-3 * (double)(r->start_ns - first);
        json_array_append_new(events, event_json(profile, &profile->events[i], ts));
        if (r->launch == 0) continue;
        if (is_of_device(r))
            json_array_append_new(events, arrow_json(r, "f", ts));
        else if (r->kind == TSR_PROFILE_DRIVER && is_launch(profile, i))
            json_array_append_new(events, arrow_json(r, "s", ts));
    }
    json_t *document = json_pack("{s:o, s:s, s:{s:s, s:s, s:s}}", "traceEvents", events,
                                 "displayTimeUnit", "ns", "otherData", "program", "tessera profile",
                                 "version", tsr_version(), "device", profile->machine);
    bool is_written = file_write(path, write_document, document);
    json_decref(document);
    return is_written;
}
