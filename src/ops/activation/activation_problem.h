// SPDX-License-Identifier: Apache-2.0
// Shared by the files of activation: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_ACTIVATION_PROBLEM_H
#define TSRI_ACTIVATION_PROBLEM_H

#include <tessera/activation.h>

#include "context/elements.h"
#include "cpu/cpu_isa.h"

// Forward: y = act(x) (up). Backward: y is dx. All views are (rows, cols) and have one dtype; contiguous ones are one
// row, unless the call is weighted. up and dup have no dtype unless the call is gated, dy has none in forward; an absent
// tensor has none.
struct activation_problem {
    struct tsri_rows x, up, dy, y, dup, weighted_y;
    struct tsri_rows row_weights, drow_weights; // (rows, 1), f32 or f64
    tsr_activation kind;
    bool is_gated, is_in_place; // is_in_place: an output is an input
    bool is_weighted;           // backward with row_weights, weighted_y or drow_weights
};

// One piece of one pass. scratch: (rows, cols) floats of the unfused passes; act(x) in forward, act'(x) and then act(x)
// in backward.
typedef void activation_kernel(const struct activation_problem *problem,
                               const struct tsri_piece *piece, float *scratch, bool is_streaming);

struct activation_kernels {
    activation_kernel *forward, *backward;                               // fused
    activation_kernel *weighted;                                         // of whole rows
    activation_kernel *act_pass, *multiply_pass, *round_pass;            // unfused forward
    activation_kernel *grad_pass, *chain_pass, *round_dx_pass;           // unfused backward: dx
    activation_kernel *act_second_pass, *chain_up_pass, *round_dup_pass; // and dup
};
TSRI_DECLARE_KERNELS(activation)

// activation_cpu.c
tsr_status activation_forward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status activation_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status activation_unfused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status activation_unfused_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                           void *);

// activation_cuda.c
tsr_status activation_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status activation_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool activation_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool activation_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// activation_ref.c
tsr_status activation_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status activation_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                             void *);

#endif
