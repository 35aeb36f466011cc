// SPDX-License-Identifier: Apache-2.0
// Types that every call uses: status, data types, devices, tensors.
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

// The result of a call. After any status except DEVICE_LOST the same context serves the next call.
typedef enum tsr_status {
    TSR_OK = 0,
    TSR_INVALID_ARGUMENT, // an argument breaks the contract; nothing was written
    TSR_UNSUPPORTED,      // legal, but this variant, device or build cannot do it
    TSR_OUT_OF_MEMORY,    // the allocator returned NULL
    TSR_WORKSPACE,        // the caller's workspace is too small or misaligned
    TSR_COMPILE,          // a kernel did not compile
    TSR_DEVICE,           // the driver reported an error
    TSR_DEVICE_LOST,      // the device context is unusable from now on
    TSR_IO,               // a file could not be read or written
    TSR_INTERNAL          // a defect of the library
} tsr_status;

// "TSR_OK", "TSR_INVALID_ARGUMENT", ...; "unknown status" for any other number.
TSR_API const char *tsr_status_name(tsr_status status);

// One sentence about the last failed call of this thread: the operation, the field, the value it got and the
// value it expected; "" if no call has failed yet. Valid until the thread's next failing call. Needs no context.
TSR_API const char *tsr_last_error(void);

// Sets the sentence of this thread's tsr_last_error and returns status, so that libraries built on this one report
// errors in the same place. sentence may be tsr_last_error() itself; NULL is "".
TSR_API tsr_status tsr_fail(tsr_status status, const char *sentence);

// ---- Data types -------------------------------------------------------------------------------

// A bf16 or f16 element is the bits of a uint16_t, an fp8 one those of a uint8_t; tsr_cast and tsr_store make them.
typedef enum tsr_dtype {
    TSR_DTYPE_NONE = 0, // an absent tensor
    TSR_F64, // only "reference" takes it, and a call with f64 tensors selects it by itself; tsr_cast: all variants
    TSR_F32,
    TSR_BF16,
    TSR_F16,
    TSR_E4M3, // fp8, finite only, largest 448 (OCP E4M3FN)
    TSR_E5M2, // fp8, IEEE-like, largest 57344
    TSR_I32,
    TSR_U8, // bytes of quantised weights: tessera/dequantize.h
    TSR_DTYPE_COUNT
} tsr_dtype;

TSR_API const char *tsr_dtype_name(tsr_dtype dtype); // "f32", "bf16", ...
TSR_API tsr_dtype
tsr_dtype_from_name(const char *name); // also "float32", "bfloat16"; NONE if unknown
TSR_API size_t tsr_dtype_bytes(tsr_dtype dtype);

// Scalar conversions, round to nearest even. fp8 saturates: numbers beyond the largest value, and infinities, become
// the largest value; NaN stays NaN with its sign. i32 and u8 saturate, and NaN becomes 0. index counts elements. The caller's
// rounding mode, FTZ and DAZ have no effect, and no flag is raised.
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

// A borrowed view: the library never owns or frees it, nor keeps it past the call. Strides count elements and may
// exceed 2^31; a tensor spans at most 2^48 elements from its first to its last. A tensor of dtype TSR_DTYPE_NONE ({0})
// is absent. A tensor with a zero in its shape is empty and may have NULL data and any strides. A dimension of one
// element may have any stride (negative, huge or 0), whatever a call says about strides. Data must be aligned to its
// element size, no more.
typedef struct tsr_tensor {
    void *data;
    tsr_dtype dtype;
    tsr_device device;
    int32_t ndim;
    int64_t shape[TSR_MAX_DIMS];
    int64_t stride[TSR_MAX_DIMS];
} tsr_tensor;

// A row-major tensor on the CPU; for GPU memory set .device in the result. ndim is 0 to TSR_MAX_DIMS; any other
// value gives an absent tensor. Only the address is used, so data may be uninitialised; the attribute tells gcc so.
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
