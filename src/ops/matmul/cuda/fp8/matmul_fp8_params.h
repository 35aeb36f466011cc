// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul_fp8_sm90.cu and matmul_lines8.cu, passed by value. Both compilers read this file: no
// headers, no typedefs.
#ifndef TSRI_MATMUL_FP8_PARAMS_H
#define TSRI_MATMUL_FP8_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/matmul/matmul_params.h"

// Used fields of matmul: the matrices of c and residual, the epilogue, m, n, k, batch, group_m, scales; tiles_m counts
// rows of tiles of a whole cluster. Maps have the dimensions (along k, lines, batch[2], batch[1], batch[0]). If all
// matrices of a batch dimension are one, its size is 1 and *_batch is 0.
struct matmul_fp8_params {
    struct tensor_map a, b, b_up, c;
    struct tensor_map a_last; // as in matmul_wgmma_params.h
    int last_rows;
    struct matmul_params matmul;
    unsigned num_tiles;
    int a_batch[3], b_batch[3], b_up_batch[3]; // 1 or 0
    int has_c_map; // the copy engine stores c: products times a factor, and a bias
};

#endif
