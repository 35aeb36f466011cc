// SPDX-License-Identifier: Apache-2.0
// Products of contiguous matrices, to test plans and choices on the CPU without running them.
#ifndef MATMUL_CPU_CASE_H
#define MATMUL_CPU_CASE_H

#include "ops/matmul/matmul_problem.h"

static inline struct matmul_problem product_of(tsr_dtype dtype, int64_t m, int64_t n, int64_t k) {
    return (struct matmul_problem){.m = m,
                                   .n = n,
                                   .k = k,
                                   .num_batches = 1,
                                   .batch = {1, 1, 1},
                                   .a = {NULL, dtype, k, 1, {0}},
                                   .b = {NULL, dtype, n, 1, {0}},
                                   .c = {NULL, dtype, n, 1, {0}},
                                   .alpha = 1};
}

struct machine {
    tsr_isa isa;
    int num_threads;
    bool has_tiles;
    int64_t l2_bytes;
    bool is_amd; // has fast bf16 dot products
    uint32_t flags;
};

// One thread unless the name gives another number. `large` machines have 2 MiB of L2 cache.
static const struct machine avx2 = {TSR_ISA_AVX2, 1, false, 512 << 10},
                            avx2_2 = {TSR_ISA_AVX2, 2, false, 512 << 10},
                            avx2_16 = {TSR_ISA_AVX2, 16, false, 2 << 20},
                            avx512 = {TSR_ISA_AVX512, 1, false, 1 << 20},
                            two = {TSR_ISA_AVX512, 2, false, 1 << 20},
                            large = {TSR_ISA_AVX512, 1, false, 2 << 20},
                            large_2 = {TSR_ISA_AVX512, 2, false, 2 << 20},
                            large_3 = {TSR_ISA_AVX512, 3, false, 2 << 20},
                            four = {TSR_ISA_AVX512, 4, false, 2 << 20},
                            many = {TSR_ISA_AVX512, 16, false, 2 << 20},
                            amx = {TSR_ISA_AVX512, 1, true, 2 << 20},
                            amd = {TSR_ISA_AVX512, 1, false, 1 << 20, true},
                            amd_2 = {TSR_ISA_AVX512, 2, false, 1 << 20, true};

static inline const char *choice_of(const struct matmul_problem *p, struct machine machine) {
    struct tsri_limits limits = {.isa = machine.isa,
                                 .num_threads = machine.num_threads,
                                 .l2_bytes = machine.l2_bytes,
                                 .flags = machine.flags};
    if (machine.has_tiles || machine.is_amd)
        limits.bf16 = (struct tsri_bf16_units){
            .has_dot = true, .has_tiles = machine.has_tiles, .is_dot_fast = machine.is_amd};
    return matmul_prefer(p, &limits);
}

// is_transposed: b's columns are contiguous.
static inline const char *choice(struct machine machine, tsr_dtype dtype, bool is_transposed,
                                 int64_t m, int64_t n, int64_t k) {
    struct matmul_problem p = product_of(dtype, m, n, k);
    if (is_transposed) p.b = (struct matmul_matrix){NULL, dtype, 1, k, {0}};
    return choice_of(&p, machine);
}

#endif
