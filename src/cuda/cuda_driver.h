// SPDX-License-Identifier: Apache-2.0
// Our own declarations of the part of the CUDA driver API that the library uses: values, handles and one table of
// functions. The table is filled when a CUDA device is first needed. Every driver call goes through the table, so a
// test can replace the driver. tests/cuda/test_cuda_headers.c compares all declarations, including signatures, with the
// toolkit's cuda.h if it is installed.
#ifndef TSRI_CUDA_DRIVER_H
#define TSRI_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "core/core_status.h"
#include "cuda/device/tensor_map.h"

// ---- Types ------------------------------------------------------------------------------------

#ifndef TSRI_CUDA_TYPES_FROM_TOOLKIT
typedef int cu_result;
typedef int cu_device;
typedef int cu_device_attribute;
typedef int cu_function_attribute;
typedef int cu_capture_mode;
typedef int cu_capture_status;
typedef unsigned long long cu_pointer; // CUdeviceptr
typedef struct cu_context_st *cu_context;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;
typedef struct cu_library_st *cu_library;
typedef struct cu_kernel_st *cu_kernel;
typedef struct cu_function_st *cu_function;
typedef struct cu_graph_st *cu_graph;
typedef struct cu_graph_exec_st *cu_graph_exec;
typedef int cu_jit_option;
typedef int cu_library_option;
typedef int cu_map_type;
typedef int cu_map_interleave;
typedef int cu_map_swizzle;
typedef int cu_map_promotion;
typedef int cu_map_fill;

typedef struct tensor_map cu_tensor_map;
typedef struct cu_launch_config cu_launch;
#endif

// CUlaunchAttribute; its value is a union of 64 bytes.
struct cu_launch_attribute {
    int id;
    union {
        char bytes[64];
        uint64_t align;
        int value;
        unsigned cluster[3];
    } value;
};

// CUlaunchConfig
struct cu_launch_config {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    cu_stream stream;
    struct cu_launch_attribute *attributes;
    unsigned num_attributes;
};

// ---- Values -----------------------------------------------------------------------------------

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_DEINITIALIZED = 4,
    CU_NO_DEVICE = 100,
    CU_ECC_UNCORRECTABLE = 214,
    CU_NVLINK_UNCORRECTABLE = 220,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_TIMEOUT = 702,
    CU_CONTEXT_IS_DESTROYED = 709,
    CU_ASSERT = 710,
    CU_HARDWARE_STACK_ERROR = 714,
    CU_LAUNCH_FAILED = 719,
};
enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_CLOCK_KHZ = 13,
    CU_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
    CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
    CU_ATTRIBUTE_L2_BYTES = 38,
    CU_ATTRIBUTE_THREADS_PER_SM = 39,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_ATTRIBUTE_SHARED_PER_SM = 81,
    CU_ATTRIBUTE_SHARED_OPTIN = 97,
};
enum { CU_FUNCTION_MAX_DYNAMIC_SHARED = 8 };
enum { CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_EARLY = 6 };
enum { CU_STREAM_NON_BLOCKING_FLAG = 1 };
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_MODE_THREAD_LOCAL = 1 };
enum { CU_MAP_U8 = 0, CU_MAP_F16 = 6, CU_MAP_F32 = 7, CU_MAP_BF16 = 9, CU_MAP_TF32 = 11 };
enum { CU_MAP_SWIZZLE_NONE = 0, CU_MAP_SWIZZLE_128 = 3 };
enum { CU_MAP_NOT_INTERLEAVED = 0, CU_MAP_PROMOTE_256 = 3, CU_MAP_FILL_ZEROS = 0 };

// ---- Functions --------------------------------------------------------------------------------

