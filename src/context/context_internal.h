// SPDX-License-Identifier: Apache-2.0
// What operations see of a context: limits for planning, workspace, parallel loops.
#ifndef TSRI_CONTEXT_INTERNAL_H
#define TSRI_CONTEXT_INTERNAL_H

#include <stdbool.h>
#include <tessera/context.h>

#include "cpu/cpu_isa.h"
#include "cuda/cuda_device.h"

struct tsri_op;
struct tsri_tuning;

// What a plan may depend on, and nothing else.
struct tsri_limits {
    tsr_isa isa; // never AUTO
    int num_threads;
    int64_t l1_bytes, l2_bytes, l3_bytes; // per core, per core, shared
    uint32_t flags;                       // of the call: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    struct tsri_bf16_units bf16;          // of isa: none but on AVX-512
    tsr_device device;
    // Of a CUDA device, 0 on the CPU; l2_bytes and l3_bytes are both its second-level cache there.
    int cuda_arch; // 90 is 9.0
    int num_sms, max_threads_per_sm;
    int64_t shared_bytes_per_block;   // at most
    const struct tsri_tuning *tuning; // of the context; NULL: there are no rows
    int64_t block[3];                 // of a row, for this plan; 0: the plan's own
    struct tsri_plan_memo *memo;      // of the context, on CUDA; NULL: plans are made anew
};

// tsr_context_create. find_op knows every operation, for the rows of tuning files.
tsr_status tsri_context_create(const tsr_context_options *given,
                               const struct tsri_op *(*find_op)(const char *name),
                               tsr_context **context);

const struct tsri_limits *tsri_context_limits(const tsr_context *ctx);

// Where this context's kernels go; NULL on the CPU.
const struct tsri_cuda_queue *tsri_context_queue(const tsr_context *ctx);

// Around what a call does on the device: makes its CUDA context current, and gives back the one that was. leave
// returns status, and remembers a lost device. Nothing to do on the CPU.
tsr_status tsri_context_enter(tsr_context *ctx, const char *op, struct tsri_cuda_visit *visit);
tsr_status tsri_context_leave(tsr_context *ctx, const struct tsri_cuda_visit *visit,
                              tsr_status status);

// DEVICE_LOST where an earlier call lost the device.
tsr_status tsri_check_usable(const tsr_context *ctx, const char *op);

// The i-th kernel of tsr_probe_run on this architecture (90), for a pack; false after the last.
bool tsri_probe_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

// For tsr_context_last_variant: a name in static storage.
void tsri_context_set_variant(tsr_context *ctx, const char *name);

// For tsr_context_tuning_key and _choice: what was prepared.
void tsri_context_keep_prepared(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                                uint32_t flags);

// The call's workspace: the caller's where given (checked), else the arena's. 64-byte aligned.
// Never NULL, also when need is 0.
tsr_status tsri_context_workspace(tsr_context *ctx, const char *op, void *given, size_t given_bytes,
                                  size_t need, void **workspace);

// Runs task(arg, i, thread) for every i in [0, num_tasks), handed out in order to at most
// num_threads threads; thread < num_threads names the one that runs it, for buffers of its own.
// Tasks must not wait for each other. Which thread runs a task is not fixed, so results must not
// depend on it.
void tsri_parallel(tsr_context *ctx, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread), void *arg);

// The same on at most num_threads; 1: on the calling thread alone.
void tsri_parallel_on(tsr_context *ctx, int num_threads, int64_t num_tasks,
                      void (*task)(void *arg, int64_t index, int thread), void *arg);

// Threads, of those of limits, that end first with so much work, in multiplications of fp32 tiles: some 100 a nanosecond by
// AVX-512.
int tsri_worth_threads(const struct tsri_limits *limits, double multiplications);

#endif
