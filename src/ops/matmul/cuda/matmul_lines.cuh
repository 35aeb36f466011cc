// SPDX-License-Identifier: Apache-2.0
// Finds the operand of a work item of matmul_lines_params. 32 bits hold the item's number, because 64-bit divisions
// would take longer than copying a line.
#ifndef TSRI_MATMUL_LINES_CUH
#define TSRI_MATMUL_LINES_CUH

#include "ops/matmul/cuda/matmul_lines_params.h"
#include "ops/matmul/cuda/matmul_tiles.cuh"

// item: on return, relative to the operand's first item.
DEVICE const struct matmul_lines *find_lines(const struct matmul_lines_params *p, unsigned *item) {
    const int which = (*item >= p->end[0]) + (*item >= p->end[1]);
    if (which > 0) *item -= p->end[which - 1];
    return &p->operands[which];
}

#endif
