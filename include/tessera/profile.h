// SPDX-License-Identifier: Apache-2.0
// A recording of what calls do and when: every call of the library, and on CUDA every kernel and copy on the device
// and every call of the driver, with the operation that they belong to.
#ifndef TESSERA_PROFILE_H
#define TESSERA_PROFILE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_profile_kind {
    TSR_PROFILE_RANGE = 0, // from tsr_profile_begin to tsr_profile_end, on the host
    TSR_PROFILE_CALL,      // a call of an operation, on the host: plan, workspace, run
    TSR_PROFILE_THREAD,    // CPU: a thread's part of a parallel loop
    TSR_PROFILE_DRIVER,    // CUDA: a call of the driver's, on the host
    TSR_PROFILE_KERNEL,    // CUDA, on the device: a kernel,
    TSR_PROFILE_COPY,      // a copy,
    TSR_PROFILE_FILL       // memory filled with one byte
} tsr_profile_kind;

// Texts last as long as the callback. What does not apply is 0 or "".
typedef struct tsr_profile_record {
    tsr_profile_kind kind;
    const char *name; // of the range, operation, kernel or driver's function; "copy host to device"
    const char *op;   // the operation whose call it belongs to: "softmax_forward"
    const char *variant;      // CALL: what ran
    int64_t id;               // RANGE, CALL: from 1 on, in the order of their starts
    int64_t parent;           // the innermost call or range of its thread around it, by id
    int64_t launch;           // the same number for a DRIVER call and what it put on the stream
    int64_t start_ns, end_ns; // of one clock for all of them
    int32_t thread;           // THREAD: its number in the team; the others of the host: 0
    int32_t stream;           // on the device: a number of the stream, not its handle
    int64_t bytes;            // COPY, FILL
    int64_t num_blocks;       // KERNEL, as are the following
    int32_t block_threads, num_registers, shared_bytes; // of a block, a thread, a block
} tsr_profile_record;
typedef void (*tsr_profile_visit)(void *user, const tsr_profile_record *record);

// Starts to record the calls of the whole process, and with a context on CUDA what the driver and the device do. One
// recording at a time. The library reads no clock but here: recorded calls take some microseconds longer.
//
// CUDA is recorded by CUPTI (libcupti.so.13 or .12: of the toolkit, or of the wheels that pip installs), opened when
// it is first needed; $TSR_LIBCUPTI can name the file. Another user of its activity interface in the process (as
// PyTorch's profiler while it runs) loses its records meanwhile.
// Errors: INVALID_ARGUMENT (one is under way), UNSUPPORTED (no CUPTI, or the driver keeps it for administrators),
// DEVICE, DEVICE_LOST.
TSR_API tsr_status tsr_profile_start(tsr_context *ctx);

// Waits for the context's stream, ends the recording and gives out the records: those of the host, calls and ranges in
// the order of their starts, then those of the driver and the device in no order. ctx as at the start; visit may be
// NULL and starts no recording. num_lost (may be NULL) were lost for want of memory: about a million of each are kept.
// A range or call that is lost takes with it what lies in it. Whatever the status, the recording is over, but for
// INVALID_ARGUMENT.
TSR_API tsr_status tsr_profile_stop(tsr_context *ctx, tsr_profile_visit visit, void *user,
                                    int64_t *num_lost);

// A range of this thread with a name, that must last until the stop. Ranges nest, to any depth, with each other and with
// calls; an end without a beginning is nothing. Nothing happens while there is no recording.
TSR_API void tsr_profile_begin(const char *name);
TSR_API void tsr_profile_end(void);

#ifdef __cplusplus
}
#endif
#endif
