// SPDX-License-Identifier: Apache-2.0
// Tensors of other frameworks: DLPack, versioned (1.x) and legacy, as views without a copy.
#ifndef TESSERA_DLPACK_H
#define TESSERA_DLPACK_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// DLPack's own structs, declared by their tags: <dlpack/dlpack.h> may be included beside this header,
// before or after, and is not needed.
struct DLManagedTensorVersioned; // capsules named "dltensor_versioned"
struct DLManagedTensor;          // capsules named "dltensor"

typedef enum tsr_dlpack_use { TSR_DLPACK_INPUT = 0, TSR_DLPACK_OUTPUT } tsr_dlpack_use;

// A view of the tensor that a producer exports. Nothing is copied or owned: the producer's tensor must outlive the
// view, and the caller releases it afterwards, also when this call fails. For results the framework makes the tensor,
// and a call writes into a view of it (TSR_DLPACK_OUTPUT); the library exports no tensors of its own.
//
// Types     float 16, 32 and 64, bfloat 16, int 32, uint 8, float8_e4m3fn, float8_e5m2. dtype TSR_DTYPE_NONE takes
//           the producer's type. Any other value must be the producer's type, or say what its uint8 (TSR_E4M3,
//           TSR_E5M2) or uint16 (TSR_BF16, TSR_F16) means, for producers without such types.
// Strides   NULL: row-major. Negative ones are refused unless the dimension has one element. 0 repeats an
//           element and is refused for an output.
// Data      byte_offset is honoured; the address must be a multiple of the element size. NULL data is
//           legal for an empty tensor.
// Devices   kDLCPU and kDLCUDA. The caller orders the work against the producer's stream.
// Errors    INVALID_ARGUMENT (NULL, layout, alignment, read-only for an output, dtype); UNSUPPORTED
//           (another major version, device, type, lanes, more than TSR_MAX_DIMS dimensions). On failure
//           *tensor is absent.
// Source    DLPack 1.0 to 1.3, https://dmlc.github.io/dlpack/
TSR_API tsr_status tsr_tensor_from_dlpack(const struct DLManagedTensorVersioned *managed,
                                          tsr_dlpack_use use, tsr_dtype dtype, tsr_tensor *tensor);

// The same for the struct without version and flags, which has no way to say that it is read-only.
TSR_API tsr_status tsr_tensor_from_dlpack_legacy(const struct DLManagedTensor *managed,
                                                 tsr_dlpack_use use, tsr_dtype dtype,
                                                 tsr_tensor *tensor);

// 1 if the producer forbids writing; also for another major version, whose flags are unknown, and for NULL.
TSR_API int tsr_dlpack_is_read_only(const struct DLManagedTensorVersioned *managed);

// Calls the deleter, which is at the same place in every version. NULL, or a NULL deleter, does nothing.
TSR_API void tsr_dlpack_release(struct DLManagedTensorVersioned *managed);
TSR_API void tsr_dlpack_release_legacy(struct DLManagedTensor *managed);

#ifdef __cplusplus
}
#endif
#endif
