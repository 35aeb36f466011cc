// SPDX-License-Identifier: Apache-2.0
// Devices, and what a program without the CUDA toolkit needs on one: memory, copies, streams, events, graphs.
// A program that has its own (PyTorch, the CUDA runtime) passes its pointers and streams and needs none of this.
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Devices ----------------------------------------------------------------------------------

// 1 for the CPU; for CUDA the GPUs that the driver shows, 0 where there is no driver. Opens the driver.
TSR_API int32_t tsr_device_count(tsr_device_type type);

// "cpu", "cuda:1"; in a buffer of the calling thread, until its next call.
TSR_API const char *tsr_device_name(tsr_device device);

typedef struct tsr_device_info {
    size_t size;            // sizeof this struct; set by TSR_DEVICE_INFO
    char name[128];         // "NVIDIA H100 80GB HBM3"
    char arch[16];          // what kernels are compiled for: "sm_90a"
    int32_t driver_version; // of CUDA: 13000 is 13.0
    int32_t nvrtc_version;  // the same of the compiler; 0 without one
    int32_t num_sms, max_threads_per_sm;
    int64_t shared_bytes_per_block, shared_bytes_per_sm, l2_bytes, memory_bytes;
    double clock_mhz, memory_clock_mhz; // the highest
    int32_t memory_bus_bits;
} tsr_device_info;

#define TSR_DEVICE_INFO ((tsr_device_info){.size = sizeof(tsr_device_info)})

// Fills as much of *info as its size says. Errors: UNSUPPORTED (no driver, no such device, the CPU).
TSR_API tsr_status tsr_device_info_get(tsr_device device, tsr_device_info *info);

// What the device's sensors say now, by NVML; NAN for what they do not, 0 for the reasons.
typedef struct tsr_device_sensors {
    size_t size; // set by TSR_DEVICE_SENSORS
    double sm_clock_mhz, memory_clock_mhz, power_w, power_limit_w, temperature_c;
    uint64_t throttle_reasons; // bits as NVML has them; 0x1 is idle
} tsr_device_sensors;

#define TSR_DEVICE_SENSORS ((tsr_device_sensors){.size = sizeof(tsr_device_sensors)})

TSR_API tsr_status tsr_device_sensors_get(tsr_device device, tsr_device_sensors *sensors);

// ---- A context's memory -----------------------------------------------------------------------
// On the CPU these are the plain things at once; on CUDA they are in the order of the context's stream.
// Errors: INVALID_ARGUMENT, OUT_OF_MEMORY, and of CUDA DEVICE and DEVICE_LOST.

TSR_API tsr_device tsr_context_device(const tsr_context *ctx);

// A multiple of 256. bytes 0 gives memory too. free waits for the stream; NULL is legal.
TSR_API tsr_status tsr_memory_alloc(tsr_context *ctx, size_t bytes, void **pointer);
TSR_API tsr_status tsr_memory_free(tsr_context *ctx, void *pointer);

// Between any two of host and this device, told apart by their addresses. Host memory must stay as it is until
// the stream has come there.
TSR_API tsr_status tsr_memory_copy(tsr_context *ctx, void *to, const void *from, size_t bytes);
TSR_API tsr_status tsr_memory_fill(tsr_context *ctx, void *pointer, int byte, size_t bytes);

// Bytes that the device has left; -1 where it does not say. Of the CPU, which NULL is too: what the system can give without
// swapping, and no more than is left of the limits of this process's control groups.
TSR_API int64_t tsr_memory_available(tsr_context *ctx);

// Waits for all that was given to the stream. What went wrong in a kernel comes out here at the latest.
TSR_API tsr_status tsr_context_synchronize(tsr_context *ctx);

// ---- Streams, events, graphs: of CUDA contexts; UNSUPPORTED on the CPU --------------------------

// The stream of the calls that follow, a CUstream or cudaStream_t; NULL is the default stream. What was given to
// the one before is waited for by the first call that shares memory of the arena with it. For tensors that it still
// writes, copies to them too, the caller waits: tsr_context_synchronize before.
TSR_API tsr_status tsr_context_set_stream(tsr_context *ctx, void *stream);
TSR_API void *tsr_context_stream(const tsr_context *ctx);

// A stream of one's own, that does not wait for the default one. Destroy it before the context: that waits for its
// work, and a context that is on it goes to the default stream. NULL is legal.
TSR_API tsr_status tsr_stream_create(tsr_context *ctx, void **stream);
TSR_API tsr_status tsr_stream_destroy(tsr_context *ctx, void *stream);

typedef struct tsr_event tsr_event; // a moment of a stream
TSR_API tsr_status tsr_event_create(tsr_context *ctx, tsr_event **event);
TSR_API tsr_status tsr_event_record(tsr_context *ctx, tsr_event *event);
// Milliseconds between two that were recorded; waits for the later one.
TSR_API tsr_status tsr_event_elapsed(tsr_context *ctx, tsr_event *start, tsr_event *end,
                                     double *ms);
TSR_API void tsr_event_destroy(tsr_context *ctx, tsr_event *event);

// Between begin and end calls are recorded and not run; launch then runs all of them. Each must have been
// prepared before (_prepare with the same args), so that nothing is compiled or allocated meanwhile. Not on the
// default stream. A call that is refused leaves the recording open, for tsr_graph_end to end. A graph knows its calls by
// their addresses: tensors and workspaces must stay for as long as it is launched. launch is in the order of the
// context's stream, as a call is. Graphs and calls of one context share its arena: on different streams they wait for
// each other, but for graphs that others than tsr_graph_launch launch. Give each call a workspace of its own to have
// them side by side.
typedef struct tsr_graph tsr_graph;
TSR_API tsr_status tsr_graph_begin(tsr_context *ctx);
TSR_API tsr_status tsr_graph_end(tsr_context *ctx, tsr_graph **graph);
TSR_API tsr_status tsr_graph_launch(tsr_context *ctx, tsr_graph *graph);
TSR_API void tsr_graph_destroy(tsr_context *ctx, tsr_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
