// SPDX-License-Identifier: Apache-2.0
// Values that every call uses: status, data types, devices, tensors.
#ifndef TESSERA_TYPES_H
#define TESSERA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TSR_API
#else
#define TSR_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0

// The version of the loaded library, "0.1.0".
TSR_API const char *tsr_version(void);

// ---- Status -----------------------------------------------------------------------------------

// What a call came to. After any of these but DEVICE_LOST the same context serves the next call.
typedef enum tsr_status {
    TSR_OK = 0,
    TSR_INVALID_ARGUMENT, // an argument breaks the contract; nothing was written
    TSR_UNSUPPORTED,      // legal, but this variant, device or build cannot do it
    TSR_OUT_OF_MEMORY,    // the allocator returned NULL
    TSR_WORKSPACE,        // the caller's workspace is too small or misaligned
    TSR_COMPILE,          // a kernel did not compile
    TSR_DEVICE,           // the driver reported an error
    TSR_DEVICE_LOST,      // the device context is unusable from here on
    TSR_IO,               // a file could not be read or written
    TSR_INTERNAL          // a defect of the library
} tsr_status;

// "TSR_OK", "TSR_INVALID_ARGUMENT", ...; "unknown status" for any other number.
TSR_API const char *tsr_status_name(tsr_status status);

// One sentence on the last failed call of this thread, naming operation, field, what it got and
// what it expected; "" when none failed yet. Valid until the thread's next failing call. Needs
// no context.
TSR_API const char *tsr_last_error(void);

// Leaves a sentence for tsr_last_error of this thread and returns status: for libraries built upon this
// one, so that their callers have one place to look. sentence may be tsr_last_error() itself; NULL
// is "".
TSR_API tsr_status tsr_fail(tsr_status status, const char *sentence);

// ---- Data types -------------------------------------------------------------------------------

// bf16 and f16 are bits in a uint16_t, fp8 in a uint8_t: tsr_cast and tsr_store make them of numbers.
typedef enum tsr_dtype {
    TSR_DTYPE_NONE = 0, // an absent tensor
    TSR_F64, // by the "reference" variants only (tsr_cast: by all), which a call on these takes by itself
    TSR_F32,
    TSR_BF16,
    TSR_F16,
    TSR_E4M3, // fp8, finite only, largest 448 (OCP E4M3FN)
    TSR_E5M2, // fp8, IEEE-like, largest 57344
    TSR_I32,
    TSR_DTYPE_COUNT
} tsr_dtype;

TSR_API const char *tsr_dtype_name(tsr_dtype dtype); // "f32", "bf16", ...
TSR_API tsr_dtype
tsr_dtype_from_name(const char *name); // also "float32", "bfloat16"; NONE if unknown
TSR_API size_t tsr_dtype_bytes(tsr_dtype dtype);

// Scalar conversions, round to nearest even. To fp8 they saturate: beyond the largest value gives
// the largest value, infinities too; NaN stays NaN with its sign. To i32 they saturate, NaN gives
// 0. Index is in elements. Of any rounding mode, FTZ or DAZ; no flag is raised.
TSR_API double tsr_load(tsr_dtype dtype, const void *data, int64_t index);
TSR_API void tsr_store(tsr_dtype dtype, void *data, int64_t index, double value);

// ---- Devices ----------------------------------------------------------------------------------

typedef enum tsr_device_type { TSR_CPU = 0, TSR_CUDA } tsr_device_type;

typedef struct tsr_device {
    tsr_device_type type;
    int32_t index;
} tsr_device;

// ---- Tensors ----------------------------------------------------------------------------------

#define TSR_MAX_DIMS 5

// A borrowed view: the library never owns, frees or keeps it past the call. Strides count elements
// and may exceed 2^31; from its first element to its last a tensor spans at most 2^48. A tensor of
// dtype TSR_DTYPE_NONE ({0}) is absent; a tensor with a zero in its shape is empty and may have
// NULL data and any strides, as a dimension of one element may have any stride: negative, huge or 0,
// whatever a call says of its strides. Data must be aligned to its element size, no more.
typedef struct tsr_tensor {
    void *data;
    tsr_dtype dtype;
    tsr_device device;
    int32_t ndim;
    int64_t shape[TSR_MAX_DIMS];
    int64_t stride[TSR_MAX_DIMS];
} tsr_tensor;

// A row-major tensor on the CPU; for memory of a GPU set .device in the result. ndim from 0 to
// TSR_MAX_DIMS; any other gives an absent tensor. Only the address is taken, so data may be
// uninitialised; gcc would warn without the attribute.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
__attribute__((access(none, 1)))
#endif
TSR_API tsr_tensor
tsr_tensor_contiguous(const void *data, tsr_dtype dtype, int ndim, const int64_t *shape);

// TSR_TENSOR(data, TSR_F32, rows, cols): the same in one line.
#define TSR_TENSOR(data, dtype, ...)                                                               \
    tsr_tensor_contiguous((data), (dtype),                                                         \
                          (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),               \
                          (const int64_t[]){__VA_ARGS__})

// Number of elements; 1 for ndim 0; INT64_MAX when the product overflows; 0 when ndim is out of
// range or a dimension negative.
TSR_API int64_t tsr_tensor_numel(const tsr_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
