// SPDX-License-Identifier: Apache-2.0
// Calls for the tests that check whether the kernel lists hold a call's kernels. Nobody reads the tensors' addresses.
// One test program includes this file.
#ifndef KERNEL_CALLS_CASE_H
#define KERNEL_CALLS_CASE_H

#include "kernel_pack_case.h"
#include "test_support.h"

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

static uintptr_t next_address;
static int off_line; // tensors start this many bytes after a multiple of 16

static inline void *take_address(void) {
    return (void *)((next_address += (uintptr_t)1 << 40) + (uintptr_t)off_line);
}

// A tensor at its own address.
#define ON_CUDA(dtype, ...) on_cuda(TSR_TENSOR(take_address(), dtype, __VA_ARGS__))

static inline void decode(tsr_context *ctx, tsr_dtype dtype, int64_t heads_q, int64_t heads_kv,
                          int64_t dim) {
    enum { BATCH = 2, CACHED = 8192 };
    const tsr_attention_decode_args args =
        TSR_ATTENTION_DECODE_ARGS(.q = ON_CUDA(dtype, BATCH, 1, heads_q, dim),
                                  .k_new = ON_CUDA(dtype, BATCH, 1, heads_kv, dim),
                                  .v_new = ON_CUDA(dtype, BATCH, 1, heads_kv, dim),
                                  .k_cache = ON_CUDA(dtype, BATCH, CACHED, heads_kv, dim),
                                  .v_cache = ON_CUDA(dtype, BATCH, CACHED, heads_kv, dim),
                                  .cache_seqlens = ON_CUDA(TSR_I32, BATCH),
                                  .out = ON_CUDA(dtype, BATCH, 1, heads_q, dim));
    assert_ok(tsr_attention_decode(ctx, &args));
}

#endif
