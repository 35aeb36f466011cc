// SPDX-License-Identifier: Apache-2.0
// What matmul_lines32.cu and matmul_planes.cu get, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_MATMUL_LINES_PARAMS_H
#define TSRI_MATMUL_LINES_PARAMS_H

#include "ops/matmul/matmul_params.h"

// Of planes, a matrix has `filled_lines` lines in each, which are 0 beyond what the source has; plane: elements from one to the
// next. is_vector: lines of the source start at multiples of 16 bytes.
struct matmul_lines {
    struct matmul_copy_params copy;
    long long filled_lines, plane;
    int is_vector;
};

// Operands whose copies are made at once. The work on one after the other is counted: each ends before the item in `end`.
enum { MATMUL_LINES_OPERANDS = 3 };
struct matmul_lines_params {
    struct matmul_lines operands[MATMUL_LINES_OPERANDS];
    unsigned end[MATMUL_LINES_OPERANDS];
};

#endif
