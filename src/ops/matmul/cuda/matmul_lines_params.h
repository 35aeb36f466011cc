// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul_lines32.cu and matmul_planes.cu, passed by value. Both compilers read this file: no headers,
// no typedefs.
#ifndef TSRI_MATMUL_LINES_PARAMS_H
#define TSRI_MATMUL_LINES_PARAMS_H

#include "ops/matmul/matmul_params.h"

// For planes: each plane of a matrix has `filled_lines` lines, which are 0 beyond the source's; plane: elements between
// planes. is_vector: lines of the source start at multiples of 16 bytes.
struct matmul_lines {
    struct matmul_copy_params copy;
    long long filled_lines, plane;
    int is_vector;
};

// Operands that are copied in one launch. Work items are numbered through all operands; the items of each end before
// `end`.
enum { MATMUL_LINES_OPERANDS = 3 };
struct matmul_lines_params {
    struct matmul_lines operands[MATMUL_LINES_OPERANDS];
    unsigned end[MATMUL_LINES_OPERANDS];
};

#endif
