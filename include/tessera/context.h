// SPDX-License-Identifier: Apache-2.0
// The context: the device, threads, instruction set and memory that calls use.
#ifndef TESSERA_CONTEXT_H
#define TESSERA_CONTEXT_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// A light handle for one thread at a time. Several contexts may run at once on several threads; the
// CPU worker threads behind them are shared process-wide and never serve two calls at once.
//
// Floats    every function of the library, on every thread, computes in one floating-point environment: round to
//           nearest, subnormals kept (except by bf16 units, where a call says so), no traps. So results and error
//           sentences depend neither on the thread that computes them nor on the caller's rounding mode, FTZ, DAZ or
//           traps; a call leaves these and the exception flags as they were. Callbacks (parallel_for, allocators,
//           the visitors of records and kernels) run in the library's environment too.
// Signals   workers block all signals except those that a fault raises (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP,
//           SIGSYS, SIGABRT) and a profiler's SIGPROF; all others reach the application's threads.
// Variables environment variables are ignored in a program that runs with more rights than the user who started it
//           (set-user-id, capabilities).
// fork      the child starts without workers and makes its own; contexts made before the fork work in both processes.
typedef struct tsr_context tsr_context;

// CPU instruction sets; every kernel is built once for each. AUTO takes the best one that the machine and the
// operating system support; the environment variable TSR_ISA=scalar|avx2|avx512 overrides AUTO.
typedef enum tsr_isa {
    TSR_ISA_AUTO = 0,
    TSR_ISA_SCALAR,
    TSR_ISA_AVX2,
    TSR_ISA_AVX512,
    TSR_ISA_COUNT
} tsr_isa;

TSR_API const char *tsr_isa_name(tsr_isa isa); // "auto", "scalar", "avx2", "avx512"
TSR_API int tsr_isa_is_supported(tsr_isa isa); // by this build, machine and operating system

// Bytes of this machine's data cache of level 1, 2 (of one core) or 3 (shared), as plans assume them; 0 for any other
// level.
TSR_API int64_t tsr_cache_bytes(int level);

// Runs task(arg, 0) ... task(arg, num_tasks - 1), in any order, on any threads, and returns when
// all are done. Running them one after the other is legal.
typedef void (*tsr_parallel_for)(void *user, int num_tasks, void (*task)(void *arg, int index),
                                 void *arg);

// Memory for the context's own arena, on its device. alloc returns NULL when it has none. On CUDA both are called with
// the context's CUDA context current, and free only when no queued work uses the memory.
typedef struct tsr_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *pointer, size_t bytes);
    void *user;
} tsr_allocator;

typedef struct tsr_context_options {
    size_t size; // sizeof this struct; set by TSR_CONTEXT_OPTIONS
    tsr_device device;
    tsr_isa isa;
    // 0: all CPUs this process may use (affinity, cgroup quota), shared with concurrent calls of other threads. A call
    // inside the caller's parallel region runs on its own thread and on those that are idle.
    int32_t num_threads;
    tsr_parallel_for parallel_for; // NULL: the library's own threads
    void *parallel_for_user;
    tsr_allocator allocator; // zero: aligned_alloc and free
    // The shared cache that plans assume. 0: tsr_cache_bytes(3), but in a virtual machine at most 5 MiB for each of its
    // CPUs, because neighbours use the cache too.
    int64_t l3_bytes;
    void *stream; // CUDA: a CUstream or cudaStream_t; NULL: the default stream
    // The file that chooses variants (tessera/tuning.h). NULL: the user's file, if there is one; "": none.
    const char *tuning_file;
} tsr_context_options;

#define TSR_CONTEXT_OPTIONS(...)                                                                   \
    ((tsr_context_options){.size = sizeof(tsr_context_options), __VA_ARGS__})

// options may be NULL for the defaults. On failure *context is NULL.
//
// On CUDA (device {TSR_CUDA, ordinal}; tsr_device_count counts them) the context uses the thread's current CUDA
// context if that is on this device, else it retains the primary one. A call leaves the thread's current CUDA context
// as it was. Calls return when their kernels are queued on the stream; a later call or tsr_context_synchronize reports
// what fails there. After DEVICE_LOST every call on the context fails; destroying it is legal. A forked child process
// has no device.
//
// Errors: INVALID_ARGUMENT (options), UNSUPPORTED (ISA, device or driver absent here, a GPU before compute
// capability 8.0), OUT_OF_MEMORY, DEVICE, DEVICE_LOST.
TSR_API tsr_status tsr_context_create(const tsr_context_options *options, tsr_context **context);

// Frees the arena. NULL is legal.
TSR_API void tsr_context_destroy(tsr_context *context);

TSR_API tsr_isa tsr_context_isa(const tsr_context *context);
TSR_API int32_t tsr_context_num_threads(const tsr_context *context);

// Bytes that the arena holds now, and the most that one call has taken from it since the last reset.
TSR_API size_t tsr_context_arena_bytes(const tsr_context *context);
TSR_API size_t tsr_context_peak_workspace_bytes(const tsr_context *context);
TSR_API void tsr_context_reset_peak(tsr_context *context);

// The variant that the last call or _prepare on this context used, by its name in args.variant; the library's choice
// where that was NULL. A call that is refused does not change it; "" before the first call. Static storage.
TSR_API const char *tsr_context_last_variant(const tsr_context *context);

// ---- The first fields of every args struct ----------------------------------------------------

// size       sizeof the struct, set by its initialiser macro; an older, smaller struct is accepted.
// flags      a sum of TSR_DETERMINISTIC, TSR_BATCH_INVARIANT; 0 for none.
// variant    NULL: the library chooses; else a name from tsr_variant_info, UNSUPPORTED if that variant cannot
//            serve the call.
// workspace  NULL: the context's arena; else at least the bytes that the call's _prepare gave, 64-byte aligned,
//            contents undefined; WORKSPACE if it is too small. It is ignored where _prepare gave 0 bytes.
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
