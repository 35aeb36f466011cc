// SPDX-License-Identifier: Apache-2.0
// Shared by the files of AdamW: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_ADAMW_PROBLEM_H
#define TSRI_ADAMW_PROBLEM_H

#include <tessera/adamw.h>

#include "context/elements.h"
#include "cpu/cpu_isa.h"

// All views are (rows, cols), or one row if all are contiguous; an absent master has no dtype.
//   m = beta1 m + rest1 g, v = beta2 v + rest2 g^2, g = grad grad_scale,
//   p = p - (rate m / (sqrt(v) root_factor + eps) + decay p)
struct adamw_problem {
    struct tsri_rows param, grad, m, v, master;
    bool has_master;
    double grad_scale, beta1, rest1, beta2, rest2, rate, root_factor, eps, decay;
};

// One piece of one pass. scratch: two (rows, cols) arrays of floats for the unfused passes.
typedef void adamw_kernel(const struct adamw_problem *problem, const struct tsri_piece *piece,
                          float *scratch, bool is_streaming);

struct adamw_kernels {
    adamw_kernel *step; // fused
    adamw_kernel *scale_pass, *m_pass, *v_pass, *root_pass, *quotient_pass, *update_pass;
};
TSRI_DECLARE_KERNELS(adamw)

// adamw_cuda.c
tsr_status adamw_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status adamw_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool adamw_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// adamw_ref.c
tsr_status adamw_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
