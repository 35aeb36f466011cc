// SPDX-License-Identifier: Apache-2.0
// The parameters of softmax's CUDA kernels, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_SOFTMAX_PARAMS_H
#define TSRI_SOFTMAX_PARAMS_H

// in: x, or y and dy; out: y or dx. Element (r, c) is at r * stride + c.
struct softmax_params {
    const void *in[2];
    void *out;
    long long in_stride[2], out_stride, rows;
    long long early_rows; // first rows of blocks that start early: prefetched while the blocks wait
    int cols;
    int is_aligned;  // addresses, row strides and cols are multiples of 16 bytes
    int chunk;       // columns of a row in shared memory at once (cuda/device/staged_rows.cuh)
    int stage_bytes; // of one tensor's chunk there
    // For the unfused passes: (rows, cols) and (rows) floats, the pass, and the tensors' dtype.
    float *scratch, *of_rows;
    int pass, dtype;
};

#define SOFTMAX_PASS_MAX 0 // forward
#define SOFTMAX_PASS_EXP_SUM 1
#define SOFTMAX_PASS_DIVIDE 2
#define SOFTMAX_PASS_PRODUCT 3 // backward
#define SOFTMAX_PASS_SUM 4
#define SOFTMAX_PASS_COMBINE 5

#endif
