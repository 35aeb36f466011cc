// SPDX-License-Identifier: Apache-2.0
// Devices, memory, streams, events and graphs of tessera/device.h, on top of the driver.
#include <tessera/device.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "context/context_state.h"
#include "core/core_float.h"
#include "core/core_system.h"
#include "core/core_tensor.h"
#include "cpu/cpu_limits.h"
#include "cuda/cuda_nvml.h"
#include "cuda/cuda_nvrtc.h"

// ---- Devices ----------------------------------------------------------------------------------

int32_t tsr_device_count(tsr_device_type type) {
    return type == TSR_CPU ? 1 : type == TSR_CUDA ? tsri_cuda_device_count() : 0;
}

const char *tsr_device_name(tsr_device device) { return tsri_device_text(device); }

static tsr_status check_struct(const char *op, const void *given, size_t bytes, size_t known) {
    if (given != NULL && bytes >= sizeof bytes && bytes <= 65536) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: size is %zu, expected %zu (use the macro)", op,
                     given != NULL ? bytes : 0, known);
}

static TSRI_NOT_INLINED tsr_status get_info(tsr_device device, tsr_device_info *info) {
    static const char op[] = "device_info_get";
    struct tsri_cuda_properties p;
    TSRI_TRY(check_struct(op, info, info != NULL ? info->size : 0, sizeof *info));
    if (device.type != TSR_CUDA)
        return tsri_fail(TSR_UNSUPPORTED, "%s: device is %s, expected a CUDA device", op,
                         tsri_device_text(device));
    TSRI_TRY(tsri_cuda_device_properties(op, device.index, &p));
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    tsr_device_info all = {
        .size = info->size,
        .driver_version = tsri_cuda_driver_version(),
        .nvrtc_version = nvrtc != NULL ? 1000 * nvrtc->major + 10 * nvrtc->minor : 0,
        .num_sms = p.num_sms,
        .max_threads_per_sm = p.max_threads_per_sm,
        .shared_bytes_per_block = p.shared_bytes_per_block,
        .shared_bytes_per_sm = p.shared_bytes_per_sm,
        .l2_bytes = p.l2_bytes,
        .memory_bytes = p.memory_bytes,
        .clock_mhz = 1e-3 * p.clock_khz,
        .memory_clock_mhz = 1e-3 * p.memory_clock_khz,
        .memory_bus_bits = p.memory_bus_bits,
    };
    memcpy(all.name, p.name, sizeof all.name);
    memcpy(all.arch, p.arch, sizeof all.arch);
    memcpy(info, &all, info->size < sizeof all ? info->size : sizeof all);
    return TSR_OK;
}

tsr_status tsr_device_info_get(tsr_device device, tsr_device_info *info) {
    tsri_float_environment before;
    tsri_float_enter_foreign(&before);
    tsr_status status = get_info(device, info);
    tsri_float_leave_foreign(&before);
    return status;
}

static TSRI_NOT_INLINED tsr_status get_sensors(tsr_device device, tsr_device_sensors *sensors) {
    static const char op[] = "device_sensors_get";
    struct tsri_cuda_properties p;
    struct tsri_cuda_sensors seen;
    TSRI_TRY(check_struct(op, sensors, sensors != NULL ? sensors->size : 0, sizeof *sensors));
    if (device.type != TSR_CUDA)
        return tsri_fail(TSR_UNSUPPORTED, "%s: device is %s, expected a CUDA device", op,
                         tsri_device_text(device));
    TSRI_TRY(tsri_cuda_device_properties(op, device.index, &p));
    (void)tsri_cuda_sensors_read(p.pci_bus_id, &seen);
    tsr_device_sensors all = {sensors->size,        seen.sm_clock_mhz,  seen.memory_clock_mhz,
                              seen.power_w,         seen.power_limit_w, seen.temperature_c,
                              seen.throttle_reasons};
    memcpy(sensors, &all, sensors->size < sizeof all ? sensors->size : sizeof all);
    return TSR_OK;
}

tsr_status tsr_device_sensors_get(tsr_device device, tsr_device_sensors *sensors) {
    tsri_float_environment before;
    tsri_float_enter_foreign(&before);
    tsr_status status = get_sensors(device, sensors);
    tsri_float_leave_foreign(&before);
    return status;
}

tsr_device tsr_context_device(const tsr_context *ctx) { return ctx->limits.device; }

// ---- A call on the device ---------------------------------------------------------------------

static tsr_status check(const tsr_context *ctx, const char *op, const void *argument,
                        const char *name) {
    if (ctx == NULL || argument == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is NULL, expected %s", op,
                         ctx == NULL ? "ctx" : name, ctx == NULL ? "a context" : "an address");
    return tsri_check_usable(ctx, op);
}

static tsr_status check_cuda(const tsr_context *ctx, const char *op, const void *argument,
                             const char *name) {
    TSRI_TRY(check(ctx, op, argument, name));
    if (is_on_cuda(ctx)) return TSR_OK;
    return tsri_fail(TSR_UNSUPPORTED, "%s: the context is on the cpu, expected one on CUDA", op);
}

