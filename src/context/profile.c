// SPDX-License-Identifier: Apache-2.0
// A recording: host spans in its own list, device spans in CUPTI's buffers, and ids that join them. Each span knows its
// parent, so a thread remembers only its innermost span, at any depth.
#define _GNU_SOURCE
#include "context/profile_internal.h"

#include <pthread.h>
#include <time.h>

#include "context/context_state.h"
#include "core/core_float.h"
#include "core/core_status.h"
#include "core/core_system.h"
#include "cuda/cuda_trace.h"

enum { MOST_SPANS = 1 << 20 };

struct span {
    tsr_profile_kind kind;
    const char *name, *variant;
    int64_t parent, start, end; // end 0: still open
    int thread;
};

atomic_bool tsri_is_profiling;

static struct {
    pthread_mutex_t lock;
    tsr_context *ctx; // of the current recording
    struct span *spans;
    int64_t count, room, num_lost;
    int number; // of the recording, from 1; changes when it ends
} recording = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_bool is_on_device; // uses CUPTI's clock and marks

// This thread's innermost kept span, by id, and the number of open spans inside it that could not be kept. Spans inside
// an unkept one are not kept either: they would get the wrong parent.
static _Thread_local struct {
    int64_t id, num_unkept;
    int number;
} open_spans;

// ---- Spans ------------------------------------------------------------------------------------

