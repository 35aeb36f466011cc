// SPDX-License-Identifier: Apache-2.0
// Shared by the files of moe_combine: the problem that the entries make, and the kernels of one ISA.
#ifndef TSRI_MOE_COMBINE_PROBLEM_H
#define TSRI_MOE_COMBINE_PROBLEM_H

#include <math.h>
#include <tessera/moe_permute.h>

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"

// Forward: y, backward: dy. Absent tensors have no dtype and NULL data; backward has no residual, forward no gradients.
struct moe_combine_problem {
    struct tsri_rows rows;                  // (num_rows, hidden)
    struct tsri_rows token_rows, weights;   // (tokens, top_k)
    struct tsri_rows shared, residual, y;   // (tokens, hidden)
    struct tsri_rows shared_gate;           // (tokens, 1)
    struct tsri_rows drows, dweights;       // as rows, weights
    struct tsri_rows dshared, dshared_gate; // as shared, shared_gate
    int64_t num_rows, top_k;
};

static inline bool moe_is_given(const struct tsri_rows *t) { return t->dtype != TSR_DTYPE_NONE; }

// Whether backward reads token_rows.
static inline bool moe_has_row_gradients(const struct moe_combine_problem *p) {
    return moe_is_given(&p->drows) || moe_is_given(&p->dweights);
}

// 1 / (1 + e^-x), and its derivative in *slope.
static inline double moe_sigmoid_of(double x, double *slope) {
    const double e = exp(-fabs(x)), below = e / (1 + e); // of -|x|
    *slope = e / ((1 + e) * (1 + e));
    return x < 0 ? below : 1 - below;
}

// Tokens [first, last).
typedef void moe_combine_forward_kernel(const struct moe_combine_problem *problem, int64_t first,
                                        int64_t last, bool is_streaming);
// owners[row] is the assignment t top_k + k that writes the row's gradient; NULL: every assignment does.
typedef void moe_combine_backward_kernel(const struct moe_combine_problem *problem, int64_t first,
                                         int64_t last, const int64_t *owners, bool is_streaming);

struct moe_combine_kernels {
    moe_combine_forward_kernel *forward;
    moe_combine_backward_kernel *backward;
};
TSRI_DECLARE_KERNELS(moe_combine)

// moe_combine_cpu.c
void moe_combine_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void moe_combine_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_combine_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_combine_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// moe_combine_cuda.c
bool moe_combine_cuda_fits(const void *, const struct tsri_limits *);
void moe_combine_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void moe_combine_cuda_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_combine_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_combine_cuda_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                         void *);
tsr_status moe_combine_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status moe_combine_cuda_backward_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool moe_combine_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool moe_combine_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// moe_combine_ref.c
tsr_status moe_combine_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_combine_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                              void *);

#endif