// Calls the driver with the context's device current.
#define ON_DEVICE(ctx, op, function, ...)                                                          \
    do {                                                                                           \
        struct tsri_cuda_visit visit_;                                                             \
        TSRI_TRY(tsri_context_enter((ctx), (op), &visit_));                                        \
        TSRI_TRY(tsri_context_leave(                                                               \
            (ctx), &visit_, TSRI_CUDA((op), (ctx)->queue.device.driver, function, __VA_ARGS__)));  \
    } while (0)

// ---- Memory -----------------------------------------------------------------------------------

tsr_status tsr_memory_alloc(tsr_context *ctx, size_t bytes, void **pointer) {
    static const char op[] = "memory_alloc";
    enum { ALIGNMENT = 256 };
    TSRI_TRY(check(ctx, op, pointer, "pointer"));
    *pointer = NULL;
    if (bytes == 0) bytes = 1;
    if (is_on_cuda(ctx)) {
        cu_pointer memory = 0;
        ON_DEVICE(ctx, op, mem_alloc, &memory, bytes);
        *pointer = (void *)(uintptr_t)memory;
        return TSR_OK;
    }
    if (bytes <= SIZE_MAX - ALIGNMENT)
        *pointer = tsri_system.alloc(ALIGNMENT, tsri_round_up(bytes, ALIGNMENT));
    if (*pointer != NULL) return TSR_OK;
    return tsri_fail(TSR_OUT_OF_MEMORY, "%s: the system has no %zu bytes", op, bytes);
}

tsr_status tsr_memory_free(tsr_context *ctx, void *pointer) {
    static const char op[] = "memory_free";
    if (pointer == NULL) return TSR_OK;
    TSRI_TRY(check(ctx, op, pointer, "pointer"));
    if (!is_on_cuda(ctx)) {
        tsri_system.free(pointer);
        return TSR_OK;
    }
    ON_DEVICE(ctx, op, stream_synchronize, ctx->queue.stream);
    ON_DEVICE(ctx, op, mem_free, (cu_pointer)(uintptr_t)pointer);
    return TSR_OK;
}

tsr_status tsr_memory_copy(tsr_context *ctx, void *to, const void *from, size_t bytes) {
    static const char op[] = "memory_copy";
    if (bytes == 0) return TSR_OK;
    TSRI_TRY(check(ctx, op, to, "to"));
    TSRI_TRY(check(ctx, op, from, "from"));
    if (is_on_cuda(ctx))
        ON_DEVICE(ctx, op, memcpy_async, (cu_pointer)(uintptr_t)to, (cu_pointer)(uintptr_t)from,
                  bytes, ctx->queue.stream);
    else
        memmove(to, from, bytes);
    return TSR_OK;
}

tsr_status tsr_memory_fill(tsr_context *ctx, void *pointer, int byte, size_t bytes) {
    static const char op[] = "memory_fill";
    if (bytes == 0) return TSR_OK;
    TSRI_TRY(check(ctx, op, pointer, "pointer"));
    if (is_on_cuda(ctx))
        ON_DEVICE(ctx, op, memset_async, (cu_pointer)(uintptr_t)pointer, (unsigned char)byte, bytes,
                  ctx->queue.stream);
    else
        memset(pointer, byte, bytes);
    return TSR_OK;
}

int64_t tsr_memory_available(tsr_context *ctx) {
    size_t available = 0, total = 0;
    struct tsri_cuda_visit visit;
    if (ctx == NULL || !is_on_cuda(ctx)) return tsri_memory_available();
    if (ctx->is_lost) return -1;
    if (tsri_context_enter(ctx, "memory_available", &visit) != TSR_OK) return -1;
    tsr_status status =
        TSRI_CUDA("memory_available", ctx->queue.device.driver, mem_get_info, &available, &total);
    return tsri_context_leave(ctx, &visit, status) == TSR_OK ? (int64_t)available : -1;
}

tsr_status tsr_context_synchronize(tsr_context *ctx) {
    static const char op[] = "context_synchronize";
    TSRI_TRY(check(ctx, op, ctx, "ctx"));
    if (is_on_cuda(ctx)) ON_DEVICE(ctx, op, stream_synchronize, ctx->queue.stream);
    return TSR_OK;
}

// ---- Streams ----------------------------------------------------------------------------------

tsr_status tsr_context_set_stream(tsr_context *ctx, void *stream) {
    TSRI_TRY(check_cuda(ctx, "context_set_stream", ctx, "ctx"));
    ctx->queue.stream = stream;
    return TSR_OK;
}

void *tsr_context_stream(const tsr_context *ctx) { return ctx->queue.stream; }

tsr_status tsr_stream_create(tsr_context *ctx, void **stream) {
    static const char op[] = "stream_create";
    cu_stream made = NULL;
    TSRI_TRY(check_cuda(ctx, op, stream, "stream"));
    *stream = NULL;
    ON_DEVICE(ctx, op, stream_create, &made, CU_STREAM_NON_BLOCKING_FLAG);
    *stream = made;
    return TSR_OK;
}

