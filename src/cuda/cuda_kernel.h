// SPDX-License-Identifier: Apache-2.0
// From a program to a kernel on the device: the pack, then the disk cache, then the compiler. A process loads each
// kernel once, for all threads and contexts.
#ifndef TSRI_CUDA_KERNEL_H
#define TSRI_CUDA_KERNEL_H

#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"

enum tsri_cuda_origin { TSRI_CUDA_PACK, TSRI_CUDA_CACHE, TSRI_CUDA_COMPILER };

// Gets the image from the first source at or after *origin that has it, and stores in *origin which one. A newly
// compiled image goes into the cache. Errors: those of tsri_cuda_image_compile.
tsr_status tsri_cuda_image_get(const struct tsri_cuda_program *program, const char *arch,
                               enum tsri_cuda_origin *origin, struct tsri_cuda_image *image);

// Gets the kernel, loaded for the driver. Without may_load, a kernel that is not loaded yet is an error
// (INVALID_ARGUMENT): for stream capture, which forbids loading.
tsr_status tsri_cuda_kernel_get(const char *op, const struct tsri_cuda_driver *driver,
                                const char *arch, const struct tsri_cuda_program *program,
                                bool may_load, cu_kernel *kernel);

// Allows blocks of a loaded kernel *bytes of dynamic shared memory, and stores the new limit in *bytes. The driver has
// one limit for all contexts of a device, and another context may be about to launch, so the limit never falls.
tsr_status tsri_cuda_kernel_allow_shared(const char *op, const struct tsri_cuda_driver *driver,
                                         const char *arch, const struct tsri_cuda_program *program,
                                         cu_device device, int *bytes);

// Names are compared by address, because they are constants of the caller.
bool tsri_cuda_program_is_same(const struct tsri_cuda_program *a,
                               const struct tsri_cuda_program *b);
unsigned tsri_cuda_program_hash(const struct tsri_cuda_program *program); // 24 bits

// For tests, in a process of their own: forgets the loaded kernels. A kernel is valid within one generation only.
void tsri_cuda_kernel_forget(void);
unsigned tsri_cuda_kernel_generation(void);

// Shared memory that a block may have on cards of an architecture, for compilation without a card. For an unknown
// architecture, the smallest value.
int64_t tsri_cuda_arch_shared_bytes(int arch_number);

#endif
