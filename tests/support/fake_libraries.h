// SPDX-License-Identifier: Apache-2.0
// The tests' own NVIDIA libraries, served by open_library and find_symbol of the fault table: the driver of
// fake_driver.h, an NVRTC whose machine code is four bytes, and a CUPTI that reports kernels. NVML is absent. All
// refuse what fake_refuses selects. One test program includes this file.
#ifndef FAKE_LIBRARIES_H
#define FAKE_LIBRARIES_H

#include "core/core_system.h"
#include "cuda/cuda_cupti.h"
#include "cuda/cuda_nvrtc.h"
#include "fake_driver.h"

// ---- The driver -------------------------------------------------------------------------------

static cu_result fake_proc_address(const char *name, void **function, int version, uint64_t flags,
                                   int *query) {
    (void)version, (void)flags, (void)query;
    FAKE_REFUSABLE;
#define FIND(field, cuda_name, parameters)                                                         \
    if (strcmp(name, #cuda_name) == 0) memcpy(function, &driver.field, sizeof *function);
    TSRI_CUDA_DRIVER_FUNCTIONS(FIND)
#undef FIND
    return CU_OK;
}

// ---- NVRTC ------------------------------------------------------------------------------------

enum { NVRTC_REFUSES = 1 };
#define NVRTC_REFUSABLE                                                                            \
    if (fake_refuses != NULL && fake_refuses()) return NVRTC_REFUSES

static const char nvrtc_log[] = "ptxas info : Used 10 registers\nptxas warning : of the test's\n";

static nvrtc_result nvrtc_version(int *major, int *minor) {
    NVRTC_REFUSABLE;
    return *major = 13, *minor = 0, NVRTC_OK;
}
static nvrtc_result nvrtc_create(nvrtc_program *program, const char *text, const char *name,
                                 int count, const char *const *texts, const char *const *names) {
    (void)text, (void)name, (void)count, (void)texts, (void)names;
    NVRTC_REFUSABLE;
    atomic_fetch_add(&fake.num_programs, 1);
    return *program = AS(nvrtc_program, some_handle), NVRTC_OK;
}
static nvrtc_result nvrtc_destroy(nvrtc_program *program) {
    atomic_fetch_sub(&fake.num_programs, 1);
    *program = NULL;
    NVRTC_REFUSABLE;
    return NVRTC_OK;
}
static nvrtc_result nvrtc_compile(nvrtc_program program, int count, const char *const *options) {
    (void)program, (void)count, (void)options;
    NVRTC_REFUSABLE;
    return NVRTC_OK;
}
static nvrtc_result nvrtc_cubin_size(nvrtc_program program, size_t *bytes) {
    (void)program;
    NVRTC_REFUSABLE;
    return *bytes = 4, NVRTC_OK;
}
static nvrtc_result nvrtc_cubin(nvrtc_program program, char *code) {
    (void)program;
    NVRTC_REFUSABLE;
    return memcpy(code, "code", 4), NVRTC_OK;
}
static nvrtc_result nvrtc_log_size(nvrtc_program program, size_t *bytes) {
    (void)program;
    NVRTC_REFUSABLE;
    return *bytes = sizeof nvrtc_log, NVRTC_OK;
}
static nvrtc_result nvrtc_read_log(nvrtc_program program, char *text) {
    (void)program;
    NVRTC_REFUSABLE;
    return memcpy(text, nvrtc_log, sizeof nvrtc_log), NVRTC_OK;
}
static const char *nvrtc_error(nvrtc_result result) { return (void)result, "a refusal"; }

static const struct tsri_nvrtc fake_nvrtc = {
    .version = nvrtc_version,
    .create_program = nvrtc_create,
    .destroy_program = nvrtc_destroy,
    .compile_program = nvrtc_compile,
    .get_cubin_size = nvrtc_cubin_size,
    .get_cubin = nvrtc_cubin,
    .get_log_size = nvrtc_log_size,
    .get_log = nvrtc_read_log,
    .get_error_string = nvrtc_error,
};

// ---- CUPTI ------------------------------------------------------------------------------------

enum { CUPTI_REFUSES = 1, CUPTI_NO_MORE = 12, CUPTI_NUM_KERNELS = 1500 };
#define CUPTI_REFUSABLE                                                                            \
    if (fake_refuses != NULL && fake_refuses()) return CUPTI_REFUSES

static struct {
    cupti_request request;
    cupti_complete complete;
    bool is_enabled[64];
    uint64_t clock;
} cupti;

static cupti_result cupti_version(uint32_t *version) { return *version = 130000, CUPTI_OK; }
static cupti_result cupti_text(cupti_result result, const char **text) {
    (void)result;
    CUPTI_REFUSABLE;
    return *text = "A_REFUSAL", CUPTI_OK;
}
static cupti_result cupti_timestamp(uint64_t *now) { return *now = cupti.clock += 1000, CUPTI_OK; }
static cupti_result cupti_function_name(cupti_domain domain, uint32_t function, const char **name) {
    (void)domain, (void)function;
    CUPTI_REFUSABLE;
    return *name = "cuLaunchKernelEx", CUPTI_OK;
}
static cupti_result cupti_register(cupti_request request, cupti_complete complete) {
    CUPTI_REFUSABLE;
    return cupti.request = request, cupti.complete = complete, CUPTI_OK;
}
static cupti_result cupti_enable(cupti_kind kind) {
    CUPTI_REFUSABLE;
    return cupti.is_enabled[kind] = true, CUPTI_OK;
}
static cupti_result cupti_disable(cupti_kind kind) {
    cupti.is_enabled[kind] = false;
    CUPTI_REFUSABLE;
    return CUPTI_OK;
}
// Reports enough kernels in one buffer that the library's list must grow. Reports nothing if it gets no buffer.
static cupti_result cupti_flush(uint32_t flags) {
    uint8_t *buffer = NULL;
    size_t bytes = 0, most = 0;
    (void)flags;
    CUPTI_REFUSABLE;
    if (!cupti.is_enabled[CUPTI_KIND_KERNEL]) return CUPTI_OK;
    cupti.request(&buffer, &bytes, &most);
    if (buffer == NULL) return CUPTI_OK;
    struct cupti_kernel *kernels = (void *)buffer;
    assert_true(bytes >= CUPTI_NUM_KERNELS * sizeof *kernels);
    for (int i = 0; i < CUPTI_NUM_KERNELS; i++)
        kernels[i] = (struct cupti_kernel){
            .kind = CUPTI_KIND_KERNEL, .start = 5000, .end = 7000, .name = "a_kernel"};
    cupti.complete(NULL, 0, buffer, bytes, CUPTI_NUM_KERNELS * sizeof *kernels);
    return CUPTI_OK;
}
static cupti_result cupti_next(uint8_t *buffer, size_t valid, cupti_activity **record) {
    struct cupti_kernel *next =
        *record == NULL ? (void *)buffer : (struct cupti_kernel *)(void *)*record + 1;
    if ((uint8_t *)next >= buffer + valid) return CUPTI_NO_MORE;
    return *record = (cupti_activity *)(void *)next, CUPTI_OK;
}
static cupti_result cupti_dropped(cu_context context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    CUPTI_REFUSABLE;
    return *count = 0, CUPTI_OK;
}
static cupti_result cupti_push(cupti_correlation kind, uint64_t id) {
    (void)kind, (void)id;
    CUPTI_REFUSABLE;
    return CUPTI_OK;
}
static cupti_result cupti_pop(cupti_correlation kind, uint64_t *id) {
    (void)kind;
    CUPTI_REFUSABLE;
    return *id = 0, CUPTI_OK;
}

static const struct tsri_cupti fake_cupti = {
    .get_version = cupti_version,
    .get_result_string = cupti_text,
    .get_timestamp = cupti_timestamp,
    .get_callback_name = cupti_function_name,
    .register_callbacks = cupti_register,
    .enable = cupti_enable,
    .disable = cupti_disable,
    .flush_all = cupti_flush,
    .get_next_record = cupti_next,
    .get_num_dropped = cupti_dropped,
    .push_id = cupti_push,
    .pop_id = cupti_pop,
};

// ---- Opening ----------------------------------------------------------------------------------

static void *fake_open_library(const char *path) {
    static char handle;
    return strncmp(path, "fake-", 5) == 0 ? &handle : NULL;
}

static void *fake_find_symbol(void *library, const char *name) {
    cu_result (*get)(const char *, void **, int, uint64_t, int *) = fake_proc_address;
    void *symbol = NULL;
    (void)library;
    if (strcmp(name, "cuGetProcAddress_v2") == 0) memcpy(&symbol, &get, sizeof symbol);
#define FIND(returns, field, nvrtc_name, parameters)                                               \
    if (strcmp(name, #nvrtc_name) == 0) memcpy(&symbol, &fake_nvrtc.field, sizeof symbol);
    TSRI_NVRTC_FUNCTIONS(FIND)
#undef FIND
#define FIND(field, cupti_name, parameters)                                                        \
    if (strcmp(name, #cupti_name) == 0) memcpy(&symbol, &fake_cupti.field, sizeof symbol);
    TSRI_CUPTI_FUNCTIONS(FIND)
#undef FIND
    return symbol;
}

// Call this before any library is requested.
static inline void fake_libraries_install(void) {
    setenv("TSR_LIBCUDA", "fake-cuda", 1);
    setenv("TSR_LIBNVRTC", "fake-nvrtc", 1);
    setenv("TSR_LIBCUPTI", "fake-cupti", 1);
    setenv("TSR_LIBNVML", "absent", 1);
    tsri_system.open_library = fake_open_library;
    tsri_system.find_symbol = fake_find_symbol;
}

#endif
