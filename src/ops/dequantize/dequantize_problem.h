// SPDX-License-Identifier: Apache-2.0
// Shared by the files of dequantize: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_DEQUANTIZE_PROBLEM_H
#define TSRI_DEQUANTIZE_PROBLEM_H

#include "context/elements.h"
#include "core/core_index.h"
#include "core/core_quant.h"
#include "cpu/cpu_isa.h"

struct dequantize_problem {
    struct tsri_rows x;                    // (num_x_rows, bytes)
    struct tsri_rows scale, zero, minimum; // (num_x_rows, groups); without a dtype where absent
    struct tsri_rows y;                    // (rows, cols)
    struct tsri_indices x_rows;            // (rows); without has_list row i is i
    tsr_quant_format format;
    int64_t group; // columns of a scale, at least 1
    bool has_list;
};

// The row of x that y's row comes from; -1: zeros.
static inline int64_t dequantize_source(const struct dequantize_problem *p, int64_t row) {
    return p->has_list ? tsri_index_at(&p->x_rows, row) : row;
}

// What lies beside a row's numbers of one group.
static inline struct tsri_quant_scales dequantize_scales(const struct dequantize_problem *p,
                                                         int64_t source, int64_t group) {
    struct tsri_quant_scales s = {.has_zero = tsri_dtype_bytes(p->zero.dtype) != 0,
                                  .has_minimum = tsri_dtype_bytes(p->minimum.dtype) != 0};
    if (p->format == TSR_QUANT_MXFP4)
        s.power = ((const uint8_t *)tsri_row(&p->scale, source))[group];
    else if (tsri_quant_block(p->format).has_scales)
        s.scale = (float)tsri_load(p->scale.dtype, tsri_row(&p->scale, source), group);
    if (s.has_zero) s.zero = (float)tsri_load(p->zero.dtype, tsri_row(&p->zero, source), group);
    if (s.has_minimum)
        s.minimum = (float)tsri_load(p->minimum.dtype, tsri_row(&p->minimum, source), group);
    return s;
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
