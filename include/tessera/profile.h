// SPDX-License-Identifier: Apache-2.0
// A recording of what calls do and when: every call of the library, and on CUDA every call of the driver and every
// kernel and copy on the device, each with the operation that it belongs to.
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
    TSR_PROFILE_DRIVER,    // CUDA: a call of the driver, on the host
    TSR_PROFILE_KERNEL,    // CUDA: a kernel, on the device
    TSR_PROFILE_COPY,      // CUDA: a copy, on the device
    TSR_PROFILE_FILL       // CUDA: memory filled with one byte, on the device
} tsr_profile_kind;

// Texts last until the callback returns. A field that does not apply is 0 or "".
typedef struct tsr_profile_record {
    tsr_profile_kind kind;
    const char *name; // of the range, operation, kernel or driver function; "copy host to device"
    const char *op;   // the operation whose call it belongs to: "softmax_forward"
    const char *variant;      // CALL: the variant that ran
    int64_t id;               // RANGE, CALL: from 1 on, in the order of their starts
    int64_t parent;           // id of the innermost call or range around it, on the same thread
    int64_t launch;           // shared by a DRIVER call and the work that it put on the stream
    int64_t start_ns, end_ns; // one clock for all records
    int32_t thread;           // THREAD: its number in the team; other records of the host: 0
    int32_t stream;           // records of the device: the stream's number, not its handle
    int64_t bytes;            // COPY, FILL
    int64_t num_blocks;       // KERNEL, like the following fields
    int32_t block_threads, num_registers, shared_bytes; // per block, per thread, per block
} tsr_profile_record;
typedef void (*tsr_profile_visit)(void *user, const tsr_profile_record *record);

// Starts to record the calls of the whole process and, with a context on CUDA, what the driver and the device do. There
// is one recording at a time. The library reads a clock only while it records: a recorded call takes some microseconds
// longer.
//
// CUPTI records CUDA (libcupti.so.13 or .12, from the toolkit or from pip's wheels). It is opened when it is first
// needed; $TSR_LIBCUPTI can name the file. Another user of CUPTI's activity interface in the process, such as PyTorch's
// profiler, loses its records during the recording.
// Errors: INVALID_ARGUMENT (a recording is under way), UNSUPPORTED (no CUPTI, or the driver reserves it for
// administrators), DEVICE, DEVICE_LOST.
TSR_API tsr_status tsr_profile_start(tsr_context *ctx);

// Waits for the context's stream, ends the recording and passes its records to visit: first the host's, with calls and
// ranges in the order of their starts, then the driver's and the device's in no particular order. ctx is that of
// tsr_profile_start. visit may be NULL, and must not start a recording. num_lost (may be NULL) receives the number of
// records that were lost for lack of memory: about a million of the host and a million of the device are kept. With a
// lost range or call, the records inside it are lost too. The recording is over after any status but INVALID_ARGUMENT.
TSR_API tsr_status tsr_profile_stop(tsr_context *ctx, tsr_profile_visit visit, void *user,
                                    int64_t *num_lost);

// A named range on this thread; the name must stay valid until tsr_profile_stop. Ranges and calls nest to any depth. An
// end without a begin is ignored. Without a recording both functions do nothing.
TSR_API void tsr_profile_begin(const char *name);
TSR_API void tsr_profile_end(void);

#ifdef __cplusplus
}
#endif
#endif
