// SPDX-License-Identifier: Apache-2.0
// Shared by the files of cast: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_CAST_PROBLEM_H
#define TSRI_CAST_PROBLEM_H

#include <tessera/cast.h>

#include "context/elements.h"
#include "cpu/cpu_isa.h"

// x and y are (rows, cols), or one row if both are contiguous. is_copy: same dtype, no scale.
struct cast_problem {
    struct tsri_rows x, y;
    float scale; // 1 if the call has none
    bool has_scale, is_copy, is_in_place;
};

struct cast_kernels {
    void (*cast)(const struct cast_problem *problem, const struct tsri_piece *piece,
                 bool is_streaming);
};
TSRI_DECLARE_KERNELS(cast)

// cast_cuda.c
tsr_status cast_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status cast_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool cast_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// cast_ref.c
tsr_status cast_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