tsr_status tsr_stream_destroy(tsr_context *ctx, void *stream) {
    static const char op[] = "stream_destroy";
    if (stream == NULL) return TSR_OK;
    TSRI_TRY(check_cuda(ctx, op, stream, "stream"));
    ON_DEVICE(ctx, op, stream_synchronize, stream);
    if (ctx->queue.stream == stream) ctx->queue.stream = NULL;
    if (ctx->arena_stream == stream) ctx->arena_stream = ctx->queue.stream; // it is idle
    ON_DEVICE(ctx, op, stream_destroy, stream);
    return TSR_OK;
}

// ---- Events: a handle is the driver's own ------------------------------------------------------

tsr_status tsr_event_create(tsr_context *ctx, tsr_event **event) {
    static const char op[] = "event_create";
    cu_event made = NULL;
    TSRI_TRY(check_cuda(ctx, op, event, "event"));
    *event = NULL;
    ON_DEVICE(ctx, op, event_create, &made, 0);
    *event = (tsr_event *)made;
    return TSR_OK;
}

tsr_status tsr_event_record(tsr_context *ctx, tsr_event *event) {
    static const char op[] = "event_record";
    TSRI_TRY(check_cuda(ctx, op, event, "event"));
    ON_DEVICE(ctx, op, event_record, (cu_event)(void *)event, ctx->queue.stream);
    return TSR_OK;
}

tsr_status tsr_event_elapsed(tsr_context *ctx, tsr_event *start, tsr_event *end, double *ms) {
    static const char op[] = "event_elapsed";
    float elapsed = 0;
    TSRI_TRY(check_cuda(ctx, op, start, "start"));
    TSRI_TRY(check_cuda(ctx, op, end, "end"));
    TSRI_TRY(check_cuda(ctx, op, ms, "ms"));
    ON_DEVICE(ctx, op, event_synchronize, (cu_event)(void *)end);
    ON_DEVICE(ctx, op, event_elapsed_time, &elapsed, (cu_event)(void *)start,
              (cu_event)(void *)end);
    *ms = (double)elapsed;
    return TSR_OK;
}

void tsr_event_destroy(tsr_context *ctx, tsr_event *event) {
    struct tsri_cuda_visit visit;
    if (ctx == NULL || event == NULL || ctx->is_lost || !is_on_cuda(ctx)) return;
    if (tsri_context_enter(ctx, "event_destroy", &visit) != TSR_OK) return;
    (void)ctx->queue.device.driver->event_destroy((cu_event)(void *)event);
    (void)tsri_context_leave(ctx, &visit, TSR_OK);
}

// ---- Graphs -----------------------------------------------------------------------------------

tsr_status tsr_graph_begin(tsr_context *ctx) {
    static const char op[] = "graph_begin";
    TSRI_TRY(check_cuda(ctx, op, ctx, "ctx"));
    if (ctx->queue.stream == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: the context is on the default stream, which cannot be captured, "
                         "expected one that tsr_stream_create gave",
                         op);
    ON_DEVICE(ctx, op, stream_begin_capture, ctx->queue.stream, CU_CAPTURE_MODE_THREAD_LOCAL);
    return TSR_OK;
}

tsr_status tsr_graph_end(tsr_context *ctx, tsr_graph **graph) {
    static const char op[] = "graph_end";
    cu_graph captured = NULL;
    cu_graph_exec made = NULL;
    struct tsri_cuda_visit visit;
    TSRI_TRY(check_cuda(ctx, op, graph, "graph"));
    *graph = NULL;
    const struct tsri_cuda_driver *driver = ctx->queue.device.driver;
    TSRI_TRY(tsri_context_enter(ctx, op, &visit));
    tsr_status status = TSRI_CUDA(op, driver, stream_end_capture, ctx->queue.stream, &captured);
    if (status == TSR_OK) status = TSRI_CUDA(op, driver, graph_instantiate, &made, captured, 0);
    if (captured != NULL) (void)driver->graph_destroy(captured);
    *graph = (tsr_graph *)made;
    return tsri_context_leave(ctx, &visit, status);
}

tsr_status tsr_graph_launch(tsr_context *ctx, tsr_graph *graph) {
    static const char op[] = "graph_launch";
    TSRI_TRY(check_cuda(ctx, op, graph, "graph"));
    struct tsri_cuda_visit visit;
    TSRI_TRY(tsri_context_enter(ctx, op, &visit));
    return tsri_context_leave(ctx, &visit,
                              context_cuda_launch_graph(ctx, op, (cu_graph_exec)(void *)graph));
}

void tsr_graph_destroy(tsr_context *ctx, tsr_graph *graph) {
    struct tsri_cuda_visit visit;
    if (ctx == NULL || graph == NULL || ctx->is_lost || !is_on_cuda(ctx)) return;
    if (tsri_context_enter(ctx, "graph_destroy", &visit) != TSR_OK) return;
    (void)ctx->queue.device.driver->graph_exec_destroy((cu_graph_exec)(void *)graph);
    (void)tsri_context_leave(ctx, &visit, TSR_OK);
}
