// SPDX-License-Identifier: Apache-2.0
// CUPTI requests buffers, fills them and returns them, perhaps on its own thread; records are copied out at once. A
// separate record links a launch, by its correlation number, to our id. These records are joined at the end, when all
// have arrived.
#include "cuda/cuda_trace.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_system.h"
#include "cuda/cuda_cupti.h"

enum { BUFFER_BYTES = 1 << 20, MOST_RECORDS = 1 << 20 };

struct external {
    uint32_t correlation;
    int64_t id;
};

static struct {
    pthread_mutex_t lock;
    struct tsri_trace_record *records;
    struct external *externals;
    int64_t num_records, record_room, num_externals, external_room, num_lost;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const int kinds[] = {CUPTI_KIND_DRIVER, CUPTI_KIND_COPY, CUPTI_KIND_FILL, CUPTI_KIND_KERNEL,
                            CUPTI_KIND_EXTERNAL};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

static tsr_status check(const char *op, const char *call, cupti_result result) {
    const char *text = NULL;
    if (result == CUPTI_OK) return TSR_OK;
    (void)tsri_cupti()->get_result_string(result, &text);
    bool is_refused = result == CUPTI_NOT_PRIVILEGED || result == CUPTI_NOT_PRIVILEGED_VIRTUAL;
    return tsri_fail(is_refused ? TSR_UNSUPPORTED : TSR_DEVICE, "%s: CUPTI's %s gave %s%s", op,
                     call, text != NULL ? text : "an unknown error",
                     is_refused ? " (the driver keeps profiling for administrators here)" : "");
}

// ---- Gathering --------------------------------------------------------------------------------

// Makes room for one more item; false if there is no memory.
static bool grow(void **items, int64_t *room, int64_t count, size_t bytes) {
    if (count < *room) return true;
    if (count >= MOST_RECORDS) return false;
    int64_t larger = *room > 0 ? 2 * *room : 1024;
    void *moved = tsri_grow(*items, (size_t)*room * bytes, (size_t)larger * bytes);
    if (moved == NULL) return false;
    *items = moved;
    *room = larger;
    return true;
}

static void keep(const struct tsri_trace_record *record) {
    void *items = trace.records;
    if (!grow(&items, &trace.record_room, trace.num_records, sizeof *record)) {
        trace.num_lost++;
        return;
    }
    trace.records = items;
    trace.records[trace.num_records++] = *record;
}

static void keep_external(const struct cupti_external *external) {
    void *items = trace.externals;
    if (external->external_kind != CUPTI_CORRELATION_OURS) return;
    if (!grow(&items, &trace.external_room, trace.num_externals, sizeof *trace.externals)) return;
    trace.externals = items;
    trace.externals[trace.num_externals++] =
        (struct external){external->correlation, (int64_t)external->id};
}

static const char *function_name(uint32_t function) {
    const char *name = NULL;
    if (tsri_cupti()->get_callback_name(CUPTI_DOMAIN_DRIVER, function, &name) != CUPTI_OK)
        name = NULL;
    return name != NULL ? name : "a call of the driver";
}

static const char *direction_name(int direction) {
    switch (direction) {
    case CUPTI_HOST_TO_DEVICE: return "copy host to device";
    case CUPTI_DEVICE_TO_HOST: return "copy device to host";
    case CUPTI_DEVICE_TO_DEVICE: return "copy on the device";
    default: return "copy";
    }
}

// Unknown times are 0 in CUPTI's records.
static void gather(const void *data) {
    const struct cupti_call *call = data;
    const struct cupti_kernel *kernel = data;
    const struct cupti_copy *copy = data;
    const struct cupti_fill *fill = data;
    struct tsri_trace_record r = {0};
    switch (((const struct cupti_record *)data)->kind) {
    case CUPTI_KIND_DRIVER:
        r = (struct tsri_trace_record){.kind = TSRI_TRACE_CALL,
                                       .name = function_name(call->function),
                                       .start = (int64_t)call->start,
                                       .end = (int64_t)call->end,
                                       .correlation = call->correlation};
        break;
    case CUPTI_KIND_KERNEL:
        r = (struct tsri_trace_record){
            .kind = TSRI_TRACE_KERNEL,
            .name = kernel->name != NULL ? kernel->name : "a kernel",
            .start = (int64_t)kernel->start,
            .end = (int64_t)kernel->end,
            .correlation = kernel->correlation,
            .stream = kernel->stream,
            .num_blocks = (int64_t)kernel->grid_x * kernel->grid_y * kernel->grid_z,
            .block_threads = kernel->block_x * kernel->block_y * kernel->block_z,
            .num_registers = kernel->num_registers,
            .shared_bytes = kernel->static_shared + kernel->dynamic_shared};
        break;
    case CUPTI_KIND_COPY:
        r = (struct tsri_trace_record){.kind = TSRI_TRACE_COPY,
                                       .name = direction_name(copy->direction),
                                       .start = (int64_t)copy->start,
                                       .end = (int64_t)copy->end,
                                       .correlation = copy->correlation,
                                       .stream = copy->stream,
                                       .bytes = (int64_t)copy->bytes};
        break;
    case CUPTI_KIND_FILL:
        r = (struct tsri_trace_record){.kind = TSRI_TRACE_FILL,
                                       .name = "fill",
                                       .start = (int64_t)fill->start,
                                       .end = (int64_t)fill->end,
                                       .correlation = fill->correlation,
                                       .stream = fill->stream,
                                       .bytes = (int64_t)fill->bytes};
        break;
    case CUPTI_KIND_EXTERNAL: keep_external(data); return;
    default: return;
    }
    if (r.start > 0 && r.end >= r.start) keep(&r);
}

static void request(uint8_t **buffer, size_t *bytes, size_t *most_records) {
    *buffer = tsri_system.alloc(64, BUFFER_BYTES);
    *bytes = *buffer != NULL ? BUFFER_BYTES : 0; // 0: CUPTI counts the lost records
    *most_records = 0;                           // no limit
}

static void complete(cu_context context, uint32_t stream, uint8_t *buffer, size_t bytes,
                     size_t valid_bytes) {
    cupti_activity *record = NULL;
    size_t num_dropped = 0;
    (void)bytes;
    pthread_mutex_lock(&trace.lock);
    while (valid_bytes > 0 &&
           tsri_cupti()->get_next_record(buffer, valid_bytes, &record) == CUPTI_OK)
        gather(record);
    if (tsri_cupti()->get_num_dropped(context, stream, &num_dropped) == CUPTI_OK)
        trace.num_lost += (int64_t)num_dropped;
    pthread_mutex_unlock(&trace.lock);
    tsri_system.free(buffer);
}

// ---- Start and stop ---------------------------------------------------------------------------

static void forget(void) {
    tsri_system.free(trace.records);
    tsri_system.free(trace.externals);
    trace.records = NULL;
    trace.externals = NULL;
    trace.num_records = trace.record_room = trace.num_externals = trace.external_room = 0;
    trace.num_lost = 0;
}

static void disable_all(void) {
    for (int i = 0; i < NUM_KINDS; i++) (void)tsri_cupti()->disable(kinds[i]);
}

tsr_status tsri_cuda_trace_start(const char *op) {
    const struct tsri_cupti *cupti = tsri_cupti();
    if (cupti == NULL) return tsri_fail(TSR_UNSUPPORTED, "%s: %s", op, tsri_cupti_sentence());
    TSRI_TRY(check(op, "ActivityRegisterCallbacks", cupti->register_callbacks(request, complete)));
    for (int i = 0; i < NUM_KINDS; i++) {
        tsr_status status = check(op, "ActivityEnable", cupti->enable(kinds[i]));
        if (status == TSR_OK) continue;
        disable_all();
        return status;
    }
    return TSR_OK;
}

static int by_correlation(const void *a, const void *b) {
    uint32_t x = ((const struct external *)a)->correlation;
    uint32_t y = ((const struct external *)b)->correlation;
    return (x > y) - (x < y);
}

static int64_t id_of(uint32_t correlation) {
    if (trace.num_externals == 0) return 0;
    const struct external wanted = {.correlation = correlation}, *found;
    found = bsearch(&wanted, trace.externals, (size_t)trace.num_externals, sizeof wanted,
                    by_correlation);
    return found != NULL ? found->id : 0;
}

tsr_status tsri_cuda_trace_stop(const char *op, const struct tsri_cuda_queue *queue,
                                void (*visit)(void *user, const struct tsri_trace_record *record),
                                void *user, int64_t *num_lost) {
    tsr_status status = TSR_OK;
    if (queue != NULL)
        status = TSRI_CUDA(op, queue->device.driver, stream_synchronize, queue->stream);
    tsr_status flushed = check(op, "ActivityFlushAll", tsri_cupti()->flush_all(CUPTI_FLUSH_FORCED));
    disable_all();
    pthread_mutex_lock(&trace.lock);
    if (trace.num_externals > 0)
        qsort(trace.externals, (size_t)trace.num_externals, sizeof *trace.externals,
              by_correlation);
    for (int64_t i = 0; i < trace.num_records; i++) {
        trace.records[i].id = id_of(trace.records[i].correlation);
        visit(user, &trace.records[i]);
    }
    *num_lost = trace.num_lost;
    forget();
    pthread_mutex_unlock(&trace.lock);
    return status != TSR_OK ? status : flushed;
}

int64_t tsri_cuda_trace_now(void) {
    uint64_t now = 0;
    (void)tsri_cupti()->get_timestamp(&now);
    return (int64_t)now;
}

void tsri_cuda_trace_push(int64_t id) {
    (void)tsri_cupti()->push_id(CUPTI_CORRELATION_OURS, (uint64_t)id);
}

void tsri_cuda_trace_pop(void) {
    uint64_t id;
    (void)tsri_cupti()->pop_id(CUPTI_CORRELATION_OURS, &id);
}
