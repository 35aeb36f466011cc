// SPDX-License-Identifier: Apache-2.0
// CUDA kernels ahead of time. A kernel is compiled by NVRTC when it is first needed, and kept in a cache on disk
// ($TSR_CACHE_DIR, $XDG_CACHE_HOME/tessera or ~/.cache/tessera). A machine with a driver alone takes them from a
// pack: one file, looked for at $TSR_KERNEL_PACK, or as tessera-kernels.pack beside the library and in ../lib of that.
#ifndef TESSERA_KERNELS_H
#define TESSERA_KERNELS_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// One kernel, as told to a caller; texts last until the callback returns.
typedef struct tsr_kernel_report {
    tsr_status status;    // why it is not there; TSR_OK
    const char *name;     // "ops/softmax/softmax_forward.cu DTYPE=2 THREADS_PER_ROW=32"
    const char *arch;     // "sm_90a"
    const char *origin;   // "pack", "cache" or "compiler"
    const char *warnings; // of the compiler, one a line; "" for none
    const char *error;    // "" where status is TSR_OK
    int32_t num_registers, stack_bytes, spill_bytes, shared_bytes; // negative: not known
    size_t bytes;                                                  // of machine code
    int32_t index, count; // of the kernels to come; count 0 where that is not known
    double compile_ms;    // of the compiling thread's time; 0 where it came from a file
} tsr_kernel_report;
typedef void (*tsr_kernel_visit)(void *user, const tsr_kernel_report *kernel);

// Has every kernel of the standard set, all that ordinary calls ask for, compiled for an architecture ("sm_80",
// "sm_90a") by num_threads threads (0: one a CPU), and writes them into a pack where a path is given. visit (may be
// NULL) is called for each, by one thread at a time; one that fails does not stop the others, but there is no pack
// then. No GPU is needed. A pack of it lacks the rare kernels: for machines without a compiler use tsr_kernels_build_all.
// Errors: UNSUPPORTED (no NVRTC), COMPILE, IO, OUT_OF_MEMORY, INVALID_ARGUMENT.
TSR_API tsr_status tsr_kernels_build(const char *arch, const char *pack_path, int32_t num_threads,
                                     tsr_kernel_visit visit, void *user);

// The same with the rare kernels, which the standard set leaves to the first call that asks for one: all that calls may
// ask for, as a machine without a compiler must have them.
TSR_API tsr_status tsr_kernels_build_all(const char *arch, const char *pack_path,
                                         int32_t num_threads, tsr_kernel_visit visit, void *user);

// The cache: its folder and every kernel in it. num_damaged files are no kernels; they are never used. IO where the
// cache cannot be used, as it is where the folder is another user's.
TSR_API tsr_status tsr_kernels_list(tsr_kernel_visit visit, void *user, char *folder,
                                    size_t folder_bytes, int32_t *num_damaged);

// Empties the cache.
TSR_API tsr_status tsr_kernels_clear(int32_t *num_removed);

#ifdef __cplusplus
}
#endif
#endif
