// SPDX-License-Identifier: Apache-2.0
// Contexts on CUDA: the device, the CUDA context that is current around each call, and the arena in device memory.

#include <string.h>

#include "context/context_state.h"
#include "core/core_system.h"
#include "core/core_tensor.h"

// ---- Opening and closing ----------------------------------------------------------------------

tsr_status context_open_cuda(tsr_context *ctx) {
    static const char op[] = "context_create";
    struct tsri_cuda_device *device = &ctx->queue.device;
    struct tsri_cuda_visit visit;
    TSRI_TRY(tsri_cuda_device_open(op, ctx->options.device.index, device));
    ctx->memos = tsri_system.alloc(_Alignof(struct context_memos), sizeof *ctx->memos);
    if (ctx->memos == NULL) {
        tsri_cuda_device_close(device);
        return tsri_fail(TSR_OUT_OF_MEMORY, "%s: no memory for what a context remembers", op);
    }
    memset(ctx->memos, 0, sizeof *ctx->memos);
    ctx->queue.memo = &ctx->memos->cuda;
    const struct tsri_cuda_properties *p = &device->properties;
    ctx->queue.stream = ctx->options.stream;
    ctx->limits.device = ctx->options.device;
    ctx->limits.cuda_arch = p->arch_number;
    ctx->limits.num_sms = p->num_sms;
    ctx->limits.max_threads_per_sm = p->max_threads_per_sm;
    ctx->limits.shared_bytes_per_block = p->shared_bytes_per_block;
    ctx->limits.l2_bytes = ctx->limits.l3_bytes = p->l2_bytes;
    tsr_status status = tsri_cuda_enter(op, device, &visit);
    if (status == TSR_OK) {
        enum { DISABLE_TIMING = 2 };
        status = TSRI_CUDA(op, device->driver, event_create, &ctx->handover, DISABLE_TIMING);
        tsri_cuda_leave(device, &visit);
    }
    if (status == TSR_OK) return TSR_OK;
    tsri_system.free(ctx->memos);
    tsri_cuda_device_close(device);
    return status;
}

static void free_arena(tsr_context *ctx, void *memory, size_t bytes) {
    tsr_allocator allocator = ctx->options.allocator;
    if (memory != NULL) allocator.free(allocator.user, memory, bytes);
}

// If the device context is lost, only host resources can be freed.
void context_close_cuda(tsr_context *ctx) {
    struct tsri_cuda_device *device = &ctx->queue.device;
    struct tsri_cuda_visit visit;
    bool is_usable;
    is_usable = !ctx->is_lost && tsri_cuda_enter("context_destroy", device, &visit) == TSR_OK;
    if (is_usable) {
        (void)device->driver->stream_synchronize(ctx->queue.stream);
        (void)device->driver->event_destroy(ctx->handover);
        free_arena(ctx, ctx->arena, ctx->arena_bytes);
    }
    while (ctx->retired != NULL) {
        struct retired *gone = ctx->retired;
        ctx->retired = gone->next;
        if (is_usable) free_arena(ctx, gone->memory, gone->bytes);
        tsri_system.free(gone);
    }
    if (is_usable) tsri_cuda_leave(device, &visit);
    tsri_system.free(ctx->memos);
    tsri_cuda_device_close(device);
}

// ---- Around a call ----------------------------------------------------------------------------

tsr_status tsri_context_enter(tsr_context *ctx, const char *op, struct tsri_cuda_visit *visit) {
    if (!is_on_cuda(ctx)) return TSR_OK;
    return tsri_cuda_enter(op, &ctx->queue.device, visit);
}

tsr_status tsri_context_leave(tsr_context *ctx, const struct tsri_cuda_visit *visit,
                              tsr_status status) {
    if (!is_on_cuda(ctx)) return status;
    tsri_cuda_leave(&ctx->queue.device, visit);
    if (status == TSR_DEVICE_LOST) ctx->is_lost = true;
    return status;
}

const struct tsri_cuda_queue *tsri_context_queue(const tsr_context *ctx) {
    return is_on_cuda(ctx) ? &ctx->queue : NULL;
}

tsr_status tsri_check_usable(const tsr_context *ctx, const char *op) {
    if (!ctx->is_lost) return TSR_OK;
    return tsri_fail(TSR_DEVICE_LOST, "%s: %s was lost in an earlier call, make a new context", op,
                     tsri_device_text(ctx->limits.device));
}

