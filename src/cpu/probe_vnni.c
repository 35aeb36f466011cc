// SPDX-License-Identifier: Apache-2.0
// The probe of products of bytes by vpdpbusd, on registers alone (tessera/probe.h).
#include "cpu/probe_kernels.h"
#include "cpu/simd.h"

enum { CHAINS = 14 }; // as in the FMA probe

static void byte_dot_probe(int64_t repeat) {
    int32_t bytes = 0x01020304;
    __asm__ volatile("" : "+m"(bytes));
    const __m512i a = _mm512_set1_epi32(bytes);
    __m512i chain[CHAINS];
    for (int i = 0; i < CHAINS; i++) chain[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < repeat; r++)
        for (int step = 0; step < TSRI_PROBE_STEPS; step++) {
#pragma GCC unroll 48
            for (int i = 0; i < CHAINS; i++) chain[i] = _mm512_dpbusd_epi32(chain[i], a, a);
        }
    int32_t sink[16];
    for (int i = 0; i < CHAINS; i++) {
        _mm512_storeu_si512(sink, chain[i]);
        __asm__ volatile("" ::"r"(sink) : "memory");
    }
}

const struct probe_vnni_kernel tsri_probe_vnni_kernel = {
    .byte_dot = byte_dot_probe,
    .flops_per_repeat = 2.0 * 64 * CHAINS * TSRI_PROBE_STEPS,
};
