// SPDX-License-Identifier: Apache-2.0
// Grouped matmul between its rooms: one group's product, and the blocks of all groups numbered through.
#ifndef TSRI_MATMUL_GROUPS_H
#define TSRI_MATMUL_GROUPS_H

#include "ops/matmul/matmul_problem.h"

// matmul_grouped_cpu.c
// The product of one group: a problem without groups.
struct matmul_problem matmul_of_group(const struct matmul_problem *p, int64_t group);
// The problem by which blocks are planned: equal groups, in panels that each task packs for itself.
struct matmul_problem matmul_equal_groups(const struct matmul_problem *p);

// Blocks of c of all groups; those of a group follow each other, rows inside, columns outside.
struct matmul_group_blocks {
    const struct tsri_plan *plan;
    int64_t *first_row; // of blocks, of each group and behind the last: num_groups + 1
    int64_t num_groups, cols, num_blocks;
    const struct tsri_limits *limits; // NULL: few rows are as others
    float *few;                       // for groups of few rows, few_floats for each thread
    int64_t few_floats;
    bool is_far; // of b of all groups
};
// memory: the call's workspace, of which the rest is given back.
struct matmul_group_blocks matmul_group_blocks(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               const struct tsri_limits *limits, void *memory,
                                               float **rest);
struct matmul_group_block {
    int64_t group, row, col;
};
struct matmul_group_block matmul_group_block(const struct matmul_group_blocks *blocks,
                                             int64_t index);
// A block of a group of so few rows that b is read as it is, once, rather than packed: true where it was one. By units of bf16:
// who asks has them.
bool matmul_group_is_done_as_few(const struct matmul_group_blocks *blocks,
                                 const struct matmul_problem *one, struct matmul_group_block at,
                                 bool has_units, int thread);

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

// matmul_grouped_cuda.c
bool matmul_grouped_fma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_grouped_mma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_grouped_wgmma_serves(const void *problem, const struct tsri_limits *limits);
const char *matmul_grouped_cuda_prefer(const struct matmul_problem *p,
                                       const struct tsri_limits *limits);
void matmul_grouped_plan_wgmma(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_grouped_wgmma_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_grouped_wgmma_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_grouped_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);
bool matmul_grouped_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

#endif
