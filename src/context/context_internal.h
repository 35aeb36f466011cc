// SPDX-License-Identifier: Apache-2.0
// What operations see of a context: limits for planning, workspace, and parallel loops.
#ifndef TSRI_CONTEXT_INTERNAL_H
#define TSRI_CONTEXT_INTERNAL_H

#include <stdbool.h>
#include <tessera/context.h>

#include "cpu/cpu_isa.h"
#include "cuda/cuda_device.h"

struct tsri_op;
struct tsri_tuning;

// Everything that a plan may depend on.
struct tsri_limits {
    tsr_isa isa; // never AUTO
    int num_threads;
    int64_t l1_bytes, l2_bytes, l3_bytes; // l1 and l2 per core, l3 shared
    uint32_t flags;                       // the call's: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    struct tsri_bf16_units bf16;          // those of isa: none without AVX-512
    bool has_vnni;                        // likewise
    tsr_device device;
    // Of a CUDA device, 0 on the CPU. On CUDA, l2_bytes and l3_bytes are both the second-level cache.
    int cuda_arch; // 90 means 9.0
    int num_sms, max_threads_per_sm;
    int64_t shared_bytes_per_block;   // at most
    const struct tsri_tuning *tuning; // the context's; NULL: no rows
    int64_t block[3];                 // from a tuning row, for this plan; 0: the plan decides
    struct tsri_plan_memo *memo;      // the context's, on CUDA; NULL: plans are not remembered
};

// Creates a context. find_op finds every operation, for the rows of tuning files.
tsr_status tsri_context_create(const tsr_context_options *given,
                               const struct tsri_op *(*find_op)(const char *name),
                               tsr_context **context);

const struct tsri_limits *tsri_context_limits(const tsr_context *ctx);

// The queue of this context's kernels; NULL on the CPU.
const struct tsri_cuda_queue *tsri_context_queue(const tsr_context *ctx);

// Wraps a call's work on the device: enter makes its CUDA context current, leave restores the previous one. leave
// returns status and remembers a lost device. No effect on the CPU.
tsr_status tsri_context_enter(tsr_context *ctx, const char *op, struct tsri_cuda_visit *visit);
tsr_status tsri_context_leave(tsr_context *ctx, const struct tsri_cuda_visit *visit,
                              tsr_status status);

// Fails with DEVICE_LOST if an earlier call lost the device.
tsr_status tsri_check_usable(const tsr_context *ctx, const char *op);

// The i-th kernel of tsr_probe_run on this architecture (90), for a pack; false after the last.
bool tsri_probe_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

// Sets what tsr_context_last_variant returns; name is in static storage.
void tsri_context_set_variant(tsr_context *ctx, const char *name);

// Keeps the prepared problem, for tsr_context_tuning_key and _choice.
void tsri_context_keep_prepared(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                                uint32_t flags);

// The call's workspace: the caller's (checked) if it gave one, else the arena's. 64-byte aligned. Never NULL, even if
// need is 0.
tsr_status tsri_context_workspace(tsr_context *ctx, const char *op, void *given, size_t given_bytes,
                                  size_t need, void **workspace);

// Runs task(arg, i, thread) for every i in [0, num_tasks), handed out in order to at most num_threads threads. `thread`
// < num_threads is the thread that runs the task, for its own buffers. Tasks must not wait for each other. Any thread
// may run a task, so results must not depend on `thread`.
void tsri_parallel(tsr_context *ctx, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread), void *arg);

// The same on at most num_threads threads; with 1, on the calling thread only.
void tsri_parallel_on(tsr_context *ctx, int num_threads, int64_t num_tasks,
                      void (*task)(void *arg, int64_t index, int thread), void *arg);

// The number of threads, up to the limits' number, that finishes so much work first. Work is counted in multiplications
// of fp32 tiles; AVX-512 makes about 100 per nanosecond.
int tsri_worth_threads(const struct tsri_limits *limits, double multiplications);

#endif
