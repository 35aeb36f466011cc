// SPDX-License-Identifier: Apache-2.0
// What the driver and the device did between start and stop: CUPTI's records, gathered from its buffers and given out
// in terms of our own. One recording at a time in the process; the caller sees to that.
#ifndef TSRI_CUDA_TRACE_H
#define TSRI_CUDA_TRACE_H

#include "cuda/cuda_device.h"

enum tsri_trace_kind { TSRI_TRACE_CALL, TSRI_TRACE_KERNEL, TSRI_TRACE_COPY, TSRI_TRACE_FILL };

struct tsri_trace_record {
    enum tsri_trace_kind kind;
    const char *name;     // of the kernel, of the driver's function; "host to device"
    int64_t start, end;   // nanoseconds of tsri_cuda_trace_now
    int64_t id;           // that was pushed around it; 0 for none
    uint32_t correlation; // of a call, and of what that put on the stream
    uint32_t stream;
    int64_t num_blocks, bytes;
    int block_threads, num_registers, shared_bytes;
};

// Errors: UNSUPPORTED (no CUPTI, or not for this user), DEVICE.
tsr_status tsri_cuda_trace_start(const char *op);
// Waits for the queue (NULL: what it has come to is enough), then gives the records to visit, in no order. num_lost: for which
// there was no memory.
tsr_status tsri_cuda_trace_stop(const char *op, const struct tsri_cuda_queue *queue,
                                void (*visit)(void *user, const struct tsri_trace_record *record),
                                void *user, int64_t *num_lost);

int64_t tsri_cuda_trace_now(void);
// Marks what this thread has the driver do until the pop. They nest.
void tsri_cuda_trace_push(int64_t id);
void tsri_cuda_trace_pop(void);

#endif
