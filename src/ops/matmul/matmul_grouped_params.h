// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul_grouped_sm90.cu, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_MATMUL_GROUPED_PARAMS_H
#define TSRI_MATMUL_GROUPED_PARAMS_H

#include "ops/matmul/cuda/matmul_wgmma_params.h"

// Used fields of matmul: the matrices of c, the epilogue, groups, m, n, k, num_batches, tiles_n, group_m; tiles_m if
// groups cut k; data and line of an operand whose rows come by a list, which has no map. Maps have the dimensions (along a
// line, lines, groups); if all groups' rows are in one matrix, the last size is 1.
struct matmul_grouped_params {
    struct tensor_map a, b, b_up, c;
    struct tensor_map cut_a, cut_b; // if groups cut k: boxes of 16 lines
    struct matmul_params matmul;
    float *sums;        // of parts of k: BLOCK_M * BLOCK_N per block; 0 with one part
    int blocks_of_part; // blocks of k that tensor cores sum in one part
    int has_c_map;      // the copy engine stores c, except for the rows at a group's end
    int is_plain;       // c is the products times alpha, in 16 bits
    int stages; // of the ring: STAGES, or 3, which leaves room for twice the tiles on their way to c
};

#endif