// ---- The arena --------------------------------------------------------------------------------

void *context_cuda_alloc(void *user, size_t bytes, size_t alignment) {
    (void)alignment; // the driver aligns to 256
    const tsr_context *ctx = user;
    cu_pointer memory = 0;
    cu_result result = ctx->queue.device.driver->mem_alloc(&memory, bytes);
    return result == CU_OK ? (void *)(uintptr_t)memory : NULL;
}

void context_cuda_free(void *user, void *pointer, size_t bytes) {
    (void)bytes;
    const tsr_context *ctx = user;
    (void)ctx->queue.device.driver->mem_free((cu_pointer)(uintptr_t)pointer);
}

// Orders the arena's next use, on this stream, after its last use on another stream.
static tsr_status hand_over(tsr_context *ctx, const char *op) {
    const struct tsri_cuda_driver *driver = ctx->queue.device.driver;
    if (ctx->arena_stream == ctx->queue.stream) return TSR_OK;
    TSRI_TRY(TSRI_CUDA(op, driver, event_record, ctx->handover, ctx->arena_stream));
    TSRI_TRY(TSRI_CUDA(op, driver, stream_wait_event, ctx->queue.stream, ctx->handover, 0));
    ctx->arena_stream = ctx->queue.stream;
    return TSR_OK;
}

static tsr_status retire_arena(tsr_context *ctx, const char *op) {
    struct retired *retired = tsri_system.alloc(64, 64);
    if (retired == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "%s: no memory to remember the arena of a graph", op);
    *retired = (struct retired){ctx->retired, ctx->arena, ctx->arena_bytes};
    ctx->retired = retired;
    return TSR_OK;
}

static tsr_status grow(tsr_context *ctx, const char *op, size_t need) {
    tsr_allocator allocator = ctx->options.allocator;
    if (ctx->arena != NULL && ctx->is_arena_captured) {
        TSRI_TRY(hand_over(ctx, op)); // so its next user also waits for graphs that use it
        TSRI_TRY(retire_arena(ctx, op));
    } else if (ctx->arena != NULL) { // kernels may still use it
        TSRI_TRY(TSRI_CUDA(op, ctx->queue.device.driver, stream_synchronize, ctx->arena_stream));
        free_arena(ctx, ctx->arena, ctx->arena_bytes);
    }
    ctx->arena_bytes = 0;
    ctx->is_arena_captured = false;
    ctx->arena_stream = ctx->queue.stream;
    ctx->arena = allocator.alloc(allocator.user, need, TSRI_ARENA_ALIGNMENT);
    if (ctx->arena == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes of workspace on %s",
                         op, need, tsri_device_text(ctx->limits.device));
    ctx->arena_bytes = need;
    return TSR_OK;
}

// A graph may use the arena of its capture, as calls and other graphs do, so the launch waits for them. During a
// capture there is nothing to wait for: the driver decides about the launch, and waiting for work outside would end the
// capture.
tsr_status context_cuda_launch_graph(tsr_context *ctx, const char *op, cu_graph_exec graph) {
    bool is_capturing;
    TSRI_TRY(tsri_cuda_is_capturing(op, &ctx->queue, &is_capturing));
    if (!is_capturing && (ctx->is_arena_captured || ctx->retired != NULL))
        TSRI_TRY(hand_over(ctx, op));
    return TSRI_CUDA(op, ctx->queue.device.driver, graph_launch, graph, ctx->queue.stream);
}

tsr_status context_cuda_arena(tsr_context *ctx, const char *op, size_t need) {
    bool is_capturing;
    TSRI_TRY(tsri_cuda_is_capturing(op, &ctx->queue, &is_capturing));
    if (is_capturing) {
        if (need > ctx->arena_bytes)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: its stream is capturing and the arena has %zu of %zu bytes of "
                             "workspace, expected a call of %s_prepare before the capture, or a "
                             "workspace",
                             op, ctx->arena_bytes, need, op);
        ctx->is_arena_captured = true;
        return TSR_OK;
    }
    if (need > ctx->arena_bytes) return grow(ctx, op, need);
    return hand_over(ctx, op);
}
