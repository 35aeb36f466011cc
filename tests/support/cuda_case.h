// SPDX-License-Identifier: Apache-2.0
// Setup and teardown of tests on a real GPU: a context, and device memory for the test's buffers.
#ifndef TESSERA_TESTS_CUDA_CASE_H
#define TESSERA_TESTS_CUDA_CASE_H

#include <stdio.h>
#include <stdlib.h>

#include "test_support.h"

enum { CUDA_CASE_SKIPPED = 77, CUDA_CASE_HOPPER = 90 };

// Returns 0, or prints why the test is skipped and returns main's exit status: there is no GPU, or it is older than
// `arch` (80: sm_80) or than the library supports. CUDA_CASE_HOPPER requires exactly sm_90, because newer GPUs lack its
// instructions.
static inline int cuda_case_skip(int arch) {
    tsr_device_info info = TSR_DEVICE_INFO;
    if (tsr_device_count(TSR_CUDA) == 0 ||
        tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info) != TSR_OK) {
        (void)tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info);
        printf("skipped: %s\n", tsr_last_error());
        return CUDA_CASE_SKIPPED;
    }
    if (arch < 80) arch = 80; // the library's minimum
    int found = atoi(info.arch + sizeof "sm_" - 1);
    if (arch == CUDA_CASE_HOPPER ? found == arch : found >= arch) return 0;
    printf("skipped: needs sm_%d%s, the GPU is %s\n", arch,
           arch == CUDA_CASE_HOPPER ? "" : " or newer", info.arch);
    return CUDA_CASE_SKIPPED;
}

// Like cuda_case_skip(). Returns 1 if the GPU cannot be used.
static inline int cuda_case_open(int arch, size_t bytes, tsr_context **ctx, void **memory) {
    int skip = cuda_case_skip(arch);
    if (skip != 0) return skip;
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), ctx) == TSR_OK &&
        tsr_memory_alloc(*ctx, bytes, memory) == TSR_OK)
        return 0;
    printf("%s\n", tsr_last_error());
    return 1;
}

static inline void cuda_case_close(tsr_context *ctx, void *memory) {
    (void)tsr_memory_free(ctx, memory);
    tsr_context_destroy(ctx);
}

#endif
