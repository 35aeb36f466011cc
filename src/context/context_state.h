// SPDX-License-Identifier: Apache-2.0
// What a context is, for the files of this folder alone; operations see context_internal.h.
#ifndef TSRI_CONTEXT_STATE_H
#define TSRI_CONTEXT_STATE_H

#include <stddef.h>

#include "context/context_internal.h"
#include "context/op_table.h"
#include "context/plan_memo.h"

enum { TSRI_ARENA_ALIGNMENT = 64 };

// Arena memory that a graph knows and that has become too small: kept until the context goes.
struct retired {
    struct retired *next;
    void *memory;
    size_t bytes;
};

struct tsr_context {
    tsr_context_options options;
    struct tsri_limits limits;
    int most_busy; // threads of the process in calls, where num_threads was left to the library; else 0, any
    void *arena; // of the context's device
    size_t arena_bytes;
    size_t peak_bytes;
    const char *last_variant;
    struct tsri_tuning tuning;
    struct {
        const struct tsri_op *op; // NULL: no row can choose
        struct tsri_tuning_key key;
        uint32_t flags;
        char text[192]; // written when it is asked for
        _Alignas(max_align_t) char problem[TSRI_TUNING_PROBLEM_BYTES];
    } prepared; // the last _prepare

    // ---- CUDA: context_cuda.c
    struct tsri_cuda_queue queue;
    bool is_lost;           // the device context: every call fails from here on
    cu_stream arena_stream; // that last used the arena
    cu_event handover;      // between two streams that share it
    bool is_arena_captured; // a graph knows its address
    struct retired *retired;
    struct context_memos *memos; // NULL on the CPU
};

// From call to call.
struct context_memos {
    struct tsri_plan_memo plans;
    struct tsri_cuda_memo cuda;
};

static inline bool is_on_cuda(const tsr_context *ctx) {
    return ctx->limits.device.type == TSR_CUDA;
}

// Opens options.device and fills limits; ctx is zero but for options.
tsr_status context_open_cuda(tsr_context *ctx);
void context_close_cuda(tsr_context *ctx);
// Device memory, as the default allocator of a context on CUDA; user is the context.
void *context_cuda_alloc(void *user, size_t bytes, size_t alignment);
void context_cuda_free(void *user, void *pointer, size_t bytes);
// The arena, at least so large, ordered after what another stream still does with it.
tsr_status context_cuda_arena(tsr_context *ctx, const char *op, size_t need);
tsr_status context_cuda_launch_graph(tsr_context *ctx, const char *op, cu_graph_exec graph);

#endif
