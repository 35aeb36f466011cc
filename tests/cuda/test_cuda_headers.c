// SPDX-License-Identifier: Apache-2.0
// The compiler compares our declarations of the driver and of NVRTC with the toolkit's headers: every signature, value
// and layout. Skipped without a toolkit.
#include "test_support.h"

#if defined(TEST_HAS_CUDA_HEADERS)
#include <cuda.h>
#include <nvrtc.h>
#if defined(TEST_HAS_CUPTI_HEADERS)
#include <cupti.h>
#endif

// With the toolkit's types in place of our handles and enums, each function must have exactly its type.
#define TSRI_CUDA_TYPES_FROM_TOOLKIT
typedef CUresult cu_result;
typedef CUdevice cu_device;
typedef CUdevice_attribute cu_device_attribute;
typedef CUfunction_attribute cu_function_attribute;
typedef CUstreamCaptureMode cu_capture_mode;
typedef CUstreamCaptureStatus cu_capture_status;
typedef CUdeviceptr cu_pointer;
typedef CUcontext cu_context;
typedef CUstream cu_stream;
typedef CUevent cu_event;
typedef CUlibrary cu_library;
typedef CUkernel cu_kernel;
typedef CUfunction cu_function;
typedef CUgraph cu_graph;
typedef CUgraphExec cu_graph_exec;
typedef CUjit_option cu_jit_option;
typedef CUlibraryOption cu_library_option;
typedef CUtensorMap cu_tensor_map;
typedef CUtensorMapDataType cu_map_type;
typedef CUtensorMapInterleave cu_map_interleave;
typedef CUtensorMapSwizzle cu_map_swizzle;
typedef CUtensorMapL2promotion cu_map_promotion;
typedef CUtensorMapFloatOOBfill cu_map_fill;
typedef CUlaunchConfig cu_launch;
typedef nvrtcResult nvrtc_result;
typedef nvrtcProgram nvrtc_program;

#include "cuda/cuda_driver.h"
#include "cuda/cuda_nvrtc.h"

#define SAME_TYPE(a, b)                                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(a), __typeof__(b)), #a)
#define CHECK_DRIVER(field, name, parameters)                                                      \
    SAME_TYPE(((struct tsri_cuda_driver *)0)->field, &name);
TSRI_CUDA_DRIVER_FUNCTIONS(CHECK_DRIVER)
#define CHECK_NVRTC(returns, field, name, parameters)                                              \
    SAME_TYPE(((struct tsri_nvrtc *)0)->field, &name);
TSRI_NVRTC_FUNCTIONS(CHECK_NVRTC)

#if defined(TEST_HAS_CUPTI_HEADERS)
typedef CUptiResult cupti_result;
typedef CUpti_ActivityKind cupti_kind;
typedef CUpti_ExternalCorrelationKind cupti_correlation;
typedef CUpti_CallbackDomain cupti_domain;
typedef CUpti_Activity cupti_activity;
typedef CUpti_BuffersCallbackRequestFunc cupti_request;
typedef CUpti_BuffersCallbackCompleteFunc cupti_complete;
#include "cuda/cuda_cupti.h"
#define CHECK_CUPTI(field, name, parameters) SAME_TYPE(((struct tsri_cupti *)0)->field, &name);
TSRI_CUPTI_FUNCTIONS(CHECK_CUPTI)
#endif

// Our own types: handles are pointers, enums ints.
#define SAME_SIZE(a, b) _Static_assert(sizeof(a) == sizeof(b), #a)
SAME_SIZE(CUcontext, void *);
SAME_SIZE(CUlibrary, void *);
SAME_SIZE(CUresult, int);
SAME_SIZE(CUdevice, int);
SAME_SIZE(CUdevice_attribute, int);
SAME_SIZE(CUdeviceptr, unsigned long long);
SAME_SIZE(nvrtcResult, int);
SAME_SIZE(struct cu_launch_config, CUlaunchConfig);
SAME_SIZE(struct cu_launch_attribute, CUlaunchAttribute);
SAME_SIZE(CUtensorMapDataType, int);
SAME_SIZE(struct tensor_map, CUtensorMap);
_Static_assert(_Alignof(struct tensor_map) == _Alignof(CUtensorMap), "alignment");

