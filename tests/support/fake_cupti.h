// SPDX-License-Identifier: Apache-2.0
// The tests' own CUPTI, which reports one kernel, copies and launches. One test program includes this file.
#ifndef FAKE_CUPTI_H
#define FAKE_CUPTI_H

#include "core/core_system.h"
#include "cuda/cuda_cupti.h"
#include "fake_driver.h"
#include "test_support.h"

static struct {
    cupti_request request;
    cupti_complete complete;
    bool is_enabled[64];
    uint64_t pushed[16];
    int num_pushed, depth, fail_kind;
    uint64_t clock;
} cupti;

static cupti_result fake_timestamp(uint64_t *now) { return *now = cupti.clock += 1000, CUPTI_OK; }
static cupti_result fake_text(cupti_result result, const char **text) {
    return *text = result == CUPTI_NOT_PRIVILEGED ? "NOT_PRIVILEGED" : "A_REFUSAL", CUPTI_OK;
}
static cupti_result fake_function_name(cupti_domain domain, uint32_t function, const char **name) {
    assert_int_equal(domain, CUPTI_DOMAIN_DRIVER);
    return *name = function == 7 ? "cuLaunchKernelEx" : NULL, CUPTI_OK;
}
static cupti_result fake_register(cupti_request request, cupti_complete complete) {
    return cupti.request = request, cupti.complete = complete, CUPTI_OK;
}
static cupti_result fake_enable(cupti_kind kind) {
    if (kind == cupti.fail_kind) return CUPTI_NOT_PRIVILEGED;
    return cupti.is_enabled[kind] = true, CUPTI_OK;
}
static cupti_result fake_disable(cupti_kind kind) {
    return cupti.is_enabled[kind] = false, CUPTI_OK;
}
static cupti_result fake_push_id(cupti_correlation kind, uint64_t id) {
    assert_int_equal(kind, CUPTI_CORRELATION_OURS);
    cupti.pushed[cupti.num_pushed++] = id;
    return cupti.depth++, CUPTI_OK;
}
static cupti_result fake_pop_id(cupti_correlation kind, uint64_t *id) {
    assert_int_equal(kind, CUPTI_CORRELATION_OURS);
    return *id = 0, cupti.depth--, CUPTI_OK;
}

// Each record takes 256 bytes.
enum { RECORD_BYTES = 256 };

static void *next_place(uint8_t *buffer, size_t *used) {
    void *place = buffer + *used;
    memset(place, 0, RECORD_BYTES);
    *used += RECORD_BYTES;
    return place;
}

static cupti_result fake_flush(uint32_t flags) {
    uint8_t *buffer;
    size_t bytes, most, used = 0;
    assert_int_equal(flags, CUPTI_FLUSH_FORCED);
    cupti.request(&buffer, &bytes, &most);
    assert_true(bytes >= 16 * RECORD_BYTES && most == 0 && (uintptr_t)buffer % 8 == 0);
    struct cupti_kernel *kernel = next_place(buffer, &used);
    *kernel = (struct cupti_kernel){.kind = CUPTI_KIND_KERNEL,
                                    .start = 5000,
                                    .end = 7000,
                                    .stream = 13,
                                    .grid_x = 6,
                                    .grid_y = 1,
                                    .grid_z = 1,
                                    .block_x = 128,
                                    .block_y = 1,
                                    .block_z = 1,
                                    .num_registers = 40,
                                    .static_shared = 16,
                                    .dynamic_shared = 32,
                                    .correlation = 3,
                                    .name = "a_kernel"};
    struct cupti_call *launch = next_place(buffer, &used);
    *launch = (struct cupti_call){
        .kind = CUPTI_KIND_DRIVER, .function = 7, .start = 4000, .end = 4500, .correlation = 3};
    struct cupti_copy *copy = next_place(buffer, &used);
    *copy = (struct cupti_copy){.kind = CUPTI_KIND_COPY,
                                .direction = CUPTI_HOST_TO_DEVICE,
                                .bytes = 4096,
                                .start = 100,
                                .end = 200,
                                .stream = 13,
                                .correlation = 2};
    struct cupti_fill *fill = next_place(buffer, &used);
    *fill = (struct cupti_fill){
        .kind = CUPTI_KIND_FILL, .bytes = 64, .start = 300, .end = 400, .correlation = 9};
    struct cupti_kernel *unfinished = next_place(buffer, &used);
    *unfinished = (struct cupti_kernel){.kind = CUPTI_KIND_KERNEL, .name = "unfinished"};
    struct cupti_record *unknown = next_place(buffer, &used);
    unknown->kind = 63;
    for (int i = 0; i < 2 && cupti.num_pushed > 0; i++) { // the second is another tool's
        struct cupti_external *external = next_place(buffer, &used);
        *external = (struct cupti_external){.kind = CUPTI_KIND_EXTERNAL,
                                            .external_kind = CUPTI_CORRELATION_OURS + i,
                                            .id = i == 0 ? cupti.pushed[cupti.num_pushed - 1] : 99,
                                            .correlation = 3};
    }
    cupti.complete(NULL, 0, buffer, bytes, used);
    cupti.request(&buffer, &bytes, &most);
    cupti.complete(NULL, 0, buffer, bytes, 0); // an empty one
    return CUPTI_OK;
}
static cupti_result fake_next(uint8_t *buffer, size_t valid, cupti_activity **record) {
    uint8_t *next = *record == NULL ? buffer : (uint8_t *)*record + RECORD_BYTES;
    if (next >= buffer + valid) return 12;
    return *record = (cupti_activity *)(void *)next, CUPTI_OK;
}
static cupti_result fake_dropped(cu_context context, uint32_t stream, size_t *count) {
    return (void)context, (void)stream, *count = 2, CUPTI_OK;
}
static cupti_result fake_cupti_version(uint32_t *version) { return *version = 130000, CUPTI_OK; }

static const struct tsri_cupti fakes = {
    .get_version = fake_cupti_version,
    .get_result_string = fake_text,
    .get_timestamp = fake_timestamp,
    .get_callback_name = fake_function_name,
    .register_callbacks = fake_register,
    .enable = fake_enable,
    .disable = fake_disable,
    .flush_all = fake_flush,
    .get_next_record = fake_next,
    .get_num_dropped = fake_dropped,
    .push_id = fake_push_id,
    .pop_id = fake_pop_id,
};

static char library_handle;

static void *open_cupti(const char *path) {
    return strcmp(path, "libcupti.so.12") == 0 ? &library_handle : NULL;
}

static void *find_cupti(void *handle, const char *name) {
    void *symbol = NULL;
    assert_ptr_equal(handle, &library_handle);
#define FIND(field, cupti_name, parameters)                                                        \
    if (strcmp(name, #cupti_name) == 0) memcpy(&symbol, &fakes.field, sizeof symbol);
    TSRI_CUPTI_FUNCTIONS(FIND)
#undef FIND
    assert_non_null(symbol);
    return symbol;
}

#endif
