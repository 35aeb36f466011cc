// SPDX-License-Identifier: Apache-2.0
// Shared by the files of quantize: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_QUANTIZE_PROBLEM_H
#define TSRI_QUANTIZE_PROBLEM_H

#include <tessera/quantize.h>

#include "context/elements.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"
#include "ops/quantize/quantize_params.h"

struct quantize_problem {
    struct tsri_rows x, up;     // (num_x_rows, cols); up has no dtype in a call without a gate
    struct tsri_rows y;         // (rows, cols)
    struct tsri_rows y_scale;   // (rows, blocks of QUANTIZE_BLOCK columns)
    struct tsri_indices x_rows; // (rows); without has_list row i is i
    tsr_activation kind;
    bool is_gated, has_list;
};

// The row of x that y's row comes from; -1: zeros.
static inline int64_t quantize_source(const struct quantize_problem *p, int64_t row) {
    return p->has_list ? tsri_index_at(&p->x_rows, row) : row;
}

static inline float quantize_largest(tsr_dtype dtype) { return dtype == TSR_E5M2 ? 57344 : 448; }

// A piece begins at a multiple of QUANTIZE_BLOCK columns.
struct quantize_kernels {
    void (*quantize)(const struct quantize_problem *problem, const struct tsri_piece *piece);
};
TSRI_DECLARE_KERNELS(quantize)

// quantize_cuda.c
tsr_status quantize_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status quantize_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool quantize_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// quantize_ref.c
tsr_status quantize_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
