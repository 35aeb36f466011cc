// SPDX-License-Identifier: Apache-2.0
// What this processor offers: its instruction sets and caches.
#ifndef TSRI_CPU_ISA_H
#define TSRI_CPU_ISA_H

#include <stdbool.h>
#include <tessera/context.h>

// The best instruction set that build, processor and operating system support.
tsr_isa tsri_isa_best(void);

// Units beside AVX-512 that multiply bf16 and add in fp32: vdpbf16ps, and the AMX tiles. All fields are false without
// AVX-512.
struct tsri_bf16_units {
    bool has_dot, is_dot_fast; // is_dot_fast: more products per cycle than FMA
    bool has_tiles;            // usable only after tsri_can_use_tiles
};
// Whether the system grants this process the AMX tiles. Asked once, at their first use, because from then on Linux
// demands signal stacks (sigaltstack) of 12 KiB instead of 8.
bool tsri_can_use_tiles(struct tsri_bf16_units units);
struct tsri_bf16_units tsri_bf16_units(void);

// Whether the processor multiplies unsigned by signed bytes and adds four products in 32 bits (AVX512-VNNI).
bool tsri_has_vnni(void);

struct tsri_cache_sizes {
    int64_t l1, l2, l3; // bytes; l1 and l2 per core, l3 shared
};
struct tsri_cache_sizes tsri_cache_sizes(void);
// How much of the shared cache plans may count on: all of it, in a virtual machine a share.
int64_t tsri_l3_share(void);

// Whether a core gains from prefetching far ahead, in several pages at once (simd_far_line). Intel's cores do, because
// their prefetcher follows one stream per page. On AMD's, such prefetches delay more urgent loads.
bool tsri_gains_from_far_lines(void);

// ---- Kernel tables ----------------------------------------------------------------------------
// A *_simd.c file is compiled once per instruction set and exports one const table of
// kernels, TSRI_KERNEL_TABLE(softmax). Elsewhere TSRI_DECLARE_KERNELS(softmax) declares them
// and gives softmax_kernels(isa).

#if defined(__x86_64__)
#define TSRI_HAS_X86_ISA 1
#define TSRI_DECLARE_KERNELS(op)                                                                   \
    extern const struct op##_kernels tsri_##op##_kernels_scalar, tsri_##op##_kernels_avx2,         \
        tsri_##op##_kernels_avx512;                                                                \
    static inline const struct op##_kernels *op##_kernels(tsr_isa isa) {                           \
        return isa == TSR_ISA_AVX512 ? &tsri_##op##_kernels_avx512                                 \
               : isa == TSR_ISA_AVX2 ? &tsri_##op##_kernels_avx2                                   \
                                     : &tsri_##op##_kernels_scalar;                                \
    }
#else
#define TSRI_HAS_X86_ISA 0
#define TSRI_DECLARE_KERNELS(op)                                                                   \
    extern const struct op##_kernels tsri_##op##_kernels_scalar;                                   \
    static inline const struct op##_kernels *op##_kernels(tsr_isa isa) {                           \
        (void)isa;                                                                                 \
        return &tsri_##op##_kernels_scalar;                                                        \
    }
#endif

#endif
