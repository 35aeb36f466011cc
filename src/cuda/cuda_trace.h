// SPDX-License-Identifier: Apache-2.0
// What the driver and the device did between start and stop: records from CUPTI's buffers, translated to our types. The
// caller ensures that the process makes one recording at a time.
#ifndef TSRI_CUDA_TRACE_H
#define TSRI_CUDA_TRACE_H

#include "cuda/cuda_device.h"

enum tsri_trace_kind { TSRI_TRACE_CALL, TSRI_TRACE_KERNEL, TSRI_TRACE_COPY, TSRI_TRACE_FILL };

struct tsri_trace_record {
    enum tsri_trace_kind kind;
    const char *name;     // name of the kernel or driver function, or "host to device"
    int64_t start, end;   // nanoseconds on the clock of tsri_cuda_trace_now
    int64_t id;           // the enclosing pushed id; 0: none
    uint32_t correlation; // links a call with the work that it put on the stream
    uint32_t stream;
    int64_t num_blocks, bytes;
    int block_threads, num_registers, shared_bytes;
};

// Errors: UNSUPPORTED (no CUPTI, or not for this user), DEVICE.
tsr_status tsri_cuda_trace_start(const char *op);
// Waits for the queue (NULL: does not wait), then passes the records to visit, in no order. num_lost: records lost for
// lack of memory.
tsr_status tsri_cuda_trace_stop(const char *op, const struct tsri_cuda_queue *queue,
                                void (*visit)(void *user, const struct tsri_trace_record *record),
                                void *user, int64_t *num_lost);

int64_t tsri_cuda_trace_now(void);
// Marks this thread's driver calls up to the pop. Marks nest.
void tsri_cuda_trace_push(int64_t id);
void tsri_cuda_trace_pop(void);

#endif
