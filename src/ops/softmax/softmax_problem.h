// SPDX-License-Identifier: Apache-2.0
// Shared by the files of softmax: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_SOFTMAX_PROBLEM_H
#define TSRI_SOFTMAX_PROBLEM_H

#include "context/op_table.h"
#include "cpu/cpu_isa.h"

// Forward: in[0] = x, out = y. Backward: in[0] = y, in[1] = dy, out = dx. All are (rows, cols) of one dtype.
struct softmax_problem {
    struct tsri_rows in[2];
    struct tsri_rows out;
};

// How a pass accesses memory: through the caches; with non-temporal stores; with those and far prefetches.
enum softmax_memory { SOFTMAX_CACHED, SOFTMAX_STREAMED, SOFTMAX_FETCHED };

// Rows [first, last) of one pass. scratch: for fused kernels the thread's own floats (cols, rounded up to 32), for
// unfused ones the call's (rows, cols) floats, then (rows).
typedef void softmax_kernel(const struct softmax_problem *problem, int64_t first, int64_t last,
                            float *scratch, enum softmax_memory memory);

struct softmax_kernels {
    softmax_kernel *fused, *online, *fused_backward;
};
TSRI_DECLARE_KERNELS(softmax)

struct softmax_unfused_kernels {
    softmax_kernel *max_pass, *exp_sum_pass, *divide_pass;  // unfused forward
    softmax_kernel *product_pass, *sum_pass, *combine_pass; // unfused backward
};
TSRI_DECLARE_KERNELS(softmax_unfused)

// softmax_cpu.c
tsr_status softmax_fused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status softmax_online_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status softmax_unfused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status softmax_fused_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                      void *);
tsr_status softmax_unfused_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                        void *);

// softmax_cuda.c
bool softmax_cuda_fits(const void *, const struct tsri_limits *);
bool softmax_cuda_serves(const void *, const struct tsri_limits *);
void softmax_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void softmax_cuda_plan_stages(const void *, const struct tsri_limits *, struct tsri_plan *);
const char *softmax_cuda_prefer(const struct softmax_problem *, const struct tsri_limits *);
tsr_status softmax_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status softmax_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
void softmax_cuda_plan_unfused(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status softmax_cuda_prepare_unfused(tsr_context *, const void *, const struct tsri_plan *);
tsr_status softmax_cuda_run_unfused(tsr_context *, const void *, const struct tsri_plan *, void *);
bool softmax_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool softmax_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// softmax_ref.c
tsr_status softmax_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status softmax_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                          void *);

#endif
