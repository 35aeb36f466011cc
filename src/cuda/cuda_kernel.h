// SPDX-License-Identifier: Apache-2.0
// From a program to a kernel on the device: the pack, the disk cache, then the compiler; loaded once in a
// process, whatever the number of threads and contexts that ask.
#ifndef TSRI_CUDA_KERNEL_H
#define TSRI_CUDA_KERNEL_H

#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"

enum tsri_cuda_origin { TSRI_CUDA_PACK, TSRI_CUDA_CACHE, TSRI_CUDA_COMPILER };

// The image, from the first of these at or after *origin that has it, and which one that was. What the compiler
// makes goes into the cache. Errors: those of tsri_cuda_image_compile.
tsr_status tsri_cuda_image_get(const struct tsri_cuda_program *program, const char *arch,
                               enum tsri_cuda_origin *origin, struct tsri_cuda_image *image);

// Loaded for the driver. Without may_load a kernel that is not loaded yet is an error (INVALID_ARGUMENT):
// for stream capture, which forbids what loading does.
tsr_status tsri_cuda_kernel_get(const char *op, const struct tsri_cuda_driver *driver,
                                const char *arch, const struct tsri_cuda_program *program,
                                bool may_load, cu_kernel *kernel);

// Lets blocks of a kernel that was got have *bytes of dynamic shared memory; says how many they may have from now on. The
// driver has one number for all contexts of a device, which others may be about to launch with: it never falls.
tsr_status tsri_cuda_kernel_allow_shared(const char *op, const struct tsri_cuda_driver *driver,
                                         const char *arch, const struct tsri_cuda_program *program,
                                         cu_device device, int *bytes);

// Names are compared by address, as they are constants of the call that asks.
bool tsri_cuda_program_is_same(const struct tsri_cuda_program *a,
                               const struct tsri_cuda_program *b);
unsigned tsri_cuda_program_hash(const struct tsri_cuda_program *program); // 24 bits

// For tests: forgets what was loaded, in the process that a test has to itself. Kernels are good within a generation.
void tsri_cuda_kernel_forget(void);
unsigned tsri_cuda_kernel_generation(void);

// Shared memory that a block may have on cards of an architecture, where there is no card to ask: what a kernel is compiled
// for ahead. Of one that is not known, the least of all.
int64_t tsri_cuda_arch_shared_bytes(int arch_number);

#endif
