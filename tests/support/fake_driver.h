// SPDX-License-Identifier: Apache-2.0
// The tests' own CUDA driver: one GPU of 4 multiprocessors, whose memory is host memory and whose kernels do nothing.
// It counts the requests and refuses those that a test selects. One test program includes this file.
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdatomic.h>

#include "cuda/cuda_driver.h"
#include "test_support.h"

enum { OTHER_ERROR = 1 };

static struct {
    cu_context stack[8]; // contexts made current
    int depth, num_retained, num_calls;
    int num_memory, num_requests, fail_at; // device memory: live, requested, refused
    int num_objects;                       // live streams, events, graphs, libraries
    atomic_int num_programs;               // NVRTC programs; threads create them concurrently
    int num_launches, num_loads, num_records, num_waits, num_synchronised;
    int allowed_shared;          // bytes per block, as last requested
    int num_requests_of_kernels; // for functions, for more shared memory, and for a stream's capture status
    bool is_capturing;
    cu_result launch_result, load_result;
    struct cu_launch_config launched;
    int attribute_ids[2]; // of the last launch
    unsigned char params[256];
    int arch;         // 0 means 90
    int shared_bytes; // per block; 0 means 232448
    int num_maps;
    struct {
        cu_map_type type;
        const void *data;
        uint64_t size[5], stride[4];
        uint32_t box[5];
        cu_map_swizzle swizzle;
    } maps[8]; // the maps that were requested
    cu_result map_result;
} fake;

__attribute__((unused)) static char primary_context, own_context, some_stream, other_stream,
    some_handle;
#define AS(type, object) ((type)(void *)&(object))

// Returns whether the driver refuses this call. NULL: it refuses none. A function that releases something releases it
// and then reports a failure, as a driver does when an earlier kernel failed.
static bool (*fake_refuses)(void);
#define FAKE_REFUSABLE                                                                             \
    if (fake_refuses != NULL && fake_refuses()) return CU_OUT_OF_MEMORY
static inline cu_result fake_gives_back(void) {
    FAKE_REFUSABLE;
    return CU_OK;
}

