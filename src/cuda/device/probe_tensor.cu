// SPDX-License-Identifier: Apache-2.0
// The rate of the tensor cores for bf16, on registers alone (tessera/probe.h; `tessera info --device cuda` prints it): products of
// a warp, m16n8k16, in as many independent chains as hide their latency. Hopper has probe_tensor_sm90.cu. The host defines
//     KIND (16)
#include "cuda/device/probe_params.h"

#ifndef KIND
#error "KIND is not defined"
#endif
enum { CHAINS = 8 };

extern "C" __global__ void __launch_bounds__(PROBE_TENSOR_THREADS)
    probe_tensor(const struct probe_params p) {
    // Numbers between 1 and 2 with both signs, because zeros take less power and so run at a higher clock.
    unsigned a[4], b[2];
    float c[CHAINS][4];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = 0x3f80bf80u ^ (threadIdx.x * 2654435761u + i & 0x007f007fu);
    b[0] = a[0] ^ 0x80008000u;
    b[1] = a[1];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll 1
    for (long long r = 0; r < p.repeat; r++)
#pragma unroll 1
        for (int step = 0; step < PROBE_TENSOR_STEPS; step++)
#pragma unroll
            for (int i = 0; i < CHAINS; i++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == -1 && p.destination != 0) *(float *)p.destination = sum; // never; keeps the work
}
