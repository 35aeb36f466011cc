// SPDX-License-Identifier: Apache-2.0
// Shared by the files of grouped matmul: one group's product, and the numbered blocks of all groups.
#ifndef TSRI_MATMUL_GROUPS_H
#define TSRI_MATMUL_GROUPS_H

#include "ops/matmul/matmul_problem.h"

// matmul_grouped_cpu.c
// The product of one group, as a problem without groups.
struct matmul_problem matmul_of_group(const struct matmul_problem *p, int64_t group);
// The problem for planning blocks: equal groups, with panels that each task packs itself.
struct matmul_problem matmul_equal_groups(const struct matmul_problem *p);

// Blocks of c of all groups. A group's blocks are consecutive, rows inside, columns outside.
struct matmul_group_blocks {
    const struct tsri_plan *plan;
    int64_t *first_row; // first block number of each group and after the last: num_groups + 1
    int64_t num_groups, cols, num_blocks;
    const struct tsri_limits *limits; // NULL: groups of few rows are not special
    float *few;                       // for groups of few rows: few_floats per thread
    int64_t few_floats;
    bool is_far;       // whether b, of all groups, is far (matmul_is_far)
    bool is_streaming; // whether gradients of empty groups bypass the caches
};
// memory: the call's workspace; the unused rest is returned.
struct matmul_group_blocks matmul_group_blocks(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               const struct tsri_limits *limits, void *memory,
                                               float **rest);
struct matmul_group_block {
    int64_t group, row, col;
};
struct matmul_group_block matmul_group_block(const struct matmul_group_blocks *blocks,
                                             int64_t index);
// Computes the block and returns true if its group has so few rows that b is read once, in place, instead of packed, or, where
// groups cut k, that their products are added without packing.
// has_units: bf16 units may be used; the caller has them.
bool matmul_group_is_done_as_few(const struct matmul_group_blocks *blocks,
                                 const struct matmul_problem *one, struct matmul_group_block at,
                                 bool has_units, int thread);

// matmul_lists.c: rows that come by a list. Copies elements [at, at + width) of a list's lines [first, first + count), which
// are `line` elements apart in t, to lines that are to_stride elements apart.
void matmul_gather(const struct matmul_matrix *t, int64_t line, const struct matmul_list *list,
                   int64_t first, int64_t count, int64_t at, int64_t width, void *to,
                   int64_t to_stride);
// Floats per thread in which "naive" puts what lists name; copies of rows of b have at most so many columns.
enum { MATMUL_NAIVE_COLS = 64 };
int64_t matmul_naive_floats(const struct matmul_problem *p);
// What gemm->pack_a and pack_b make of rows [row, row + m) of a, and of columns [col, col + n <= nr) of b, for steps [step,
// step + depth). p is one group's product, and the operand has a list.
struct gemm_kernels;
void matmul_pack_listed_a(const struct gemm_kernels *gemm, const struct matmul_problem *p,
                          int64_t row, int64_t m, int64_t step, int64_t depth, float *panels);
void matmul_pack_listed_b(const struct gemm_kernels *gemm, const struct matmul_problem *p,
                          int64_t step, int64_t depth, int64_t col, int64_t n, float *panel);
// The same for bf16 units, with m <= 32; width as in pack_rows.
struct gemm_bf16_kernels;
void matmul_pack_listed_strip(const struct gemm_bf16_kernels *gemm, const struct matmul_problem *p,
                              int64_t row, int64_t m, int64_t step, int64_t depth, uint16_t *to,
                              int64_t to_stride);
void matmul_pack_listed_panel(const struct gemm_bf16_kernels *gemm, const struct matmul_problem *p,
                              int64_t step, int64_t depth, int64_t col, int64_t n, int64_t width,
                              uint16_t *panel);

void matmul_grouped_plan_tiled(const void *, const struct tsri_limits *, struct tsri_plan *);
void matmul_grouped_plan_mixed(const void *, const struct tsri_limits *, struct tsri_plan *);
void matmul_grouped_plan_naive(const void *, const struct tsri_limits *, struct tsri_plan *);
const char *matmul_grouped_prefer(const void *problem, const struct tsri_limits *limits);
tsr_status matmul_grouped_reference_run(tsr_context *, const void *, const struct tsri_plan *,
                                        void *);

// matmul_cpu.c, matmul_mixed.c, matmul_rows_cpu.c
tsr_status matmul_grouped_tiled_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_grouped_amx_bf16_run(tsr_context *, const void *, const struct tsri_plan *,
                                       void *);
tsr_status matmul_grouped_avx512_bf16_run(tsr_context *, const void *, const struct tsri_plan *,
                                          void *);
tsr_status matmul_grouped_naive_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// Under TSR_BATCH_INVARIANT: whether rows of a would be aligned if there were more than one, for the choice must not depend on
// their number.
static inline bool matmul_grouped_is_aligned(const struct matmul_problem *p,
                                             const struct tsri_limits *limits) {
    const int64_t bytes = (int64_t)tsr_dtype_bytes(p->a.dtype);
    if ((limits->flags & TSR_BATCH_INVARIANT) == 0 || p->groups.are_depths) return true;
    return p->a.row * bytes % 16 == 0;
}

// matmul_grouped_cuda.c
bool matmul_grouped_fma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_grouped_mma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_grouped_wgmma_serves(const void *problem, const struct tsri_limits *limits);
const char *matmul_grouped_cuda_prefer(const struct matmul_problem *p,
                                       const struct tsri_limits *limits);
void matmul_grouped_plan_wgmma(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_grouped_wgmma_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_grouped_wgmma_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_grouped_fp8.c
bool matmul_grouped_fp8_serves(const void *problem, const struct tsri_limits *limits);
void matmul_grouped_plan_fp8(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_grouped_fp8_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_grouped_fp8_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_grouped_fp8_kernel(int index, struct tsri_cuda_program *program);

// matmul_grouped_skinny.c
bool matmul_grouped_skinny_serves(const void *problem, const struct tsri_limits *limits);
void matmul_grouped_plan_skinny(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_grouped_skinny_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_grouped_skinny_run(tsr_context *, const void *, const struct tsri_plan *, void *);
enum { MATMUL_SKINNY_KERNELS = 2 };
bool matmul_grouped_skinny_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

bool matmul_grouped_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);
bool matmul_grouped_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

#endif
