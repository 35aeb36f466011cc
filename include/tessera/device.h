// SPDX-License-Identifier: Apache-2.0
// Devices, and their memory, copies, streams, events and graphs for programs without the CUDA toolkit. A program with
// pointers and streams of its own (PyTorch, the CUDA runtime) passes those and needs none of this.
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Devices ----------------------------------------------------------------------------------

// The number of devices: 1 for the CPU; for CUDA the GPUs that the driver shows, 0 without a driver. Opens the driver.
TSR_API int32_t tsr_device_count(tsr_device_type type);

// "cpu", "cuda:1". The text lies in a buffer of the calling thread and lasts until the thread's next call.
TSR_API const char *tsr_device_name(tsr_device device);

typedef struct tsr_device_info {
    size_t size;            // sizeof this struct; set by TSR_DEVICE_INFO
    char name[128];         // "NVIDIA H100 80GB HBM3"
    char arch[16];          // what kernels are compiled for: "sm_90a"
    int32_t driver_version; // the driver's CUDA version: 13000 is 13.0
    int32_t nvrtc_version;  // the compiler's CUDA version; 0 without a compiler
    int32_t num_sms, max_threads_per_sm;
    int64_t shared_bytes_per_block, shared_bytes_per_sm, l2_bytes, memory_bytes;
    double clock_mhz, memory_clock_mhz; // the maximum clocks
    int32_t memory_bus_bits;
} tsr_device_info;

#define TSR_DEVICE_INFO ((tsr_device_info){.size = sizeof(tsr_device_info)})

// Fills as much of *info as its size says. Errors: UNSUPPORTED (no driver, no such device, the CPU).
TSR_API tsr_status tsr_device_info_get(tsr_device device, tsr_device_info *info);

// Readings of the device's sensors, from NVML. A value that NVML does not give is NAN, and throttle_reasons is 0.
typedef struct tsr_device_sensors {
    size_t size; // set by TSR_DEVICE_SENSORS
    double sm_clock_mhz, memory_clock_mhz, power_w, power_limit_w, temperature_c;
    uint64_t throttle_reasons; // NVML's bits; 0x1 is idle
} tsr_device_sensors;

#define TSR_DEVICE_SENSORS ((tsr_device_sensors){.size = sizeof(tsr_device_sensors)})

TSR_API tsr_status tsr_device_sensors_get(tsr_device device, tsr_device_sensors *sensors);

// ---- A context's memory -----------------------------------------------------------------------
// On the CPU these run at once; on CUDA they run in the order of the context's stream.
// Errors: INVALID_ARGUMENT, OUT_OF_MEMORY; on CUDA DEVICE and DEVICE_LOST too.

TSR_API tsr_device tsr_context_device(const tsr_context *ctx);

// The address is a multiple of 256. bytes 0 gives memory too. free waits for the stream; NULL is legal.
TSR_API tsr_status tsr_memory_alloc(tsr_context *ctx, size_t bytes, void **pointer);
TSR_API tsr_status tsr_memory_free(tsr_context *ctx, void *pointer);

// Copies between host and this device in any direction; the addresses tell which. Host memory must stay unchanged until
// the stream has done the copy.
TSR_API tsr_status tsr_memory_copy(tsr_context *ctx, void *to, const void *from, size_t bytes);
TSR_API tsr_status tsr_memory_fill(tsr_context *ctx, void *pointer, int byte, size_t bytes);

// Bytes that the device has left; -1 where it does not say. For the CPU (or NULL): what the system can give without
// swapping, within what the limits of this process's control groups leave.
TSR_API int64_t tsr_memory_available(tsr_context *ctx);

// Waits for all work on the stream. A kernel's failure is reported here at the latest.
TSR_API tsr_status tsr_context_synchronize(tsr_context *ctx);

// ---- Streams, events, graphs: for CUDA contexts; UNSUPPORTED on the CPU -------------------------

// Sets the stream of later calls: a CUstream or cudaStream_t; NULL is the default stream. The first call that shares
// arena memory with work on the former stream waits for that work. It does not wait for kernels and copies there that
// still write its tensors: call tsr_context_synchronize before.
TSR_API tsr_status tsr_context_set_stream(tsr_context *ctx, void *stream);
TSR_API void *tsr_context_stream(const tsr_context *ctx);

// Creates a stream that does not wait for the default one. Destroy it before the context; destroying waits for its
// work, and a context that uses the stream goes back to the default one. NULL is legal.
TSR_API tsr_status tsr_stream_create(tsr_context *ctx, void **stream);
TSR_API tsr_status tsr_stream_destroy(tsr_context *ctx, void *stream);

typedef struct tsr_event tsr_event; // a point in the work of a stream
TSR_API tsr_status tsr_event_create(tsr_context *ctx, tsr_event **event);
TSR_API tsr_status tsr_event_record(tsr_context *ctx, tsr_event *event);
// Milliseconds between two recorded events; waits for the later one.
TSR_API tsr_status tsr_event_elapsed(tsr_context *ctx, tsr_event *start, tsr_event *end,
                                     double *ms);
TSR_API void tsr_event_destroy(tsr_context *ctx, tsr_event *event);

// Between begin and end, calls are recorded and not run; each launch then runs all of them. Prepare each call before
// (_prepare with the same args), so that nothing is compiled or allocated during the recording. The default stream
// cannot record. A call that is refused leaves the recording open; tsr_graph_end ends it. A graph keeps the addresses
// of tensors and workspaces: they must stay valid as long as it is launched. A launch runs in the order of the context's
// stream, as a call does. Graphs and calls of one context share its arena: on different streams they wait for each
// other, except for graphs that are launched without tsr_graph_launch. To run them side by side, give each call a
// workspace of its own.
typedef struct tsr_graph tsr_graph;
TSR_API tsr_status tsr_graph_begin(tsr_context *ctx);
TSR_API tsr_status tsr_graph_end(tsr_context *ctx, tsr_graph **graph);
TSR_API tsr_status tsr_graph_launch(tsr_context *ctx, tsr_graph *graph);
TSR_API void tsr_graph_destroy(tsr_context *ctx, tsr_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