#define SAME_OFFSET(ours, field, theirs, their_field)                                              \
    _Static_assert(offsetof(struct ours, field) == offsetof(theirs, their_field), #their_field)
SAME_OFFSET(cu_launch_config, grid_x, CUlaunchConfig, gridDimX);
SAME_OFFSET(cu_launch_config, block_x, CUlaunchConfig, blockDimX);
SAME_OFFSET(cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_OFFSET(cu_launch_config, stream, CUlaunchConfig, hStream);
SAME_OFFSET(cu_launch_config, attributes, CUlaunchConfig, attrs);
SAME_OFFSET(cu_launch_config, num_attributes, CUlaunchConfig, numAttrs);
SAME_OFFSET(cu_launch_attribute, value, CUlaunchAttribute, value);

#define SAME_VALUE(a, b) _Static_assert((int)(a) == (int)(b), #a)
SAME_VALUE(CU_OK, CUDA_SUCCESS);
SAME_VALUE(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_VALUE(CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME_VALUE(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_VALUE(CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_VALUE(CU_ASSERT, CUDA_ERROR_ASSERT);
SAME_VALUE(CU_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME_VALUE(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(CU_ATTRIBUTE_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_VALUE(CU_ATTRIBUTE_MEMORY_CLOCK_KHZ, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_VALUE(CU_ATTRIBUTE_MEMORY_BUS_BITS, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_VALUE(CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(CU_ATTRIBUTE_THREADS_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_VALUE(CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(CU_ATTRIBUTE_SHARED_PER_SM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME_VALUE(CU_ATTRIBUTE_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(CU_FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(CU_LAUNCH_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_VALUE(CU_LAUNCH_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME_VALUE(CU_STREAM_NON_BLOCKING_FLAG, CU_STREAM_NON_BLOCKING);
SAME_VALUE(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(CU_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(CU_MAP_U8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME_VALUE(CU_MAP_F16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_VALUE(CU_MAP_F32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME_VALUE(CU_MAP_BF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_VALUE(CU_MAP_TF32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32);
SAME_VALUE(CU_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME_VALUE(CU_MAP_SWIZZLE_128, CU_TENSOR_MAP_SWIZZLE_128B);
SAME_VALUE(CU_MAP_NOT_INTERLEAVED, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME_VALUE(CU_MAP_PROMOTE_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME_VALUE(CU_MAP_FILL_ZEROS, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME_VALUE(NVRTC_OK, NVRTC_SUCCESS);

#if defined(TEST_HAS_CUPTI_HEADERS)
SAME_SIZE(CUptiResult, int);
SAME_SIZE(CUpti_ActivityKind, int);
SAME_SIZE(CUpti_ExternalCorrelationKind, int);
SAME_VALUE(CUPTI_OK, CUPTI_SUCCESS);
SAME_VALUE(CUPTI_NOT_PRIVILEGED, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
SAME_VALUE(CUPTI_NOT_PRIVILEGED_VIRTUAL, CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES);
SAME_VALUE(CUPTI_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
SAME_VALUE(CUPTI_DOMAIN_DRIVER, CUPTI_CB_DOMAIN_DRIVER_API);
SAME_VALUE(CUPTI_CORRELATION_OURS, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);
SAME_VALUE(CUPTI_KIND_COPY, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME_VALUE(CUPTI_KIND_FILL, CUPTI_ACTIVITY_KIND_MEMSET);
SAME_VALUE(CUPTI_KIND_DRIVER, CUPTI_ACTIVITY_KIND_DRIVER);
SAME_VALUE(CUPTI_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME_VALUE(CUPTI_KIND_EXTERNAL, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
SAME_VALUE(CUPTI_HOST_TO_DEVICE, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
SAME_VALUE(CUPTI_DEVICE_TO_HOST, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH);
SAME_VALUE(CUPTI_DEVICE_TO_DEVICE, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD);
// The newest record of each kind in CUDA 13. Older records are prefixes of it.
SAME_OFFSET(cupti_copy, direction, CUpti_ActivityMemcpy6, copyKind);
SAME_OFFSET(cupti_copy, bytes, CUpti_ActivityMemcpy6, bytes);
SAME_OFFSET(cupti_copy, start, CUpti_ActivityMemcpy6, start);
SAME_OFFSET(cupti_copy, end, CUpti_ActivityMemcpy6, end);
SAME_OFFSET(cupti_copy, stream, CUpti_ActivityMemcpy6, streamId);
SAME_OFFSET(cupti_copy, correlation, CUpti_ActivityMemcpy6, correlationId);
SAME_OFFSET(cupti_fill, bytes, CUpti_ActivityMemset4, bytes);
SAME_OFFSET(cupti_fill, start, CUpti_ActivityMemset4, start);
SAME_OFFSET(cupti_fill, end, CUpti_ActivityMemset4, end);
SAME_OFFSET(cupti_fill, stream, CUpti_ActivityMemset4, streamId);
SAME_OFFSET(cupti_fill, correlation, CUpti_ActivityMemset4, correlationId);
SAME_OFFSET(cupti_kernel, num_registers, CUpti_ActivityKernel9, registersPerThread);
SAME_OFFSET(cupti_kernel, start, CUpti_ActivityKernel9, start);
SAME_OFFSET(cupti_kernel, end, CUpti_ActivityKernel9, end);
SAME_OFFSET(cupti_kernel, stream, CUpti_ActivityKernel9, streamId);
SAME_OFFSET(cupti_kernel, grid_x, CUpti_ActivityKernel9, gridX);
SAME_OFFSET(cupti_kernel, block_z, CUpti_ActivityKernel9, blockZ);
SAME_OFFSET(cupti_kernel, static_shared, CUpti_ActivityKernel9, staticSharedMemory);
SAME_OFFSET(cupti_kernel, dynamic_shared, CUpti_ActivityKernel9, dynamicSharedMemory);
SAME_OFFSET(cupti_kernel, correlation, CUpti_ActivityKernel9, correlationId);
SAME_OFFSET(cupti_kernel, name, CUpti_ActivityKernel9, name);
SAME_OFFSET(cupti_call, function, CUpti_ActivityAPI, cbid);
SAME_OFFSET(cupti_call, start, CUpti_ActivityAPI, start);
SAME_OFFSET(cupti_call, end, CUpti_ActivityAPI, end);
SAME_OFFSET(cupti_call, correlation, CUpti_ActivityAPI, correlationId);
SAME_OFFSET(cupti_external, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME_OFFSET(cupti_external, id, CUpti_ActivityExternalCorrelation, externalId);
SAME_OFFSET(cupti_external, correlation, CUpti_ActivityExternalCorrelation, correlationId);
#endif

static void headers_agree(void **state) { (void)state; }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers_agree)};
    return cmocka_run_group_tests_name("cuda headers", tests, NULL, NULL);
}

#else

int main(void) {
    printf("skipped: no cuda.h and nvrtc.h to compare with\n");
    return 77;
}

#endif
