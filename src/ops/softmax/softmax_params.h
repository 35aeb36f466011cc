// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of softmax get, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_SOFTMAX_PARAMS_H
#define TSRI_SOFTMAX_PARAMS_H

// in: x, or y and dy; out: y, or dx. Element (r, c) is at r stride + c.
struct softmax_params {
    const void *in[2];
    void *out;
    long long in_stride[2], out_stride, rows;
    int cols;
    int is_aligned; // addresses, row strides and cols are multiples of 16 bytes
};

#endif
