// SPDX-License-Identifier: Apache-2.0
// Probes of the units that multiply bf16, vdpbf16ps and AMX tiles, on registers alone (tessera/probe.h). `tessera info`
// prints their rates; docs/kernels/matmul_cpu_bf16.md compares the kernels with them. probe_simd.c has the probe of
// FMA.
#include "cpu/gemm_bf16.h"
#include "cpu/probe_kernels.h"
#include "cpu/simd.h"

enum {
    CHAINS = 14,          // as in the FMA probe
    TILES = 4,            // number of accumulator tiles, as in the kernels
    TILE_WORK = 16 * 512, // multiplications of one tdpbf16ps
    TILE_SHARE = 8,       // divides the number of steps: each takes 16 cycles
};

static void dot_probe(int64_t repeat) {
    int32_t decay = 0x3f7f0000, growth = 0x3c003c00;
    __asm__ volatile("" : "+m"(decay), "+m"(growth));
    __m512bh a = (__m512bh)_mm512_set1_epi32(decay), b = (__m512bh)_mm512_set1_epi32(growth);
    vf chain[CHAINS];
    for (int i = 0; i < CHAINS; i++) chain[i] = vf_set1((float)i);
    for (int64_t r = 0; r < repeat; r++)
        for (int step = 0; step < TSRI_PROBE_STEPS; step++) {
#pragma GCC unroll 48
            for (int i = 0; i < CHAINS; i++) chain[i] = _mm512_dpbf16_ps(chain[i], a, b);
        }
    float sink[VL];
    for (int i = 0; i < CHAINS; i++) {
        vf_store(sink, chain[i]);
        __asm__ volatile("" ::"r"(sink) : "memory");
    }
}

static void tiles_probe(int64_t repeat) {
    tsri_gemm_bf16_tiles.open(); // tiles of zeros
    for (int64_t r = 0; r < repeat; r++)
        for (int step = 0; step < TSRI_PROBE_STEPS / TILE_SHARE; step++) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    tsri_gemm_bf16_tiles.close();
}

const struct probe_bf16_kernels tsri_probe_bf16_kernels = {
    .dot = dot_probe,
    .tiles = tiles_probe,
    .dot_flops_per_repeat = 4.0 * VL * CHAINS * TSRI_PROBE_STEPS,
    .tiles_flops_per_repeat = 2.0 * TILE_WORK * TILES * (TSRI_PROBE_STEPS / TILE_SHARE),
};
