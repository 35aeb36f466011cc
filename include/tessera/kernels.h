// SPDX-License-Identifier: Apache-2.0
// CUDA kernels ahead of time. NVRTC compiles a kernel when it is first needed, and a cache on disk keeps it
// ($TSR_CACHE_DIR, $XDG_CACHE_HOME/tessera or ~/.cache/tessera). A machine with only a driver takes kernels from a
// pack: one file at $TSR_KERNEL_PACK, or tessera-kernels.pack in the library's folder or in ../lib from there.
#ifndef TESSERA_KERNELS_H
#define TESSERA_KERNELS_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// One kernel, as reported to a callback; its texts last until the callback returns.
typedef struct tsr_kernel_report {
    tsr_status status;    // TSR_OK, or why the kernel is missing
    const char *name;     // "ops/softmax/softmax_forward.cu DTYPE=2 THREADS_PER_ROW=32"
    const char *arch;     // "sm_90a"
    const char *origin;   // "pack", "cache" or "compiler"
    const char *warnings; // the compiler's, one per line; "" for none
    const char *error;    // "" if status is TSR_OK
    int32_t num_registers, stack_bytes, spill_bytes, shared_bytes; // negative: not known
    size_t bytes;                                                  // of machine code
    int32_t index, count; // of this report, from 0, and of all reports; count 0: not known
    double compile_ms;    // time of the compiling thread; 0 for a kernel from a file
} tsr_kernel_report;
typedef void (*tsr_kernel_visit)(void *user, const tsr_kernel_report *kernel);

// Compiles the standard set, the kernels of all ordinary calls, for an architecture ("sm_80", "sm_90a") on num_threads
// threads (0: one per CPU), and writes them into a pack if a path is given. visit (may be NULL) is called for each
// kernel, by one thread at a time. A kernel that fails does not stop the others, but then there is no pack. No GPU is
// needed. The pack lacks the rare kernels: for machines without a compiler use tsr_kernels_build_all.
// Errors: UNSUPPORTED (no NVRTC), COMPILE, IO, OUT_OF_MEMORY, INVALID_ARGUMENT.
TSR_API tsr_status tsr_kernels_build(const char *arch, const char *pack_path, int32_t num_threads,
                                     tsr_kernel_visit visit, void *user);

// The same for every kernel that a call may need, as a machine without a compiler requires: the standard set and the
// rare kernels, which are otherwise compiled by the first call that needs them.
TSR_API tsr_status tsr_kernels_build_all(const char *arch, const char *pack_path,
                                         int32_t num_threads, tsr_kernel_visit visit, void *user);

// The cache: its folder and every kernel in it. num_damaged counts files that are not kernels; they are never used. IO
// if the cache cannot be used, for example because the folder belongs to another user.
TSR_API tsr_status tsr_kernels_list(tsr_kernel_visit visit, void *user, char *folder,
                                    size_t folder_bytes, int32_t *num_damaged);

// Empties the cache.
TSR_API tsr_status tsr_kernels_clear(int32_t *num_removed);

#ifdef __cplusplus
}
#endif
#endif