// X(field, name in cuda.h, parameters). All exist since CUDA 12.0 or earlier.
#define TSRI_CUDA_DRIVER_FUNCTIONS(X)                                                              \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_get_version, cuDriverGetVersion, (int *version))                                      \
    X(get_error_name, cuGetErrorName, (cu_result, const char **))                                  \
    X(get_error_string, cuGetErrorString, (cu_result, const char **))                              \
    X(device_get_count, cuDeviceGetCount, (int *))                                                 \
    X(device_get, cuDeviceGet, (cu_device *, int ordinal))                                         \
    X(device_get_name, cuDeviceGetName, (char *, int bytes, cu_device))                            \
    X(device_get_pci_bus_id, cuDeviceGetPCIBusId, (char *, int bytes, cu_device))                  \
    X(device_total_mem, cuDeviceTotalMem, (size_t *, cu_device))                                   \
    X(device_get_attribute, cuDeviceGetAttribute, (int *, cu_device_attribute, cu_device))         \
    X(primary_ctx_retain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                     \
    X(primary_ctx_release, cuDevicePrimaryCtxRelease, (cu_device))                                 \
    X(ctx_get_current, cuCtxGetCurrent, (cu_context *))                                            \
    X(ctx_push_current, cuCtxPushCurrent, (cu_context))                                            \
    X(ctx_pop_current, cuCtxPopCurrent, (cu_context *))                                            \
    X(ctx_get_device, cuCtxGetDevice, (cu_device *))                                               \
    X(mem_get_info, cuMemGetInfo, (size_t * free, size_t * total))                                 \
    X(mem_alloc, cuMemAlloc, (cu_pointer *, size_t))                                               \
    X(mem_free, cuMemFree, (cu_pointer))                                                           \
    X(memcpy_async, cuMemcpyAsync, (cu_pointer to, cu_pointer from, size_t, cu_stream))            \
    X(memset_async, cuMemsetD8Async, (cu_pointer, unsigned char, size_t, cu_stream))               \
    X(stream_create, cuStreamCreate, (cu_stream *, unsigned flags))                                \
    X(stream_destroy, cuStreamDestroy, (cu_stream))                                                \
    X(stream_synchronize, cuStreamSynchronize, (cu_stream))                                        \
    X(stream_wait_event, cuStreamWaitEvent, (cu_stream, cu_event, unsigned flags))                 \
    X(stream_is_capturing, cuStreamIsCapturing, (cu_stream, cu_capture_status *))                  \
    X(stream_begin_capture, cuStreamBeginCapture, (cu_stream, cu_capture_mode))                    \
    X(stream_end_capture, cuStreamEndCapture, (cu_stream, cu_graph *))                             \
    X(event_create, cuEventCreate, (cu_event *, unsigned flags))                                   \
    X(event_destroy, cuEventDestroy, (cu_event))                                                   \
    X(event_record, cuEventRecord, (cu_event, cu_stream))                                          \
    X(event_synchronize, cuEventSynchronize, (cu_event))                                           \
    X(event_elapsed_time, cuEventElapsedTime, (float *ms, cu_event start, cu_event end))           \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (cu_graph_exec *, cu_graph, unsigned long long flags))                                       \
    X(graph_launch, cuGraphLaunch, (cu_graph_exec, cu_stream))                                     \
    X(graph_destroy, cuGraphDestroy, (cu_graph))                                                   \
    X(graph_exec_destroy, cuGraphExecDestroy, (cu_graph_exec))                                     \
    X(library_load_data, cuLibraryLoadData,                                                        \
      (cu_library *, const void *code, cu_jit_option *, void **, unsigned, cu_library_option *,    \
       void **, unsigned))                                                                         \
    X(library_unload, cuLibraryUnload, (cu_library))                                               \
    X(library_get_kernel, cuLibraryGetKernel, (cu_kernel *, cu_library, const char *name))         \
    X(kernel_get_function, cuKernelGetFunction, (cu_function *, cu_kernel))                        \
    X(kernel_set_attribute, cuKernelSetAttribute,                                                  \
      (cu_function_attribute, int value, cu_kernel, cu_device))                                    \
    X(launch_kernel_ex, cuLaunchKernelEx,                                                          \
      (const cu_launch *, cu_function, void **params, void **extra))                               \
    X(tensor_map_encode, cuTensorMapEncodeTiled,                                                   \
      (cu_tensor_map *, cu_map_type, uint32_t rank, void *data, const uint64_t *dims,              \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, cu_map_interleave,     \
       cu_map_swizzle, cu_map_promotion, cu_map_fill))

struct tsri_cuda_driver {
#define TSRI_FIELD(field, name, parameters) cu_result(*field) parameters;
    TSRI_CUDA_DRIVER_FUNCTIONS(TSRI_FIELD)
#undef TSRI_FIELD
};

// Loads and initialises the driver and returns its table. The first call decides for the process. NULL, with a sentence
// in tsri_cuda_driver_sentence, if there is no driver or it is older than CUDA 12.0.
const struct tsri_cuda_driver *tsri_cuda_driver(void);
const char *tsri_cuda_driver_sentence(void);
int tsri_cuda_driver_version(void); // 13000 means 13.0; 0: no driver

// For tests: uses this table from now on; NULL restores the machine's.
void tsri_cuda_driver_replace(const struct tsri_cuda_driver *driver);

// TSR_OK, or the status of a failed call with a sentence: "softmax_forward: cuLaunchKernelEx failed: ...".
tsr_status tsri_cuda_check(const char *op, const char *call, cu_result result);

#define TSRI_CUDA(op, driver, field, ...)                                                          \
    tsri_cuda_check((op), #field, (driver)->field(__VA_ARGS__))

#endif
