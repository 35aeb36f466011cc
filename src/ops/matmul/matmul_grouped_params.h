// SPDX-License-Identifier: Apache-2.0
// What matmul_grouped_sm90.cu gets, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_MATMUL_GROUPED_PARAMS_H
#define TSRI_MATMUL_GROUPED_PARAMS_H

#include "ops/matmul/cuda/matmul_wgmma_params.h"

// Of matmul: the matrices of c, the epilogue, groups, m, n, k, num_batches, tiles_n, group_m; tiles_m where groups cut k. Maps
// have the dimensions (along a line, lines, groups); where all groups' rows are those of one matrix, it has size 1 there.
struct matmul_grouped_params {
    struct tensor_map a, b, b_up, c;
    struct matmul_params matmul;
    float *sums;        // of parts of k: BLOCK_M * BLOCK_N of each block; 0 where there is one part
    int blocks_of_part; // blocks of k whose sum is one of the tensor cores
    int has_c_map;      // c is stored by the copy engine, but for the rows of a group's end
    int is_plain;       // c takes products times alpha, in 16 bits
};

#endif