int64_t tsri_profile_now(void) {
    struct timespec now;
    if (atomic_load(&is_on_device)) return tsri_cuda_trace_now();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Adds a span and returns its id; 0 if there is no room. The caller holds the lock.
static int64_t add(const struct span *span) {
    if (recording.count == recording.room) {
        int64_t larger = recording.room > 0 ? 2 * recording.room : 1024;
        struct span *moved =
            larger <= MOST_SPANS
                ? tsri_grow(recording.spans, (size_t)recording.room * sizeof *moved,
                            (size_t)larger * sizeof *moved)
                : NULL;
        if (moved == NULL) return recording.num_lost++, 0;
        recording.spans = moved;
        recording.room = larger;
    }
    recording.spans[recording.count++] = *span;
    return recording.count;
}

struct tsri_profile_mark tsri_profile_mark(void) {
    return (struct tsri_profile_mark){open_spans.num_unkept > 0 ? -1 : open_spans.id,
                                      open_spans.number};
}

// The mark pushed to CUPTI. It contains the recording's number, because ids of an earlier recording may never have been
// popped.
static int64_t mark_of(int64_t id) { return (int64_t)open_spans.number << 32 | id; }

static int64_t id_of(int64_t mark) {
    return mark >> 32 == recording.number ? mark & INT64_C(0xffffffff) : 0;
}

static int64_t open_span(tsr_profile_kind kind, const char *name) {
    int64_t id = 0;
    pthread_mutex_lock(&recording.lock);
    if (recording.ctx != NULL) {
        if (open_spans.number != recording.number) // left from an earlier recording
            open_spans.id = open_spans.num_unkept = 0;
        open_spans.number = recording.number;
        struct span span = {.kind = kind, .name = name, .parent = open_spans.id};
        if (open_spans.num_unkept == 0)
            id = add(&span);
        else
            recording.num_lost++;
    }
    pthread_mutex_unlock(&recording.lock);
    if (id > 0)
        open_spans.id = id;
    else
        open_spans.num_unkept++;
    if (id > 0 && atomic_load(&is_on_device)) tsri_cuda_trace_push(mark_of(id));
    int64_t now = id > 0 ? tsri_profile_now() : 0; // excludes the recorder's own work
    pthread_mutex_lock(&recording.lock);
    if (id > 0 && open_spans.number == recording.number) recording.spans[id - 1].start = now;
    pthread_mutex_unlock(&recording.lock);
    return id;
}

static void close_span(int64_t id, const char *variant) {
    int64_t now = id > 0 ? tsri_profile_now() : 0;
    if (id > 0 && atomic_load(&is_on_device)) tsri_cuda_trace_pop();
    pthread_mutex_lock(&recording.lock);
    bool is_ours = id > 0 && open_spans.number == recording.number;
    if (is_ours) recording.spans[id - 1].end = now;
    if (is_ours) recording.spans[id - 1].variant = variant;
    if (is_ours) open_spans.id = recording.spans[id - 1].parent;
    pthread_mutex_unlock(&recording.lock);
    if (id > 0)
        open_spans.num_unkept = 0;
    else if (open_spans.num_unkept > 0)
        open_spans.num_unkept--;
}

int64_t tsri_profile_open_call(const char *op) { return open_span(TSR_PROFILE_CALL, op); }

void tsri_profile_close_call(int64_t id, const char *variant) { close_span(id, variant); }

void tsri_profile_thread(struct tsri_profile_mark mark, int thread, int64_t start_ns) {
    struct span span = {.kind = TSR_PROFILE_THREAD,
                        .name = "",
                        .parent = mark.id,
                        .start = start_ns,
                        .end = tsri_profile_now(),
                        .thread = thread};
    pthread_mutex_lock(&recording.lock);
    if (recording.ctx != NULL && mark.recording == recording.number) {
        if (mark.id >= 0)
            (void)add(&span);
        else
            recording.num_lost++;
    }
    pthread_mutex_unlock(&recording.lock);
}

void tsr_profile_begin(const char *name) {
    if (tsri_profile_is_on()) (void)open_span(TSR_PROFILE_RANGE, name != NULL ? name : "");
}

void tsr_profile_end(void) {
    if (tsri_profile_is_on()) close_span(open_spans.num_unkept > 0 ? 0 : open_spans.id, NULL);
}

// ---- Start and stop ---------------------------------------------------------------------------

// A forked child records nothing: another thread may have been writing the parent's data, under the lock.
static void forget_recording(void) {
    pthread_mutex_init(&recording.lock, NULL);
    atomic_store(&tsri_is_profiling, false);
    atomic_store(&is_on_device, false);
    recording.ctx = NULL;
    recording.spans = NULL;
    recording.count = recording.room = recording.num_lost = 0;
    recording.number++;
}

// If at_fork is refused, recordings still work, except in a forked child.
static void begin_to_watch_forks(void) { (void)tsri_system.at_fork(NULL, NULL, forget_recording); }

tsr_status tsr_profile_start(tsr_context *ctx) {
    static const char op[] = "profile_start";
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct tsri_cuda_visit visit;
    bool is_taken;
    if (ctx == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: ctx is NULL, expected a context", op);
    TSRI_TRY(tsri_check_usable(ctx, op));
    pthread_once(&once, begin_to_watch_forks);
    pthread_mutex_lock(&recording.lock);
    is_taken = recording.ctx != NULL;
    if (!is_taken) recording.ctx = ctx;
    if (!is_taken) recording.number++;
    pthread_mutex_unlock(&recording.lock);
    if (is_taken)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: a recording is under way, expected tsr_profile_stop before", op);
    tsr_status status = tsri_context_enter(ctx, op, &visit);
    if (status == TSR_OK)
        status =
            tsri_context_leave(ctx, &visit, is_on_cuda(ctx) ? tsri_cuda_trace_start(op) : TSR_OK);
    if (status != TSR_OK) {
        pthread_mutex_lock(&recording.lock);
        recording.ctx = NULL;
        pthread_mutex_unlock(&recording.lock);
        return status;
    }
    atomic_store(&is_on_device, is_on_cuda(ctx));
    atomic_store(&tsri_is_profiling, true);
    return TSR_OK;
}

struct giving {
    tsr_profile_visit visit;
    void *user;
};

// The operation of the innermost call at or around a span.
static const char *op_of(int64_t id) {
    while (id > 0 && id <= recording.count) {
        const struct span *span = &recording.spans[id - 1];
        if (span->kind == TSR_PROFILE_CALL) return span->name;
        id = span->parent;
    }
    return "";
}

// Thread spans get no id, because nothing can be inside them. So ids follow the order of starts only among calls and
// ranges.
static void give_spans(const struct giving *giving, int64_t now) {
    for (int64_t i = 0; i < recording.count; i++) {
        const struct span *span = &recording.spans[i];
        bool is_thread = span->kind == TSR_PROFILE_THREAD;
        if (span->start == 0) continue; // it had not begun yet
        const char *op = op_of(is_thread ? span->parent : i + 1);
        tsr_profile_record record = {.kind = span->kind,
                                     .name = is_thread ? op : span->name,
                                     .op = op,
                                     .variant = span->variant != NULL ? span->variant : "",
                                     .id = is_thread ? 0 : i + 1,
                                     .parent = span->parent,
                                     .start_ns = span->start,
                                     .end_ns = span->end > 0 ? span->end : now,
                                     .thread = span->thread};
        if (giving->visit != NULL) giving->visit(giving->user, &record);
    }
}

static void give_trace(void *user, const struct tsri_trace_record *r) {
    static const tsr_profile_kind kinds[] = {
        [TSRI_TRACE_CALL] = TSR_PROFILE_DRIVER,
        [TSRI_TRACE_KERNEL] = TSR_PROFILE_KERNEL,
        [TSRI_TRACE_COPY] = TSR_PROFILE_COPY,
        [TSRI_TRACE_FILL] = TSR_PROFILE_FILL,
    };
    const struct giving *giving = user;
    tsr_profile_record record = {.kind = kinds[r->kind],
                                 .name = r->name,
                                 .op = op_of(id_of(r->id)),
                                 .variant = "",
                                 .parent = id_of(r->id),
                                 .launch = r->correlation,
                                 .start_ns = r->start,
                                 .end_ns = r->end,
                                 .stream = (int32_t)r->stream,
                                 .bytes = r->bytes,
                                 .num_blocks = r->num_blocks,
                                 .block_threads = r->block_threads,
                                 .num_registers = r->num_registers,
                                 .shared_bytes = r->shared_bytes};
    if (giving->visit != NULL) giving->visit(giving->user, &record);
}

static tsr_status stop(tsr_context *ctx, tsr_profile_visit visit, void *user, int64_t *num_lost) {
    static const char op[] = "profile_stop";
    struct giving giving = {visit, user};
    int64_t lost_on_device = 0;
    struct tsri_cuda_visit there;
    pthread_mutex_lock(&recording.lock);
    bool is_ours = ctx != NULL && recording.ctx == ctx;
    pthread_mutex_unlock(&recording.lock);
    if (!is_ours)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: no recording is under way on this context, expected "
                         "tsr_profile_start before",
                         op);
    atomic_store(&tsri_is_profiling, false);
    // Spans that other threads still hold open end here; these threads later find another recording or none. The time
    // is taken under the lock, so it is later than every start.
    pthread_mutex_lock(&recording.lock);
    give_spans(&giving, tsri_profile_now());
    tsr_status status = TSR_OK;
    if (is_on_cuda(ctx)) {
        status = tsri_context_enter(ctx, op, &there);
        bool is_entered = status == TSR_OK; // CUPTI must end in any case
        tsr_status ended = tsri_cuda_trace_stop(op, is_entered ? &ctx->queue : NULL, give_trace,
                                                &giving, &lost_on_device);
        if (is_entered) status = tsri_context_leave(ctx, &there, ended);
    }
    atomic_store(&is_on_device, false);
    if (num_lost != NULL) *num_lost = recording.num_lost + lost_on_device;
    tsri_system.free(recording.spans);
    recording.spans = NULL;
    recording.count = recording.room = recording.num_lost = 0;
    recording.ctx = NULL;
    recording.number++;
    pthread_mutex_unlock(&recording.lock);
    return status;
}

// visit is called in the library's floating-point environment.
tsr_status tsr_profile_stop(tsr_context *ctx, tsr_profile_visit visit, void *user,
                            int64_t *num_lost) {
    tsri_float_environment before;
    tsri_float_enter_foreign(&before);
    tsr_status status = stop(ctx, visit, user, num_lost);
    tsri_float_leave_foreign(&before);
    return status;
}

// Every destroyed context calls this: no lock if nothing is recorded.
void tsri_profile_leave(tsr_context *ctx) {
    if (!tsri_profile_is_on()) return;
    pthread_mutex_lock(&recording.lock);
    bool is_ours = recording.ctx == ctx;
    pthread_mutex_unlock(&recording.lock);
    if (is_ours) (void)tsr_profile_stop(ctx, NULL, NULL, NULL);
}
