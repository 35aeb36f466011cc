// SPDX-License-Identifier: Apache-2.0
// Which variants can serve a product on the CPU. The choice among them is in matmul_cpu_choice.c. Pure.
#include "ops/matmul/matmul_problem.h"

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct matmul_problem, a.dtype)

bool matmul_has_kernels(const void *problem, const struct tsri_limits *limits) {
    return is_float32_or_less(problem, limits);
}

bool matmul_can_use_b_in_place(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    (void)limits;
    return matmul_is_rows_of_floats(&p->b) && (p->b_up.data == NULL || p->b_up.col == 1);
}

bool matmul_can_be_streamed(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (p->a.col != 1 || p->b.col != 1 || (p->b_up.data != NULL && p->b_up.col != 1)) return false;
    bool is_16_bits = p->b.dtype == TSR_BF16 || p->b.dtype == TSR_F16;
    return p->a.dtype == p->b.dtype &&
           (p->b.dtype == TSR_F32 || (is_16_bits && limits->isa == TSR_ISA_AVX2));
}

// Measured on one thread, where tiles gain most (docs/kernels/matmul_cpu.md).
bool matmul_has_long_columns(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_wide = limits->isa == TSR_ISA_AVX512, is_half = p->b.dtype != TSR_F32;
    if (!matmul_has_columns(p) || p->groups.starts.data != NULL) return false;
    return (p->n <= 4 && p->k >= 128) || (p->n <= 8 && p->k >= 256 && (is_wide || is_half)) ||
           (p->n <= 16 && p->k >= 1024 && is_wide);
}

bool matmul_is_skinny(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return (p->m <= MATMUL_SKINNY_M || matmul_has_long_columns(p, limits)) &&
           !matmul_is_fp8(p->a.dtype) && matmul_has_kernels(problem, limits);
}

bool matmul_has_skinny_bf16(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    const struct matmul_matrix *up = &p->b_up;
    bool is_up_alike =
        up->data == NULL ||
        (matmul_has_columns(p) ? up->col != 1 || (p->n == 1 && up->row == 1) : up->col == 1);
    return p->a.dtype == TSR_BF16 && limits->bf16.has_dot && p->a.col == 1 && is_up_alike &&
           matmul_is_skinny(problem, limits);
}

bool matmul_has_amx_bf16(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->a.dtype == TSR_BF16 && tsri_can_use_tiles(limits->bf16);
}

bool matmul_has_avx512_bf16(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->a.dtype == TSR_BF16 && limits->bf16.has_dot;
}
