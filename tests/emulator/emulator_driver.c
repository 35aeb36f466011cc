// SPDX-License-Identifier: Apache-2.0
// The emulated device's CUDA driver, as far as the library uses it. Everything runs at once, except work that a stream
// captures. EMULATOR_ARCH (90, 80, 86, 120, ...) and EMULATOR_SMS select the device. EMULATOR_COPIES (early, late or
// mixed) and EMULATOR_SEED select when copies are done and in which order warps run.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda_driver.h"
#include "emulator_driver.h"
#include "emulator_tensor_map.h"

enum { INVALID_VALUE = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { L2_BYTES = 50 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char some_context;
static _Thread_local int depth;

static cu_result start(unsigned flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, emulator_device_start);
    return (void)flags, CU_OK;
}
static cu_result get_version(int *version) { return *version = 13000, CU_OK; }
static cu_result error_name(cu_result result, const char **name) {
    *name = result == CU_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
            : result == INVALID_VALUE  ? "CUDA_ERROR_INVALID_VALUE"
                                       : "an error of the emulated device";
    return CU_OK;
}
static cu_result error_string(cu_result result, const char **text) {
    *text = result == CU_LAUNCH_FAILED ? emulator_device.sentence : "no text";
    return CU_OK;
}

// ---- The device -------------------------------------------------------------------------------

// Resources of a multiprocessor by compute capability, from the CUDA programming guide, technical specifications.
static const struct {
    int first, last, shared_kib, threads;
} kinds_of_sm[] = {{80, 80, 164, 2048},   {87, 87, 164, 1536},   {90, 90, 228, 2048},
                   {100, 109, 228, 2048}, {110, 119, 228, 1536}, {0, 999, 100, 1536}};

static int kind_of_sm(void) {
    int i = 0;
    while (emulator_device.arch < kinds_of_sm[i].first ||
           emulator_device.arch > kinds_of_sm[i].last)
        i++;
    return i;
}

static int shared_of_sm(void) { return kinds_of_sm[kind_of_sm()].shared_kib << 10; }
static int shared_of_block(void) { return shared_of_sm() - (1 << 10); } // the driver keeps 1 KiB

static cu_result get_count(int *count) { return *count = 1, CU_OK; }
static cu_result get_device(cu_device *device, int ordinal) {
    return *device = 0, ordinal == 0 ? CU_OK : INVALID_VALUE;
}
static cu_result get_name(char *name, int bytes, cu_device device) {
    snprintf(name, (size_t)bytes, "emulated sm_%d", emulator_device.arch);
    return (void)device, CU_OK;
}
static cu_result get_pci_bus_id(char *id, int bytes, cu_device device) {
    snprintf(id, (size_t)bytes, "0000:00:00.0");
    return (void)device, CU_OK;
}
static cu_result get_total(size_t *bytes, cu_device device) {
    return (void)device, *bytes = EMULATOR_MEMORY_BYTES, CU_OK;
}
static cu_result get_attribute(int *value, cu_device_attribute attribute, cu_device device) {
    (void)device;
    switch (attribute) {
    case CU_ATTRIBUTE_MULTIPROCESSORS: *value = emulator_device.num_sms; break;
    case CU_ATTRIBUTE_CLOCK_KHZ: *value = 1980000; break;
    case CU_ATTRIBUTE_MEMORY_CLOCK_KHZ: *value = 2619000; break;
    case CU_ATTRIBUTE_MEMORY_BUS_BITS: *value = 5120; break;
    case CU_ATTRIBUTE_L2_BYTES: *value = L2_BYTES; break;
    case CU_ATTRIBUTE_THREADS_PER_SM: *value = kinds_of_sm[kind_of_sm()].threads; break;
    case CU_ATTRIBUTE_MAJOR: *value = emulator_device.arch / 10; break;
    case CU_ATTRIBUTE_MINOR: *value = emulator_device.arch % 10; break;
    case CU_ATTRIBUTE_SHARED_PER_SM: *value = shared_of_sm(); break;
    case CU_ATTRIBUTE_SHARED_OPTIN: *value = shared_of_block(); break;
    default: return INVALID_VALUE;
    }
    return CU_OK;
}

// ---- Contexts ---------------------------------------------------------------------------------

static cu_result retain(cu_context *context, cu_device device) {
    return (void)device, *context = (cu_context)(void *)&some_context, CU_OK;
}
// A lost context ends here.
static cu_result release(cu_device device) {
    emulator_device.is_lost = false;
    return (void)device, CU_OK;
}
static cu_result get_current(cu_context *context) {
    return *context = depth > 0 ? (cu_context)(void *)&some_context : NULL, CU_OK;
}
static cu_result push(cu_context context) { return (void)context, depth++, CU_OK; }
static cu_result pop(cu_context *context) {
    if (depth == 0) return INVALID_VALUE;
    depth--;
    return *context = (cu_context)(void *)&some_context, CU_OK;
}
static cu_result get_context_device(cu_device *device) { return *device = 0, CU_OK; }

// ---- Streams and graphs -----------------------------------------------------------------------
// A graph is the list of the work that was captured, from all participating streams.

enum step { COPY, SET, LAUNCH, RECORD };
struct work {
    struct work *next;
    enum step step;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    unsigned char value;
    struct launch launch;
    cu_event event;
};
struct cu_graph_st {
    struct work *first, **last;
    int is_open;
};
struct cu_stream_st {
    struct cu_graph_st *graph; // captures into it while it is open
};
struct cu_event_st {
    struct timespec time;
    struct cu_graph_st *graph;
};
static struct cu_stream_st default_stream;

static struct cu_stream_st *stream_of(cu_stream stream) {
    struct cu_stream_st *s = stream != NULL ? stream : &default_stream;
    if (s->graph != NULL && !s->graph->is_open) s->graph = NULL;
    return s;
}

static cu_result perform(const struct work *work) {
    cu_result result = CU_OK;
    switch (work->step) {
    case COPY: memmove(work->to, work->from, work->bytes); break;
    case SET: memset(work->to, work->value, work->bytes); break;
    case RECORD: clock_gettime(CLOCK_MONOTONIC, &work->event->time); break;
    case LAUNCH:
        pthread_mutex_lock(&lock);
        result = emulator_device.is_lost ? CU_LAUNCH_FAILED : emulator_launch(&work->launch);
        pthread_mutex_unlock(&lock);
        break;
    }
    return result;
}

static cu_result do_work(cu_stream stream, const struct work *work) {
    struct cu_graph_st *graph = stream_of(stream)->graph;
    if (graph == NULL) return emulator_device.is_lost ? CU_LAUNCH_FAILED : perform(work);
    struct work *copy = malloc(sizeof *copy);
    *copy = *work;
    if (work->step == LAUNCH) {
        const struct emulator_kernel *kernel = work->launch.kernel;
        copy->launch.params = calloc((size_t)kernel->num_params + 1, sizeof(void *));
        for (int i = 0; i < kernel->num_params; i++) {
            copy->launch.params[i] =
                aligned_alloc(128, (kernel->param_bytes[i] + 127u) / 128 * 128);
            memcpy(copy->launch.params[i], work->launch.params[i], kernel->param_bytes[i]);
        }
    }
    *graph->last = copy;
    graph->last = &copy->next;
    return CU_OK;
}

static cu_result copy_async(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream) {
    struct work work = {.step = COPY,
                        .to = (unsigned char *)(uintptr_t)to,
                        .from = (const unsigned char *)(uintptr_t)from,
                        .bytes = bytes};
    return do_work(stream, &work);
}
static cu_result set_async(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream) {
    struct work work = {
        .step = SET, .to = (unsigned char *)(uintptr_t)to, .value = value, .bytes = bytes};
    return do_work(stream, &work);
}
static cu_result stream_create(cu_stream *stream, unsigned flags) {
    return (void)flags, *stream = calloc(1, sizeof **stream), CU_OK;
}
static cu_result stream_destroy(cu_stream stream) { return free(stream), CU_OK; }
static cu_result stream_wait(cu_stream stream) {
    return (void)stream, emulator_device.is_lost ? CU_LAUNCH_FAILED : CU_OK;
}
static cu_result wait_event(cu_stream stream, cu_event event, unsigned flags) {
    if (event->graph != NULL && event->graph->is_open) stream_of(stream)->graph = event->graph;
    return (void)flags, CU_OK;
}
static cu_result is_capturing(cu_stream stream, cu_capture_status *status) {
    return *status = stream_of(stream)->graph != NULL ? 1 : CU_CAPTURE_NONE, CU_OK;
}
static cu_result begin_capture(cu_stream stream, cu_capture_mode mode) {
    struct cu_graph_st *graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    graph->is_open = 1;
    stream_of(stream)->graph = graph;
    return (void)mode, CU_OK;
}
static cu_result end_capture(cu_stream stream, cu_graph *graph) {
    *graph = stream_of(stream)->graph;
    if (*graph == NULL) return INVALID_VALUE;
    (*graph)->is_open = 0;
    return CU_OK;
}
static cu_result event_create(cu_event *event, unsigned flags) {
    return (void)flags, *event = calloc(1, sizeof **event), CU_OK;
}
static cu_result event_destroy(cu_event event) { return free(event), CU_OK; }
static cu_result event_record(cu_event event, cu_stream stream) {
    event->graph = stream_of(stream)->graph;
    return do_work(stream, &(struct work){.step = RECORD, .event = event});
}
static cu_result event_wait(cu_event event) {
    return (void)event, emulator_device.is_lost ? CU_LAUNCH_FAILED : CU_OK;
}
static cu_result elapsed(float *ms, cu_event from, cu_event to) {
    *ms = (float)(to->time.tv_sec - from->time.tv_sec) * 1e3f +
          (float)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6f;
    return CU_OK;
}
// Graphs are never freed, and an executable graph is the graph itself.
static cu_result instantiate(cu_graph_exec *exec, cu_graph graph, unsigned long long flags) {
    return (void)flags, *exec = (cu_graph_exec)(void *)graph, CU_OK;
}
static cu_result graph_launch(cu_graph_exec exec, cu_stream stream) {
    cu_result result = CU_OK;
    (void)stream;
    for (const struct work *w = ((cu_graph)(void *)exec)->first; w != NULL && result == CU_OK;
         w = w->next)
        result = perform(w);
    return result;
}
static cu_result graph_destroy(cu_graph graph) { return (void)graph, CU_OK; }
static cu_result exec_destroy(cu_graph_exec exec) { return (void)exec, CU_OK; }

// ---- Kernels ----------------------------------------------------------------------------------

static cu_result get_function(cu_function *function, cu_kernel kernel) {
    return *function = (cu_function)(void *)kernel, CU_OK;
}
static cu_result set_attribute(cu_function_attribute attribute, int value, cu_kernel kernel,
                               cu_device device) {
    (void)device;
    if (attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED) return NOT_SUPPORTED;
    if (value + (int)kernel->static_bytes > shared_of_block()) return INVALID_VALUE;
    kernel->max_dynamic = (unsigned)value;
    return CU_OK;
}
static cu_result launch(const cu_launch *config, cu_function function, void **params,
                        void **extra) {
    const struct cu_kernel_st *kernel = (const void *)function;
    struct work work = {.step = LAUNCH,
                        .launch = {.kernel = kernel->kernel,
                                   .name = kernel->name,
                                   .params = params,
                                   .grid = {config->grid_x, config->grid_y, config->grid_z},
                                   .size = {config->block_x, config->block_y, config->block_z},
                                   .cluster = 1,
                                   .static_bytes = kernel->static_bytes,
                                   .dynamic_bytes = config->shared_bytes}};
    (void)extra;
    *kernel->table = &emulator_table;
    for (unsigned i = 0; i < config->num_attributes; i++)
        if (config->attributes[i].id == CU_LAUNCH_CLUSTER)
            work.launch.cluster = config->attributes[i].value.cluster[0];
    unsigned threads = config->block_x * config->block_y * config->block_z;
    if (threads == 0 || threads > 1024 || config->grid_x == 0 || config->grid_y == 0 ||
        config->grid_z == 0 || config->grid_y > 65535 || config->grid_z > 65535)
        return INVALID_VALUE;
    if (config->shared_bytes > kernel->max_dynamic) return INVALID_VALUE;
    if (work.launch.cluster == 0 || work.launch.cluster > 8 ||
        config->grid_x % work.launch.cluster != 0 ||
        (work.launch.cluster > 1 && emulator_device.arch < 90))
        return INVALID_VALUE;
    return do_work(config->stream, &work);
}

static cu_result encode_map(cu_tensor_map *map, cu_map_type type, uint32_t rank, void *data,
                            const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                            const uint32_t *steps, cu_map_interleave interleave,
                            cu_map_swizzle swizzle, cu_map_promotion promotion, cu_map_fill fill) {
    struct emulator_map m = {.data = data,
                             .rank = (int)rank,
                             .is_f32 = type == CU_MAP_F32,
                             .is_tf32 = type == CU_MAP_TF32,
                             .element_bytes = type == CU_MAP_U8                           ? 1
                                              : type == CU_MAP_F32 || type == CU_MAP_TF32 ? 4
                                                                                          : 2,
                             .is_swizzled = swizzle == CU_MAP_SWIZZLE_128};
    (void)promotion;
    if (rank == 0 || rank > MAP_RANK || interleave != CU_MAP_NOT_INTERLEAVED ||
        fill != CU_MAP_FILL_ZEROS || (swizzle != CU_MAP_SWIZZLE_NONE && !m.is_swizzled))
        return NOT_SUPPORTED;
    for (uint32_t i = 0; i < rank; i++) {
        if (steps[i] != 1) return NOT_SUPPORTED;
        m.size[i] = size[i];
        m.box[i] = box[i];
        if (i > 0) m.stride[i] = stride[i - 1];
    }
    return emulator_map_pack(map, &m) ? CU_OK : INVALID_VALUE;
}

// ---- The table --------------------------------------------------------------------------------

static const struct tsri_cuda_driver table = {
    .init = start,
    .driver_get_version = get_version,
    .get_error_name = error_name,
    .get_error_string = error_string,
    .device_get_count = get_count,
    .device_get = get_device,
    .device_get_name = get_name,
    .device_get_pci_bus_id = get_pci_bus_id,
    .device_total_mem = get_total,
    .device_get_attribute = get_attribute,
    .primary_ctx_retain = retain,
    .primary_ctx_release = release,
    .ctx_get_current = get_current,
    .ctx_push_current = push,
    .ctx_pop_current = pop,
    .ctx_get_device = get_context_device,
    .mem_get_info = emulator_memory_info,
    .mem_alloc = emulator_memory_alloc,
    .mem_free = emulator_memory_free,
    .memcpy_async = copy_async,
    .memset_async = set_async,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_wait,
    .stream_wait_event = wait_event,
    .stream_is_capturing = is_capturing,
    .stream_begin_capture = begin_capture,
    .stream_end_capture = end_capture,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_synchronize = event_wait,
    .event_elapsed_time = elapsed,
    .graph_instantiate = instantiate,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .graph_exec_destroy = exec_destroy,
    .library_load_data = emulator_library_load,
    .library_unload = emulator_library_unload,
    .library_get_kernel = emulator_library_kernel,
    .kernel_get_function = get_function,
    .kernel_set_attribute = set_attribute,
    .launch_kernel_ex = launch,
    .tensor_map_encode = encode_map,
};

__attribute__((visibility("default"))) cu_result
cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *query);
cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                              int *query) {
    (void)version, (void)flags, (void)query;
    *function = NULL;
#define FIND(field, cuda_name, parameters)                                                         \
    if (strcmp(name, #cuda_name) == 0) memcpy(function, &table.field, sizeof *function);
    TSRI_CUDA_DRIVER_FUNCTIONS(FIND)
#undef FIND
    return *function != NULL ? CU_OK : NOT_FOUND;
}
