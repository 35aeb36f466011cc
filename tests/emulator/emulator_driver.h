// SPDX-License-Identifier: Apache-2.0
// Parts of the emulated driver: memory and loaded kernels.
#ifndef EMULATOR_DRIVER_H
#define EMULATOR_DRIVER_H

#include "cuda/cuda_driver.h"
#include "emulator_device.h"

#define EMULATOR_MEMORY_BYTES ((size_t)4 << 30)

cu_result emulator_memory_info(size_t *free, size_t *total);
cu_result emulator_memory_alloc(cu_pointer *pointer, size_t bytes);
cu_result emulator_memory_free(cu_pointer pointer);

struct cu_kernel_st {
    struct cu_kernel_st *next; // of the same library
    const struct emulator_kernel *kernel;
    struct emulator **table; // the object's pointer to the device's table
    char name[64];
    unsigned static_bytes, max_dynamic;
};

cu_result emulator_library_load(cu_library *library, const void *code, cu_jit_option *options,
                                void **values, unsigned count, cu_library_option *more,
                                void **others, unsigned number);
cu_result emulator_library_unload(cu_library library);
cu_result emulator_library_kernel(cu_kernel *kernel, cu_library library, const char *name);

#endif
