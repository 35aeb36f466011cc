// SPDX-License-Identifier: Apache-2.0
// The rate of Hopper's tensor cores for bf16 (tessera/probe.h): products of a warpgroup, m64n64k16, one operand in
// registers, the other a tile in shared memory that never changes. mma.sync, as in probe_tensor.cu, does not reach it.
// The host defines
//     KIND (16)
#include "cuda/device/probe_params.h"

#ifndef KIND
#error "KIND is not defined"
#endif
enum { TILE_BYTES = 8192, AT_ONCE = 8 }; // 64 rows of 128 bytes

#define ACCUMULATORS(c, n)                                                                         \
    "+f"(c[n]), "+f"(c[n + 1]), "+f"(c[n + 2]), "+f"(c[n + 3]), "+f"(c[n + 4]), "+f"(c[n + 5]),    \
        "+f"(c[n + 6]), "+f"(c[n + 7])

extern "C" __global__ void __launch_bounds__(PROBE_TENSOR_THREADS)
    probe_tensor(const struct probe_params p) {
    __shared__ __align__(1024) unsigned tile[TILE_BYTES / 4];
    // Numbers between 1 and 2 with both signs, because zeros take less power and so run at a higher clock.
    for (int i = threadIdx.x; i < TILE_BYTES / 4; i += PROBE_TENSOR_THREADS)
        tile[i] = 0x3f80bf80u ^ (i * 2654435761u & 0x807f807fu);
    unsigned a[4];
    float c[32];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = 0x3f80bf80u ^ (threadIdx.x * 2654435761u + i & 0x007f007fu);
#pragma unroll
    for (int i = 0; i < 32; i++) c[i] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned long long start = (unsigned)__cvta_generic_to_shared(tile) & 0x3ffff;
    unsigned long long descriptor =
        start >> 4 | 64ull << 32 | 1ull << 62; // swizzled rows of 128 bytes
#pragma unroll 1
    for (long long r = 0; r < p.repeat; r++)
#pragma unroll 1
        for (int step = 0; step < PROBE_TENSOR_STEPS / AT_ONCE; step++) {
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) // 16 columns take 32 bytes
                asm volatile(
                    "{\n.reg .pred more;\nsetp.ne.b32 more, 1, 0;\n"
                    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
                    "%31}, {%32, %33, %34, %35}, %36, more, 1, 1, 0;\n}\n"
                    : ACCUMULATORS(c, 0), ACCUMULATORS(c, 8), ACCUMULATORS(c, 16),
                      ACCUMULATORS(c, 24)
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor + 2 * (i % 4))
                    : "memory");
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) sum += c[i];
    if (sum == -1 && p.destination != 0) *(float *)p.destination = sum; // never; keeps the work
}
