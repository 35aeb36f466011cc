// SPDX-License-Identifier: Apache-2.0
// Which operand an item of the work of matmul_lines_params is about. 32 bits hold its number: 64-bit divisions would take longer
// than a line.
#ifndef TSRI_MATMUL_LINES_CUH
#define TSRI_MATMUL_LINES_CUH

#include "ops/matmul/cuda/matmul_lines_params.h"
#include "ops/matmul/cuda/matmul_tiles.cuh"

// item: on return, counted from the operand's first.
DEVICE const struct matmul_lines *find_lines(const struct matmul_lines_params *p, unsigned *item) {
    const int which = (*item >= p->end[0]) + (*item >= p->end[1]);
    if (which > 0) *item -= p->end[which - 1];
    return &p->operands[which];
}

#endif