static cu_result fake_init(unsigned flags) {
    FAKE_REFUSABLE;
    return (void)flags, CU_OK;
}
static cu_result fake_version(int *version) {
    FAKE_REFUSABLE;
    return *version = 13000, CU_OK;
}
static cu_result fake_error(cu_result result, const char **text) {
    FAKE_REFUSABLE;
    return *text = result == CU_ILLEGAL_ADDRESS ? "an illegal address" : "a refusal", CU_OK;
}
static cu_result fake_count(int *count) {
    FAKE_REFUSABLE;
    return *count = 1, CU_OK;
}
static cu_result fake_device(cu_device *device, int ordinal) {
    FAKE_REFUSABLE;
    return *device = ordinal, CU_OK;
}
static cu_result fake_name(char *name, int bytes, cu_device device) {
    FAKE_REFUSABLE;
    (void)device;
    snprintf(name, (size_t)bytes, "Fake GPU");
    return CU_OK;
}
static cu_result fake_total(size_t *bytes, cu_device device) {
    FAKE_REFUSABLE;
    return (void)device, *bytes = (size_t)1 << 30, CU_OK;
}
static cu_result fake_attribute(int *value, cu_device_attribute attribute, cu_device device) {
    FAKE_REFUSABLE;
    (void)device;
    const int arch = fake.arch > 0 ? fake.arch : 90;
    *value = attribute == CU_ATTRIBUTE_MAJOR             ? arch / 10
             : attribute == CU_ATTRIBUTE_MINOR           ? arch % 10
             : attribute == CU_ATTRIBUTE_MULTIPROCESSORS ? 4
             : attribute != CU_ATTRIBUTE_SHARED_OPTIN    ? 65536
             : fake.shared_bytes > 0                     ? fake.shared_bytes
                                                         : 232448;
    return CU_OK;
}
static cu_result fake_retain(cu_context *context, cu_device device) {
    FAKE_REFUSABLE;
    return (void)device, fake.num_retained++, *context = AS(cu_context, primary_context), CU_OK;
}
static cu_result fake_release(cu_device device) {
    return (void)device, fake.num_retained--, fake_gives_back();
}
static cu_result fake_get_current(cu_context *context) {
    FAKE_REFUSABLE;
    fake.num_calls++;
    return *context = fake.depth > 0 ? fake.stack[fake.depth - 1] : NULL, CU_OK;
}
static cu_result fake_push(cu_context context) {
    FAKE_REFUSABLE;
    return fake.stack[fake.depth++] = context, CU_OK;
}
static cu_result fake_pop(cu_context *context) {
    return *context = fake.stack[--fake.depth], fake_gives_back();
}
static cu_result fake_get_device(cu_device *device) {
    FAKE_REFUSABLE;
    return *device = 0, CU_OK;
}
static cu_result fake_info(size_t *available, size_t *total) {
    FAKE_REFUSABLE;
    return *available = 1 << 20, *total = 1 << 30, CU_OK;
}
static cu_result fake_alloc(cu_pointer *pointer, size_t bytes) {
    FAKE_REFUSABLE;
    if (++fake.num_requests == fake.fail_at || bytes > (size_t)1 << 30) return CU_OUT_OF_MEMORY;
    *pointer = (cu_pointer)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    fake.num_memory++;
    return CU_OK;
}
static cu_result fake_free(cu_pointer pointer) {
    free((void *)(uintptr_t)pointer);
    fake.num_memory--;
    return fake_gives_back();
}
static cu_result fake_copy(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream) {
    FAKE_REFUSABLE;
    (void)stream;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CU_OK;
}
static cu_result fake_set(cu_pointer to, unsigned char byte, size_t bytes, cu_stream stream) {
    FAKE_REFUSABLE;
    (void)stream;
    memset((void *)(uintptr_t)to, byte, bytes);
    return CU_OK;
}
static cu_result fake_stream(cu_stream *stream, unsigned flags) {
    FAKE_REFUSABLE;
    return (void)flags, fake.num_objects++, *stream = AS(cu_stream, some_stream), CU_OK;
}
static cu_result fake_stream_end(cu_stream stream) {
    return (void)stream, fake.num_objects--, fake_gives_back();
}
static cu_result fake_synchronize(cu_stream stream) {
    FAKE_REFUSABLE;
    return (void)stream, fake.num_synchronised++, fake.launch_result;
}
static cu_result fake_wait(cu_stream stream, cu_event event, unsigned flags) {
    FAKE_REFUSABLE;
    return (void)stream, (void)event, (void)flags, fake.num_waits++, CU_OK;
}
static cu_result fake_is_capturing(cu_stream stream, cu_capture_status *status) {
    FAKE_REFUSABLE;
    fake.num_requests_of_kernels++;
    return (void)stream, *status = fake.is_capturing ? 1 : CU_CAPTURE_NONE, CU_OK;
}
static cu_result fake_begin(cu_stream stream, cu_capture_mode mode) {
    FAKE_REFUSABLE;
    return (void)stream, (void)mode, fake.is_capturing = true, CU_OK;
}
static cu_result fake_end(cu_stream stream, cu_graph *graph) {
    (void)stream;
    fake.is_capturing = false; // even if the call fails
    *graph = NULL;
    FAKE_REFUSABLE;
    return fake.num_objects++, *graph = AS(cu_graph, some_handle), CU_OK;
}
static cu_result fake_event(cu_event *event, unsigned flags) {
    FAKE_REFUSABLE;
    return (void)flags, fake.num_objects++, *event = AS(cu_event, some_handle), CU_OK;
}
static cu_result fake_event_end(cu_event event) {
    return (void)event, fake.num_objects--, fake_gives_back();
}
static cu_result fake_event_wait(cu_event event) {
    FAKE_REFUSABLE;
    return (void)event, CU_OK;
}
static cu_result fake_record(cu_event event, cu_stream stream) {
    FAKE_REFUSABLE;
    return (void)event, (void)stream, fake.num_records++, CU_OK;
}
static cu_result fake_elapsed(float *ms, cu_event start, cu_event end) {
    FAKE_REFUSABLE;
    return (void)start, (void)end, *ms = 1.5f, CU_OK;
}
static cu_result fake_instantiate(cu_graph_exec *exec, cu_graph graph, unsigned long long flags) {
    FAKE_REFUSABLE;
    return (void)graph, (void)flags, fake.num_objects++, *exec = AS(cu_graph_exec, some_handle),
                                                         CU_OK;
}
static cu_result fake_graph_launch(cu_graph_exec exec, cu_stream stream) {
    FAKE_REFUSABLE;
    return (void)exec, (void)stream, CU_OK;
}
static cu_result fake_graph_end(cu_graph graph) {
    return (void)graph, fake.num_objects--, fake_gives_back();
}
static cu_result fake_exec_end(cu_graph_exec exec) {
    return (void)exec, fake.num_objects--, fake_gives_back();
}
static cu_result fake_load(cu_library *library, const void *code, cu_jit_option *options,
                           void **values, unsigned count, cu_library_option *more, void **others,
                           unsigned number) {
    FAKE_REFUSABLE;
    (void)code, (void)options, (void)values, (void)count, (void)more, (void)others, (void)number;
    fake.num_loads++;
    *library = AS(cu_library, some_handle);
    fake.num_objects += fake.load_result == CU_OK;
    return fake.load_result;
}
static cu_result fake_unload(cu_library library) {
    return (void)library, fake.num_objects--, fake_gives_back();
}
static cu_result fake_kernel(cu_kernel *kernel, cu_library library, const char *name) {
    FAKE_REFUSABLE;
    return (void)library, (void)name, *kernel = AS(cu_kernel, some_handle), CU_OK;
}
static cu_result fake_function(cu_function *function, cu_kernel kernel) {
    FAKE_REFUSABLE;
    fake.num_requests_of_kernels++;
    return (void)kernel, *function = AS(cu_function, some_handle), CU_OK;
}
static cu_result fake_kernel_set(cu_function_attribute attribute, int value, cu_kernel kernel,
                                 cu_device device) {
    FAKE_REFUSABLE;
    fake.num_requests_of_kernels++;
    return (void)attribute, (void)kernel, (void)device, fake.allowed_shared = value, CU_OK;
}
static cu_result fake_launch(const cu_launch *config, cu_function function, void **params,
                             void **extra) {
    FAKE_REFUSABLE;
    (void)function, (void)extra;
    assert_true(fake.depth > 0); // requires a current context
    assert_true((int)config->shared_bytes <= (fake.shared_bytes > 0 ? fake.shared_bytes : 232448));
    fake.num_launches++;
    fake.launched = *config;
    for (unsigned i = 0; i < config->num_attributes && i < 2; i++)
        fake.attribute_ids[i] = config->attributes[i].id;
    memcpy(fake.params, params[0], 32);
    return fake.launch_result;
}

