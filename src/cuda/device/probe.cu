// SPDX-License-Identifier: Apache-2.0
// A known amount of work, for the card's ceilings (tessera/probe.h; `tessera info --device cuda` prints them): memory read,
// written, copied or updated in groups of 16 bytes, four on their way in each thread; or fused multiply-adds on registers alone.
// docs/kernels/ gives kernels' shares of these rates. The host defines
//     KIND, a sum of the values in probe_params.h
#include "cuda/device/probe_params.h"

#ifndef KIND
#error "KIND is not defined"
#endif
enum { CHAINS = 16, STEPS = 4096, AT_ONCE = 4 };

#if KIND == 8

extern "C" __global__ void __launch_bounds__(256) probe(const struct probe_params p) {
    float x[CHAINS], factor = 0.999f, addend = 1e-3f * threadIdx.x;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i] = (float)i;
#pragma unroll 1
    for (long long r = 0; r < p.repeat; r++)
#pragma unroll 1
        for (int step = 0; step < STEPS / 16; step++)
#pragma unroll
            for (int inner = 0; inner < 16; inner++)
#pragma unroll
                for (int i = 0; i < CHAINS; i++) x[i] = x[i] * factor + addend;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    if (sum == -1 && p.destination != 0) *(float *)p.destination = sum; // never; keeps the work
}

#else

extern "C" __global__ void __launch_bounds__(512) probe(const struct probe_params p) {
    const uint4 *source = (const uint4 *)p.source;
    uint4 *destination = (uint4 *)p.destination;
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    long long step = (long long)gridDim.x * blockDim.x;
    unsigned seen = 0;
#pragma unroll 1
    for (long long r = 0; r < p.repeat; r++)
#pragma unroll 1
        for (long long at = first; at < p.groups; at += AT_ONCE * step) {
            uint4 group[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                long long here = at + i * step;
                group[i] = make_uint4(0x3f800000u, 0x3f800000u, (unsigned)r, (unsigned)here);
                if ((KIND & 1) && here < p.groups) group[i] = source[here];
                if ((KIND & 4) && here < p.groups) group[i] = destination[here];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                long long here = at + i * step;
                seen |= group[i].x ^ group[i].y ^ group[i].z ^ group[i].w;
                if (KIND & 4) group[i].x ^= 1; // flips the lowest bit of a float
                if ((KIND & 6) && here < p.groups) destination[here] = group[i];
            }
        }
    if (seen == 0x12345678u && p.repeat < 0) *(unsigned *)p.destination = seen; // keeps the loads
}

#endif
