// SPDX-License-Identifier: Apache-2.0
// Shared by the files of dequantize: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_DEQUANTIZE_PROBLEM_H
#define TSRI_DEQUANTIZE_PROBLEM_H

#include "context/elements.h"
#include "core/core_index.h"
#include "core/core_quant.h"
#include "cpu/cpu_isa.h"

struct dequantize_problem {
    struct tsri_quant_rows x;   // (num_x_rows, bytes), scales (num_x_rows, groups)
    struct tsri_rows y;         // (rows, cols)
    struct tsri_indices x_rows; // (rows); without has_list row i is i
    bool has_list;
};

// The row of x that y's row comes from; -1: zeros.
static inline int64_t dequantize_source(const struct dequantize_problem *p, int64_t row) {
    return p->has_list ? tsri_index_at(&p->x_rows, row) : row;
}

// A piece begins at a multiple of 256 columns.
struct dequantize_kernels {
    void (*dequantize)(const struct dequantize_problem *problem, const struct tsri_piece *piece);
};
TSRI_DECLARE_KERNELS(dequantize)

// dequantize_cuda.c
tsr_status dequantize_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status dequantize_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool dequantize_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// dequantize_ref.c
tsr_status dequantize_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