static cu_result fake_map(cu_tensor_map *map, cu_map_type type, uint32_t rank, void *data,
                          const uint64_t *size, const uint64_t *stride, const uint32_t *box,
                          const uint32_t *steps, cu_map_interleave interleave,
                          cu_map_swizzle swizzle, cu_map_promotion promotion, cu_map_fill fill) {
    FAKE_REFUSABLE;
    assert_int_equal((uintptr_t)map % 128, 0);
    assert_int_equal(rank, 5);
    for (unsigned i = 0; i < rank; i++) assert_int_equal(steps[i], 1);
    assert_int_equal(interleave, CU_MAP_NOT_INTERLEAVED);
    assert_int_equal(promotion, CU_MAP_PROMOTE_256);
    assert_int_equal(fill, CU_MAP_FILL_ZEROS);
    if (fake.num_maps < (int)(sizeof fake.maps / sizeof *fake.maps)) {
        fake.maps[fake.num_maps].type = type;
        fake.maps[fake.num_maps].data = data;
        memcpy(fake.maps[fake.num_maps].size, size, sizeof fake.maps->size);
        memcpy(fake.maps[fake.num_maps].stride, stride, sizeof fake.maps->stride);
        memcpy(fake.maps[fake.num_maps].box, box, sizeof fake.maps->box);
        fake.maps[fake.num_maps].swizzle = swizzle;
    }
    map->words[0] = (unsigned long long)++fake.num_maps;
    return fake.map_result;
}

static const struct tsri_cuda_driver driver = {
    .init = fake_init,
    .driver_get_version = fake_version,
    .get_error_name = fake_error,
    .get_error_string = fake_error,
    .device_get_count = fake_count,
    .device_get = fake_device,
    .device_get_name = fake_name,
    .device_get_pci_bus_id = fake_name,
    .device_total_mem = fake_total,
    .device_get_attribute = fake_attribute,
    .primary_ctx_retain = fake_retain,
    .primary_ctx_release = fake_release,
    .ctx_get_current = fake_get_current,
    .ctx_push_current = fake_push,
    .ctx_pop_current = fake_pop,
    .ctx_get_device = fake_get_device,
    .mem_get_info = fake_info,
    .mem_alloc = fake_alloc,
    .mem_free = fake_free,
    .memcpy_async = fake_copy,
    .memset_async = fake_set,
    .stream_create = fake_stream,
    .stream_destroy = fake_stream_end,
    .stream_synchronize = fake_synchronize,
    .stream_wait_event = fake_wait,
    .stream_is_capturing = fake_is_capturing,
    .stream_begin_capture = fake_begin,
    .stream_end_capture = fake_end,
    .event_create = fake_event,
    .event_destroy = fake_event_end,
    .event_record = fake_record,
    .event_synchronize = fake_event_wait,
    .event_elapsed_time = fake_elapsed,
    .graph_instantiate = fake_instantiate,
    .graph_launch = fake_graph_launch,
    .graph_destroy = fake_graph_end,
    .graph_exec_destroy = fake_exec_end,
    .library_load_data = fake_load,
    .library_unload = fake_unload,
    .library_get_kernel = fake_kernel,
    .kernel_get_function = fake_function,
    .kernel_set_attribute = fake_kernel_set,
    .launch_kernel_ex = fake_launch,
    .tensor_map_encode = fake_map,
};

#endif
