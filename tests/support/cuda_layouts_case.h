// SPDX-License-Identifier: Apache-2.0
// Runs one block of a kernel that records what an instruction does, and copies the test's buffers to the device and
// back.
#ifndef TESSERA_TESTS_CUDA_LAYOUTS_CASE_H
#define TESSERA_TESTS_CUDA_LAYOUTS_CASE_H

#include "context/context_internal.h"
#include "cuda/cuda_tensor_map.h"
#include "cuda_case.h"

static inline struct tensor_map cuda_layouts_map(tsr_context *ctx,
                                                 const struct tsri_tensor_map_args *args) {
    struct tensor_map map;
    struct tsri_cuda_visit visit;
    assert_ok(tsri_context_enter(ctx, "test", &visit)); // the driver checks the address
    assert_ok(tsri_context_leave(
        ctx, &visit,
        tsri_cuda_tensor_map("test", tsri_context_queue(ctx)->device.driver, args, &map)));
    return map;
}

static inline void cuda_layouts_run(tsr_context *ctx, const struct tsri_cuda_program *program,
                                    const struct tsri_cuda_launch *launch, void *device, void *host,
                                    size_t bytes) {
    struct tsri_cuda_visit visit;
    assert_ok(tsr_memory_copy(ctx, device, host, bytes));
    assert_ok(tsri_context_enter(ctx, "test", &visit));
    assert_ok(tsri_context_leave(
        ctx, &visit, tsri_cuda_launch("test", tsri_context_queue(ctx), program, launch)));
    assert_ok(tsr_memory_copy(ctx, host, device, bytes));
    assert_ok(tsr_context_synchronize(ctx));
}

#endif
