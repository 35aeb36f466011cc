// SPDX-License-Identifier: Apache-2.0
// The context: what device calls run on, with which threads, instruction set and memory.
#ifndef TESSERA_CONTEXT_H
#define TESSERA_CONTEXT_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// A light handle for one thread at a time. Several contexts may run at once on several threads; the
// CPU worker threads behind them are shared process-wide and never serve two calls together.
//
// Floats    every function of the library, on every thread, computes in one environment: round to nearest, subnormals kept
//           (but by units for bf16, where a call says so), nothing trapped. So no result, and no sentence, depends on
//           which thread computed it, nor on the caller's rounding mode, FTZ, DAZ or traps; these and the exception
//           flags are after a call what they were before. A parallel_for, an allocator and what is called for each
//           record or kernel are called in that environment too.
// Signals   workers block all but what a fault raises (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP,
//           SIGSYS, SIGABRT) and a profiler's SIGPROF: the others reach the application's threads.
// Variables of the environment are passed over in a program that runs with more rights than who
//           started it (set-user-id, capabilities).
// fork      the child starts with no workers and makes its own; contexts made before serve in both.
typedef struct tsr_context tsr_context;

// CPU instruction sets, each one build of every kernel. AUTO takes the best that the machine and
// the operating system support; the environment variable TSR_ISA=scalar|avx2|avx512 overrides AUTO.
typedef enum tsr_isa {
    TSR_ISA_AUTO = 0,
    TSR_ISA_SCALAR,
    TSR_ISA_AVX2,
    TSR_ISA_AVX512,
    TSR_ISA_COUNT
} tsr_isa;

TSR_API const char *tsr_isa_name(tsr_isa isa); // "auto", "scalar", "avx2", "avx512"
TSR_API int tsr_isa_is_supported(tsr_isa isa); // by this build, machine and operating system

// Data cache of level 1, 2 (of one core) or 3 (shared) of this machine, as plans assume it; 0 for
// any other level.
TSR_API int64_t tsr_cache_bytes(int level);

// Runs task(arg, 0) ... task(arg, num_tasks - 1), in any order, on any threads, and returns when
// all are done. Running them one after the other is legal.
typedef void (*tsr_parallel_for)(void *user, int num_tasks, void (*task)(void *arg, int index),
                                 void *arg);

// Memory for the context's own arena, of its device. alloc returns NULL when it has none. On CUDA both are
// called with the context's CUDA context current, free when nothing is at work in the memory.
typedef struct tsr_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *pointer, size_t bytes);
    void *user;
} tsr_allocator;

typedef struct tsr_context_options {
    size_t size; // sizeof this struct; set by TSR_CONTEXT_OPTIONS
    tsr_device device;
    tsr_isa isa;
    // 0: all CPUs this process may use (affinity and cgroup quota), shared with calls of other threads under way: a
    // call made inside of a caller's parallel region runs on what is idle, its own thread at least.
    int32_t num_threads;
    tsr_parallel_for parallel_for; // NULL: the library's own threads
    void *parallel_for_user;
    tsr_allocator allocator; // zero: aligned_alloc and free
    // What plans take the shared cache to hold. 0: tsr_cache_bytes(3), in a virtual machine at most 5 MiB for
    // each of its CPUs, as neighbours use the cache too.
    int64_t l3_bytes;
    void *stream; // CUDA: a CUstream or cudaStream_t; NULL: the default stream
    // Which variants calls take (tessera/tuning.h). NULL: the user's file, where there is one; "": none.
    const char *tuning_file;
} tsr_context_options;

#define TSR_CONTEXT_OPTIONS(...)                                                                   \
    ((tsr_context_options){.size = sizeof(tsr_context_options), __VA_ARGS__})

// options may be NULL for the defaults. On failure *context is NULL.
//
// On CUDA (device {TSR_CUDA, ordinal}; tessera/device.h counts them) the context takes the thread's current CUDA
// context where that is one of this device, else it retains the primary one; every call leaves current what it
// found. Calls return when their kernels are queued on the stream; what fails there comes out of a later call or of
// tsr_context_synchronize. After DEVICE_LOST every call on the context fails; destroying it is legal. A child
// process that was forked has no device.
//
// Errors: INVALID_ARGUMENT (options), UNSUPPORTED (ISA, device or driver absent here, a GPU before compute
// capability 8.0), OUT_OF_MEMORY, DEVICE, DEVICE_LOST.
TSR_API tsr_status tsr_context_create(const tsr_context_options *options, tsr_context **context);

// Frees the arena. NULL is legal.
TSR_API void tsr_context_destroy(tsr_context *context);

TSR_API tsr_isa tsr_context_isa(const tsr_context *context);
TSR_API int32_t tsr_context_num_threads(const tsr_context *context);

// Arena bytes held now, and the most that one call has asked of it since the last reset.
TSR_API size_t tsr_context_arena_bytes(const tsr_context *context);
TSR_API size_t tsr_context_peak_workspace_bytes(const tsr_context *context);
TSR_API void tsr_context_reset_peak(tsr_context *context);

// The variant that the last call or _prepare on this context took, by the name that args.variant has
// for it: what the library chose where that was NULL. One that is refused leaves it; "" before the
// first. Static storage.
TSR_API const char *tsr_context_last_variant(const tsr_context *context);

// ---- What every args struct opens with --------------------------------------------------------

// size       sizeof the struct, set by its initialiser macro; an older, smaller struct is accepted.
// flags      a sum of TSR_DETERMINISTIC, TSR_BATCH_INVARIANT; 0 for none.
// variant    NULL: the library chooses; else a name from tsr_variant_info, UNSUPPORTED where it
//            cannot serve the call.
// workspace  NULL: the context's arena; else at least the bytes that the call's _prepare gave,
//            64-byte aligned, contents undefined, and WORKSPACE when too small. Where those are 0
//            bytes, it is not looked at.
#define TSR_CALL_FIELDS                                                                            \
    size_t size;                                                                                   \
    uint32_t flags;                                                                                \
    const char *variant;                                                                           \
    void *workspace;                                                                               \
    size_t workspace_bytes

enum {
    TSR_DETERMINISTIC = 1u << 0,  // bitwise the same result in every run on this machine
    TSR_BATCH_INVARIANT = 1u << 1 // a row's result does not depend on the other rows of the call
};

#ifdef __cplusplus
}
#endif
#endif
