// SPDX-License-Identifier: Apache-2.0
// What this processor offers: instruction sets and caches.
#ifndef TSRI_CPU_ISA_H
#define TSRI_CPU_ISA_H

#include <stdbool.h>
#include <tessera/context.h>

// The best instruction set that build, processor and operating system support.
tsr_isa tsri_isa_best(void);

// Units that multiply bf16 and add in fp32, beside AVX-512: vdpbf16ps, and the tiles of AMX. All false where
// there is no AVX-512.
struct tsri_bf16_units {
    bool has_dot, is_dot_fast; // fast: more products a cycle than FMA
    bool has_tiles;            // to be had with tsri_can_use_tiles alone
};
// Whether the system lends this process the tiles. Asked once, when somebody would use them: from then on Linux wants
// stacks for signals (sigaltstack) of 12 KiB where 8 were enough before.
bool tsri_can_use_tiles(struct tsri_bf16_units units);
struct tsri_bf16_units tsri_bf16_units(void);

struct tsri_cache_sizes {
    int64_t l1, l2, l3; // bytes; per core, per core, shared
};
struct tsri_cache_sizes tsri_cache_sizes(void);
// What plans may take the shared cache to hold: all of it, in a virtual machine a share.
int64_t tsri_l3_share(void);

// Whether a core gains from lines fetched far ahead, in several pages side by side (simd_far_line): Intel's do, whose
// prefetcher follows one stream in each page; on AMD's they hold up what is wanted sooner.
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
