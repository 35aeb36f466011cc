// SPDX-License-Identifier: Apache-2.0
// Our own declarations of CUPTI, CUDA's profiling interface: its activity functions, and the first fields of its
// records, which grow at the end from version to version. It is opened when a recording first starts.
// tests/cuda/test_cuda_headers.c compares the declarations with the toolkit's headers if they are installed.
#ifndef TSRI_CUDA_CUPTI_H
#define TSRI_CUDA_CUPTI_H

#include "cuda/cuda_driver.h"

#ifndef TSRI_CUDA_TYPES_FROM_TOOLKIT
typedef int cupti_result;
typedef int cupti_kind;
typedef int cupti_correlation;
typedef int cupti_domain;
typedef struct cupti_record cupti_activity;
typedef void (*cupti_request)(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void (*cupti_complete)(cu_context, uint32_t stream, uint8_t *buffer, size_t bytes,
                               size_t valid_bytes);
#endif

enum {
    CUPTI_OK = 0,
    CUPTI_NOT_PRIVILEGED = 35,
    CUPTI_NOT_PRIVILEGED_VIRTUAL = 40,
    CUPTI_FLUSH_FORCED = 1,
    CUPTI_DOMAIN_DRIVER = 1,
    CUPTI_CORRELATION_OURS = 3, // the first value for custom use
};
enum {
    CUPTI_KIND_COPY = 1,
    CUPTI_KIND_FILL = 2,
    CUPTI_KIND_DRIVER = 4,
    CUPTI_KIND_KERNEL = 10, // the kind that does not serialize kernels
    CUPTI_KIND_EXTERNAL = 39,
};
enum { CUPTI_HOST_TO_DEVICE = 1, CUPTI_DEVICE_TO_HOST = 2, CUPTI_DEVICE_TO_DEVICE = 8 };

// ---- Records ----------------------------------------------------------------------------------

struct cupti_record {
    int kind;
};
struct cupti_copy { // CUpti_ActivityMemcpy
    int kind;
    uint8_t direction, source_kind, destination_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
};
struct cupti_fill { // CUpti_ActivityMemset
    int kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
};
struct cupti_kernel { // CUpti_ActivityKernel
    int kind;
    uint8_t cache_config, shared_config;
    uint16_t num_registers;
    int cache_requested, cache_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid_x, grid_y, grid_z, block_x, block_y, block_z;
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
};
struct cupti_call { // CUpti_ActivityAPI
    int kind;
    uint32_t function;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
};
struct cupti_external { // CUpti_ActivityExternalCorrelation
    int kind, external_kind;
    uint64_t id;
    uint32_t correlation;
};

// ---- Functions --------------------------------------------------------------------------------

// X(field, name in cupti.h, parameters)
#define TSRI_CUPTI_FUNCTIONS(X)                                                                    \
    X(get_version, cuptiGetVersion, (uint32_t *))                                                  \
    X(get_result_string, cuptiGetResultString, (cupti_result, const char **))                      \
    X(get_timestamp, cuptiGetTimestamp, (uint64_t *))                                              \
    X(get_callback_name, cuptiGetCallbackName, (cupti_domain, uint32_t, const char **))            \
    X(register_callbacks, cuptiActivityRegisterCallbacks, (cupti_request, cupti_complete))         \
    X(enable, cuptiActivityEnable, (cupti_kind))                                                   \
    X(disable, cuptiActivityDisable, (cupti_kind))                                                 \
    X(flush_all, cuptiActivityFlushAll, (uint32_t flags))                                          \
    X(get_next_record, cuptiActivityGetNextRecord, (uint8_t *, size_t, cupti_activity **))         \
    X(get_num_dropped, cuptiActivityGetNumDroppedRecords, (cu_context, uint32_t stream, size_t *)) \
    X(push_id, cuptiActivityPushExternalCorrelationId, (cupti_correlation, uint64_t))              \
    X(pop_id, cuptiActivityPopExternalCorrelationId, (cupti_correlation, uint64_t *))

struct tsri_cupti {
#define TSRI_FIELD(field, name, parameters) cupti_result(*field) parameters;
    TSRI_CUPTI_FUNCTIONS(TSRI_FIELD)
#undef TSRI_FIELD
};

// The first call decides for the process. NULL, with a sentence in tsri_cupti_sentence, if there is no CUPTI.
const struct tsri_cupti *tsri_cupti(void);
const char *tsri_cupti_sentence(void);

#endif
