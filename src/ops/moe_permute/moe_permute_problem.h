// SPDX-License-Identifier: Apache-2.0
// Shared by the files of moe_permute: the problem that the entry makes.
#ifndef TSRI_MOE_PERMUTE_PROBLEM_H
#define TSRI_MOE_PERMUTE_PROBLEM_H

#include <tessera/moe_permute.h>

#include "context/op_table.h"
#include "core/core_index.h"

// What token_rows says of an assignment without a row.
enum { MOE_NO_ROW = -1, MOE_BAD_ID = -2 };

// Absent tensors are NULL. Weights are f32 or f64.
struct moe_permute_problem {
    struct tsri_rows ids;                 // (tokens, top_k)
    struct tsri_rows weights, token_rows; // the same; weights are NULL without row_weights
    int32_t *offsets;                     // (num_experts + 1)
    int32_t *row_tokens;                  // (num_rows)
    void *row_weights;                    // (num_rows)
    int32_t *tokens_per_expert;           // (num_experts)
    int32_t *num_dropped;
    int64_t num_experts, num_rows;
    int64_t capacity; // INT32_MAX without one
    tsr_dtype weights_dtype;
};

static inline int64_t moe_num_assignments(const struct moe_permute_problem *p) {
    return p->ids.rows * p->ids.cols;
}

// moe_permute_cpu.c
void moe_permute_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_permute_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// moe_permute_cuda.c
void moe_permute_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_permute_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_permute_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool moe_permute_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// moe_permute_ref.c
void moe_permute_reference_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_permute_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
