// SPDX-License-Identifier: Apache-2.0
// The fields of a context, for the files of this folder only; operations use context_internal.h.
#ifndef TSRI_CONTEXT_STATE_H
#define TSRI_CONTEXT_STATE_H

#include <stddef.h>

#include "context/context_internal.h"
#include "context/op_table.h"
#include "context/plan_memo.h"

enum { TSRI_ARENA_ALIGNMENT = 64 };

// An old arena that became too small but whose address a graph knows: kept until the context is destroyed.
struct retired {
    struct retired *next;
    void *memory;
    size_t bytes;
};

struct tsr_context {
    tsr_context_options options;
    struct tsri_limits limits;
    int most_busy; // limit on busy threads of the process if the library chose num_threads; else 0, no limit
    void *arena; // memory of the context's device
    size_t arena_bytes;
    size_t peak_bytes;
    const char *last_variant;
    struct tsri_tuning tuning;
    struct {
        const struct tsri_op *op; // NULL: rows cannot choose
        struct tsri_tuning_key key;
        uint32_t flags;
        char text[192]; // written on request
        _Alignas(max_align_t) char problem[TSRI_TUNING_PROBLEM_BYTES];
    } prepared; // by the last _prepare

    // ---- CUDA: context_cuda.c
    struct tsri_cuda_queue queue;
    bool is_lost;           // the device context is lost: every later call fails
    cu_stream arena_stream; // the last user of the arena
    cu_event handover;      // orders two streams that share the arena
    bool is_arena_captured; // a graph knows its address
    struct retired *retired;
    struct context_memos *memos; // NULL on the CPU
};

// Kept between calls.
struct context_memos {
    struct tsri_plan_memo plans;
    struct tsri_cuda_memo cuda;
};

static inline bool is_on_cuda(const tsr_context *ctx) {
    return ctx->limits.device.type == TSR_CUDA;
}

// Opens options.device and fills limits; all other fields of ctx are zero.
tsr_status context_open_cuda(tsr_context *ctx);
void context_close_cuda(tsr_context *ctx);
// Device memory: the default allocator of a CUDA context; user is the context.
void *context_cuda_alloc(void *user, size_t bytes, size_t alignment);
void context_cuda_free(void *user, void *pointer, size_t bytes);
// The arena with at least `need` bytes, ordered after its use on another stream.
tsr_status context_cuda_arena(tsr_context *ctx, const char *op, size_t need);
tsr_status context_cuda_launch_graph(tsr_context *ctx, const char *op, cu_graph_exec graph);

#endif
