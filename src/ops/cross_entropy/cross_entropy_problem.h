// SPDX-License-Identifier: Apache-2.0
// Shared by the files of cross-entropy: the problem that the entries make, and the kernels of one ISA.
#ifndef TSRI_CROSS_ENTROPY_PROBLEM_H
#define TSRI_CROSS_ENTROPY_PROBLEM_H

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"

struct cross_entropy_problem {
    struct tsri_rows logits;  // (rows, vocab)
    struct tsri_rows dlogits; // backward
    struct tsri_indices targets;
    void *loss;  // forward (rows), f32; f64 with f64 logits, as are the next two
    void *lse;   // forward: output, may be NULL; backward: input
    void *dloss; // backward
    int32_t ignore_index;
    double label_smoothing;
};

static inline bool cross_entropy_is_ignored(const struct cross_entropy_problem *p, int64_t row) {
    return tsri_index_at(&p->targets, row) == p->ignore_index;
}

// Rows [first, last) of one pass. scratch: (rows, vocab) floats of the unfused variants.
typedef void cross_entropy_kernel(const struct cross_entropy_problem *problem, int64_t first,
                                  int64_t last, float *scratch, bool is_streaming);

struct cross_entropy_kernels {
    cross_entropy_kernel *fused, *fused_backward;
};
TSRI_DECLARE_KERNELS(cross_entropy)

struct cross_entropy_unfused_kernels {
    cross_entropy_kernel *exp_pass, *log_pass, *pick_pass; // unfused forward
    cross_entropy_kernel *target_pass, *subtract_pass;     // unfused backward
};
TSRI_DECLARE_KERNELS(cross_entropy_unfused)

// cross_entropy_cpu.c
tsr_status cross_entropy_fused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status cross_entropy_unfused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status cross_entropy_fused_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                            void *);
tsr_status cross_entropy_unfused_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                              void *);

// cross_entropy_cuda.c
bool cross_entropy_cuda_fits(const void *, const struct tsri_limits *);
void cross_entropy_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void cross_entropy_cuda_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status cross_entropy_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status cross_entropy_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool cross_entropy_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
tsr_status cross_entropy_cuda_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                           void *);
tsr_status cross_entropy_cuda_backward_prepare(tsr_context *, const void *,
                                               const struct tsri_plan *);
bool cross_entropy_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// cross_entropy_ref.c
tsr_status cross_entropy_reference_run(tsr_context *, const void *, const struct tsri_plan *,
                                       void *);
tsr_status cross_entropy_reference_backward_run(tsr_context *, const void *,
                                                const struct tsri_plan *, void *);

#endif
