// SPDX-License-Identifier: Apache-2.0
// Shared by the files of moe_bias: the problem that the entry makes, the parts of an expert's rows, the kernels of one ISA.
#ifndef TSRI_MOE_BIAS_PROBLEM_H
#define TSRI_MOE_BIAS_PROBLEM_H

#include <tessera/moe_permute.h>

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"
#include "ops/moe_bias/moe_bias_params.h"

struct moe_bias_problem {
    struct tsri_rows rows;          // (num_source_rows, cols)
    struct tsri_rows dbias;         // (num_experts, cols)
    struct tsri_rows row_weights;   // (num_rows, 1); no dtype: absent
    struct tsri_indices row_tokens; // (num_rows); without has_tokens row r is r
    struct tsri_indices offsets;    // (num_experts + 1)
    int64_t num_rows;
    bool has_tokens;
};

static inline int64_t moe_bias_source(const struct moe_bias_problem *p, int64_t row) {
    return p->has_tokens ? tsri_index_at(&p->row_tokens, row) : row;
}

// ---- Parts: MOE_BIAS_PART rows of an expert, its last one fewer; an expert without rows has one of 0 rows ----------
// Expert e's part c is number offsets[e] / MOE_BIAS_PART + e + c. An expert's numbers follow those of the expert before it, some
// belong to no part. Sums of an expert with several parts go to places 2 offsets[e] / MOE_BIAS_PART + c of a workspace: it has
// more than MOE_BIAS_PART rows, so they do not reach the next such expert's.

static inline int64_t moe_bias_num_parts(const struct moe_bias_problem *p) {
    return p->dbias.rows == 0 ? 0 : p->num_rows / MOE_BIAS_PART + p->dbias.rows;
}
static inline int64_t moe_bias_num_places(const struct moe_bias_problem *p) {
    return p->num_rows <= MOE_BIAS_PART ? 0 : 2 * p->num_rows / MOE_BIAS_PART + 1;
}

// ---- CPU kernels ------------------------------------------------------------------------------

enum { MOE_BIAS_COLS = 2048 }; // columns of a task at most

// Columns [col, col + num_cols) of sums over rows [first, last), to `sums` or, where that is NULL, to the expert's gradient.
struct moe_bias_piece {
    int64_t expert, first, last, col, num_cols;
    float *sums;
};
typedef void moe_bias_sum_kernel(const struct moe_bias_problem *problem,
                                 const struct moe_bias_piece *piece);
// The same columns of an expert's gradient from its parts' sums, rows of dbias.cols at `sums`.
typedef void moe_bias_merge_kernel(const struct moe_bias_problem *problem,
                                   const struct moe_bias_piece *piece, int64_t num_parts);

struct moe_bias_kernels {
    moe_bias_sum_kernel *sum;
    moe_bias_merge_kernel *merge;
};
TSRI_DECLARE_KERNELS(moe_bias)

// moe_bias_cpu.c
void moe_bias_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_bias_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// moe_bias_ref.c
tsr_status moe_bias_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
